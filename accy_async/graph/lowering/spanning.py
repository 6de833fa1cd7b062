"""A plan on several devices as parts: a device graph of each, and the copies between.

Pure, as the outline is. Items are taken in stages: one that comes after an item of
another device, or after a copy between devices, is a stage later than that. What is of
one device and one stage becomes one *piece*, a plan of its own for that device alone,
or two: first what others wait for, then the rest, for which they do not. Each copy from
one device to another stays by itself. An edge from one part to another leads to a later
stage, or to the rest of its own, so that no two parts wait for each other; each is
kept.

What a piece uses is bound to it, scratch too: the parts share their buffers.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TYPE_CHECKING

import attrs

from accy_async.graph.dataflow import WRITES
from accy_async.graph.lowering.obstacle import Obstacle
from accy_async.graph.nodes import (
    BufferSlot,
    CopyBuffer,
    EventSignal,
    EventWait,
    HostCall,
    HostSlot,
    LaunchGraphDependency,
)
from accy_async.graph.order import LOOP, Block
from accy_async.graph.plan import LaunchGraphPlan

if TYPE_CHECKING:
    from accy_async.graph.nodes import LaunchGraphLoop, LaunchGraphNode
    from accy_async.graph.whereabouts import Whereabouts

__all__ = ["SpanPart", "span_parts", "span_report"]


@attrs.frozen(eq=False, kw_only=True)
class SpanPart:
    """A part of a plan.

    Attributes:
        device: the number of the device whose stream carries it out.
        plan: a piece, which has its device's nodes; None for a copy.
        copy: of a copy between devices, the slots that it is from and to.
        after: the parts, by their places, that it comes after.
        nodes: the names of its nodes.
    """

    device: int
    plan: LaunchGraphPlan | None = None
    copy: tuple[str, str] | None = None
    after: tuple[int, ...] = ()
    nodes: tuple[str, ...] = ()


def span_parts(
    plan: LaunchGraphPlan,
    places: Whereabouts,
    can_wait: Callable[[int, int], bool],
) -> tuple[SpanPart, ...] | tuple[Obstacle, ...]:
    """A plan's parts, each after those that it comes after; or all that is in the way.

    Args:
        plan: the plan.
        places: where everything is; several devices are used.
        can_wait: whether streams of a device can wait for events of another, by their
            numbers.
    """
    obstacles = _obstacles(plan, places)
    if obstacles:
        return tuple(obstacles)
    split = _Split(plan, places)
    parts = split.parts()
    for part in parts:
        for before in part.after:
            waited = parts[before].device
            if waited != part.device and not can_wait(part.device, waited):
                names = places.devices[part.device], places.devices[waited]
                why = f"{names[0]} cannot wait for events of {names[1]}"
                return (Obstacle("", why),)
    shared = _shared_arrays(plan, parts)
    return tuple(shared) if shared else parts


def span_report(
    plan: LaunchGraphPlan,
    places: Whereabouts,
    can_wait: Callable[[int, int], bool],
    without: Collection[int],
    limit: int,
) -> list[str]:
    """What preparing a plan makes of it, in lines; else what is in the way.

    Args:
        plan: the plan.
        places: where everything is.
        can_wait: as for `span_parts`.
        without: the numbers of the devices that have no graphs.
        limit: how many obstacles are listed.
    """
    found = span_parts(plan, places, can_wait)
    parts = [one for one in found if isinstance(one, SpanPart)]
    lacking = sorted({one.device for one in parts if one.plan}.intersection(without))
    if lacking:
        names = [places.devices[number] for number in lacking]
        found = tuple(Obstacle("", f"{name} has no device graphs") for name in names)
    if lacking or not parts:
        lines = ["cannot be prepared as device graphs:"]
        lines += [f"  {obstacle}" for obstacle in found[:limit]]
        more = len(found) - limit
        return [*lines, f"  ... {more} more"] if more > 0 else lines
    counts = [0] * len(places.devices)
    for part in parts:
        counts[part.device] += part.plan is not None
    listed = ", ".join(
        f"{count} on {name}" for name, count in zip(places.devices, counts, strict=True)
    )
    copies = len(parts) - sum(counts)
    return [f"prepared: device graphs, {listed}; {copies} copies between devices"]


def _obstacles(plan: LaunchGraphPlan, places: Whereabouts) -> list[Obstacle]:
    found = []
    for node in plan.nodes:
        if isinstance(node.operation, HostCall):
            why = "a call on the host, which a device graph cannot make"
            found.append(Obstacle(node.name, why))
    found += [
        Obstacle(name, "an event of the caller's") for name in plan.external_events
    ]
    for item, kind in enumerate(plan.order.top.kinds):
        if kind != LOOP:
            continue
        loop = plan.loops[plan.order.top.indices[item]]
        on = {places.nodes[index] for index in _nodes_of(plan.order.top, item)}
        on |= {
            places.slots[plan.slot_index[name]]
            for index in _nodes_of(plan.order.top, item)
            for name, _ in plan.nodes[index].uses()
        } - {-1}
        if len(on) > 1:
            found.append(Obstacle(loop.name, "its turns are on several devices"))
        if any(one.carries for one in _loops_of(plan, plan.order.top, item)):
            why = "carries: where its buffers are afterwards is one device's to know"
            found.append(Obstacle(loop.name, why))
    return found


def _shared_arrays(plan: LaunchGraphPlan, parts: Sequence[SpanPart]) -> list[Obstacle]:
    """Host arrays that one part writes and another uses: a graph reads them first."""
    users: dict[str, list[int]] = {}
    written = set()
    for place, part in enumerate(parts):
        for name in part.nodes:
            index = plan.node_index[name]
            for slot, how in plan.uses[index]:
                if isinstance(plan.slots[slot], HostSlot):
                    users.setdefault(plan.slots[slot].name, []).append(place)
                    if how & WRITES:
                        written.add(plan.slots[slot].name)
    return [
        Obstacle(name, "an array that one device's part writes and another uses")
        for name, places in users.items()
        if name in written and len(set(places)) > 1
    ]


def _nodes_of(block: Block, item: int) -> Iterator[int]:
    """The plan's nodes of an item: itself, or all within a loop."""
    body = block.bodies.get(item)
    if body is None:
        yield block.indices[item]
        return
    for inner in range(len(body)):
        yield from _nodes_of(body, inner)


