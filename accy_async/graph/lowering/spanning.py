"""A plan on several devices as parts: a device graph of each, and the copies between.

Pure, as the outline is. What is of one device becomes *pieces*, plans of their own for
that device alone; each copy from one device to another stays by itself, and the turns
of a loop over several devices are parts one after the other. `grouping` says which.
Every edge is kept.

What a piece uses is bound to it, scratch too: the parts share their buffers.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING

from accy_async.graph.dataflow import WRITES
from accy_async.graph.lowering.obstacle import Obstacle
from accy_async.graph.lowering.splitting import SpanPart, Splitter
from accy_async.graph.nodes import HostCall, HostSlot

if TYPE_CHECKING:
    from accy_async.dtypes import ScalarArgument
    from accy_async.graph.plan import LaunchGraphPlan
    from accy_async.graph.whereabouts import Whereabouts

__all__ = ["SpanPart", "span_parts", "span_report"]


def span_parts(
    plan: LaunchGraphPlan,
    places: Whereabouts,
    can_wait: Callable[[int, int], bool],
    scalars: Sequence[ScalarArgument] = (),
) -> tuple[SpanPart, ...] | tuple[Obstacle, ...]:
    """A plan's parts, each after those that it comes after; or all that is in the way.

    Args:
        plan: the plan.
        places: where everything is; several devices are used.
        can_wait: whether streams of a device can wait for events of another, by their
            numbers.
        scalars: the run's, for loops that they count; a loop over several devices is
            taken to run once where they are missing.
    """
    splitter = Splitter(plan, places, scalars)
    obstacles = _obstacles(plan, splitter)
    if not obstacles:
        splitter.split()
        obstacles = splitter.obstacles
    if obstacles:
        return tuple(obstacles)
    parts = tuple(splitter.parts)
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
    obstacles: Sequence[Obstacle] = (),
) -> list[str]:
    """What preparing a plan makes of it, in lines; else what is in the way.

    Args:
        plan: the plan.
        places: where everything is.
        can_wait: as for `span_parts`.
        without: the numbers of the devices that have no graphs.
        limit: how many obstacles are listed.
        obstacles: what is known to be in the way.
    """
    found = tuple(obstacles) or span_parts(plan, places, can_wait)
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
    once = {part.number: part for part in parts}.values()
    for part in once:
        counts[part.device] += part.plan is not None
    listed = ", ".join(
        f"{count} on {name}" for name, count in zip(places.devices, counts, strict=True)
    )
    copies = len(once) - sum(counts)
    return [f"prepared: device graphs, {listed}; {copies} copies between devices"]


def _obstacles(plan: LaunchGraphPlan, splitter: Splitter) -> list[Obstacle]:
    found = []
    for node in plan.nodes:
        if isinstance(node.operation, HostCall):
            why = "a call on the host, which a device graph cannot make"
            found.append(Obstacle(node.name, why))
    found += [
        Obstacle(name, "an event of the caller's") for name in plan.external_events
    ]
    for block, item in splitter.grouping.wide_loops():
        loop = splitter.loop(block, item)
        several = "its turns are on several devices, and"
        if loop.condition is not None:
            why = f"{several} a value decides on its end, which one device has"
            found.append(Obstacle(loop.name, why))
        arrays = {
            slot
            for index in plan.order.nodes_within(block, item)
            for slot, _ in plan.uses[index]
            if isinstance(plan.slots[slot], HostSlot)
        }
        if arrays:
            name = plan.slots[min(arrays)].name
            why = f"{several} they copy from or to the host: {name}"
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
