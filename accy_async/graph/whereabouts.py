"""On which device each part of a plan is, in a session that has several.

What is said comes first: by a node or a slot (`LaunchGraphNode.device`,
`BufferSlot.device`), and by what is bound to a slot. The rest follows: a kernel is
where its buffers are, a scratch buffer where it is used, slots that a loop carries are
on one device, and a copy with one end unsaid stays where the other is. What is then
left goes to the device that a policy chose.

Only copies go from one device to another. A kernel whose buffers are on two is
refused, with the names of all.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence

import attrs

from accy_async.backends.routes import CopyRoute, Way
from accy_async.errors import LaunchArgumentMismatch
from accy_async.graph.nodes import (
    BufferSlot,
    CopyBuffer,
    EventSignal,
    EventWait,
    HostSlot,
)
from accy_async.graph.order import HOST, LOOP, Block
from accy_async.graph.plan import LaunchGraphPlan

__all__ = ["Whereabouts", "locate", "refuse_other_devices"]

_NOWHERE = -1

RouteOf = Callable[[int, int], CopyRoute]
"""The way from one device to another, by their numbers."""


@attrs.frozen(eq=False)
class Whereabouts:
    """Where everything of a plan is, by the numbers of devices.

    Attributes:
        devices: the devices' names.
        nodes: of each node; -1 for calls on the host.
        slots: of each slot; -1 for host memory.
        loops: of each loop, the device of the stream that its turns begin and end on.
        events: of each event that nodes signal, and of each external one bound.
        routes: the ways that copies go from one device to another.
        chosen: the device that a policy chose for what nothing else says; -1 where
            it was not asked.
    """

    devices: tuple[str, ...]
    nodes: tuple[int, ...]
    slots: tuple[int, ...]
    loops: tuple[int, ...]
    events: Mapping[str, int]
    routes: tuple[CopyRoute, ...] = ()
    chosen: int = _NOWHERE

    @property
    def used(self) -> tuple[int, ...]:
        """The devices that anything is on, in order."""
        used = {*self.nodes, *self.slots, *self.events.values()} - {_NOWHERE}
        return tuple(sorted(used))

    def among(self, used: Sequence[int]) -> Whereabouts:
        """The same, with the devices that are used numbered from 0."""
        number = {old: new for new, old in enumerate(used)}
        number[_NOWHERE] = _NOWHERE
        return Whereabouts(
            devices=tuple(self.devices[old] for old in used),
            nodes=tuple([number[old] for old in self.nodes]),
            slots=tuple([number[old] for old in self.slots]),
            loops=tuple([number.get(old, 0) for old in self.loops]),
            events={name: number[old] for name, old in self.events.items()},
            routes=self.routes,
            chosen=number.get(self.chosen, _NOWHERE),
        )

    def of_items(self, block: Block) -> list[int]:
        """The device of each item of a block."""
        return [
            _NOWHERE
            if kind == HOST
            else self.loops[index]
            if kind == LOOP
            else self.nodes[index]
            for kind, index in zip(block.kinds, block.indices, strict=True)
        ]


def refuse_other_devices(plan: LaunchGraphPlan, device: str) -> None:
    """Refuse a plan with parts on another device than the one it is to run on.

    Raises:
        LaunchArgumentMismatch: a slot or node says so; the message names it, its
            device and this one.
    """
    for name, what in plan.named_devices.items():
        if name != device:
            raise LaunchArgumentMismatch(
                f"{what} is to be on {name}; the session's device is {device}"
            )


def locate(
    plan: LaunchGraphPlan,
    devices: Sequence[str],
    bound: Mapping[str, int],
    choose: Callable[[Mapping[int, int]], int],
    route_of: RouteOf,
) -> Whereabouts:
    """Say where everything of a plan is.

    Args:
        plan: the plan.
        devices: the names of the session's devices.
        bound: of each slot and event bound, its device's number.
        choose: gives the device of what nothing says; told how many bytes of the
            plan are on each device.
        route_of: the way from one device to another.

    Raises:
        LaunchArgumentMismatch: the parts contradict each other, or name a device that
            the session has not; the message names them.
        UnsupportedOperation: there is no way between two devices.
    """
    return _Locator(plan, devices, bound).locate(choose, route_of)


class _Locator:
    """What is known so far."""

    def __init__(
        self, plan: LaunchGraphPlan, devices: Sequence[str], bound: Mapping[str, int]
    ) -> None:
        self._plan = plan
        self._names = tuple(devices)
        self._numbers = {name: number for number, name in enumerate(devices)}
        self._bound = bound
        self._slots = [_NOWHERE] * len(plan.slots)
        self._nodes = [_NOWHERE] * len(plan.nodes)
        self._said = [False] * len(plan.nodes)
        self._users: list[list[int]] = [[] for _ in plan.slots]
        for index, node in enumerate(plan.nodes):
            if not node.is_host:
                for slot, _ in plan.uses[index]:
                    self._users[slot].append(index)
        self._together = self._carried()

    def locate(
        self, choose: Callable[[Mapping[int, int]], int], route_of: RouteOf
    ) -> Whereabouts:
        self._take_what_is_said()
        self._spread(range(len(self._slots)), range(len(self._nodes)))
        self._pull_copies()
        chosen = _NOWHERE
        if self._is_open():
            chosen = choose(self._bytes())
            self._settle_rest(chosen)
        routes = self._place_copies(route_of)
        events = self._events(max(chosen, 0))
        self._check()
        return Whereabouts(
            devices=self._names,
            nodes=tuple(self._nodes),
            slots=tuple(self._slots),
            loops=tuple(self._loops(max(chosen, 0))),
            events=events,
            routes=routes,
            chosen=chosen,
        )

    def _number(self, name: str, what: str) -> int:
        found = self._numbers.get(name)
        if found is None:
            known = ", ".join(self._names)
            raise LaunchArgumentMismatch(
                f"{what} is to be on {name}; the session's devices are {known}"
            )
        return found

    def _take_what_is_said(self) -> None:
        for index, slot in enumerate(self._plan.slots):
            if isinstance(slot, HostSlot):
                continue
            bound = self._bound.get(slot.name, _NOWHERE)
            self._slots[index] = bound
            if slot.device is None:
                continue
            said = self._number(slot.device, f"slot {slot.name!r}")
            if bound not in (_NOWHERE, said):
                raise LaunchArgumentMismatch(
                    f"bindings[{slot.name!r}]: it is on {self._names[bound]}, the plan "
                    f"has the slot on {slot.device}"
                )
            self._slots[index] = said
        for index, node in enumerate(self._plan.nodes):
            if node.device is not None and not node.is_host:
                self._nodes[index] = self._number(node.device, f"node {node.name!r}")
                self._said[index] = True

    def _carried(self) -> dict[int, list[int]]:
        """The slots that loops exchange for each."""
        index = self._plan.slot_index
        together: dict[int, list[int]] = {}
        for loop in self._plan.loops:
            for carry in loop.carries:
                one, two = index[carry.current], index[carry.next]
                together.setdefault(one, []).append(two)
                together.setdefault(two, []).append(one)
        return together

    def _spread(self, slots: Iterable[int], nodes: Iterable[int]) -> None:
        """Have what is known of slots and nodes tell of those around them."""
        todo = deque(("slot", slot) for slot in slots if self._slots[slot] >= 0)
        todo += [("node", node) for node in nodes if self._nodes[node] >= 0]
        while todo:
            kind, index = todo.popleft()
            if kind == "slot":
                device = self._slots[index]
                for other in self._together.get(index, ()):
                    if self._slots[other] < 0:
                        self._slots[other] = device
                        todo.append(("slot", other))
                for node in self._users[index]:
                    if self._nodes[node] < 0 and not self._is_copy(node):
                        self._nodes[node] = device
                        todo.append(("node", node))
            elif not self._is_copy(index):
                for slot, _ in self._plan.uses[index]:
                    if self._slots[slot] < 0 and self._is_buffer(slot):
                        self._slots[slot] = self._nodes[index]
                        todo.append(("slot", slot))

    def _pull_copies(self) -> None:
        """Have the unsaid end of each copy be where the other is."""
        index = self._plan.slot_index
        has_changed = True
        while has_changed:
            has_changed = False
            for node in self._plan.nodes:
                copy = node.operation
                if not isinstance(copy, CopyBuffer):
                    continue
                ends = index[copy.source], index[copy.target]
                known = [self._slots[end] for end in ends if self._slots[end] >= 0]
                if len(known) == 1:
                    (open_end,) = (end for end in ends if self._slots[end] < 0)
                    self._slots[open_end] = known[0]
                    self._spread([open_end], ())
                    has_changed = True

    def _is_copy(self, node: int) -> bool:
        return isinstance(self._plan.nodes[node].operation, CopyBuffer)

    def _is_buffer(self, slot: int) -> bool:
        return isinstance(self._plan.slots[slot], BufferSlot)

    def _is_open(self) -> bool:
        """Whether anything has no place yet."""
        return any(
            place < 0 and self._is_buffer(slot)
            for slot, place in enumerate(self._slots)
        ) or any(
            place < 0
            and not node.is_host
            and not isinstance(node.operation, CopyBuffer)
            for node, place in zip(self._plan.nodes, self._nodes, strict=True)
        )

    def _bytes(self) -> dict[int, int]:
        found: dict[int, int] = {}
        for slot, place in zip(self._plan.slots, self._slots, strict=True):
            if place >= 0:
                found[place] = found.get(place, 0) + slot.byte_size
        return found

    def _settle_rest(self, chosen: int) -> None:
        for index, place in enumerate(self._slots):
            if place < 0 and self._is_buffer(index):
                self._slots[index] = chosen
        event_of = self._signal_devices()
        for index, node in enumerate(self._plan.nodes):
            if self._nodes[index] >= 0 or node.is_host or self._is_copy(index):
                continue
            operation = node.operation
            if isinstance(operation, (EventWait, EventSignal)):
                known = event_of.get(operation.event, _NOWHERE)
                self._nodes[index] = chosen if known < 0 else known
            else:
                self._nodes[index] = chosen
                for slot, _ in self._plan.uses[index]:
                    if self._is_buffer(slot):
                        self._nodes[index] = self._slots[slot]
                        break

    def _place_copies(self, route_of: RouteOf) -> tuple[CopyRoute, ...]:
        """Have each copy be where its route says; gives those between devices."""
        index = self._plan.slot_index
        routes: dict[tuple[int, int], CopyRoute] = {}
        for number, node in enumerate(self._plan.nodes):
            copy = node.operation
            if not isinstance(copy, CopyBuffer):
                continue
            ends = self._slots[index[copy.source]], self._slots[index[copy.target]]
            if self._said[number] and self._nodes[number] not in ends:
                names = " to ".join(self._names[end] for end in ends)
                raise LaunchArgumentMismatch(
                    f"node {node.name!r} is to be on {node.device}, and copies from "
                    f"{names}"
                )
            route = routes.get(ends)
            if route is None:
                route = routes[ends] = route_of(*ends)
            self._nodes[number] = ends[1] if route.is_pulled else ends[0]
        return tuple(route for route in routes.values() if route.way is not Way.LOCAL)

    def _signal_devices(self) -> dict[str, int]:
        """The device of each event, as far as that is known."""
        names = {*self._plan.external_events}
        found = {name: self._bound[name] for name in names if name in self._bound}
        for index, node in enumerate(self._plan.nodes):
            name = node.signal_event
            if isinstance(node.operation, EventSignal):
                name = node.operation.event
            if name is not None and self._nodes[index] >= 0:
                found.setdefault(name, self._nodes[index])
        return found

    def _events(self, default: int) -> dict[str, int]:
        events = self._signal_devices()
        for index, node in enumerate(self._plan.nodes):
            names = [node.signal_event] if node.signal_event is not None else []
            if isinstance(node.operation, EventSignal):
                names.append(node.operation.event)
            for name in names:
                place = events.setdefault(name, default)
                if place != self._nodes[index] and not node.is_host:
                    raise LaunchArgumentMismatch(
                        f"event {name!r} is of {self._names[place]}, and node "
                        f"{node.name!r} signals it on {self._names[self._nodes[index]]}"
                    )
        return events

    def _loops(self, default: int) -> list[int]:
        """Where each loop's own stream is: with its condition, or its first node."""
        places = []
        for loop in self._plan.loops:
            first = self._plan.node_index[loop.first]
            last = self._plan.node_index[loop.last]
            within = [place for place in self._nodes[first : last + 1] if place >= 0]
            place = within[0] if within else default
            if loop.condition is not None:
                place = self._slots[self._plan.slot_index[loop.condition]]
            places.append(place)
        return places

    def _check(self) -> None:
        """Refuse a kernel whose buffers are elsewhere, and a label on two devices."""
        labels: dict[str, tuple[int, str]] = {}
        for index, node in enumerate(self._plan.nodes):
            if node.is_host:
                continue
            place = self._nodes[index]
            if not self._is_copy(index):
                for slot, _ in self._plan.uses[index]:
                    if self._slots[slot] not in (_NOWHERE, place):
                        raise LaunchArgumentMismatch(
                            f"node {node.name!r} runs on {self._names[place]} and uses "
                            f"slot {self._plan.slots[slot].name!r}, which is on "
                            f"{self._names[self._slots[slot]]}: copy it there first"
                        )
            if node.stream is not None:
                other, name = labels.setdefault(node.stream, (place, node.name))
                if other != place:
                    raise LaunchArgumentMismatch(
                        f"stream {node.stream!r}: node {name!r} is on "
                        f"{self._names[other]} and node {node.name!r} on "
                        f"{self._names[place]}"
                    )
        for one, others in self._together.items():
            for two in others:
                if self._slots[one] != self._slots[two]:
                    names = [self._plan.slots[i].name for i in (one, two)]
                    places = [self._names[self._slots[i]] for i in (one, two)]
                    raise LaunchArgumentMismatch(
                        f"a loop carries slot {names[0]!r} on {places[0]} to slot "
                        f"{names[1]!r} on {places[1]}: they must be on one device"
                    )
