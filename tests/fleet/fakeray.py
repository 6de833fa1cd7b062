"""Ray's small interface that a fleet uses, with threads for processes."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future
from types import SimpleNamespace
from typing import Any

__all__ = ["FakeRay"]


class RayError(Exception):
    """The base of what Ray raises."""


class RayTaskError(RayError):
    """A call raised something."""


class ActorDiedError(RayError):
    """The actor is gone."""


class TaskCancelledError(RayError):
    """The call was cancelled."""


class _Reference:
    def __init__(self, inner: Future[Any] | None) -> None:
        self.inner = inner
        self.outer: Future[Any] = Future()
        if inner is None:
            self.outer.set_exception(ActorDiedError("the actor is dead"))
        else:
            inner.add_done_callback(self._done)

    def _done(self, inner: Future[Any]) -> None:
        if self.outer.done():
            return
        try:
            result = inner.result()
        except CancelledError:
            self.outer.set_exception(TaskCancelledError("cancelled"))
        except BaseException as error:  # noqa: BLE001 - as Ray wraps it
            self.outer.set_exception(RayTaskError(f"{type(error).__name__}: {error}"))
        else:
            self.outer.set_result(result)

    def die(self) -> None:
        if not self.outer.done():
            self.outer.set_exception(ActorDiedError("it was killed"))

    def future(self) -> Future[Any]:
        return self.outer


class _Actor:
    """An object whose calls run on a loop in a thread of its own."""

    def __init__(self, kind: Callable[[], Any]) -> None:
        self.loop = asyncio.new_event_loop()
        self.is_dead = False
        self.references: list[_Reference] = []
        self.calls: list[str] = []
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()
        self.inner = self._submit(_made(kind)).result(10)

    def _submit(self, work: Coroutine[Any, Any, Any]) -> Future[Any]:
        """In a context of its own: it knows nothing of the caller's loop."""
        run = contextvars.Context().run
        return run(asyncio.run_coroutine_threadsafe, work, self.loop)

    def __getattr__(self, name: str) -> Any:
        return SimpleNamespace(remote=lambda *args: self._call(name, args))

    def _call(self, name: str, args: tuple[Any, ...]) -> _Reference:
        given = [one.value if isinstance(one, _Stored) else one for one in args]
        inner = None
        if not self.is_dead:
            call = getattr(self.inner, name)(*given)
            inner = self._submit(call)
        reference = _Reference(inner)
        self.calls.append(name)
        self.references.append(reference)
        return reference

    def stop(self) -> None:
        if self.is_dead:
            return
        self.is_dead = True
        for reference in self.references:
            reference.die()

        async def finish() -> None:
            others = asyncio.all_tasks() - {asyncio.current_task()}
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)

        asyncio.run_coroutine_threadsafe(finish(), self.loop).result(10)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(10)
        self.loop.close()


async def _made(kind: Callable[[], Any]) -> Any:
    return kind()


class _Stored:
    def __init__(self, value: object) -> None:
        self.value = value


class FakeRay:
    """The package.

    Attributes:
        actors: those that were made, in order.
        told: what was called of connecting and disconnecting.
    """

    exceptions = SimpleNamespace(
        RayError=RayError,
        RayTaskError=RayTaskError,
        ActorDiedError=ActorDiedError,
    )

    def __init__(self, *, is_initialized: bool = False, cpus: float = 8.0) -> None:
        self.actors: list[_Actor] = []
        self.told: list[str] = []
        self.fails_to_start: Exception | None = None
        self._is_initialized = is_initialized
        self._cpus = cpus

    def is_initialized(self) -> bool:
        return self._is_initialized

    def init(self, **given: Any) -> None:
        self.told.append("init")
        if self.fails_to_start is not None:
            raise self.fails_to_start
        self._is_initialized = True

    def shutdown(self) -> None:
        self.told.append("shutdown")
        self._is_initialized = False

    def nodes(self) -> list[dict[str, Any]]:
        return [{"Alive": True, "Resources": {"CPU": self._cpus}}]

    def put(self, value: object) -> _Stored:
        return _Stored(value)

    def remote(self, **options: Any) -> Callable[[Any], Any]:
        def made(kind: Callable[[], Any]) -> Any:
            def start() -> _Actor:
                self.actors.append(_Actor(kind))
                return self.actors[-1]

            return SimpleNamespace(remote=start)

        return made

    def cancel(self, reference: _Reference) -> None:
        if reference.inner is not None:
            reference.inner.cancel()

    def kill(self, actor: _Actor, *, no_restart: bool) -> None:
        actor.stop()

    def close(self) -> None:
        """Let every thread end."""
        for actor in self.actors:
            actor.stop()
