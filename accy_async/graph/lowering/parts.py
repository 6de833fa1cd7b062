"""A plan with calls on the host as several graphs of the device, around the calls.

Pure, as `outline`. The driver may call no Python, so the calls stay with the run; what
lies between them can still be launched as a whole. Items of the device that come after
the very same calls make up one *part*: it can be launched once these have returned, no
sooner and no later than any of its items could. A call waits for the items that it
depends on, not for their parts: each of them records an event in its graph. Only where
it depends on a loop with a limit does it wait for the part, at whose end it is known
how that loop ended.

Calls never wait for a part that waits for them: the calls before a part are before
every item of it, so what comes after one of its items comes after no fewer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import attrs

from accy_async.graph.lowering.limits import with_branches
from accy_async.graph.lowering.obstacle import CALL_IN_LOOP, Obstacle, calls_in_the_way
from accy_async.graph.lowering.outline import Outline, Outliner
from accy_async.graph.nodes import HostCall
from accy_async.graph.order import HOST

if TYPE_CHECKING:
    from accy_async.dtypes import ScalarArgument
    from accy_async.graph.lowering.outline import Grouped
    from accy_async.graph.order import Block
    from accy_async.graph.plan import LaunchGraphPlan

__all__ = ["TOO_SMALL", "Part", "Parting", "has_host_calls", "part_plan"]

TOO_SMALL = Obstacle(
    "",
    "its parts between calls on the host are too small for graphs to save time",
)

_LEAST_NODES = 4
"""Nodes for each graph, and each item awaited in one, below which nothing is won."""

_MOST_AWAITED = 16
"""Items of one part that calls may wait for: `LoweredGraph` watches no more."""


@attrs.frozen(eq=False)
class Part:
    """Items of a plan's top block that come after the same calls.

    Attributes:
        outline: they as one graph.
        items: their numbers.
        awaited: those that calls wait for, and that can be known to be done before
            the rest.
        parts: the parts that hold items before these.
        calls: the calls that are directly before some of them, by their items.
    """

    outline: Outline
    items: tuple[int, ...]
    awaited: tuple[int, ...]
    parts: tuple[int, ...]
    calls: tuple[int, ...]


@attrs.frozen(eq=False)
class Parting:
    """A plan as parts and calls.

    Attributes:
        parts: the parts, each after those that it comes after.
        calls: the items that are calls.
        part_of: of each item, its part; -1 for a call.
        where: where the slots' memories are at the end, as in `OutlineNode.where`.
    """

    parts: tuple[Part, ...]
    calls: tuple[int, ...]
    part_of: tuple[int, ...]
    where: tuple[int, ...]

    @property
    def is_worth_it(self) -> bool:
        """True where graphs save more than launching and watching them takes."""
        nodes = sum(part.outline.node_count for part in self.parts)
        extra = sum(1 + len(part.awaited) for part in self.parts)
        return nodes >= _LEAST_NODES * extra


def has_host_calls(plan: LaunchGraphPlan) -> bool:
    """True where some node of a plan is called on the host."""
    return any(isinstance(node.operation, HostCall) for node in plan.nodes)


def part_plan(
    plan: LaunchGraphPlan,
    scalars: Sequence[ScalarArgument] = (),
    *,
    has_loops: bool = True,
) -> Parting | tuple[Obstacle, ...]:
    """A plan as parts and calls, or all that keeps it from that.

    Args:
        plan: the plan.
        scalars: the run's, as for `outline`.
        has_loops: whether the device can decide on a loop's end itself.
    """
    block = plan.order.top
    part_of, count = _group(block)
    if not count:
        return tuple(calls_in_the_way(plan))
    outliner = Outliner(plan, scalars, has_loops=has_loops)
    grouped = outliner.add_grouped(block, part_of, count)
    obstacles = [*_obstacles(plan), *outliner.obstacles.values()]
    items: list[list[int]] = [[] for _ in range(count)]
    awaited: list[list[int]] = [[] for _ in range(count)]
    parts: list[set[int]] = [set() for _ in range(count)]
    calls: list[set[int]] = [set() for _ in range(count)]
    for item, mine in enumerate(part_of):
        if mine < 0:
            continue
        items[mine].append(item)
        if any(block.kinds[after] == HOST for after in block.succs[item]):
            awaited[mine].append(item)
        for before in block.preds[item]:
            if part_of[before] < 0:
                calls[mine].add(before)
            elif part_of[before] != mine:
                parts[mine].add(part_of[before])
    outlines = [_outline(grouped, number, items[number]) for number in range(count)]
    awaited = [
        [item for item in mine if item not in made.limited]
        for mine, made in zip(awaited, outlines, strict=True)
    ]
    if any(len(found) > _MOST_AWAITED for found in awaited):
        obstacles.append(
            Obstacle("", f"calls on the host wait for more than {_MOST_AWAITED} nodes")
        )
    if obstacles:
        return tuple(obstacles)
    made = [
        Part(
            outlines[number],
            tuple(items[number]),
            tuple(awaited[number]),
            tuple(sorted(parts[number])),
            tuple(sorted(calls[number])),
        )
        for number in range(count)
    ]
    hosts = tuple(item for item, mine in enumerate(part_of) if mine < 0)
    return Parting(tuple(made), hosts, part_of, grouped.where)


def _outline(grouped: Grouped, number: int, items: Sequence[int]) -> Outline:
    """One part as a graph.

    Loops with limits in parts before it are asked by their verdicts, as its own are.
    """
    limited = with_branches(grouped.bodies[number], grouped.given[number])
    mine = set(items)
    ends = [end if item in mine else () for item, end in enumerate(grouped.ends)]
    behind = frozenset(item for item in items if grouped.after[item])
    return Outline(
        limited.body,
        limited.moved(ends),
        grouped.where,
        (),
        (),
        limited.items(ends) | behind,
        limited.limits,
    )


def _group(block: Block) -> tuple[tuple[int, ...], int]:
    """The part of each item, -1 for calls, and how many parts there are.

    Calls are bits: an item's set of them is a number.
    """
    before = [0] * len(block)
    part_of = [-1] * len(block)
    numbers: dict[int, int] = {}
    bit = 1
    for item in block.topological:
        found = 0
        for pred in block.preds[item]:
            found |= before[pred]
        if block.kinds[item] == HOST:
            before[item] = found | bit
            bit <<= 1
        else:
            before[item] = found
            part_of[item] = numbers.setdefault(found, len(numbers))
    return tuple(part_of), len(numbers)


def _obstacles(plan: LaunchGraphPlan) -> list[Obstacle]:
    found = [
        Obstacle(node.name, CALL_IN_LOOP)
        for index, node in enumerate(plan.nodes)
        if isinstance(node.operation, HostCall) and plan.order.block_of[index].loop >= 0
    ]
    found += [
        Obstacle(name, "an event of the caller's is used beside calls on the host")
        for name in plan.external_events
    ]
    return found
