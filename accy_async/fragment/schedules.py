"""What tuning a program's schedules came to, and options that choose by it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from accy_async.compiler.preparation import FragmentCompilerOptions
from accy_async.tuning.measuring import MeasureOutcome
from accy_async.tuning.records import (
    FamilyTuningReader,
    FamilyTuningRecord,
    KnownRecords,
    ScheduleFamily,
    ScheduleReader,
    ScheduleTuningRecord,
    encode_family_tuning_artifact,
    encode_schedule_tuning_artifact,
    schedule_kind,
)
from accy_async.tuning.records.schedule import Choice

__all__ = ["ScheduleTuning", "ScheduleTuningOutcome", "with_known", "with_records"]


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
        if records and _is_free(options, family):
            artifact = encode_schedule_tuning_artifact(family, records)
            changes[f"{schedule_kind(family)}_artifact"] = artifact
    if families and _is_free(options):
        changes["family_tuning_artifact"] = encode_family_tuning_artifact(families)
    return attrs.evolve(options, **changes)


def with_known(
    options: FragmentCompilerOptions,
    device: int,
    known: Mapping[str, KnownRecords[Any]],
) -> FragmentCompilerOptions:
    """As `with_records`, but each record is looked up when it is wanted.

    So it takes no longer however many there are.

    Args:
        options: what else to compile with; for one compilation, as what is found in
            it stays as it is.
        device: the fingerprint of the device.
        known: records by the store's kind.
    """
    changes: dict[str, Any] = {}
    for family in ScheduleFamily:
        kind = schedule_kind(family)
        if known.get(kind) and _is_free(options, family):
            changes[kind] = ScheduleReader(device, known[kind].look_up())
    kind = "family_tuning"
    if known.get(kind) and _is_free(options):
        changes[kind] = FamilyTuningReader(device, known[kind].look_up())
    return attrs.evolve(options, **changes)


def _is_free(
    options: FragmentCompilerOptions, family: ScheduleFamily | None = None
) -> bool:
    """Whether options leave a family's schedule, or ready-made kernels, to records."""
    names = ["family_tuning", "family_tuning_artifact"]
    if family is not None:
        kind = schedule_kind(family)
        names = [f"{family}_schedule", kind, f"{kind}_artifact"]
    return not any(getattr(options, name) for name in names)
