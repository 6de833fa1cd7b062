"""A bounded pool of streams, leased one at a time, or shared by who cannot wait.

A lessee that waits for a stream may wait for one that waits for it: a run within
a host call of another run does. So runs never wait here. One that finds no stream
free shares one that runs have already, and where blocks have them all, one more is
opened for runs to share. Sharing delays, but cannot hold up for ever: the work
that is on a stream waits for nothing that is still to be submitted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio

from accy_async.backends.loops import uninterrupted

if TYPE_CHECKING:
    from accy_async.backends.base import Backend
    from accy_async.backends.handles import StreamHandle

__all__ = ["StreamPool"]


@uninterrupted
class StreamPool:
    """Streams of one backend: at most so many leased, and one more for sharing.

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
        # What may be shared, by id, and by how many it is; what was opened to be.
        self._shared: dict[int, StreamHandle] = {}
        self._sharers: dict[int, int] = {}
        self._extra: StreamHandle | None = None

    @property
    def leased(self) -> int:
        """Streams that somebody has now."""
        return self.limit - self._free.value + (self._extra is not None)

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
        """One that may be shared later, or None while all are leased."""
        try:
            self._free.acquire_nowait()
        except anyio.WouldBlock:
            return None
        stream = self._open(priority)
        self._shared[stream.id] = stream
        self._sharers[stream.id] = 1
        return stream

    def lease_or_share(self, priority: int = 0) -> StreamHandle:
        """The same; while all are leased, the least shared of those that may be."""
        stream = self.lease_nowait(priority)
        if stream is not None:
            return stream
        wanted = self._backend.capabilities.clamp_priority(priority)
        if self._shared:
            stream = min(
                self._shared.values(),
                key=lambda one: (self._sharers[one.id], abs(one.priority - wanted)),
            )
        else:
            stream = self._extra = self._backend.create_stream(priority=wanted)
            self._shared[stream.id] = stream
            self._sharers[stream.id] = 0
        # Whoever awaits what is on it is not to wait for what comes now, too.
        mark = self._backend.mark(stream)
        mark.timeline.request(mark.position)
        self._sharers[stream.id] += 1
        return stream

    def give_back(self, stream: StreamHandle) -> bool:
        """Return a stream that was leased.

        Returns:
            True if it stays open, False if it was destroyed.
        """
        if self._sharers.get(stream.id, 0) > 1:
            self._sharers[stream.id] -= 1
            return True
        self._sharers.pop(stream.id, None)
        self._shared.pop(stream.id, None)
        if stream is self._extra:
            self._extra = None
        else:
            self._free.release()
        backend = self._backend
        if not backend.is_alive(stream):
            return False
        mark = backend.mark(stream)
        line = mark.timeline
        has_failed = line.has_failed and line.error_at(mark.position) is not None
        is_idle = backend.is_healthy and line.is_idle and not has_failed
        if is_idle and self.opened < self.limit:
            self._idle.append(stream)
            return True
        backend.destroy(stream)
        return False

    def _open(self, priority: int) -> StreamHandle:
        backend = self._backend
        try:
            wanted = backend.capabilities.clamp_priority(priority)
            idle = self._idle
            # The one that came back last is what the next run most likely had before:
            # how long its work takes was learned on it.
            for place in range(len(idle) - 1, -1, -1):
                if idle[place].priority == wanted:
                    return idle.pop(place)
            if self._idle and self.opened > self.limit:
                backend.destroy(self._idle.pop(0))
            return backend.create_stream(priority=priority)
        except BaseException:
            self._free.release()
            raise
