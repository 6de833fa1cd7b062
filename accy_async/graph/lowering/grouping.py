"""Which items of a plan on several devices go together, and in which order.

Items of a block are taken in *stages*: one that comes after an item of another device,
or after a copy between devices, is a stage later than that. What is of one device and
one stage makes one group, or two: first what others wait for, then the rest, for which
they do not. A copy from one device to another is a group by itself, and so is a loop
whose turns are on several devices. An edge from one group to another leads to a later
stage, or to the rest of its own, so that no two groups wait for each other.

Of what can be submitted next, that of the device which was given least comes first, so
that none waits for the host while another has work; of one device, what others wait
for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import attrs

from accy_async.graph.nodes import CopyBuffer
from accy_async.graph.order import LOOP, Block

if TYPE_CHECKING:
    from accy_async.graph.nodes import LaunchGraphLoop
    from accy_async.graph.plan import LaunchGraphPlan
    from accy_async.graph.whereabouts import Whereabouts

__all__ = ["Group", "Grouping", "loops_within", "slots_of"]


@attrs.frozen(eq=False)
class Group:
    """Items of a block that become one part; or a loop over several devices.

    Attributes:
        items: in the order of their edges.
        device: whose they are; of a copy, who carries it out; -1 for a loop.
        is_rest: whether nothing of another group waits for them within the stage.
    """

    items: tuple[int, ...]
    device: int
    is_rest: bool


class Grouping:
    """The groups of each block of a plan.

    Args:
        plan: the plan.
        places: where everything is.
    """

    def __init__(self, plan: LaunchGraphPlan, places: Whereabouts) -> None:
        self._plan = plan
        self._places = places
        self._on: dict[tuple[Block, int], frozenset[int]] = {}
        self._groups: dict[Block, list[Group]] = {}
        self._pulled = {
            (route.source, route.target): route.is_pulled for route in places.routes
        }

    def wide_loops(self) -> list[tuple[Block, int]]:
        """The loops whose turns are on several devices, as items of their blocks."""
        return [
            (block, item)
            for block in self._plan.order.blocks
            for item, kind in enumerate(block.kinds)
            if kind == LOOP and len(self._devices(block, item)) > 1
        ]

    def groups(self, block: Block) -> list[Group]:
        """A block's groups, in the order in which they are submitted."""
        found = self._groups.get(block)
        if found is None:
            found = self._groups[block] = _in_order(block, self._find_groups(block))
        return found

    def _find_groups(self, block: Block) -> list[Group]:
        stages = self._stages(block)
        awaited = self._awaited(block, stages)
        groups: dict[tuple[int, int, int, bool], list[int]] = {}
        for item in block.topological:
            mine = self.home(block, item)
            alone = -1 if mine >= 0 else item
            is_rest = mine >= 0 and item not in awaited
            groups.setdefault((stages[item], mine, alone, is_rest), []).append(item)
        return [
            Group(tuple(items), self._carrier(block, items[0]), key[-1])
            for key, items in sorted(groups.items())
        ]

    def _stages(self, block: Block) -> dict[int, int]:
        """The stage of each item."""
        stages: dict[int, int] = {}
        for item in block.topological:
            mine = self.home(block, item)
            stage = 0
            for before in block.preds[item]:
                is_same = mine >= 0 and self.home(block, before) == mine
                stage = max(stage, stages[before] + (not is_same))
            stages[item] = stage
        return stages

    def _awaited(self, block: Block, stages: dict[int, int]) -> set[int]:
        """The items that something of another group waits for, within their stage."""
        awaited: set[int] = set()
        for item in reversed(block.topological):
            mine = self.home(block, item)
            for before in block.preds[item]:
                is_same = mine >= 0 and self.home(block, before) == mine
                is_near = is_same and stages[before] == stages[item]
                if not is_same or (is_near and item in awaited):
                    awaited.add(before)
        return awaited

    def home(self, block: Block, item: int) -> int:
        """The device that an item is on; -1 for what is on several."""
        devices = self._devices(block, item)
        return next(iter(devices)) if len(devices) == 1 else -1

    def _carrier(self, block: Block, item: int) -> int:
        """The device that submits an item: its own, or of a copy the one that works."""
        if block.kinds[item] == LOOP:
            return self.home(block, item)
        index = block.indices[item]
        ends = self._ends(index)
        if ends is None:
            return self._places.nodes[index]
        source, target = (self._places.devices[end] for end in ends)
        return ends[self._pulled.get((source, target), False)]

    def _devices(self, block: Block, item: int) -> frozenset[int]:
        """The devices that an item's nodes and slots are on."""
        known = self._on.get((block, item))
        if known is not None:
            return known
        found: set[int] = set()
        slots = self._places.slots
        for index in self._plan.order.nodes_within(block, item):
            found.update(self._ends(index) or (self._places.nodes[index],))
            if block.kinds[item] == LOOP:
                found.update(slots[slot] for slot, _ in self._plan.uses[index])
        for loop in loops_within(self._plan, block, item):
            found.update(slots[self._plan.slot_index[n]] for n in slots_of(loop))
        on = self._on[block, item] = frozenset(found - {-1})
        return on

    def _ends(self, index: int) -> tuple[int, int] | None:
        """The devices that a node copies from and to, where they are two."""
        operation = self._plan.nodes[index].operation
        if not isinstance(operation, CopyBuffer):
            return None
        source, target = (
            self._places.slots[self._plan.slot_index[name]]
            for name in (operation.source, operation.target)
        )
        return None if source == target else (source, target)


def loops_within(
    plan: LaunchGraphPlan, block: Block, item: int
) -> Iterator[LaunchGraphLoop]:
    """The loops of an item: itself if it is one, and all within."""
    body = block.bodies.get(item)
    if body is not None:
        yield plan.loops[block.indices[item]]
        for inner in body.bodies:
            yield from loops_within(plan, body, inner)


def slots_of(loop: LaunchGraphLoop) -> Iterator[str]:
    """The slots that a loop itself is about, by their names."""
    if loop.condition is not None:
        yield loop.condition
    for carry in loop.carries:
        yield from (carry.current, carry.next)


def _in_order(block: Block, groups: Sequence[Group]) -> list[Group]:
    """Each group behind those that it comes after; see the module."""
    of = {item: number for number, one in enumerate(groups) for item in one.items}
    after: list[set[int]] = [set() for _ in groups]
    missing = []
    for number, group in enumerate(groups):
        preds = {of[p] for item in group.items for p in block.preds[item]} - {number}
        missing.append(len(preds))
        for pred in preds:
            after[pred].add(number)
    given: Counter[int] = Counter()
    ready = {number for number, count in enumerate(missing) if not count}
    found = []

    def urgency(number: int) -> tuple[int, bool, int]:
        return given[groups[number].device], groups[number].is_rest, number

    while ready:
        number = min(ready, key=urgency)
        ready.remove(number)
        found.append(groups[number])
        given[groups[number].device] += 1
        for follower in after[number]:
            missing[follower] -= 1
            if not missing[follower]:
                ready.add(follower)
    return found
