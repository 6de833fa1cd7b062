"""A bounded pool of streams, leased one at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio

if TYPE_CHECKING:
    from accy_async.backends.base import Backend
    from accy_async.backends.handles import StreamHandle

__all__ = ["StreamPool"]


class StreamPool:
    """Streams of one backend: at most so many, each used by one lessee at a time.

    A stream that comes back idle serves the next lessee. One that comes back busy
    or failed, or on a device that is not healthy, is destroyed: what is in use then
    is the reaper's, and no lessee meets the work, or the failure, of another.

    For the event loop it is used on.

    Args:
        backend: whose streams they are.
        limit: how many may be leased at once.
    """

    def __init__(self, backend: Backend, limit: int) -> None:
        self.limit = limit
        self._backend = backend
        self._free = anyio.Semaphore(limit)
        self._idle: list[StreamHandle] = []

    @property
    def leased(self) -> int:
        """Streams that a lessee has now."""
        return self.limit - self._free.value

    @property
    def opened(self) -> int:
        """Streams leased and idle."""
        return self.leased + len(self._idle)

    async def lease(self, priority: int = 0) -> StreamHandle:
        """A stream of (nearly) that priority; awaits one while all are leased.

        Cancellation: nothing was leased.
        """
        await self._free.acquire()
        return self._open(priority)

    def lease_nowait(self, priority: int = 0) -> StreamHandle | None:
        """The same, or None while all are leased."""
        try:
            self._free.acquire_nowait()
        except anyio.WouldBlock:
            return None
        return self._open(priority)

    def give_back(self, stream: StreamHandle) -> bool:
        """Return a stream that was leased.

        Returns:
            True if it was idle and stays open, False if it was destroyed.
        """
        self._free.release()
        backend = self._backend
        if not backend.is_alive(stream):
            return False
        mark = backend.mark(stream)
        has_failed = mark.timeline.error_at(mark.position) is not None
        if backend.is_healthy and mark.is_reached and not has_failed:
            self._idle.append(stream)
            return True
        backend.destroy(stream)
        return False

    def _open(self, priority: int) -> StreamHandle:
        backend = self._backend
        try:
            wanted = backend.capabilities.clamp_priority(priority)
            for stream in self._idle:
                if stream.priority == wanted:
                    self._idle.remove(stream)
                    return stream
            if self.opened > self.limit:
                backend.destroy(self._idle.pop(0))
            return backend.create_stream(priority=priority)
        except BaseException:
            self._free.release()
            raise
