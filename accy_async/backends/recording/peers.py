"""The recording backend beside other devices: it waits for them, and copies."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from accy_async.backends.completion import Completion
from accy_async.backends.recording.device import RecordingCore
from accy_async.backends.recording.graphs import RecordingGraphs
from accy_async.backends.routes import Way

if TYPE_CHECKING:
    from accy_async.backends.base import Backend
    from accy_async.backends.guards import Guard
    from accy_async.backends.hooks import EventState, StreamState
    from accy_async.backends.peerhooks import Staging
    from accy_async.backends.resources import Resource

__all__ = ["RecordingPeers"]


class _Wake(Completion):
    """Lets a backend go on once what a stream of it waits for has completed."""

    __slots__ = ("_follower", "_leader")

    def __init__(self, waiter: RecordingCore, leader: Backend) -> None:
        super().__init__()
        self._follower = waiter
        self._leader = leader

    def set(self) -> None:
        leader, waiter = self._leader, self._follower
        if isinstance(leader, RecordingCore):
            # It may hold its lock now, and pumps whom it has woken when it does not.
            leader._woken.append(waiter)  # noqa: SLF001 - of this package
        else:
            waiter._pump()  # noqa: SLF001


class RecordingPeers(RecordingGraphs):
    """What the device does with others, which is to note it."""

    can_stage: ClassVar[bool] = True

    def _can_wait_for(self, peer: Backend) -> bool:
        del peer
        return self.can_wait_for_peers

    def _stream_wait_peer(
        self, stream: StreamState, position: int, event: EventState, peer: Backend
    ) -> None:
        mark = event.mark
        assert mark is not None
        self._submit(stream, position, waits_for=mark)
        timeline, awaited = mark
        if timeline.completed < awaited:
            timeline.watch(awaited, _Wake(self, peer))
        if timeline.completed >= awaited:
            self._woken.append(self)

    def _way_to(self, peer: Backend) -> tuple[Way | None, str]:
        if not isinstance(peer, RecordingCore):
            return None, f"a recording device reaches no memory of {peer.device}"
        if self.has_peer_access and peer.has_peer_access:
            return Way.PEER, "both pretend to have peer access"
        return None, "there is no peer access between them"

    def _copy_out(
        self,
        stream: StreamState,
        position: int,
        source: Resource,
        peer: Backend,
        target: Resource,
        byte_size: int,
        guard: Guard | None,
    ) -> None:
        del source, peer, target, byte_size
        self.peer_copy_count += 1
        self._submit(stream, position, guard=guard)

    def _stage_out(
        self,
        stream: StreamState,
        position: int,
        buffer: Resource,
        offset_bytes: int,
        staging: Staging,
        byte_size: int,
        guard: Guard | None,
    ) -> None:
        del buffer, offset_bytes, staging, byte_size
        self.stage_count += 1
        self._submit(stream, position, guard=guard)

    def _stage_in(
        self,
        stream: StreamState,
        position: int,
        buffer: Resource,
        offset_bytes: int,
        staging: Staging,
        byte_size: int,
        guard: Guard | None,
    ) -> None:
        del buffer, offset_bytes, staging, byte_size
        self.stage_count += 1
        self._submit(stream, position, guard=guard)
