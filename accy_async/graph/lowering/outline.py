"""What a plan comes to as one graph of the device, and what keeps it from that.

Pure: an `Outline` is made of a plan and of how often its loops run, and names no
buffer. Where carries have swapped the buffers of slots, a node of the outline says
of each slot whose *first* memory it has there, so that nothing is ever copied for
a carry: a loop's body is there once for each arrangement of its buffers.

* Edges are the plan's own: of dependencies, events within the plan, and labels.
* A loop of few nodes is unrolled. Another stays a loop, whose turns are its body
  in each arrangement that the carries come round to (two for a pair of slots).
* A loop whose end a value decides comes out with the buffers where they were, as what
  follows it is decided beforehand: where it ends in the midst of the arrangements, the
  buffers exchange their contents, once.
* What comes after a loop that may fail by its limit is in branches: see `limits`. A
  loop around one stays a loop, which ends as soon as that one has failed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import attrs

from accy_async.graph.lowering.arrangements import carried, exchanges
from accy_async.graph.lowering.limits import Loops, with_branches
from accy_async.graph.lowering.obstacle import (
    Obstacle,
    calls_in_the_way,
    external_events,
)
from accy_async.graph.lowering.outlinenode import OutlineNode, each_node
from accy_async.graph.nodes import RuntimeScalar
from accy_async.graph.order import LOOP

if TYPE_CHECKING:
    from accy_async.dtypes import ScalarArgument
    from accy_async.graph.nodes import LaunchGraphLoop
    from accy_async.graph.order import Block
    from accy_async.graph.plan import LaunchGraphPlan

__all__ = [
    "MOST_TURNS",
    "MOST_UNROLLED",
    "Grouped",
    "Outline",
    "OutlineNode",
    "Outliner",
    "outline",
]

MOST_UNROLLED = 128
"""Nodes that a loop may come to unrolled, where the device could run it as a loop:
a turn of a loop costs the device some microseconds more than its nodes."""

MOST_UNROLLED_AT_ALL = 4096
"""Nodes that a loop may come to unrolled, where the device knows no loops."""

MOST_TURNS = 6
"""Arrangements of buffers that a loop's carries may come round to."""


@attrs.frozen(eq=False)
class Outline:
    """A plan as one graph.

    Attributes:
        body: its nodes, each after those that it comes after.
        ends: of each item of the plan's top block, the nodes that it is done with.
        where: where the slots' memories are at the end, as in `OutlineNode.where`.
        waits, signals: external events to wait for before all of it, and to signal
            after it.
        limited: the items of the plan's top block that are, have or come after loops
            that may fail by their limit.
        limits: the loops that may, by the plan's numbers.
    """

    body: tuple[OutlineNode, ...]
    ends: tuple[tuple[int, ...], ...]
    where: tuple[int, ...]
    waits: tuple[str, ...]
    signals: tuple[str, ...]
    limited: frozenset[int] = frozenset()
    limits: tuple[int, ...] = ()

    @property
    def node_count(self) -> int:
        """How many nodes and loops of the plan it has, those within loops left out."""
        return sum(1 for _ in each_node(self.body))


def outline(
    plan: LaunchGraphPlan,
    scalars: Sequence[ScalarArgument] = (),
    *,
    has_loops: bool = True,
    no_limits: str = "",
) -> Outline | tuple[Obstacle, ...]:
    """A plan as one graph, or all that keeps it from being one.

    Args:
        plan: the plan.
        scalars: the run's, for loops that they count; where they are missing, such
            a loop is taken to run often.
        has_loops: whether the device can decide on a loop's end itself.
        no_limits: why no loop may have a limit, if none may.
    """
    waits, signals, obstacles = external_events(plan)
    obstacles += calls_in_the_way(plan)
    if signals and not no_limits:
        no_limits = "events of the caller's are signalled, which some must not be then"
    outliner = Outliner(plan, scalars, has_loops=has_loops, no_limits=no_limits)
    nodes: list[OutlineNode] = []
    where, ends = outliner.add_block(
        plan.order.top, nodes, tuple(range(len(plan.slots))), ()
    )
    obstacles += outliner.obstacles.values()
    if obstacles:
        return tuple(obstacles)
    limited = with_branches(nodes)
    return Outline(
        limited.body,
        limited.moved(ends),
        where,
        waits,
        signals,
        limited.items(ends),
        limited.limits,
    )


