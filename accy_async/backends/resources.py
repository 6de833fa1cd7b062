"""The objects that a backend owns, and who uses each; the theory is in `lifetimes`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from accy_async.backends.handles import (
    BufferHandle,
    EventHandle,
    GraphHandle,
    Handle,
    LoadedArtifact,
    ObjectKind,
    StreamHandle,
)
from accy_async.backends.timeline import Mark, Timeline
from accy_async.errors import (
    AccyError,
    InvalidArtifact,
    InvalidBuffer,
    InvalidEvent,
    InvalidGraph,
    InvalidStream,
)

if TYPE_CHECKING:
    from accy_async.backends.exchange import Arrival
    from accy_async.backends.owners import Owner

__all__ = ["INVALID", "Resource", "Use", "kind_of", "refuse_destroyed"]

_USES_KEPT = 16
"""Streams that an object remembers before it looks which are past."""

_SHARED_KEPT = 64
"""Shared uses that an object remembers before it folds them into its own."""


class Use:
    """The last use of some objects by what is submitted to one stream repeatedly.

    It names nothing of whose use it is, so that objects keep only numbers alive.

    Attributes:
        timeline: the stream's.
        position: of the last submission; 0 before the first.
        epoch: the table's when all was last found in order and registered; None
            where an object has dropped the use, which then has to be shared anew.
    """

    __slots__ = ("epoch", "position", "timeline")

    def __init__(self, timeline: Timeline) -> None:
        self.timeline = timeline
        self.position = 0
        self.epoch: object = None


class Resource:
    """One object a backend owns, and the streams that use it."""

    __slots__ = (
        "arrival",
        "arriving",
        "broken_by",
        "detail",
        "exports",
        "handle",
        "is_alive",
        "is_given_up",
        "is_retired",
        "kind",
        "loans_ended",
        "owner",
        "parts",
        "payload",
        "shared",
        "timeline",
        "uses",
        "wholes",
    )

    def __init__(
        self,
        kind: ObjectKind,
        handle: Handle,
        payload: object,
        detail: str,
        timeline: Timeline | None,
    ) -> None:
        self.kind = kind
        self.owner: Owner | None = None
        self.handle = handle
        self.payload = payload
        self.detail = detail
        self.timeline = timeline
        self.uses: dict[Timeline, int] = {}
        self.shared: dict[Use, None] = {}
        self.is_alive = True
        self.is_retired = False
        self.is_given_up = False  # a cleanup has told that it is still in use
        self.parts: tuple[Resource, ...] = ()
        self.wholes: set[Resource] | None = None  # most objects are part of nothing
        self.broken_by: Resource | None = None
        # What a stream has to wait for before its first use; see `exchange`.
        self.arrival: Arrival | None = None
        self.arriving: list[Resource] = []  # parts that have one
        # Other libraries that have it: as many as are submitted and not completed.
        self.exports: Timeline | None = None
        self.loans_ended = 0

    @property
    def name(self) -> str:
        """How messages name the object: kind, id, and size or kernel."""
        return f"{self.kind.singular} {self.handle.id}{self.detail}"

    @property
    def is_exported(self) -> bool:
        """True while another library has it."""
        line = self.exports
        return line is not None and line.completed < line.submitted

    @property
    def is_busy(self) -> bool:
        """True while a stream has not come past its last use of the object.

        A stream is itself in use until all that it was given is done.
        """
        return self.blocker() is not None

    def blocker(self) -> tuple[Timeline, int] | None:
        """A point that a stream has to come past first; None where it is idle."""
        line = self.exports
        if line is not None and line.completed < line.submitted:
            return line, line.submitted
        line = self.timeline
        if line is not None and not line.is_idle:
            return line, line.submitted
        for line, at in self.last_positions().items():
            if line.completed < at:
                return line, at
        for whole in tuple(self.wholes or ()):
            found = whole.blocker()
            if found is not None:
                return found
        return None

    def last_positions(self) -> dict[Timeline, int]:
        """Its own last use on each stream, but for some that are long past."""
        # The shared ones first: one that is being folded meanwhile is in `uses` by
        # the time that it is missing here.
        shared = list(self.shared)
        latest = dict(self.uses)
        for use in shared:
            if use.position > latest.get(use.timeline, 0):
                latest[use.timeline] = use.position
        return latest

    def last_uses(self) -> list[Mark]:
        """The last use on each stream that has not come past it."""
        latest = self.last_positions()
        for whole in tuple(self.wholes or ()):
            for line, at in whole.last_positions().items():
                latest[line] = max(at, latest.get(line, 0))
        return _not_past(latest)

    def request_end(self) -> None:
        """Have its streams say when they are past it.

        To ask is an operation of the stream, submitted behind what uses the object: so
        not under the lock of a device whose objects are used by another's streams.
        """
        for line, position in self.last_positions().items():
            if line.completed < position:
                line.oversee(position)

    def compose(self, parts: Iterable[Resource]) -> None:
        """Make this object of others, from here on."""
        self.parts = tuple(dict.fromkeys(parts))
        self.arriving = [part for part in self.parts if part.arrival is not None]
        for part in self.parts:
            if part.wholes is None:
                part.wholes = set()
            part.wholes.add(self)

    def decompose(self) -> None:
        """Make it of nothing: its parts keep the uses that they had through it."""
        parts, self.parts = self.parts, ()
        for part in parts:
            part.leave(self)

    def leave(self, whole: Resource) -> None:
        """Be no part of that any more, whose uses so far stay this object's."""
        if self.wholes is None or whole not in self.wholes:
            return
        for line, at in whole.last_positions().items():
            if self.uses.get(line, 0) < at:
                self.touch(line, at)
        self.wholes.discard(whole)

    def leave_all(self) -> None:
        """Break every object that this one is a part of: it is being destroyed."""
        for whole in tuple(self.wholes or ()):
            whole.broken_by = whole.broken_by or self
            self.leave(whole)

    def arrive(self, arrival: Arrival) -> None:
        """Have every use from now on wait for a point first."""
        self.arrival = arrival
        for whole in tuple(self.wholes or ()):
            whole.arriving.append(self)

    def touch(self, timeline: Timeline, position: int) -> None:
        """Say that the operation at this position uses the object."""
        self.uses[timeline] = position
        if len(self.uses) > _USES_KEPT:
            self._forget_past_uses()

    def share(self, use: Use) -> None:
        """Have the object in use up to the use's position, which goes on rising."""
        self.shared[use] = None
        if len(self.shared) > _SHARED_KEPT:
            self._fold_shared(use)

    def unshare(self, use: Use) -> None:
        """Keep a shared use's position, and do not follow it any more."""
        if self.shared.pop(use, use) is None and use.position > self.uses.get(
            use.timeline, 0
        ):
            self.touch(use.timeline, use.position)

    def _forget_past_uses(self) -> None:
        """Drop the streams that have come past their use, and went well there.

        Objects outlive streams: without this, one that many short-lived streams
        use would remember them all.
        """
        kept = _not_past(dict(self.uses))
        self.uses = {mark.timeline: mark.position for mark in kept}

    def _fold_shared(self, kept: Use) -> None:
        """Keep the positions of all shared uses but one, and drop the uses.

        Objects outlive prepared launches too. One that goes on has to be shared
        anew, which the next launch sees by its epoch.
        """
        for use in self.shared:
            if use is kept:
                continue
            use.epoch = None
            if use.position > self.uses.get(use.timeline, 0):
                self.uses[use.timeline] = use.position
        self.shared = {kept: None}
        self._forget_past_uses()


