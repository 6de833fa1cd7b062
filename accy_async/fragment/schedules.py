"""What tuning a program's schedules came to, and options that choose by it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from accy_async.compiler.preparation import FragmentCompilerOptions
from accy_async.tuning.measuring import MeasureOutcome
from accy_async.tuning.records import (
    FamilyTuningRecord,
    ScheduleFamily,
    ScheduleTuningRecord,
    encode_family_tuning_artifact,
    encode_schedule_tuning_artifact,
)
from accy_async.tuning.records.schedule import Choice

__all__ = ["ScheduleTuning", "ScheduleTuningOutcome", "with_records"]


@attrs.frozen(kw_only=True)
class ScheduleTuning:
    """What tuning one problem came to.

    Attributes:
        family: the kernels.
        extents: the problem's, as the family says.
        choice: the winner; None where nothing was recorded.
        record: what was recorded of it.
        family_record: the same of the ready-made kernel of a product's family.
        outcome: everything that was measured; None where nothing could be.
        not_built: why a choice has no kernel that can be measured, by the choice.
        why_not: why nothing was recorded; empty where something was.
    """

    family: ScheduleFamily
    extents: tuple[int, ...]
    choice: Choice | None = None
    record: ScheduleTuningRecord | None = None
    family_record: FamilyTuningRecord | None = None
    outcome: MeasureOutcome | None = None
    not_built: dict[Choice, str] = attrs.field(factory=dict)
    why_not: str = ""


@attrs.frozen(kw_only=True)
class ScheduleTuningOutcome:
    """What tuning a program's schedules came to.

    Attributes:
        results: what became of each problem.
        is_complete: False where the pace's budget was spent before all were measured.
    """

    results: tuple[ScheduleTuning, ...]
    is_complete: bool = True

    def records(self, family: ScheduleFamily | str) -> tuple[ScheduleTuningRecord, ...]:
        """What was recorded of a family's schedules."""
        wanted = ScheduleFamily(family)
        found = [one.record for one in self.results if one.family is wanted]
        return tuple(one for one in found if one is not None)

    @property
    def family_records(self) -> tuple[FamilyTuningRecord, ...]:
        """What was recorded of ready-made kernels."""
        found = [one.family_record for one in self.results]
        return tuple(one for one in found if one is not None)

    def options(
        self, options: FragmentCompilerOptions | None = None
    ) -> FragmentCompilerOptions:
        """Options that compile with the winners, where they do not choose themselves.

        Args:
            options: what else to compile with.
        """
        return with_records(
            options or FragmentCompilerOptions(),
            {family: self.records(family) for family in ScheduleFamily},
            self.family_records,
        )


def with_records(
    options: FragmentCompilerOptions,
    schedules: Mapping[ScheduleFamily, Sequence[ScheduleTuningRecord]],
    families: Sequence[FamilyTuningRecord] = (),
) -> FragmentCompilerOptions:
    """Options that choose by these records where they do not choose by themselves.

    A schedule, and an artifact, that the options have goes before the records.
    """
    changes: dict[str, Any] = {}
    for family, records in schedules.items():
        name = f"{family}_schedule"
        is_free = getattr(options, name) is None
        if records and is_free and not getattr(options, f"{name}_tuning_artifact"):
            artifact = encode_schedule_tuning_artifact(family, records)
            changes[f"{name}_tuning_artifact"] = artifact
    is_free = options.family_tuning is None and not options.family_tuning_artifact
    if families and is_free:
        changes["family_tuning_artifact"] = encode_family_tuning_artifact(families)
    return attrs.evolve(options, **changes)
