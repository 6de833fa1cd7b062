"""Who is alive, who is in use, and when what is in use may be freed.

Theory. A stream runs its operations in order, so how far it has come is one
number: a `Timeline` counts operations submitted and completed. Every operation
*touches* the objects it uses, which writes the operation's position on its
stream into the object: after many operations an object holds, per stream, the
last position that uses it (a vector clock as long as the streams that touched
it). An object is idle when every stream has come that far. What is submitted over
and over shares one `Use` among all its objects: one store says it to all of them.

Invariants:

1. `ResourceTable.destroy` makes a handle unusable at once. It frees an idle
   object at once; a busy one becomes *retired* and is freed when its last use
   completes, by whichever thread completes it.
2. Each object is freed exactly once, by the table's ``free`` callback.
3. After `ResourceTable.lose` (the device is gone) nothing is busy any more.
4. An object may be made of others, its *parts*, as a device graph is of the buffers
   and kernels of its nodes. Using the whole uses each part, without touching it: a
   part is idle when its wholes are. Destroying a part *breaks* the whole, which
   cannot be used any more.
5. Nothing here waits: not for the device, not for a lock that is held longer
   than a few dictionary operations.
6. The table's *epoch* is another object after every `ResourceTable.destroy` and
   `lose`, and where a buffer arrives anew. Who found everything in order in this
   epoch need not look again.
"""

from __future__ import annotations

import heapq
import threading
from collections.abc import Callable, Iterable, Iterator
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
from accy_async.errors import (
    AccyError,
    InvalidArtifact,
    InvalidBuffer,
    InvalidEvent,
    InvalidGraph,
    InvalidStream,
)

if TYPE_CHECKING:
    from accy_async.artifact.formats import BackendKind
    from accy_async.backends.exchange import Arrival
    from accy_async.backends.owners import Owner

from accy_async.backends.timeline import Mark, Timeline

__all__ = [
    "Reaper",
    "Resource",
    "ResourceTable",
    "Use",
    "kind_of",
    "refuse_destroyed",
]

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