def _loops_of(
    plan: LaunchGraphPlan, block: Block, item: int
) -> Iterator[LaunchGraphLoop]:
    """The loops of an item: itself if it is one, and all within."""
    body = block.bodies.get(item)
    if body is None:
        return
    yield plan.loops[block.indices[item]]
    for inner in range(len(body)):
        yield from _loops_of(plan, body, inner)


class _Split:
    """The items of a plan's top block, put into parts."""

    def __init__(self, plan: LaunchGraphPlan, places: Whereabouts) -> None:
        self._plan = plan
        self._places = places
        self._top = plan.order.top
        self._pulled = {
            (route.source, route.target): route.is_pulled for route in places.routes
        }

    def parts(self) -> tuple[SpanPart, ...]:
        """The parts, in an order in which each is after those before it."""
        members = self._members()
        place = {item: number for number, items in enumerate(members) for item in items}
        return tuple(
            self._part(
                items,
                tuple(
                    sorted(
                        {place[p] for item in items for p in self._top.preds[item]}
                        - {number}
                    )
                ),
            )
            for number, items in enumerate(members)
        )

    def _members(self) -> list[list[int]]:
        """The items of each part, by stage and then by device."""
        stages = self._stages()
        awaited = self._awaited(stages)
        groups: dict[tuple[int, int, int, bool], list[int]] = {}
        for item in self._top.topological:
            mine = self._home(item)
            alone = -1 if mine >= 0 else item
            is_rest = mine >= 0 and item not in awaited
            key = (stages[item], mine, alone, is_rest)
            groups.setdefault(key, []).append(item)
        return [groups[key] for key in sorted(groups)]

    def _stages(self) -> dict[int, int]:
        """The stage of each item."""
        stages: dict[int, int] = {}
        for item in self._top.topological:
            mine = self._home(item)
            stage = 0
            for before in self._top.preds[item]:
                is_same = mine >= 0 and self._home(before) == mine
                stage = max(stage, stages[before] + (not is_same))
            stages[item] = stage
        return stages

    def _awaited(self, stages: dict[int, int]) -> set[int]:
        """The items that something of another part waits for, within their stage."""
        awaited: set[int] = set()
        for item in reversed(self._top.topological):
            mine = self._home(item)
            for before in self._top.preds[item]:
                is_same = mine >= 0 and self._home(before) == mine
                is_near = is_same and stages[before] == stages[item]
                if not is_same or (is_near and item in awaited):
                    awaited.add(before)
        return awaited

    def _home(self, item: int) -> int:
        """The device that an item is on; -1 for a copy between two."""
        if self._ends(item) is not None:
            return -1
        return self._places.nodes[next(_nodes_of(self._top, item))]

    def _ends(self, item: int) -> tuple[int, int] | None:
        """The devices that a copy is from and to, where they are two."""
        if self._top.kinds[item] == LOOP:
            return None
        operation = self._plan.nodes[self._top.indices[item]].operation
        if not isinstance(operation, CopyBuffer):
            return None
        source, target = (
            self._places.slots[self._plan.slot_index[name]]
            for name in (operation.source, operation.target)
        )
        return None if source == target else (source, target)

    def _part(self, items: Sequence[int], after: tuple[int, ...]) -> SpanPart:
        ends = self._ends(items[0])
        indices = sorted(i for item in items for i in _nodes_of(self._top, item))
        names = tuple(self._plan.nodes[index].name for index in indices)
        if ends is None:
            device = self._places.nodes[indices[0]]
            piece = self._piece(items, indices)
            return SpanPart(device=device, plan=piece, after=after, nodes=names)
        operation = self._plan.nodes[indices[0]].operation
        assert isinstance(operation, CopyBuffer)
        source, target = ends
        devices = self._places.devices
        is_pulled = self._pulled.get((devices[source], devices[target]), False)
        return SpanPart(
            device=target if is_pulled else source,
            copy=(operation.source, operation.target),
            after=after,
            nodes=names,
        )

    def _piece(self, items: Sequence[int], indices: Sequence[int]) -> LaunchGraphPlan:
        plan = self._plan
        nodes = tuple(_without_events(plan.nodes[index]) for index in indices)
        names = {node.name for node in nodes}
        # What events and stream labels say of the order is said by edges: who signals
        # may be in another part.
        order = (
            LaunchGraphDependency(
                plan.nodes[edge.before].name, plan.nodes[edge.after].name
            )
            for edge in plan.order_edges
        )
        loops = tuple(
            loop for item in items for loop in _loops_of(plan, self._top, item)
        )
        used = {slot for node in nodes for slot, _ in node.uses()}
        used |= {loop.condition for loop in loops if loop.condition is not None}
        return LaunchGraphPlan(
            nodes=nodes,
            dependencies=tuple(
                edge
                for edge in (*plan.dependencies, *order)
                if edge.before in names and edge.after in names
            ),
            loops=loops,
            slots=tuple(
                attrs.evolve(slot, is_scratch=False)
                if isinstance(slot, BufferSlot)
                else slot
                for slot in plan.slots
                if slot.name in used
            ),
            runtime_scalar_count=plan.runtime_scalar_count,
        )


def _without_events(node: LaunchGraphNode) -> LaunchGraphNode:
    """A node that waits for no event and signals none that others wait for.

    One that does nothing else stays, as edges lead to it and from it.
    """
    operation = node.operation
    if isinstance(operation, (EventWait, EventSignal)):
        operation = EventSignal(f"{node.name} is reached")
    return attrs.evolve(node, operation=operation, wait_events=(), signal_event=None)
