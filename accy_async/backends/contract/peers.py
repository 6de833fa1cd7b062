"""Peers: waiting for other devices' events, copying from one device to another.

Both devices' submission locks are held, always in the order in which the backends
were made. What one device uses of another's is in use on its timelines, and is freed
when they are past it: each table sweeps the other's along.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, cast

from accy_async.backends.completion import Completion
from accy_async.backends.contract.checks import byte_count, check_range, check_writable
from accy_async.backends.contract.core import advance
from accy_async.backends.contract.sharing import Sharing
from accy_async.backends.contract.streams import mark_of
from accy_async.backends.handles import BufferHandle, EventHandle, StreamHandle
from accy_async.backends.hooks import EventState, StreamState
from accy_async.backends.routes import CopyRoute, Way
from accy_async.errors import UnsupportedOperation

if TYPE_CHECKING:
    from accy_async.backends.base import Backend
    from accy_async.backends.guards import Guard
    from accy_async.backends.peerhooks import Staging
    from accy_async.backends.resources import Resource
    from accy_async.errors import DeviceError

__all__ = ["Peers"]


class Peers(Sharing):
    """What one device does together with another."""

    def can_wait_for(self, peer: Backend) -> bool:
        """True where streams here can wait for events there, without the host."""
        base = peer.base
        return base is self or self._can_wait_for(base)

    def wait_for_peer(
        self, stream: StreamHandle | None, event: EventHandle, peer: Backend
    ) -> int:
        """Hold back what is submitted to the stream next until a peer's event.

        Args:
            stream: of this device; None for the default stream.
            event: of the peer.
            peer: the other device; this one is taken, too.

        Returns:
            The wait's position on the stream's timeline.

        Raises:
            InvalidEvent: it was never recorded, or is not the peer's.
            UnsupportedOperation: the two devices cannot wait for each other; the
                message names both.
        """
        other = peer.base
        if other is self:
            return self.stream_wait_event(stream, event)
        self._check("wait_for_peer")
        other._check("wait_for_peer")  # noqa: SLF001 - a backend like this one
        self._require_waits("wait_for_peer", other)
        with _locked(self, other):
            resource = other._table.get(event)  # noqa: SLF001
            mark_of(resource, "wait_for_peer")  # refuses one never recorded
            state = self._stream(stream)
            position = state.timeline.advance()
            self._use_of_peer(other, resource, state, position)
            self._stream_wait_peer(
                state, position, cast("EventState", resource.payload), other
            )
        return position

    def follow_stream(
        self, stream: StreamHandle | None, leader: StreamHandle | None, peer: Backend
    ) -> int:
        """Hold back what is submitted to a stream next until another's work so far.

        What an event between the two would do, for an edge that nobody else looks at:
        there is no event to make, and none to ask about.

        Args:
            stream: of this device; None for the default stream.
            leader: the stream to wait for, with all that it was given until now.
            peer: the leader's device; this one or another.

        Returns:
            The wait's position on the stream's timeline.

        Raises:
            InvalidStream: a stream is not alive, or is another device's.
            UnsupportedOperation: the two devices cannot wait for each other; the
                message names both.
        """
        other = peer.base
        self._check("follow_stream")
        if other is self:
            with self._lock:
                state = self._stream(stream)
                event = self._meet(self._stream(leader))
                position = state.timeline.advance()
                self._stream_wait(state, position, event)
                return position
        other._check("follow_stream")  # noqa: SLF001 - a backend like this one
        self._require_waits("follow_stream", other)
        with _locked(self, other):
            state = self._stream(stream)
            self._follow_peer(state, other, other._stream(leader))  # noqa: SLF001
            return state.timeline.submitted

    def route_to(self, peer: Backend) -> CopyRoute:
        """Which way copies from here to a peer go, and why; looked at once.

        Raises:
            UnsupportedOperation: there is none; the message names both devices.
        """
        other = peer.base
        found = self._routes.get(other)
        if found is None:
            found = self._routes[other] = self._find_route(other)
        return found

    def copy_to_peer(
        self,
        source: BufferHandle,
        target: BufferHandle,
        peer: Backend,
        *,
        byte_size: int | None = None,
        stream: StreamHandle | None = None,
        guard: Guard | None = None,
    ) -> int:
        """Submit a copy from a buffer's start here to one's start on a peer.

        Args:
            source: where from.
            target: where to; the peer's.
            peer: the other device; this one is taken, too.
            byte_size: how much; all of ``source`` if left out.
            stream: the stream that carries it out, of the device that `route_to`
                says; None for its default stream.
            guard: asked before, and told of its failure; see `guards`.

        Returns:
            Its position on the stream's timeline.

        Raises:
            InvalidBuffer: a handle is not alive or of the wrong device, or the copy
                would pass an end.
            UnsupportedOperation: there is no way; the message names both devices.
        """
        other, me = peer.base, cast("Backend", self)
        if other is self:
            return self.copy_buffer(
                source, target, byte_size=byte_size, stream=stream, guard=guard
            )
        self._check("copy_to_peer")
        other._check("copy_to_peer")  # noqa: SLF001
        route = self.route_to(other)
        with _locked(self, other):
            read = self._table.get(source)
            written = other._table.get(target)  # noqa: SLF001
            size = source.byte_size
            if byte_size is not None:
                size = byte_count("copy_to_peer.byte_size", byte_size)
            check_range(read, 0, size, "copy")
            check_range(written, 0, size, "copy")
            check_writable(written, "copy")
            if route.way is Way.STAGED:
                state = other._stream(stream)  # noqa: SLF001
                if not size:
                    position = advance(state, written)
                    other._fill(state, position, written, b"\0", 0, guard)  # noqa: SLF001
                    return position
                return self._copy_staged(read, other, written, size, state, guard)
            if route.is_pulled:
                state = other._stream(stream)  # noqa: SLF001
                other._admit_peer(state, me, read)  # noqa: SLF001
                position = advance(state, written)
                other._use_of_peer(me, read, state, position)  # noqa: SLF001
                other._copy_in(  # noqa: SLF001
                    state, position, me, read, written, size, guard
                )
            else:
                state = self._stream(stream)
                self._admit_peer(state, other, written)
                position = advance(state, read)
                self._use_of_peer(other, written, state, position)
                self._copy_out(state, position, read, other, written, size, guard)
        return position

    # Within

    def _require_waits(self, call: str, other: Backend) -> None:
        if not self._can_wait_for(other):
            raise UnsupportedOperation(
                f"{call}: {self._origin.title} cannot wait for events of "
                f"{other._origin.title}"  # noqa: SLF001
            )

    def _find_route(self, other: Backend) -> CopyRoute:
        names = self._origin.device, other._origin.device  # noqa: SLF001
        if other is self:
            return CopyRoute(*names, Way.LOCAL, False, "it is one device")
        way, why = self._way_to(other)
        if way is not None:
            return CopyRoute(*names, way, False, why)
        way, why_not = other._way_from(cast("Backend", self))  # noqa: SLF001
        if way is not None:
            return CopyRoute(*names, way, True, why_not)
        base = cast("Backend", self)
        can_meet = self._can_wait_for(other) and other._can_wait_for(base)  # noqa: SLF001
        if self.can_stage and other.can_stage and can_meet:
            return CopyRoute(*names, Way.STAGED, True, why)
        raise UnsupportedOperation(
            f"no copies from {self._origin.title} to {other._origin.title}: {why}; "  # noqa: SLF001
            "copy to the host, and from there"
        )

    def _use_of_peer(
        self, peer: Backend, resource: Resource, state: StreamState, position: int
    ) -> None:
        """Note that a stream here uses a peer's object; under both locks.

        Its end is asked for by who destroys the object, when that is still in use then:
        copies that follow each other are not held up by what says how far they are.
        """
        resource.touch(state.timeline, position)
        self._table.sweep_along(peer._table)  # noqa: SLF001

    def _admit_peer(
        self, state: StreamState, peer: Backend, resource: Resource
    ) -> None:
        """Have a stream wait for what of a peer's object has not arrived yet."""
        arrival = resource.arrival
        if arrival is None or arrival.is_past:
            return
        if not self._can_wait_for(peer):
            raise UnsupportedOperation(
                f"{resource.name} is still arriving on {peer.device}, and "
                f"{self._origin.title} cannot wait for that: await it first"
            )
        self._follow_peer(state, peer, arrival.exchange)

    def _follow_peer(
        self, state: StreamState, peer: Backend, leader: StreamState
    ) -> None:
        """Have a stream wait for all that a peer's was given; under both locks."""
        event = peer._meet(leader)  # noqa: SLF001
        self._stream_wait_peer(state, state.timeline.advance(), event, peer)

    def _copy_staged(
        self,
        source: Resource,
        peer: Backend,
        target: Resource,
        byte_size: int,
        state: StreamState,
        guard: Guard | None,
    ) -> int:
        """Copy in pieces, reading one while the one before is written.

        Each half of the staging memory is read into again once what was in it is
        written. Every wait is the devices' own, and is submitted while the stream it
        waits for stands exactly at the point that is meant.
        """
        base = cast("Backend", self)
        piece = min(self.staging_bytes, byte_size)
        count = -(-byte_size // piece)
        out = self._open_exchange()
        self._admit_here(out, source)
        self._follow_peer(out, peer, state)  # the copy is not to begin earlier
        halves: list[Staging] = []
        pieces = _Pieces(guard) if guard is not None else None
        position = state.timeline.submitted
        try:
            halves += [self._take_staging(piece) for _ in range(min(2, count))]
            for number in range(count):
                offset = number * piece
                size = min(piece, byte_size - offset)
                half = halves[number % 2]
                read = advance(out, source)
                self._stage_out(out, read, source, offset, half, size, pieces)
                peer._follow_peer(state, base, out)  # noqa: SLF001
                if 0 < number < count - 1:
                    self._follow_peer(out, peer, state)
                position = advance(state, target)
                last = pieces if number < count - 1 or pieces is None else pieces.last
                peer._stage_in(  # noqa: SLF001
                    state, position, target, offset, half, size, last
                )
        finally:
            if halves:
                _give_back(halves, (out, state))
        return position

    def _admit_here(self, state: StreamState, resource: Resource) -> None:
        if resource.arrival is not None and not resource.arrival.is_past:
            resource.arrival.admit(state)


class _Pieces:
    """The guard of the pieces of one copy, asked for the first of them.

    One that failed stops the others.
    """

    __slots__ = ("_blocks", "_guard", "_has_failed", "last")

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._blocks: bool | None = None
        self._has_failed = False
        self.last = _LastPiece(self)

    def blocks(self) -> bool:
        if self._blocks is None:
            self._blocks = self._guard.blocks()
        return self._blocks or self._has_failed

    def ended(self) -> None:
        """One piece is through, which is nothing to tell."""

    def failed(self, error: DeviceError) -> None:
        if not self._has_failed:
            self._has_failed = True
            self._guard.failed(error)

    def all_ended(self) -> None:
        if not self._has_failed:
            self._guard.ended()


class _LastPiece:
    """The guard of the last piece, with whose end the copy ends."""

    __slots__ = ("_pieces",)

    def __init__(self, pieces: _Pieces) -> None:
        self._pieces = pieces

    def blocks(self) -> bool:
        return self._pieces.blocks()

    def ended(self) -> None:
        self._pieces.all_ended()

    def failed(self, error: DeviceError) -> None:
        self._pieces.failed(error)


class _LastUse(Completion):
    """Gives staging memory back when the last of some streams is past it."""

    __slots__ = ("_left", "_staging")

    def __init__(self, staging: list[Staging], left: int) -> None:
        super().__init__()
        self._staging = staging
        self._left = left

    def set(self) -> None:
        with self._lock:
            self._left -= 1
            is_last = self._left == 0
        if is_last:
            for one in self._staging:
                one.give_back()


def _give_back(staging: list[Staging], states: Sequence[StreamState]) -> None:
    for state in states:
        state.timeline.request(state.timeline.submitted)
    # One signal for each stream: a timeline knows a signal once.
    left = _LastUse(staging, len(states))
    for state in states:
        state.timeline.watch(state.timeline.submitted, _Relay(left))


class _Relay(Completion):
    """Passes a signal on."""

    __slots__ = ("_to",)

    def __init__(self, to: Completion) -> None:
        super().__init__()
        self._to = to

    def set(self) -> None:
        self._to.set()


@contextmanager
def _locked(one: Peers, two: Peers) -> Iterator[None]:
    """Both submission locks, in the order that everybody takes them in."""
    first, second = sorted((one, two), key=lambda backend: backend.serial)
    with first._lock, second._lock:  # noqa: SLF001
        yield
