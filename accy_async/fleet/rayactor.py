"""What runs in a worker's process on a Ray cluster."""

from __future__ import annotations

import os
import platform

import anyio

from accy_async.errors import SessionClosed
from accy_async.fleet.wire import to_wire
from accy_async.fleet.worker import SessionWorker
from accy_async.session import open_session

__all__ = ["RayActor", "machine"]


def machine() -> str:
    """What processes share that can see each other by their numbers."""
    try:
        space = os.readlink("/proc/self/ns/pid")
    except OSError:
        space = ""
    return f"{platform.node()} {space}"


class RayActor:
    """A session and the worker on it, for calls that come one by one.

    Each call is a task of the actor's own loop. So one long call, `run`, has the
    session, and the others use it while it lasts.
    """

    def __init__(self) -> None:
        self._worker: SessionWorker | None = None
        self._error: Exception | None = None
        self._opened = anyio.Event()
        self._is_to_end = anyio.Event()

    async def run(self, device: str, grace: float) -> None:
        """Have a session open until `end` is called, or this call is cancelled."""
        try:
            async with open_session(device, grace=grace) as session:
                self._worker = worker = SessionWorker(session)
                self._opened.set()
                try:
                    await self._is_to_end.wait()
                finally:
                    self._worker = None
                    worker.drop()
        except Exception as error:
            self._error = error
            raise
        finally:
            self._opened.set()

    async def device(self) -> bytes:
        """The device, as bytes, once the session is open."""
        await self._opened.wait()
        return to_wire(self._there().device)

    async def take(self, work: bytes) -> bytes:
        """As `SessionWorker.take`."""
        return await self._there().take(work)

    async def measure(self, request: bytes) -> bytes:
        """As `SessionWorker.measure`."""
        return await self._there().measure(request)

    async def end(self) -> None:
        """Have the session left: `run` returns then."""
        self._is_to_end.set()

    async def process(self) -> tuple[str, int]:
        """Where it runs, as `machine` says, and its number there."""
        return machine(), os.getpid()

    def _there(self) -> SessionWorker:
        if self._worker is None:
            why = "it was left" if self._error is None else str(self._error)
            raise SessionClosed(f"the worker's session is not open: {why}")
        return self._worker