class ResourceTable:
    """Every object of one backend: living, retired, freed.

    Args:
        backend: the kind that handles must carry.
        free: called once for each object when it is freed, on any thread.

    Attributes:
        epoch: see the module.
    """

    def __init__(self, backend: BackendKind, free: Callable[[Resource], None]) -> None:
        self._backend = backend
        self._free = free
        self._lock = threading.Lock()
        self._live: dict[int, Resource] = {}
        self._retired: dict[int, Resource] = {}
        # Of what is retired, by stream, heaps of positions and ids: who waits for
        # which point. So a sweep looks at what a stream has come past, and no more.
        self._blocked: dict[Timeline, list[tuple[int, int]]] = {}
        self._next_id = 1
        self._is_lost = False
        self.epoch = object()

    def renew_epoch(self) -> None:
        """Have whoever found everything in order look again; any thread."""
        self.epoch = object()

    @property
    def next_id(self) -> int:
        """The id that the next object will get; ids count up from 1."""
        return self._next_id

    def add(
        self,
        kind: ObjectKind,
        make_handle: Callable[[int], Handle],
        payload: object,
        detail: str = "",
        *,
        timeline: Timeline | None = None,
    ) -> Resource:
        """Register a new object under the next id; a stream with its timeline."""
        with self._lock:
            handle = make_handle(self._next_id)
            self._next_id += 1
            resource = Resource(kind, handle, payload, detail, timeline)
            self._live[handle.id] = resource
            return resource

    def find(self, handle: Handle) -> Resource | None:
        """The living object of that handle, or None."""
        resource = self._live.get(handle.id)
        if resource is None or handle.backend is not self._backend:
            return None
        return resource if resource.kind is kind_of(handle) else None

    def get(self, handle: Handle) -> Resource:
        """The living object of that handle.

        Raises:
            InvalidBuffer, InvalidArtifact, InvalidStream, InvalidEvent,
            InvalidGraph: it was destroyed, or is of another backend or kind.
        """
        resource = self._live.get(handle.id)
        if resource is not None and resource.handle is handle:
            return resource  # it need not be looked at: it was given out like this
        resource = self.find(handle)
        if resource is not None:
            return resource
        kind = kind_of(handle)
        if handle.backend is not self._backend:
            why = f"is of backend {handle.backend}, this one is {self._backend}"
        elif 0 < handle.id < self._next_id and handle.id not in self._live:
            why = "was destroyed"
        else:
            why = "was never given out by this backend"
        raise _INVALID[kind](f"{kind.singular} {handle.id} {why}")

    def destroy(self, handle: Handle) -> bool:
        """Free an object, or retire it if it is in use.

        Returns:
            True if it was freed at once, False if it was retired.

        Raises:
            InvalidBuffer, InvalidArtifact, InvalidStream, InvalidEvent,
            InvalidGraph: there is no such object alive.
        """
        resource = self.get(handle)
        with self._lock:
            if self._live.pop(handle.id, None) is None:
                raise _INVALID[resource.kind](f"{resource.name} was destroyed")
            resource.is_alive = False
            self.renew_epoch()
            resource.leave_all()
            resource.decompose()
            # Retired first, looked at then: who completes the last use meanwhile
            # finds it here, or it is idle for us to see.
            self._retired[handle.id] = resource
            if not self._is_lost and self._is_blocked(resource):
                resource.is_retired = True
            else:
                del self._retired[handle.id]
        if resource.is_retired:
            for line, position in resource.last_positions().items():
                line.request(position)
            return False
        self._free(resource)
        return True

    def sweep(self) -> int:
        """Free every retired object that has become idle; returns how many."""
        if not self._retired:
            return 0
        with self._lock:
            idle = self._take_idle()
        for resource in idle:
            self._free(resource)
        return len(idle)

    def _is_blocked(self, resource: Resource) -> bool:
        """Have the object looked at once what blocks it is past, if anything does."""
        blocker = resource.blocker()
        if blocker is None:
            return False
        line, position = blocker
        heap = self._blocked.setdefault(line, [])
        heapq.heappush(heap, (position, resource.handle.id))
        return True

    def _take_idle(self) -> list[Resource]:
        """The retired objects that have become idle, no longer retired."""
        if self._is_lost:
            idle = list(self._retired.values())
            self._retired.clear()
            self._blocked.clear()
            return idle
        idle = []
        for line, heap in list(self._blocked.items()):
            while heap and heap[0][0] <= line.completed:
                resource = self._retired[heapq.heappop(heap)[1]]
                if not self._is_blocked(resource):
                    del self._retired[resource.handle.id]
                    idle.append(resource)
            if not heap:
                del self._blocked[line]
        return idle

    def lose(self) -> None:
        """The device is gone: nothing is in use any more."""
        self._is_lost = True
        self.renew_epoch()
        self.sweep()

    def living(self, owner: Owner | None = None) -> list[Resource]:
        """The living objects, an owner's or all, newest first."""
        with self._lock:
            return _owned(reversed(self._live.values()), owner)

    def retired(self, owner: Owner | None = None) -> list[Resource]:
        """The objects destroyed while in use and not yet freed, oldest first."""
        with self._lock:
            return _owned(self._retired.values(), owner)

    def counts(self, owner: Owner | None = None) -> dict[str, int]:
        """How many objects of each kind are not freed yet, retired ones included."""
        counts = {kind.value: 0 for kind in ObjectKind}
        with self._lock:
            for table in (self._live, self._retired):
                for resource in _owned(table.values(), owner):
                    counts[resource.kind.value] += 1
        return counts

    def __iter__(self) -> Iterator[Resource]:
        return iter(self.living())


class Reaper:
    """Holds what was destroyed while the device might still use it.

    It needs no task: each object is freed by the thread that completes its last
    use. `sweep` looks again, for a device whose completions nobody hears.
    """

    __slots__ = ("_table",)

    def __init__(self, table: ResourceTable) -> None:
        self._table = table

    def held(self, owner: Owner | None = None) -> tuple[str, ...]:
        """The names of the objects held, an owner's or all, oldest first.

        Those that another library still has, too: they say so.
        """
        return tuple(
            f"{one.name}, exported" if one.is_exported else one.name
            for one in self._table.retired(owner)
        )

    def overdue(self, owner: Owner | None = None) -> tuple[str, ...]:
        """The names of those that the device, and no other library, still uses."""
        retired = self._table.retired(owner)
        return tuple(one.name for one in retired if not one.is_exported)

    def sweep(self) -> int:
        """Free what has become idle; returns how many objects that were."""
        return self._table.sweep()

    def __len__(self) -> int:
        return len(self._table.retired())


def _owned(resources: Iterable[Resource], owner: Owner | None) -> list[Resource]:
    """Those of an owner; all where none is named."""
    return [r for r in resources if owner is None or owner.has(r.owner)]


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
        raise _INVALID[resource.kind](f"{resource.name} was destroyed")


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
_INVALID: dict[ObjectKind, type[AccyError]] = {
    ObjectKind.BUFFER: InvalidBuffer,
    ObjectKind.ARTIFACT: InvalidArtifact,
    ObjectKind.STREAM: InvalidStream,
    ObjectKind.EVENT: InvalidEvent,
    ObjectKind.GRAPH: InvalidGraph,
}
