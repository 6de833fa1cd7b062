"""Ways into the async world: from a script, from a service, from another thread."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from typing import TypedDict, TypeVar, TypeVarTuple

import anyio

from accy_async.backends.base import Backend
from accy_async.backends.completion import Completion
from accy_async.errors import InvalidType, InvalidValue
from accy_async.session import Session, open_session

__all__ = ["CancelToken", "LifespanState", "lifespan", "run"]

_T = TypeVar("_T")
_Args = TypeVarTuple("_Args")
_LOOPS: dict[str, tuple[str, dict[str, object]]] = {
    "asyncio": ("asyncio", {}),
    "trio": ("trio", {}),
    "uvloop": ("asyncio", {"use_uvloop": True}),
}


def run(
    main: Callable[[*_Args], Awaitable[_T]],
    *args: *_Args,
    loop: str = "asyncio",
) -> _T:
    """Run an async function from sync code, and return its result.

    For scripts: it starts an event loop, and ends it.

    Args:
        main: the async function.
        args: its arguments.
        loop: ``"asyncio"``, ``"trio"`` or ``"uvloop"``.

    Raises:
        InvalidValue: no such loop.
        InvalidType: ``main`` is no function; a coroutine is closed.
        RuntimeError: an event loop is running in this thread already.
    """
    if loop not in _LOOPS:
        raise InvalidValue("run.loop", loop, "one of " + ", ".join(map(repr, _LOOPS)))
    _require_function(main)
    backend, options = _LOOPS[loop]
    return anyio.run(main, *args, backend=backend, backend_options=options)


def _require_function(main: object) -> None:
    """Refuse what a call of the function gave; closed, it warns of nothing later."""
    if callable(main):
        return
    if isinstance(main, Coroutine):
        main.close()
    raise InvalidType(
        "run.main", main, "an async function; pass the function itself: run(main)"
    )


class LifespanState(TypedDict):
    """What `lifespan` gives a service: Starlette puts it on ``request.state``."""

    session: Session


def lifespan(
    backend: str | Backend = "auto",
    *,
    grace: float | None = None,
    max_streams: int | None = None,
) -> Callable[[object], AbstractAsyncContextManager[LifespanState]]:
    """A lifespan that keeps one session open for as long as a service runs.

    For any framework that takes an ASGI lifespan as an async context manager::

        app = Starlette(lifespan=accy_async.lifespan())
        ...
        session = request.state.session

    A request then takes a stream of its own (``async with session.stream()``):
    when the request is cancelled, what it submitted is awaited and its scratch
    destroyed, and the session goes on serving.

    Args:
        backend: as for `open_session`.
        grace: as for `open_session`.
        max_streams: as for `open_session`.
    """

    @asynccontextmanager
    async def context(app: object) -> AsyncIterator[LifespanState]:
        del app
        async with open_session(
            backend, grace=grace, max_streams=max_streams
        ) as session:
            yield {"session": session}

    return context


class CancelToken:
    """Cancels a block from anywhere: another thread, another event loop.

    ::

        token = CancelToken()          # hand it to whoever may cancel
        with token.scope():            # the block that it cancels
            await launch_pipeline(...)

    A token serves one block, is set once and stays set: a block entered with a
    token that was cancelled already is cancelled at its first checkpoint.
    """

    def __init__(self) -> None:
        self._completion = Completion()

    @property
    def is_cancelled(self) -> bool:
        """True once `cancel` has been called."""
        return self._completion.is_set

    def cancel(self) -> None:
        """Cancel the block. Never blocks; any thread; idempotent."""
        self._completion.set()

    @contextmanager
    def scope(self) -> Iterator[anyio.CancelScope]:
        """The block that the token cancels; on an event loop's thread.

        Raises:
            RuntimeError: another block uses the token.
        """
        with anyio.CancelScope() as scope:
            forget = self._completion.on_set(scope.cancel)
            try:
                yield scope
            finally:
                forget()
