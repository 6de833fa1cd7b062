"""Where the parts of a plan are in a session, looked up once for like bindings."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import TYPE_CHECKING

from accy_async.backends.adopting import adopt_array
from accy_async.backends.array import DeviceArray
from accy_async.backends.handles import BufferBinding, BufferHandle, EventHandle
from accy_async.backends.routes import CopyRoute
from accy_async.errors import InvalidType, LaunchArgumentMismatch
from accy_async.graph.lowering.spanning import span_report
from accy_async.graph.nodes import BufferSlot
from accy_async.graph.plan import LaunchGraphPlan
from accy_async.graph.rereads import pulled_early
from accy_async.graph.whereabouts import Whereabouts, locate
from accy_async.interop.foreign import is_foreign
from accy_async.session.multi.arrays import MultiArrays
from accy_async.session.policy import Work

if TYPE_CHECKING:
    from accy_async.graph.bindings import Binding
    from accy_async.graph.options import LaunchOptions

__all__ = ["MultiPlaces"]

_KEPT = 64
"""Pairs of a plan and of devices bound that are kept; the one unused longest goes."""


class _Located:
    """What is known of a plan whose bindings are on certain devices."""

    __slots__ = ("among", "by_choice", "plan", "resident")

    def __init__(self, plan: LaunchGraphPlan) -> None:
        self.plan = plan  # kept, so that its identity stays its own
        # What the policy is told, where it has to be asked; None before that.
        self.resident: Mapping[int, int] | None = None
        self.by_choice: dict[int, Whereabouts] = {}
        self.among: dict[int, Whereabouts] = {}


class MultiPlaces(MultiArrays):
    """The whereabouts of plans in a session over several devices."""

    _located: OrderedDict[tuple[object, ...], _Located]

    def locate(
        self,
        plan: LaunchGraphPlan,
        bindings: Mapping[str, Binding] | None = None,
        *,
        name: str = "",
    ) -> Whereabouts:
        """Where everything of a plan would be, were it started now.

        Args:
            plan: the plan.
            bindings: as for `MultiSession.start`; what is left out is bound nowhere.
            name: of the run, for the policy.

        Raises:
            LaunchArgumentMismatch: the parts contradict each other, name a device that
                the session has not, or are on one; the message names them.
            UnsupportedOperation: there is no way between two devices.
            SessionClosed: the session is not open.
        """
        self._check("locate")
        if not isinstance(plan, LaunchGraphPlan):
            raise InvalidType("locate.plan", plan, "a LaunchGraphPlan")
        return self._locate(plan, self._bound_on(bindings or {}), name)

    def explain(
        self,
        plan: LaunchGraphPlan,
        bindings: Mapping[str, Binding] | None = None,
        *,
        max_streams: int = 8,
        limit: int = 40,
    ) -> str:
        """How a plan would be laid out on the devices, and why, as text.

        Besides what `LaunchGraphPlan.explain` says: what is where, which way copies go
        from one device to another and why, how many edges cross, and what preparing
        it makes of it.

        Raises:
            As `locate`.
        """
        places = self.locate(plan, bindings)
        used = places.used
        if len(used) > 1:
            among = places.among(used)
            seats = [self._seats[number] for number in used]

            def can_wait(waiting: int, waited: int) -> bool:
                return seats[waiting].backend.can_wait_for(seats[waited].backend)

            without = [
                number
                for number, seat in enumerate(seats)
                if not seat.capabilities.device_graphs
            ]
            early = pulled_early(plan, lambda number: seats[number].backend, among)
            report = span_report(plan, among, can_wait, without, limit, early)
            return "\n".join([plan.explain(max_streams, limit, among), *report])
        on = self._names[used[0]] if used else "no device"
        return f"on {on}\n{plan.explain(max_streams, limit)}"

    # Within

    def _locate(
        self, plan: LaunchGraphPlan, bound: Mapping[str, int], name: str
    ) -> Whereabouts:
        key = (id(plan), *sorted(bound.items()))
        found = self._located.get(key)
        if found is None:
            found = self._located[key] = _Located(plan)
            if len(self._located) > _KEPT:
                self._located.popitem(last=False)
        else:
            self._located.move_to_end(key)
            if found.resident is None and found.by_choice:
                return next(iter(found.by_choice.values()))
        work = Work(kind="run", name=name)
        chosen = -1
        if found.resident is not None:
            chosen = self._choose(work, found.resident, id(plan))
            known = found.by_choice.get(chosen)
            if known is not None:
                return known

        def choose(resident: Mapping[int, int]) -> int:
            found.resident = resident
            return chosen if chosen >= 0 else self._choose(work, resident, id(plan))

        places = locate(plan, self._names, bound, choose, self._route)
        found.by_choice[places.chosen] = places
        return places

    def _among(self, plan: LaunchGraphPlan, places: Whereabouts) -> Whereabouts:
        """Whereabouts by the numbers of the devices used; one object for one."""
        for found in self._located.values():
            if found.plan is plan and places in found.by_choice.values():
                if places.chosen not in found.among:
                    found.among[places.chosen] = places.among(places.used)
                return found.among[places.chosen]
        return places.among(places.used)

    def _route(self, source: int, target: int) -> CopyRoute:
        there = self._seats[target].backend
        return self._seats[source].backend.route_to(there)

    def _adopt_bindings(
        self, plan: LaunchGraphPlan, bindings: Mapping[str, Binding] | None
    ) -> dict[str, Binding]:
        """The bindings, with other libraries' arrays as arrays of their device."""
        adopted = dict(bindings or {})
        known: dict[int, DeviceArray] = {}
        for slot in plan.slots:
            given = adopted.get(slot.name)
            if isinstance(given, (DeviceArray, BufferBinding, BufferHandle)):
                continue
            if isinstance(slot, BufferSlot) and is_foreign(given):
                if id(given) not in known:  # one array is one memory
                    backend = self._seat_for(given).backend
                    where = f"bindings[{slot.name!r}]"
                    known[id(given)] = adopt_array(backend, given, what=where)
                adopted[slot.name] = known[id(given)]
        return adopted

    def _bound_on(self, bindings: Mapping[str, Binding]) -> dict[str, int]:
        """The number of the device that each binding is on."""
        bound: dict[str, int] = {}
        for name, given in bindings.items():
            if isinstance(given, (DeviceArray, BufferBinding)):
                given = given.handle
            if not isinstance(given, (BufferHandle, EventHandle)):
                continue
            number = self._number_of(given)
            if number is None:
                continue
            if number < 0:
                why = self._seats[0].backend.foreign(given).partition(", this one is")
                raise LaunchArgumentMismatch(
                    f"bindings[{name!r}]: it {why[0]}; the session's devices are "
                    f"{', '.join(self._names)}"
                )
            bound[name] = number
        return bound

    def _fixed_by(self, options: LaunchOptions | None) -> int | None:
        """The number of the device of a run's stream, if it has one."""
        if options is None or options.stream is None:
            return None
        return self._number_of(options.stream)
