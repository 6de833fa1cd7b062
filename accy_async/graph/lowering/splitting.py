"""The parts of a plan on several devices, of its groups; see `spanning`.

Each group becomes a part. A loop over several devices becomes the parts of its body,
again for each turn, which begins when the turn before it has ended. Where carries have
swapped the memory of slots, a part says whose each slot has.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import attrs

from accy_async.graph.lowering.grouping import Group, Grouping, loops_within, slots_of
from accy_async.graph.lowering.obstacle import Obstacle
from accy_async.graph.nodes import (
    BufferSlot,
    CopyBuffer,
    EventSignal,
    EventWait,
    LaunchGraphDependency,
    RuntimeScalar,
)
from accy_async.graph.order import LOOP
from accy_async.graph.plan import LaunchGraphPlan

if TYPE_CHECKING:
    from collections.abc import Mapping

    from accy_async.dtypes import ScalarArgument
    from accy_async.graph.nodes import LaunchGraphLoop, LaunchGraphNode
    from accy_async.graph.order import Block
    from accy_async.graph.whereabouts import Whereabouts

__all__ = ["MOST_TURNED", "SpanPart", "Splitter"]

MOST_TURNED = 128
"""Parts that loops over several devices may come to: a run submits all at once, and a
driver that has too much of that makes the host wait."""

_Where = tuple[int, ...]
"""Of each slot, the slot whose first memory it has."""


@attrs.frozen(eq=False, kw_only=True)
class SpanPart:
    """A part of a plan.

    Attributes:
        number: parts of one number are one graph, or one copy, that is submitted again.
        device: the number of the device whose stream carries it out.
        plan: a piece, which has its device's nodes; None for a copy.
        memories: of the piece's slots, whose first memory they have here, where carries
            have given them another's.
        copy: of a copy between devices, the slots whose first memories it is from and
            to.
        after: the parts, by their places, that it comes after; those that are implied
            by others, or by an earlier one of its number, left out.
        nodes: the names of its nodes.
    """

    number: int
    device: int
    plan: LaunchGraphPlan | None = None
    memories: Mapping[str, str] = attrs.field(factory=dict)
    copy: tuple[str, str] | None = None
    after: tuple[int, ...] = ()
    nodes: tuple[str, ...] = ()

    @property
    def shape(self) -> tuple[object, ...]:
        """What two parts have in common that are the same for all runs."""
        moved = tuple(sorted(self.memories.items()))
        return (self.number, self.nodes, moved, self.copy, self.after)


class Splitter:
    """Splits one plan.

    Args:
        plan: the plan.
        places: where everything is.
        scalars: the run's, for loops that they count; where they are missing, such a
            loop is taken to run once.

    Attributes:
        grouping: the plan's groups.
        parts: the parts, in an order in which each is after those before it.
        obstacles: loops that come to too many of them.
    """

    def __init__(
        self,
        plan: LaunchGraphPlan,
        places: Whereabouts,
        scalars: Sequence[ScalarArgument] = (),
    ) -> None:
        self.parts: list[SpanPart] = []
        self.obstacles: list[Obstacle] = []
        self._plan = plan
        self.grouping = Grouping(plan, places)
        self._scalars = scalars
        self._numbers: dict[tuple[object, ...], int] = {}
        self._pieces: dict[int, LaunchGraphPlan] = {}
        # Of each part, a bit for each that is done by then, and the last of its number.
        self._reached: list[int] = []
        self._last: dict[int, int] = {}

    def split(self) -> None:
        """Find the parts."""
        plan = self._plan
        self._add_block(plan.order.top, tuple(range(len(plan.slots))), ())

    def loop(self, block: Block, item: int) -> LaunchGraphLoop:
        """The loop that an item is."""
        return self._plan.loops[block.indices[item]]

    # Blocks

    def _add_block(
        self, block: Block, where: _Where, before: tuple[int, ...]
    ) -> tuple[_Where, tuple[int, ...]]:
        """Add a block's parts, which come after ``before``.

        Returns:
            Where the memories are then, and the parts that it ends with.
        """
        at, where = self._arrangements(block, where)
        done: dict[int, tuple[int, ...]] = {}
        for group in self.grouping.groups(block):
            after = {
                part
                for item in group.items
                for pred in block.preds[item]
                if pred not in group.items
                for part in done[pred]
            }
            if not all(block.preds[item] for item in group.items):
                after.update(before)
            first = group.items[0]
            if group.device < 0:
                ends = self._add_turns(block, first, at[first], tuple(after))
            else:
                ends = (self._add_part(block, group, at, after),)
            done.update(dict.fromkeys(group.items, ends))
        last = {
            part
            for item, succs in enumerate(block.succs)
            if not succs
            for part in done[item]
        }
        return where, tuple(last)

    def _add_turns(
        self, block: Block, item: int, where: _Where, after: tuple[int, ...]
    ) -> tuple[int, ...]:
        """Add the parts of a loop over several devices, turn by turn."""
        loop = self.loop(block, item)
        begun = len(self.parts)
        for _ in range(self._count(loop)):
            turn = len(self.parts)
            where, after = self._add_block(block.bodies[item], where, after)
            where = self._carried(loop, where)
            if len(self.parts) - begun > MOST_TURNED:
                why = f"its turns come to more than {MOST_TURNED} graphs and copies"
                self.obstacles.append(Obstacle(loop.name, why))
                break
            if len(self.parts) == turn:  # there is nothing in it that is run
                break
        return after

    def _arrangements(
        self, block: Block, where: _Where
    ) -> tuple[dict[int, _Where], _Where]:
        """Where memories are before each item of a block, and behind all."""
        at = {}
        for item in block.topological:
            at[item] = where
            if block.kinds[item] == LOOP:
                where = self._through(block, item, where)
        return at, where

    def _through(self, block: Block, item: int, where: _Where) -> _Where:
        """Where memories are behind a loop."""
        loop, body = self.loop(block, item), block.bodies[item]
        if loop.condition is not None:
            return where  # a device's own loop, which sees to that
        count, found = self._count(loop), [where]
        while len(found) <= count:
            _, reached = self._arrangements(body, found[-1])
            reached = self._carried(loop, reached)
            if reached == where:
                return found[count % len(found)]
            found.append(reached)
        return found[count]

    def _carried(self, loop: LaunchGraphLoop, where: _Where) -> _Where:
        slots, moved = self._plan.slot_index, list(where)
        for carry in loop.carries:
            one, other = slots[carry.current], slots[carry.next]
            moved[one], moved[other] = moved[other], moved[one]
        return tuple(moved)

    def _count(self, loop: LaunchGraphLoop) -> int:
        count = loop.count
        if isinstance(count, RuntimeScalar):
            known = count.index < len(self._scalars)
            return int(self._scalars[count.index].value) if known else 1
        return count or 0

    # Parts

    def _add_part(
        self, block: Block, group: Group, at: dict[int, _Where], after: set[int]
    ) -> int:
        """Add the part of a group; returns its place."""
        plan, items = self._plan, group.items
        indices = sorted(
            i for item in items for i in plan.order.nodes_within(block, item)
        )
        piece: LaunchGraphPlan | None = None
        copy: tuple[str, str] | None = None
        memories: dict[str, str] = {}
        if self.grouping.home(block, items[0]) < 0:
            operation = plan.nodes[indices[0]].operation
            assert isinstance(operation, CopyBuffer)
            where = at[items[0]]
            source, target = (
                plan.slots[where[plan.slot_index[name]]].name
                for name in (operation.source, operation.target)
            )
            copy = source, target
        else:
            memories = self._memories(block, items, at)
            piece = self._pieces.get(indices[0])
            if piece is None:
                piece = self._pieces[indices[0]] = self._piece(block, items, indices)
        key = (indices[0], copy, tuple(sorted(memories.items())))
        number = self._numbers.setdefault(key, len(self._numbers))
        part = SpanPart(
            number=number,
            device=group.device,
            plan=piece,
            memories=memories,
            copy=copy,
            after=self._not_implied(number, after),
            nodes=tuple(plan.nodes[index].name for index in indices),
        )
        self.parts.append(part)
        return len(self.parts) - 1

    def _not_implied(self, number: int, after: set[int]) -> tuple[int, ...]:
        """What the next part has to wait for that nothing else sees to."""
        place = len(self.parts)
        earlier = self._last.get(number)
        reached = 0 if earlier is None else self._reached[earlier]
        kept = []
        for part in sorted(after, reverse=True):
            if not reached >> part & 1:
                kept.append(part)
                reached |= self._reached[part]
        self._reached.append(reached | 1 << place)
        self._last[number] = place
        return tuple(reversed(kept))

    def _memories(
        self, block: Block, items: Sequence[int], at: dict[int, _Where]
    ) -> dict[str, str]:
        """Whose first memory a piece's slots have as it begins, where not their own."""
        slots = self._plan.slots
        found: dict[int, int] = {}
        for item in items:
            for slot in self._touched(block, item):
                found.setdefault(slot, at[item][slot])
        return {
            slots[slot].name: slots[first].name
            for slot, first in found.items()
            if slot != first
        }

    def _touched(self, block: Block, item: int) -> Iterator[int]:
        """The slots that an item's nodes and loops are about."""
        for index in self._plan.order.nodes_within(block, item):
            for slot, _ in self._plan.uses[index]:
                yield slot
        for loop in loops_within(self._plan, block, item):
            yield from (self._plan.slot_index[name] for name in slots_of(loop))

    def _piece(
        self, block: Block, items: Sequence[int], indices: Sequence[int]
    ) -> LaunchGraphPlan:
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
            loop for item in items for loop in loops_within(self._plan, block, item)
        )
        used = {slot for node in nodes for slot, _ in node.uses()}
        used.update(name for loop in loops for name in slots_of(loop))
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
