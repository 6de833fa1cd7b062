"""Who is alive, who is in use, and when what is in use may be freed.

Theory. A stream runs its operations in order, so how far it has come is one
number: a `Timeline` counts operations submitted and completed. Every operation
*touches* the objects it uses, which writes the operation's position on its
stream into the object: after many operations an object holds, per stream, the
last position that uses it (a vector clock as long as the streams that touched
it). An object is idle when every stream has come that far.

Invariants:

1. `ResourceTable.destroy` makes a handle unusable at once. It frees an idle
   object at once; a busy one becomes *retired* and is freed when its last use
   completes, by whichever thread completes it.
2. Each object is freed exactly once, by the table's ``free`` callback.
3. After `ResourceTable.lose` (the device is gone) nothing is busy any more.
4. Nothing here waits: not for the device, not for a lock that is held longer
   than a few dictionary operations.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import attrs

from accy_async.backends.completion import Completion
from accy_async.backends.handles import (
    BufferHandle,
    EventHandle,
    Handle,
    LoadedArtifact,
    ObjectKind,
    StreamHandle,
)
from accy_async.errors import (
    AccyError,
    DeviceError,
    InvalidArtifact,
    InvalidBuffer,
    InvalidEvent,
    InvalidStream,
)

if TYPE_CHECKING:
    from accy_async.artifact.formats import BackendKind

__all__ = [
    "Mark",
    "Reaper",
    "Resource",
    "ResourceTable",
    "Timeline",
    "kind_of",
    "refuse_destroyed",
]

_FAILURES_KEPT = 64
_USES_KEPT = 16
"""Streams that an object remembers before it looks which are past."""


class Timeline:
    """How far one stream has come, who waits for it, and where it failed.

    Failure: when the operation at position f fails, it and every operation
    submitted until somebody is told form a failed range: those not yet run are
    skipped, and every wait for a position in the range raises the error. The
    first wait that raises it ends the range; what is submitted afterwards runs
    normally. (A device that cannot recover is lost instead: see `lose`.)
    """

    __slots__ = (
        "_failure",
        "_failures",
        "_lock",
        "_lost",
        "_skip_until",
        "_waiters",
        "completed",
        "has_failed",
        "name",
        "submitted",
    )

    def __init__(self, name: str) -> None:
        self.name = name
        self.submitted = 0
        self.completed = 0
        self.has_failed = False  # and True for good after the first failure
        self._lock = threading.Lock()
        self._waiters: list[tuple[int, Completion]] = []
        self._failure: tuple[int, DeviceError] | None = None
        self._failures: list[tuple[int, int, DeviceError]] = []
        self._skip_until = 0
        self._lost: DeviceError | None = None

    def __repr__(self) -> str:
        return f"<Timeline {self.name}: {self.completed} of {self.submitted}>"

    @property
    def is_idle(self) -> bool:
        """True where everything submitted has completed."""
        return self.completed >= self.submitted

    def has_reached(self, position: int) -> bool:
        """True where everything up to ``position`` is done."""
        return self.completed >= position

    def request(self, position: int) -> None:
        """Somebody will want to know when ``position`` is done.

        For a device that says so only where it is asked to beforehand.
        """

    def advance(self) -> int:
        """Submit an operation; returns its position, counting from 1.

        The caller makes sure that operations reach the device in this order.
        """
        self.submitted += 1
        return self.submitted

    def complete(self, position: int) -> None:
        """Say that every operation up to ``position`` is done; any thread."""
        with self._lock:
            if position <= self.completed:
                return
            self.completed = position
            if not self._waiters:
                return
            reached = [c for at, c in self._waiters if at <= position]
            self._waiters = [w for w in self._waiters if w[0] > position]
        for completion in reached:
            completion.set()

    def fail(self, position: int, error: DeviceError) -> None:
        """Say that the operation at ``position`` failed; call before `complete`."""
        with self._lock:
            self.has_failed = True
            if self._failure is None and position > self._skip_until:
                self._failure = (position, error)

    def lose(self, error: DeviceError) -> None:
        """The device is gone: every wait, now and later, raises ``error``."""
        with self._lock:
            self.has_failed = True
            if self._lost is None:
                self._lost = error
            self.completed = self.submitted
            waiters, self._waiters = self._waiters, []
        for _, completion in waiters:
            completion.set()

    def error_at(self, position: int) -> DeviceError | None:
        """The error whose failed range holds ``position``, without telling it.

        An operation that finds one here, at its own position, is to be skipped.
        """
        if not self.has_failed:
            return None
        with self._lock:
            return self._error_at(position)

    def _error_at(self, position: int) -> DeviceError | None:
        if self._lost is not None:
            return self._lost
        if self._failure is not None and position >= self._failure[0]:
            return self._failure[1]
        for first, last, error in reversed(self._failures):
            if first <= position <= last:
                return error
        return None

    def raise_at(self, position: int) -> None:
        """Raise the error whose failed range holds ``position``, if any does.

        Raises:
            DeviceError: a fresh copy each time, with the first as its cause.
        """
        with self._lock:
            error = self._error_at(position)
            if self._failure is not None and error is self._failure[1]:
                self._skip_until = self.submitted
                self._failures.append((self._failure[0], self.submitted, error))
                del self._failures[:-_FAILURES_KEPT]
                self._failure = None
        if error is not None:
            raise error.copy() from error.__cause__

    async def wait(self, position: int) -> None:
        """Return once every operation up to ``position`` is done.

        Raises:
            DeviceError: the operation at ``position``, or one before it in the
                same failed range, failed.

        Cancellation: only the wait stops.
        """
        await self.wait_reached(position)
        self.raise_at(position)

    async def wait_untold(self, position: int) -> None:
        """`wait`, but silent about a failure that some wait has raised already.

        Raises:
            DeviceError: the device is lost, or nobody was told yet what failed.
        """
        await self.wait_reached(position)
        with self._lock:
            untold = self._failure
            is_told = self._lost is None and (untold is None or position < untold[0])
        if not is_told:
            self.raise_at(position)

    async def wait_reached(self, position: int) -> None:
        """Return once every operation up to ``position`` has ended, in any way.

        Cancellation: only the wait stops.
        """
        completion = Completion()
        self.watch(position, completion)
        try:
            await completion.wait()
        except BaseException:
            self.unwatch(completion)
            raise

    def watch(self, position: int, completion: Completion) -> None:
        """Have the signal set once every operation up to ``position`` has ended."""
        with self._lock:
            if self.completed < position and self._lost is None:
                self._waiters.append((position, completion))
                return
        completion.set()

    def unwatch(self, completion: Completion) -> None:
        """Forget a signal given to `watch`."""
        with self._lock:
            self._waiters = [w for w in self._waiters if w[1] is not completion]


@attrs.frozen
class Mark:
    """A point in a stream's work."""

    timeline: Timeline
    position: int

    @property
    def is_reached(self) -> bool:
        """True where the stream has come this far."""
        return self.timeline.has_reached(self.position)

    async def wait(self) -> None:
        """Return once the stream has come this far; see `Timeline.wait`."""
        await self.timeline.wait(self.position)

    async def wait_untold(self) -> None:
        """The same, for what nobody was told yet; see `Timeline.wait_untold`."""
        await self.timeline.wait_untold(self.position)

    async def wait_reached(self) -> None:
        """The same, without raising what failed; see `Timeline.wait_reached`."""
        await self.timeline.wait_reached(self.position)


