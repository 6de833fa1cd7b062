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
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import TYPE_CHECKING, TypeVar

from accy_async.backends.handles import Handle, ObjectKind
from accy_async.backends.refusals import Refusals, is_interrupt
from accy_async.backends.resources import INVALID, Resource, kind_of
from accy_async.backends.timeline import Timeline
from accy_async.errors import InvalidType

if TYPE_CHECKING:
    from accy_async.artifact.formats import BackendKind
    from accy_async.backends.launch import KeptLaunch
    from accy_async.backends.origins import Origin
    from accy_async.backends.owners import Owner

__all__ = ["Reaper", "ResourceTable", "destroy_each"]

_T = TypeVar("_T")


class ResourceTable:
    """Every object of one backend: living, retired, freed.

    Args:
        backend: the kind that handles must carry.
        free: called once for each object when it is freed, on any thread.
        origin: what handles of this very backend carry.

    Attributes:
        epoch: see the module.
        kept: requests that were launched, by their ids, for as long as they live; with
            each its launch, once it came again. The backend's.
        refusals: what retired objects could not be freed with, until it is told.
    """

    def __init__(
        self,
        backend: BackendKind,
        free: Callable[[Resource], None],
        origin: Origin | None = None,
    ) -> None:
        self._backend = backend
        self._origin = origin
        self._free = free
        self._lock = threading.Lock()
        self._live: dict[int, Resource] = {}
        self._retired: dict[int, Resource] = {}
        # Of what is retired, by stream, heaps of positions and ids: who waits for
        # which point. So a sweep looks at what a stream has come past, and no more.
        self._blocked: dict[Timeline, list[tuple[int, int]]] = {}
        self._next_id = 1
        self._is_lost = False
        self._along: weakref.WeakSet[ResourceTable] | None = None
        self.epoch = object()
        self.kept: dict[int, KeptLaunch] = {}
        self.refusals = Refusals()

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
        if resource is not None and resource.handle is handle:
            return resource  # it need not be looked at: it was given out like this
        if resource is None or self.foreign(handle):
            return None
        return resource if resource.kind is kind_of(handle) else None

    def foreign(self, handle: Handle) -> str:
        """Why a handle cannot be of this backend, whatever its id; empty if it can."""
        origin, mine = handle.origin, self._origin
        is_known = origin is None or origin is mine
        if is_known and handle.backend is self._backend:
            return ""
        theirs = handle.backend.value if is_known else origin.title  # type: ignore[union-attr]
        ours = self._backend.value if mine is None else mine.title
        if theirs == ours:
            return f"is of another backend that was opened on {theirs}"
        return f"is of backend {theirs}, this one is {ours}"

    def get(self, handle: Handle) -> Resource:
        """The living object of that handle.

        Raises:
            InvalidBuffer, InvalidArtifact, InvalidStream, InvalidEvent,
            InvalidGraph: it was destroyed, or is of another backend or kind.
            InvalidType: it is no handle.
        """
        try:
            resource = self.find(handle)
            if resource is not None:
                return resource
            kind = kind_of(handle)
        except (AttributeError, KeyError, TypeError):
            raise InvalidType("handle", handle, "one that a backend gave out") from None
        if why := self.foreign(handle):
            pass
        elif 0 < handle.id < self._next_id and handle.id not in self._live:
            why = "was destroyed"
        else:
            why = "was never given out by this backend"
        raise INVALID[kind](f"{kind.singular} {handle.id} {why}")

    def destroy(self, handle: Handle) -> bool:
        """Free an object, or retire it if it is in use.

        Of what it retired, the caller asks for the end: see `Resource.request_end`.

        Returns:
            True if it was freed at once, False if it was retired.

        Raises:
            InvalidBuffer, InvalidArtifact, InvalidStream, InvalidEvent,
            InvalidGraph: there is no such object alive.
        """
        resource = self.get(handle)
        with self._lock:
            if self._live.pop(handle.id, None) is None:
                raise INVALID[resource.kind](f"{resource.name} was destroyed")
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
            return False
        self._free(resource)
        return True

    def sweep(self) -> int:
        """Free every retired object that has become idle; returns how many.

        Whoever looks is not whose objects they are: what the device refuses is kept
        in `refusals`.
        """
        if self._along:
            return sum([one.sweep_alone() for one in (self, *self._along)])
        return self.sweep_alone() if self._retired else 0

    def sweep_along(self, other: ResourceTable) -> None:
        """Have another table swept with this one, whose streams use its objects."""
        if self._along is None or other not in self._along:
            # Another set each time: who sweeps goes through it on any thread.
            self._along = weakref.WeakSet([*(self._along or ()), other])

    @property
    def sweeps_others(self) -> bool:
        """True where streams of this device may use another's objects."""
        return bool(self._along)

    def sweep_alone(self) -> int:
        """`sweep`, of this table alone."""
        if not self._retired:
            return 0
        with self._lock:
            idle = self._take_idle()
        destroy_each(self._free_late, idle, "freed")
        return len(idle)

    def sweep_unattended(self) -> None:
        """`sweep`, on a thread of the device's own: nothing that is raised ends it."""
        try:
            self.sweep()
        except BaseException as error:  # noqa: BLE001 - told to who closes the backend
            self.refusals.note(None, error, "looking for what has become idle")

    def _free_late(self, resource: Resource) -> None:
        try:
            self._free(resource)
        except BaseException as error:
            if is_interrupt(error):
                raise
            what = f"freeing {resource.name}, which was destroyed while in use"
            self.refusals.note(resource.owner, error, what)

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
        self.kept.clear()
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
        """The names of those that the device still uses, as nobody was told yet.

        Those that another library has, too, are not overdue: they are lent.
        """
        return tuple(
            one.name
            for one in self._table.retired(owner)
            if not (one.is_exported or one.is_given_up)
        )

    def give_up(self, names: Collection[str], waited_s: float) -> None:
        """A cleanup has waited for the uses of these objects in vain, and says so.

        Whoever leaves afterwards waits so much less for them, that the one exit does
        not take the grace twice, and does not tell of them again.

        Args:
            names: as `held` gives them.
            waited_s: how long it was, in seconds.
        """
        for one in self._table.retired():
            if one.name in names:
                one.is_given_up = True
                for mark in one.last_uses():
                    mark.timeline.give_up(mark.position, waited_s)
                if one.timeline is not None:
                    one.timeline.give_up(one.timeline.submitted, waited_s)

    def sweep(self) -> int:
        """Free what has become idle; returns how many objects that were."""
        return self._table.sweep()

    def __len__(self) -> int:
        return len(self._table.retired())


def _owned(resources: Iterable[Resource], owner: Owner | None) -> list[Resource]:
    """Those of an owner; all where none is named."""
    return [r for r in resources if owner is None or owner.has(r.owner)]


def destroy_each(
    destroy: Callable[[_T], object], objects: Iterable[_T], what: str
) -> None:
    """Destroy every object, whichever of the others refused.

    Raises:
        BaseException: the first interrupt that came meanwhile.
        ExceptionGroup: else what was refused; ``what`` is what they could not be.
    """
    errors: list[Exception] = []
    interrupt: BaseException | None = None
    for one in objects:
        try:
            destroy(one)
        except Exception as error:  # noqa: BLE001 - raised below, all together
            errors.append(error)
        except BaseException as error:  # noqa: BLE001 - raised below
            interrupt = interrupt or error
    if interrupt is not None:
        raise interrupt
    if errors:
        raise ExceptionGroup(f"some objects could not be {what}", errors)
