"""The streams that invocations run on: few, kept open, taken and given back in a list.

Invocations never wait for a stream: beyond the limit they share one. What is on a
stream waits for nothing that is still to be submitted, so sharing only delays.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio

from accy_async.backends.loops import require_loop_of

if TYPE_CHECKING:
    from accy_async.backends.base import Backend
    from accy_async.backends.bell import Bell
    from accy_async.backends.handles import StreamHandle

__all__ = ["FragmentStreams"]


class FragmentStreams:
    """Streams for the invocations of fragments on one device. For one event loop.

    Args:
        backend: whose streams they are.
        limit: how many are opened.
        bell: of the event loop; None where the caller sees to it.

    Attributes:
        calls: how many invocations have come.
        pauses: how often the last one has left.
    """

    def __init__(self, backend: Backend, limit: int, bell: Bell | None = None) -> None:
        self.limit = limit
        self._bell = bell
        self.calls = 0
        self.pauses = 0
        self._backend = backend
        self._idle: list[StreamHandle] = []
        self._users: dict[StreamHandle, int] = {}
        self._pause: anyio.Event | None = None

    def require_here(self, call: str) -> None:
        """Refuse a call from another event loop.

        Raises:
            WrongEventLoop: it is one.
        """
        if self._bell is not None:
            require_loop_of(self._bell, call)

    @property
    def opened(self) -> int:
        """How many are open."""
        return len(self._idle) + len(self._users)

    @property
    def in_use(self) -> int:
        """How many have invocations on them."""
        return len(self._users)

    async def wait_pause(self) -> None:
        """Return when the last invocation has left them, the next time.

        Cancellation: only the wait stops.
        """
        if self._pause is None:
            self._pause = anyio.Event()
        await self._pause.wait()

    def take(self) -> StreamHandle:
        """An idle stream, else a new one, else the one with the fewest users. Sync.

        Raises:
            AccyError: the device refused to open one.
        """
        self.calls += 1
        if self._idle:
            stream = self._idle.pop()
        elif len(self._users) < self.limit:
            stream = self._backend.create_stream()
        else:
            stream = min(self._users, key=self._users.__getitem__)
            self._users[stream] += 1
            return stream
        self._users[stream] = 1
        return stream

    def give_back(self, stream: StreamHandle) -> None:
        """Return a stream that was taken, and is done with its work."""
        if self._leave(stream):
            self._idle.append(stream)

    def give_up(self, stream: StreamHandle) -> list[StreamHandle]:
        """The same where its work failed, or goes on.

        Returns:
            The stream, if it is to be destroyed now: it has no other user.
        """
        return [stream] if self._leave(stream) else []

    def _leave(self, stream: StreamHandle) -> bool:
        """Have one user less; True where that was the last one."""
        left = self._users[stream] - 1
        if left:
            self._users[stream] = left
        else:
            del self._users[stream]
            if not self._users:
                self.pauses += 1
                if self._pause is not None:
                    self._pause.set()
                    self._pause = None
        return not left

    def detach(self) -> list[StreamHandle]:
        """Those that are idle, for others to destroy."""
        streams, self._idle = self._idle, []
        return streams
