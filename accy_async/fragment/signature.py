"""How a plan's slots take a call's arguments and give its results."""

from __future__ import annotations

from enum import Enum

import attrs

from accy_async.artifact.planned import ArtifactPlan
from accy_async.artifact.slots import PlannedSlot, SlotRole
from accy_async.fragment.graphs import slot_name

__all__ = ["ArgumentSlot", "ResultKind", "ResultSlot", "Signature"]


class ResultKind(Enum):
    """Where a result comes from."""

    WRITTEN = "written"
    """Kernels write it: into memory that becomes the caller's."""

    COPIED = "copied"
    """It is also something else, an argument or another result: a copy of that."""

    KNOWN = "known"
    """It is a constant that no kernel reads."""


@attrs.frozen
class ArgumentSlot:
    """A parameter's slot.

    Attributes:
        slot: the plan's.
        name: the graph's for it.
        title: what messages call the argument.
        is_written: whether kernels write over the argument.
    """

    slot: PlannedSlot
    name: str
    title: str
    is_written: bool


@attrs.frozen
class ResultSlot:
    """A result's slot, and where the result comes from."""

    slot: PlannedSlot
    name: str
    kind: ResultKind


@attrs.frozen
class Signature:
    """A plan's parameters and results in their order."""

    arguments: tuple[ArgumentSlot, ...]
    results: tuple[ResultSlot, ...]

    @classmethod
    def of(cls, plan: ArtifactPlan) -> Signature:
        """The signature of a plan."""
        written = {i for kernel in plan.kernels for i in kernel.output_slot_ids}
        arguments = tuple(
            ArgumentSlot(
                slot=plan.slot(i),
                name=slot_name(plan.slot(i)),
                title=f"{plan.name}: argument {number}",
                is_written=i in written,
            )
            for number, i in enumerate(plan.input_slot_ids)
        )
        results = []
        seen: set[int] = set()
        for slot_id in plan.output_slot_ids:
            slot = plan.slot(slot_id)
            if not slot.is_bound:
                kind = ResultKind.KNOWN
            elif slot.role is SlotRole.OUTPUT and slot_id not in seen:
                kind = ResultKind.WRITTEN
            else:
                kind = ResultKind.COPIED
            seen.add(slot_id)
            results.append(ResultSlot(slot, slot_name(slot), kind))
        return cls(arguments, tuple(results))