@attrs.frozen(eq=False)
class Grouped:
    """A block's items in several bodies.

    Attributes:
        bodies: of each group, its nodes.
        given: of each of these, the loops with limits that its item comes after.
        ends: of each item, the nodes that it is done with, as places in its body.
        after: of each item, the loops with limits that it comes after.
        where: where the slots' memories are at the end.
    """

    bodies: list[list[OutlineNode]]
    given: list[list[Loops]]
    ends: tuple[tuple[int, ...], ...]
    after: tuple[Loops, ...]
    where: tuple[int, ...]


class Outliner:
    """Goes through a plan's blocks, in the order of their items' edges."""

    def __init__(
        self,
        plan: LaunchGraphPlan,
        scalars: Sequence[ScalarArgument],
        *,
        has_loops: bool,
        no_limits: str = "",
    ) -> None:
        self.obstacles: dict[str, Obstacle] = {}
        self._plan = plan
        self._scalars = scalars
        self._has_loops = has_loops
        self._no_limits = no_limits
        self._sizes: dict[Block, int] = {}
        self._bounded: dict[Block, bool] = {}

    def add_block(
        self,
        block: Block,
        nodes: list[OutlineNode],
        where: tuple[int, ...],
        before: tuple[int, ...],
    ) -> tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]:
        """Add a block's items; returns where the memories are then, and the ends.

        Items that come after no other come after the nodes ``before``.
        """
        ends: list[tuple[int, ...]] = [()] * len(block)
        for item in block.topological:
            preds = [place for p in block.preds[item] for place in ends[p]]
            after = tuple(dict.fromkeys(preds)) if block.preds[item] else before
            where, ends[item] = self._add_item(block, item, nodes, where, after)
        return where, tuple(ends)

    def add_grouped(self, block: Block, group_of: Sequence[int], count: int) -> Grouped:
        """Add a block's items to several bodies, each after those of its own alone.

        Args:
            block: the plan's top block.
            group_of: of each item, its group; -1 for one that is left out.
            count: how many groups there are.
        """
        where = tuple(range(len(self._plan.slots)))
        bodies: list[list[OutlineNode]] = [[] for _ in range(count)]
        given: list[list[Loops]] = [[] for _ in range(count)]
        ends: list[tuple[int, ...]] = [()] * len(block)
        # The loops with limits before each item, and with those in it.
        before: list[Loops] = [frozenset()] * len(block)
        passed: list[Loops] = [frozenset()] * len(block)
        for item in block.topological:
            group = group_of[item]
            if group < 0:
                continue
            nodes, preds = bodies[group], block.preds[item]
            mine = (p for p in preds if group_of[p] == group)
            after = tuple(dict.fromkeys(place for p in mine for place in ends[p]))
            first = len(nodes)
            where, ends[item] = self._add_item(block, item, nodes, where, after)
            before[item] = frozenset().union(*(passed[p] for p in preds))
            given[group] += [before[item]] * (len(nodes) - first)
            passed[item] = before[item].union(*(n.may_fail for n in nodes[first:]))
        return Grouped(bodies, given, tuple(ends), tuple(before), where)

    def _add_item(
        self,
        block: Block,
        item: int,
        nodes: list[OutlineNode],
        where: tuple[int, ...],
        after: tuple[int, ...],
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        index = block.indices[item]
        if block.kinds[item] == LOOP:
            loop = self._plan.loops[index]
            return self._add_loop(loop, block.bodies[item], nodes, where, after)
        nodes.append(OutlineNode(index, after, where))
        return where, (len(nodes) - 1,)

    def _add_loop(
        self,
        loop: LaunchGraphLoop,
        body: Block,
        nodes: list[OutlineNode],
        where: tuple[int, ...],
        after: tuple[int, ...],
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        count = self._count(loop)
        if count == 0:
            return where, after
        if count is not None and self._is_unrolled(body, count):
            for _ in range(count):
                first = len(nodes)
                where, ends = self.add_block(body, nodes, where, after)
                where = carried(self._plan, loop, where)
                after = _last(body, ends, nodes, first)
            return where, after
        return self._add_turns(loop, body, nodes, where, after, count)

    def _add_turns(
        self,
        loop: LaunchGraphLoop,
        body: Block,
        nodes: list[OutlineNode],
        where: tuple[int, ...],
        after: tuple[int, ...],
        count: int | None,
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Add a loop as a loop, with a turn for each arrangement of its buffers."""
        reason = self._refusal(loop)
        turns: list[tuple[OutlineNode, ...]] = []
        limits: tuple[int, ...] = ()
        arrangements = [where]
        while not reason:
            turn: list[OutlineNode] = []
            reached, _ = self.add_block(body, turn, arrangements[-1], ())
            limited = with_branches(turn, is_told=False)
            turns.append(limited.body)
            limits = limited.limits
            reached = carried(self._plan, loop, reached)
            if reached == where:
                break
            arrangements.append(reached)
            if len(turns) == MOST_TURNS:
                reason = f"its carries come round in more than {MOST_TURNS} iterations"
        if reason:
            self.obstacles[loop.name] = Obstacle(loop.name, reason)
            return where, after
        index = self._plan.loop_index[loop.name]
        if loop.condition is None:
            assert count is not None
            where_then = arrangements[count % len(turns)]
            looked_at: tuple[int, ...] = ()
        else:
            where_then, slot = where, self._plan.slot_index[loop.condition]
            looked_at = tuple(one[slot] for one in arrangements)
        moved = tuple(exchanges(one, where_then) for one in arrangements[1:])
        if loop.condition is None:  # its turns are told, unless one of them fails
            moved = (*moved, exchanges(where, where_then)) if limits else ()
        nodes.append(
            OutlineNode(
                index,
                after,
                where,
                tuple(turns),
                count,
                looked_at,
                moved,
                limit=loop.max_iterations,
                limits=limits,
            )
        )
        return where_then, (len(nodes) - 1,)

    def _refusal(self, loop: LaunchGraphLoop) -> str:
        if not self._has_loops:
            if loop.condition is not None:
                return "a value decides on its end, and this device knows no loops"
            return (
                f"it comes to more than {MOST_UNROLLED_AT_ALL} nodes, and this device "
                "knows no loops"
            )
        if loop.max_iterations is None:
            return ""
        reason = self._no_limits
        return f"max_iterations={loop.max_iterations}: {reason}" if reason else ""

    def _count(self, loop: LaunchGraphLoop) -> int | None:
        count = loop.count
        if not isinstance(count, RuntimeScalar):
            return count
        if count.index >= len(self._scalars):
            return MOST_UNROLLED + 1
        return int(self._scalars[count.index].value)

    def _is_unrolled(self, body: Block, count: int) -> bool:
        if self._has_loops and self._has_limits(body):
            return False  # it ends where one of these fails
        size = self._size(body) * count
        most = MOST_UNROLLED if self._has_loops else MOST_UNROLLED_AT_ALL
        return count == 1 or size <= most

    def _has_limits(self, block: Block) -> bool:
        """True where some loop in a block has a limit, however deep."""
        found = self._bounded.get(block)
        if found is None:
            loops = self._plan.loops
            found = self._bounded[block] = any(
                loops[block.indices[item]].max_iterations is not None
                or self._has_limits(body)
                for item, body in block.bodies.items()
            )
        return found

    def _size(self, block: Block) -> int:
        """Nodes that a block comes to; loops in it unrolled where they would be."""
        found = self._sizes.get(block)
        if found is None:
            found = len(block) - len(block.bodies)
            for item, body in block.bodies.items():
                count = self._count(self._plan.loops[block.indices[item]])
                size = self._size(body)
                found += size if count is None else size * max(1, count)
            self._sizes[block] = found
        return found


def _last(
    body: Block,
    ends: Sequence[tuple[int, ...]],
    nodes: Sequence[OutlineNode],
    first: int,
) -> tuple[int, ...]:
    """The nodes after which all of a block's iteration is done."""
    found = {
        place
        for item, mine in enumerate(ends)
        if not body.succs[item]
        for place in mine
    }
    # A loop without iterations has no node of its own: what it comes after counts.
    followed = {place for node in nodes[first:] for place in node.after}
    return tuple(sorted(found - followed)) or tuple(sorted(found))
