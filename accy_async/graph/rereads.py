"""Copies from host memory that earlier copies of the plan write.

A copy to host memory is done when the host has seen that the device has done its part;
a copy from there takes the bytes, on some devices, when it is submitted
(`Backend.writes_block`). So the order of a stream is not enough between the two: the
second is submitted once the first has ended.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, cast

from accy_async.graph.aliases import aliased_slots
from accy_async.graph.lowering.obstacle import Obstacle
from accy_async.graph.nodes import CopyBuffer, CopyFromDevice, CopyToDevice

if TYPE_CHECKING:
    from accy_async.backends.base import Backend
    from accy_async.graph.bindings import Memory
    from accy_async.graph.plan import LaunchGraphPlan
    from accy_async.graph.whereabouts import Whereabouts

__all__ = ["HostCopies", "pulled_early"]

_COPIES = frozenset({CopyToDevice, CopyFromDevice, CopyBuffer})


class HostCopies:
    """A plan's copies that are not in the order of their streams in host memory.

    Args:
        plan: the plan.
        device: gives the devices by their numbers.
        places: where everything is; None for one device, number 0.
    """

    def __init__(
        self,
        plan: LaunchGraphPlan,
        device: Callable[[int], Backend],
        places: Whereabouts | None,
    ) -> None:
        self._plan = plan
        self._device = device
        self._places = places
        self._readers: list[tuple[int, str]] = []
        self._writers: dict[str, list[int]] = {}
        for index, node in enumerate(plan.nodes):
            if type(node.operation) in _COPIES:
                self._add(index, cast("CopyBuffer", node.operation))

    def rereads(self, bound: Mapping[str, Memory]) -> Mapping[int, tuple[int, ...]]:
        """Of each copy that has to wait on the host, the copies that it waits for.

        By their numbers in the plan. Those of them that come later are, in a loop, of
        the turn before.

        Args:
            bound: what the slots are bound to, several of them to one memory maybe.
        """
        if not self._readers or not self._writers:
            return {}
        first: dict[str, str] = {}
        for one, two in aliased_slots(bound):
            first[two] = first.get(one, one)
        writers: dict[str, list[int]] = {}
        for slot, copies in self._writers.items():
            writers.setdefault(first.get(slot, slot), []).extend(copies)
        return {
            index: tuple(writers[slot])
            for index, name in self._readers
            if (slot := first.get(name, name)) in writers
        }

    def _add(
        self, index: int, copy: CopyToDevice | CopyFromDevice | CopyBuffer
    ) -> None:
        on = self._device(0 if self._places is None else self._places.nodes[index])
        if not on.writes_block:
            return  # it comes to host memory in the order of its streams
        is_between = isinstance(copy, CopyBuffer)
        if isinstance(copy, CopyToDevice) or (
            is_between and not on.pulls_in_order and self._is_on_processor(copy.source)
        ):
            self._readers.append((index, copy.source))
        if isinstance(copy, CopyFromDevice) or (
            is_between and self._is_on_processor(copy.target)
        ):
            self._writers.setdefault(copy.target, []).append(index)

    def _is_on_processor(self, slot: str) -> bool:
        """Whether a slot's memory is the host's, as another device's."""
        if self._places is None:
            return False
        place = self._places.slots[self._plan.slot_index[slot]]
        return self._device(place).is_processor


def pulled_early(
    plan: LaunchGraphPlan, device: Callable[[int], Backend], places: Whereabouts
) -> list[Obstacle]:
    """The copies between devices that keep a plan from being submitted all at once.

    Args:
        plan: the plan.
        device: gives the devices by their numbers.
        places: where everything is.
    """
    found = []
    for index, copies in HostCopies(plan, device, places).rereads({}).items():
        if isinstance(plan.nodes[index].operation, CopyBuffer):
            names = ", ".join(repr(plan.nodes[one].name) for one in copies)
            why = f"it copies from the processor's memory what {names} copies there"
            found.append(Obstacle(plan.nodes[index].name, why))
    return found
