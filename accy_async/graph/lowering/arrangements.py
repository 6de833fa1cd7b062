"""Where the slots' memories are, as carries swap them.

An *arrangement* says of each slot whose first memory it has.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from accy_async.graph.nodes import LaunchGraphLoop
    from accy_async.graph.plan import LaunchGraphPlan

__all__ = ["carried", "exchanges"]


def carried(
    plan: LaunchGraphPlan, loop: LaunchGraphLoop, where: tuple[int, ...]
) -> tuple[int, ...]:
    """The arrangement after a turn of a loop that ends with this one."""
    if not loop.carries:
        return where
    slots, moved = plan.slot_index, list(where)
    for carry in loop.carries:
        one, other = slots[carry.current], slots[carry.next]
        moved[one], moved[other] = moved[other], moved[one]
    return tuple(moved)


def exchanges(
    reached: Sequence[int], where: Sequence[int]
) -> tuple[tuple[int, int], ...]:
    """What brings each slot's value from the one arrangement to the other.

    Returns:
        Pairs of memories, by their slots, that exchange their contents in this order.
    """
    at = list(reached)
    found: list[tuple[int, int]] = []
    for slot, wanted in enumerate(where):
        here = at[slot]
        if here != wanted:
            found.append((here, wanted))
            at[at.index(wanted)], at[slot] = here, wanted
    return tuple(found)
