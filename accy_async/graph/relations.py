"""Nodes and loops of a plan in one numbering, and what each depends on.

Nodes have their place in the plan; loops follow, after the last node. Nothing is
worked out before it is asked for: a run in which nothing fails asks for little.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from accy_async.graph.order import LOOP

if TYPE_CHECKING:
    from accy_async.graph.order import Block
    from accy_async.graph.plan import LaunchGraphPlan

__all__ = ["Relations"]


class Relations:
    """Who depends on whom in one plan."""

    __slots__ = ("_blockers", "_plan", "count", "node_count")

    def __init__(self, plan: LaunchGraphPlan) -> None:
        self._plan = plan
        self.node_count = len(plan.nodes)
        self.count = self.node_count + len(plan.loops)
        self._blockers: dict[int, tuple[int, ...]] = {}

    def name(self, index: int) -> str:
        """The name of a node or loop."""
        if index < self.node_count:
            return self._plan.nodes[index].name
        return self._plan.loops[index - self.node_count].name

    def find(self, name: str) -> int | None:
        """The index of the node or loop of that name; None if there is none."""
        index = self._plan.node_index.get(name)
        if index is not None:
            return index
        loop = self._plan.loop_index.get(name)
        return None if loop is None else self.loop(loop)

    def loop(self, loop: int) -> int:
        """The index of the plan's loop of that number."""
        return self.node_count + loop

    def loops_around(self, index: int) -> tuple[int, ...]:
        """The loops that a node or loop lies within, innermost first."""
        block: Block | None = self._place(index)[0]
        around = []
        while block is not None and block.loop >= 0:
            around.append(self.loop(block.loop))
            block = block.parent
        return tuple(around)

    def within(self, index: int) -> Iterator[int]:
        """The nodes and loops that lie within a loop, however deep."""
        todo = [self._plan.order.by_loop[index - self.node_count]]
        while todo:
            block = todo.pop()
            todo += block.bodies.values()
            for item, inner in enumerate(block.indices):
                yield self.loop(inner) if item in block.bodies else inner

    def in_order(self) -> Iterator[int]:
        """All nodes and loops, each after what it depends on, or lies within."""
        todo = [self._plan.order.top]
        while todo:
            block = todo.pop()
            for item in block.topological:
                inner = block.indices[item]
                yield self.loop(inner) if item in block.bodies else inner
            todo += block.bodies.values()

    def before(self, index: int) -> list[int]:
        """What a node or loop has edges from: they are in the same block."""
        block, item = self._place(index)
        return [
            self.loop(block.indices[p]) if block.kinds[p] == LOOP else block.indices[p]
            for p in block.preds[item]
        ]

    def blockers(self, index: int) -> tuple[int, ...]:
        """What must not have failed for a node or loop to run.

        What it has an edge from, the loop it lies within, and what that loop has
        edges from.
        """
        found = self._blockers.get(index)
        if found is None:
            before = self.before(index)
            for around in self.loops_around(index)[:1]:
                before += (around, *self.blockers(around))
            found = self._blockers[index] = tuple(before)
        return found

    def _place(self, index: int) -> tuple[Block, int]:
        order = self._plan.order
        if index < self.node_count:
            return order.block_of[index], order.item_of[index]
        block = order.by_loop[index - self.node_count]
        assert block.parent is not None
        return block.parent, block.parent_item