class Resource:
    """One object a backend owns, and the streams that use it."""

    __slots__ = (
        "detail",
        "handle",
        "is_alive",
        "is_retired",
        "kind",
        "payload",
        "timeline",
        "uses",
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
        self.handle = handle
        self.payload = payload
        self.detail = detail
        self.timeline = timeline
        self.uses: dict[Timeline, int] = {}
        self.is_alive = True
        self.is_retired = False

    @property
    def name(self) -> str:
        """How messages name the object: kind, id, and size or kernel."""
        return f"{self.kind.singular} {self.handle.id}{self.detail}"

    @property
    def is_busy(self) -> bool:
        """True while a stream has not come past its last use of the object.

        A stream is itself in use until all that it was given is done.
        """
        if self.timeline is not None and not self.timeline.is_idle:
            return True
        return any(line.completed < at for line, at in list(self.uses.items()))

    def last_uses(self) -> list[Mark]:
        """The last use on each stream that has not come past it."""
        return [
            Mark(line, at)
            for line, at in list(self.uses.items())
            if line.completed < at or line.error_at(at) is not None
        ]

    def touch(self, timeline: Timeline, position: int) -> None:
        """Say that the operation at this position uses the object."""
        self.uses[timeline] = position
        if len(self.uses) > _USES_KEPT:
            self._forget_past_uses()

    def _forget_past_uses(self) -> None:
        """Drop the streams that have come past their use, and went well there.

        Objects outlive streams: without this, one that many short-lived streams
        use would remember them all.
        """
        self.uses = {mark.timeline: mark.position for mark in self.last_uses()}


class ResourceTable:
    """Every object of one backend: living, retired, freed.

    Args:
        backend: the kind that handles must carry.
        free: called once for each object when it is freed, on any thread.
    """

    def __init__(self, backend: BackendKind, free: Callable[[Resource], None]) -> None:
        self._backend = backend
        self._free = free
        self._lock = threading.Lock()
        self._live: dict[int, Resource] = {}
        self._retired: dict[int, Resource] = {}
        self._next_id = 1
        self._is_lost = False

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
            InvalidBuffer, InvalidArtifact, InvalidStream, InvalidEvent: it was
                destroyed, or is of another backend or kind.
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
            InvalidBuffer, InvalidArtifact, InvalidStream, InvalidEvent: there is
                no such object alive.
        """
        resource = self.get(handle)
        with self._lock:
            if self._live.pop(handle.id, None) is None:
                raise _INVALID[resource.kind](f"{resource.name} was destroyed")
            resource.is_alive = False
            # Retired first, looked at then: who completes the last use meanwhile
            # finds it here, or it is idle for us to see.
            self._retired[handle.id] = resource
            if resource.is_busy and not self._is_lost:
                resource.is_retired = True
            else:
                del self._retired[handle.id]
        if resource.is_retired:
            for line, position in list(resource.uses.items()):
                line.request(position)
            return False
        self._free(resource)
        return True

    def sweep(self) -> int:
        """Free every retired object that has become idle; returns how many."""
        if not self._retired:
            return 0
        with self._lock:
            idle = [r for r in self._retired.values() if self._is_lost or not r.is_busy]
            for resource in idle:
                del self._retired[resource.handle.id]
        for resource in idle:
            self._free(resource)
        return len(idle)

    def lose(self) -> None:
        """The device is gone: nothing is in use any more."""
        self._is_lost = True
        self.sweep()

    def living(self, since_id: int = 1) -> list[Resource]:
        """The living objects with ids from ``since_id``, newest first."""
        with self._lock:
            return [r for i, r in reversed(self._live.items()) if i >= since_id]

    def retired(self) -> list[Resource]:
        """The objects destroyed while in use and not yet freed, oldest first."""
        with self._lock:
            return list(self._retired.values())

    def counts(self, since_id: int = 1) -> dict[str, int]:
        """How many objects of each kind are not freed yet, retired ones included."""
        counts = {kind.value: 0 for kind in ObjectKind}
        with self._lock:
            for table in (self._live, self._retired):
                for object_id, resource in table.items():
                    if object_id >= since_id:
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

    def held(self) -> tuple[str, ...]:
        """The names of the objects held, oldest first."""
        return tuple(resource.name for resource in self._table.retired())

    def sweep(self) -> int:
        """Free what has become idle; returns how many objects that were."""
        return self._table.sweep()

    def __len__(self) -> int:
        return len(self._table.retired())


def refuse_destroyed(resource: Resource) -> None:
    """Refuse to use an object that was destroyed.

    Raises:
        InvalidBuffer, InvalidArtifact, InvalidStream, InvalidEvent: it was.
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
}
_INVALID: dict[ObjectKind, type[AccyError]] = {
    ObjectKind.BUFFER: InvalidBuffer,
    ObjectKind.ARTIFACT: InvalidArtifact,
    ObjectKind.STREAM: InvalidStream,
    ObjectKind.EVENT: InvalidEvent,
}
