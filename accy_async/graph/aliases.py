"""Slots that a run binds to the same memory.

A plan is ordered by slots: where two of them are one buffer, or host arrays that
overlap, what is written through one and used through the other needs an order
that the plan was never asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np

from accy_async.errors import GraphError, LaunchArgumentMismatch
from accy_async.graph.dataflow import Uses, block_uses
from accy_async.graph.hazards import check_hazards
from accy_async.graph.order import Block

if TYPE_CHECKING:
    from accy_async.backends.handles import BufferHandle
    from accy_async.graph.plan import LaunchGraphPlan

__all__ = ["aliased_slots", "check_aliases"]


def check_aliases(
    plan: LaunchGraphPlan, bound: Mapping[str, BufferHandle | np.ndarray]
) -> None:
    """Check that slots which are one memory have an order as if they were one slot.

    Raises:
        LaunchArgumentMismatch: two nodes use them, one of them writing, with
            nothing to say which comes first; or a loop's carry would swap a buffer
            with itself.
    """
    pairs = aliased_slots(bound)
    if not pairs:
        return
    where = _Merged(plan, pairs)
    for loop in plan.loops:
        for carry in loop.carries:
            if (carry.current, carry.next) in where.pairs:
                raise LaunchArgumentMismatch(
                    f"bindings: slots {carry.current!r} and {carry.next!r}, which loop "
                    f"{loop.name!r} swaps, are bound to the same memory"
                )
    try:
        check_hazards(where.uses(), where.name, where.slot_names)
    except GraphError as error:
        first, second = pairs[0]
        raise LaunchArgumentMismatch(
            f"bindings: slots {first!r} and {second!r} are bound to the same memory, "
            f"and so as one {error}"
        ) from error


def aliased_slots(
    bound: Mapping[str, BufferHandle | np.ndarray],
) -> list[tuple[str, str]]:
    """Pairs of slots that are one memory, or parts of one; not all that follow."""
    return [*_same_buffers(bound), *_overlapping_arrays(bound)]


class _Merged:
    """A plan as if the slots of each pair were one, and those that loops swap with."""

    def __init__(self, plan: LaunchGraphPlan, pairs: list[tuple[str, str]]) -> None:
        self.pairs = {*pairs, *((two, one) for one, two in pairs)}
        self.slot_names = [slot.name for slot in plan.slots]
        self._plan = plan
        self._slots = dict(plan.slot_index)
        for one, two in pairs:
            self._join(one, two)
        aliased = {self._slots[name] for pair in pairs for name in pair}
        for loop in plan.loops:
            for carry in loop.carries:
                ends = {self._slots[carry.current], self._slots[carry.next]}
                if not ends.isdisjoint(aliased):
                    self._join(carry.current, carry.next)
                    aliased.add(self._slots[carry.current])

    def _join(self, one: str, two: str) -> None:
        first, second = self._slots[one], self._slots[two]
        for name, slot in self._slots.items():
            if slot == second:
                self._slots[name] = first

    def uses(self) -> dict[Block, list[Uses]]:
        """Of every block, what each of its items uses."""
        plan = self._plan
        merged = [self._slots[slot.name] for slot in plan.slots]
        uses = []
        for mine in plan.uses:
            union: dict[int, int] = {}
            for slot, how in mine:
                union[merged[slot]] = union.get(merged[slot], 0) | how
            uses.append(tuple(union.items()))
        return block_uses(plan.order, uses, plan.loops, self._slots)

    def name(self, block: Block, item: int) -> str:
        """What an item of a block is called."""
        index = block.indices[item]
        within = self._plan.loops if item in block.bodies else self._plan.nodes
        return within[index].name


def _same_buffers(
    bound: Mapping[str, BufferHandle | np.ndarray],
) -> Iterator[tuple[str, str]]:
    # Each device counts its buffers from 1; one made by hand is of whichever there is.
    first: dict[tuple[int, object], str] = {}
    for name, memory in bound.items():
        if not isinstance(memory, np.ndarray):
            known = first.setdefault((memory.id, memory.origin), name)
            if memory.origin is not None:
                known = first.get((memory.id, None), known)
            if known != name:
                yield known, name


def _overlapping_arrays(
    bound: Mapping[str, BufferHandle | np.ndarray],
) -> Iterator[tuple[str, str]]:
    spans = []
    for name, memory in bound.items():
        if isinstance(memory, np.ndarray) and memory.nbytes:
            begin = memory.__array_interface__["data"][0]
            spans.append((begin, begin + memory.nbytes, name))
    if len(spans) < 2:
        return
    spans.sort()
    _, last_end, last = spans[0]
    for begin, end, name in spans[1:]:
        if begin < last_end:
            yield last, name
        if end > last_end:
            last_end, last = end, name
