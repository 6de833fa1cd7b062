"""The core of a session over several devices: its seats, their health, its end."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import anyio
import attrs

from accy_async.backends.cleanup import overtake, raise_together
from accy_async.errors import InvalidType, InvalidValue, SessionClosed
from accy_async.graph.crossing import CrossingExecutive
from accy_async.session.openness import Openness
from accy_async.session.policy import DeviceLoad, PlacingPolicy, Work
from accy_async.session.single import Session
from accy_async.session.stores import OpenedStores

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

    from accy_async.backends.handles import Handle
    from accy_async.errors import DeviceLost
    from accy_async.observe.protocol import Observer
    from accy_async.session.statistics import SessionStatistics

__all__ = ["DeviceHealth", "MultiCore"]


@attrs.frozen
class DeviceHealth:
    """How one device of a session is.

    Attributes:
        device: its name.
        is_healthy: True while it answers.
        loss: how it was lost, if it was.
    """

    device: str
    is_healthy: bool
    loss: DeviceLost | None = None


class MultiCore(Openness):
    """What every part of a session over several devices stands on.

    Attributes:
        grace_s: how long cleanup may wait for all of the devices together, in seconds.
        max_in_flight: for each device, and for each set of them that plans run on.
        observer: told of what happens, unless a call names another.
        policy: places what may go to any device.
    """

    def __init__(
        self,
        seats: Sequence[Session],
        *,
        policy: PlacingPolicy,
        grace_s: float,
        max_in_flight: int,
        observer: Observer | None = None,
    ) -> None:
        super().__init__()
        self.grace_s = grace_s
        self.max_in_flight = max_in_flight
        self.observer = observer
        self.policy = policy
        self._seats = tuple(seats)
        self._names = tuple(seat.backend.device for seat in seats)
        self._numbers = {seat.backend.origin: i for i, seat in enumerate(seats)}
        self._stores = OpenedStores()
        for seat in self._seats:
            seat._share_stores(self._stores)  # noqa: SLF001 - seats are the whole's
        self._crossings: dict[tuple[int, ...], CrossingExecutive] = {}
        # Calls of the whole's fragments that are going on, on each device.
        self._calls = [0] * len(seats)
        # Which plans, pipelines and fragments ran where, by their identity.
        self._ran: list[weakref.WeakValueDictionary[int, object]] = [
            weakref.WeakValueDictionary() for _ in seats
        ]

    def __repr__(self) -> str:
        return f"<{type(self).__name__} on {', '.join(self._names)}: {self._state}>"

    @property
    def devices(self) -> tuple[str, ...]:
        """The names of the devices, in the order they were opened with."""
        return self._names

    def on(self, device: str | int) -> Session:
        """The session's seat on one device: a session for that device alone.

        What is made there is the whole session's: it ends with it.

        Args:
            device: its name, or its place in `devices`.

        Raises:
            InvalidValue: it is none of them.
        """
        if isinstance(device, int) and not isinstance(device, bool):
            if 0 <= device < len(self._seats):
                return self._seats[device]
        elif isinstance(device, str) and device in self._names:
            return self._seats[self._names.index(device)]
        known = ", ".join(self._names)
        raise InvalidValue("MultiSession.on.device", device, f"one of {known}")

    @property
    def is_healthy(self) -> bool:
        """True while the session is open and every device answers; see `health`."""
        return self.is_open and all(seat.backend.is_healthy for seat in self._seats)

    def health(self) -> Mapping[str, DeviceHealth]:
        """How each device is, by its name. Tells nobody of a loss who is to be told."""
        return {
            name: DeviceHealth(name, seat.backend.is_healthy, seat.backend.loss)
            for name, seat in zip(self._names, self._seats, strict=True)
        }

    def live_objects(self) -> dict[str, int]:
        """Objects made in the session and not freed yet, by kind, on all devices."""
        total: dict[str, int] = {}
        for seat in self._seats:
            for kind, count in seat.live_objects().items():
                total[kind] = total.get(kind, 0) + count
        return total

    def statistics(self) -> Mapping[str, SessionStatistics]:
        """Each device at this moment, by its name.

        Runs that are on several devices count on each of them.
        """
        return {
            name: attrs.evolve(found, runs=found.runs + self._crossing_runs(number))
            for number, (name, found) in enumerate(
                zip(self._names, (s.statistics() for s in self._seats), strict=True)
            )
        }

    def place(self, work: Work | None = None) -> str:
        """The device where the policy would have something placed now; its name.

        Args:
            work: what; data that the caller is about to upload if left out.

        Raises:
            DeviceLost: no device is healthy.
        """
        self._check("place")
        return self._names[self._choose(work or Work(kind="data"), {})]

    # Within

    def _number_of(self, handle: Handle) -> int | None:
        """The number of a handle's device; None for one that was made by hand."""
        if handle.origin is None:
            return None
        return self._numbers.get(handle.origin, -1)

    def _choose(
        self,
        work: Work,
        resident: Mapping[int, int],
        identity: int = 0,
        among: Sequence[int] | None = None,
    ) -> int:
        """Ask the policy; ``among`` are the devices that could do it, all if left out.

        Raises:
            DeviceLost: no device is healthy.
            InvalidValue, InvalidType: the policy names none of the candidates.
        """
        able = range(len(self._seats)) if among is None else among
        healthy = [number for number in able if self._seats[number].backend.is_healthy]
        if not healthy:
            loss = self._seats[able[0]].backend.loss
            if loss is not None:
                raise loss.consequence()
            raise SessionClosed(f"placing a {work.kind}: no device is open")
        candidates = [
            DeviceLoad(
                device=self._names[number],
                load=self._load(number),
                resident_bytes=resident.get(number, 0),
                has_run=identity in self._ran[number],
            )
            for number in healthy
        ]
        chosen = self.policy(work, candidates)
        if not isinstance(chosen, str):
            raise InvalidType("policy", chosen, "the name of a device, as a str")
        names = [one.device for one in candidates]
        if chosen not in names:
            raise InvalidValue("policy", chosen, f"one of {', '.join(names)}")
        return self._names.index(chosen)

    def _load(self, number: int) -> int:
        others = self._crossing_runs(number) + self._calls[number]
        return self._seats[number].load + others

    @contextmanager
    def _calling_on(self, number: int, fragment: object) -> Iterator[None]:
        """A call of a fragment is going on there."""
        self._ran[number][id(fragment)] = fragment
        self._calls[number] += 1
        try:
            yield
        finally:
            self._calls[number] -= 1

    def _crossing_runs(self, number: int) -> int:
        return sum(
            crossing.running
            for used, crossing in self._crossings.items()
            if number in used
        )

    def _crossing(self, used: tuple[int, ...]) -> CrossingExecutive:
        """What runs plans on these devices; made when first needed."""
        found = self._crossings.get(used)
        if found is None:
            seats = [self._seats[number] for number in used]
            found = self._crossings[used] = CrossingExecutive(
                [seat.backend for seat in seats],
                [seat.stream_pool for seat in seats],
                self.max_in_flight,
                self.grace_s,
            )
        return found

    # Its beginning and its end

    def _begin(self, group: TaskGroup) -> None:
        super()._begin(group)
        for seat in self._seats:
            seat._begin(group)  # noqa: SLF001 - seats are the whole's

    async def _stop_runs(self) -> None:
        """Cancel all runs at once, and wait for them: they end within one grace."""
        self._state = "draining"
        for crossing in self._crossings.values():
            crossing.cancel_all()
        for seat in self._seats:
            seat._drain()  # noqa: SLF001
        for crossing in self._crossings.values():
            await crossing.wait_all()
        for seat in self._seats:
            await seat._stop_runs()  # noqa: SLF001

    async def _leave(
        self, primary: BaseException | None, interrupt: BaseException | None
    ) -> None:
        """Leave all devices at the same time; one that hangs takes no other's grace."""
        errors: list[Exception] = []
        interrupts: list[BaseException] = []

        async def leave(seat: Session) -> None:
            found, cut = await seat._clean_up(primary)  # noqa: SLF001
            errors.extend(found)
            if cut is not None:
                interrupts.append(cut)

        try:
            with anyio.CancelScope(shield=True):
                async with anyio.create_task_group() as group:
                    for seat in self._seats:
                        group.start_soon(leave, seat)
        except BaseException as error:  # noqa: BLE001 - raised below
            interrupts.append(error)
        for crossing in self._crossings.values():
            errors += crossing.unobserved_errors()
        self._state = "closed"
        if interrupt is None and interrupts:
            interrupt = interrupts[0]
        if interrupt is not None:
            primary = overtake(primary, interrupt, errors)
        raise_together("the session", primary, errors)
