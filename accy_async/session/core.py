"""The core of a session: its device, its state, its books."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import anyio
import anyio.lowlevel

from accy_async.backends.owned import owned_backend
from accy_async.backends.streampool import StreamPool
from accy_async.graph.executive import GraphExecutive
from accy_async.session.openness import Openness
from accy_async.session.statistics import SessionStatistics

if TYPE_CHECKING:
    from accy_async.backends.base import Backend
    from accy_async.backends.capabilities import Capabilities
    from accy_async.backends.handles import StreamHandle
    from accy_async.backends.timeline import Mark
    from accy_async.fragment.streams import FragmentStreams
    from accy_async.observe.protocol import Observer

__all__ = ["InFlight", "SessionCore", "harmless"]


class SessionCore(Openness):
    """What every part of a session stands on: its device, its state, its pools.

    Attributes:
        backend: the device, for calls that the session does not wrap. What is
            made on it is the session's too.
        grace_s: how long cleanup may wait for the device, in seconds.
        max_streams: how many streams may be leased at a time.
        max_in_flight: pipeline launches in flight at most.
        observer: told of what happens, unless a call names another.
        title: how messages name the session.
    """

    _fragment_streams: FragmentStreams | None = None

    def __init__(
        self,
        backend: Backend,
        *,
        is_owned: bool,
        grace_s: float,
        max_streams: int,
        max_in_flight: int,
        observer: Observer | None = None,
        title: str = "the session",
    ) -> None:
        super().__init__()
        self.observer = observer
        self.title = title
        self._owner = backend.open_owner(title)
        self.backend = backend = owned_backend(backend, self._owner, grace_s)
        self.grace_s = grace_s
        self.max_streams = max_streams
        self.max_in_flight = max_in_flight
        self._is_owned = is_owned
        self._streams = StreamPool(backend, max_streams)
        self._runs = GraphExecutive(backend, self._streams, max_in_flight, grace_s)
        self._left_at = 0.0
        self._in_flight: deque[InFlight] = deque()
        self._launch_count = 0

    def __repr__(self) -> str:
        name = self.backend.capabilities.identity.name
        return f"<Session on {name}: {self._state}>"

    @property
    def capabilities(self) -> Capabilities:
        """What the device is and can do."""
        return self.backend.capabilities

    @property
    def is_healthy(self) -> bool:
        """True while the session is open and its device answers."""
        return self.is_open and self.backend.is_healthy

    @property
    def stream_pool(self) -> StreamPool:
        """The pool that blocks and runs lease streams from."""
        return self._streams

    @property
    def load(self) -> int:
        """Runs and launches going on, and the runs' operations in flight."""
        self._forget_completed()
        return self._runs.running + self._runs.in_flight + len(self._in_flight)

    def live_objects(self) -> dict[str, int]:
        """Objects made in the session and not freed yet, by kind.

        All zero after the session, but for what the device was still using when
        the grace ran out: that is counted until it is freed.
        """
        return self.backend.live_objects(self._owner)

    def statistics(self) -> SessionStatistics:
        """The session at this moment."""
        self._forget_completed()
        calls = self._fragment_streams
        return SessionStatistics(
            live_objects=self.live_objects(),
            held_by_reaper=self.backend.reaper.held(self._owner),
            streams_open=self._streams.opened + (calls.opened if calls else 0),
            streams_leased=self._streams.leased + (calls.in_use if calls else 0),
            runs=self._runs.running,
            launches=self._launch_count,
            launches_in_flight=len(self._in_flight),
        )

    async def _wait_for_place(self) -> None:
        self._forget_completed()
        while len(self._in_flight) >= self.max_in_flight:
            await self._in_flight[0].wait()
            self._forget_completed()
            self._check("launch_pipeline")

    def _forget_completed(self) -> None:
        while self._in_flight and self._in_flight[0].is_done:
            self._in_flight.popleft()

    async def _wait_stream(self, stream: StreamHandle | None) -> None:
        if stream is None:
            await self.backend.wait_default_stream()
        else:
            await self.backend.wait_stream(stream)


def harmless(observer: Observer | None) -> Observer | None:
    """The observer, unable to break what it observes; None where there is none."""
    if observer is None:
        return None
    # Whoever is not observed loads nothing that listens.
    from accy_async.observe.combine import combine_observers

    return combine_observers(observer)


class InFlight:
    """A launch's place, taken until the launch is known to be done.

    While the launch is being awaited by its caller, that says when; afterwards
    the point that its stream had come to does.
    """

    __slots__ = ("_is_awaited", "_mark", "_returned")

    def __init__(self) -> None:
        self._is_awaited = True
        self._mark: Mark | None = None
        self._returned: anyio.Event | None = None  # made for who waits; most do not

    @property
    def is_done(self) -> bool:
        """True where the launch is known to be done."""
        return not self._is_awaited and (self._mark is None or self._mark.is_reached)

    def finish(self, mark: Mark | None) -> None:
        """The caller is done with it; the device will be at ``mark``."""
        self._is_awaited = False
        self._mark = mark
        if self._returned is not None:
            self._returned.set()

    async def wait(self) -> None:
        """Return when the launch is done, in whatever way."""
        if self._is_awaited:
            if self._returned is None:
                self._returned = anyio.Event()
            await self._returned.wait()
        if self._mark is not None:
            await self._mark.wait_reached()