def _not_past(uses: dict[Timeline, int]) -> list[Mark]:
    """The uses that the stream has not come past, or that failed."""
    return [
        Mark(line, at)
        for line, at in uses.items()
        if line.completed < at or line.error_at(at) is not None
    ]


def refuse_destroyed(resource: Resource) -> None:
    """Refuse to use an object that was destroyed.

    Raises:
        InvalidBuffer, InvalidArtifact, InvalidStream, InvalidEvent, InvalidGraph:
            it was.
    """
    if not resource.is_alive:
        raise INVALID[resource.kind](f"{resource.name} was destroyed")


def kind_of(handle: Handle) -> ObjectKind:
    """The kind of object a handle names."""
    return _KINDS[type(handle)]


_KINDS: dict[type, ObjectKind] = {
    BufferHandle: ObjectKind.BUFFER,
    LoadedArtifact: ObjectKind.ARTIFACT,
    StreamHandle: ObjectKind.STREAM,
    EventHandle: ObjectKind.EVENT,
    GraphHandle: ObjectKind.GRAPH,
}
INVALID: dict[ObjectKind, type[AccyError]] = {
    ObjectKind.BUFFER: InvalidBuffer,
    ObjectKind.ARTIFACT: InvalidArtifact,
    ObjectKind.STREAM: InvalidStream,
    ObjectKind.EVENT: InvalidEvent,
    ObjectKind.GRAPH: InvalidGraph,
}
