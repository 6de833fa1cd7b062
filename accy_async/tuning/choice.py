"""Choosing between a kernel's launch candidates, by what was measured or by hand."""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from accy_async.artifact.planned import ArtifactPlan
from accy_async.errors import LaunchArgumentMismatch
from accy_async.values import integer, to_tuple, tuple_of

__all__ = ["LaunchCandidateMeasurement", "LaunchTuning", "LaunchTuningSelection"]

_ID = integer()


@attrs.frozen(kw_only=True)
class LaunchCandidateMeasurement:
    """How long one of a kernel's candidates took.

    Attributes:
        kernel_id: the kernel's number in its plan.
        candidate_index: the candidate among the kernel's.
        median_ns: the median of the samples, in nanoseconds.
        sample_count: how many there were.
    """

    kernel_id: int = attrs.field(validator=_ID)
    candidate_index: int = attrs.field(validator=_ID)
    median_ns: int = attrs.field(validator=integer(0, 2**64 - 1))
    sample_count: int = attrs.field(default=1, validator=integer(1))


@attrs.frozen(kw_only=True)
class LaunchTuningSelection:
    """The candidate to launch a kernel with."""

    kernel_id: int = attrs.field(validator=_ID)
    candidate_index: int = attrs.field(validator=_ID)


@attrs.frozen(kw_only=True)
class LaunchTuning:
    """Which candidates to launch a plan's kernels with.

    A selection says it outright. Of measurements the fastest of each kernel counts;
    of equally fast ones the first. A kernel that has neither takes its first
    candidate.

    Attributes:
        selections: at most one for each kernel counts: the last.
        measurements: as many as there are.
    """

    selections: tuple[LaunchTuningSelection, ...] = attrs.field(
        default=(),
        converter=to_tuple,
        validator=tuple_of(
            LaunchTuningSelection, expected="LaunchTuningSelection values"
        ),
    )
    measurements: tuple[LaunchCandidateMeasurement, ...] = attrs.field(
        default=(),
        converter=to_tuple,
        validator=tuple_of(
            LaunchCandidateMeasurement, expected="LaunchCandidateMeasurement values"
        ),
    )

    @property
    def is_empty(self) -> bool:
        """True where it chooses nothing."""
        return not self.selections and not self.measurements

    def candidates(self, plan: ArtifactPlan) -> dict[int, int]:
        """The chosen candidate of each kernel that one is chosen for, by kernel id.

        Raises:
            InvalidArtifact: the plan has no such kernel.
            LaunchArgumentMismatch: a kernel has no such candidate.
        """
        choices: list[LaunchTuningSelection | LaunchCandidateMeasurement] = [
            *self.selections,
            *self.measurements,
        ]
        for choice in choices:
            kernel = plan.kernel(choice.kernel_id)
            count = kernel.launch_resources.candidate_count
            if choice.candidate_index >= count:
                raise LaunchArgumentMismatch(
                    f"kernel {kernel.entry_name!r}: launch candidate "
                    f"{choice.candidate_index}, it has {count}"
                )
        chosen = _fastest(self.measurements)
        chosen.update((one.kernel_id, one.candidate_index) for one in self.selections)
        return chosen


def _fastest(measurements: Iterable[LaunchCandidateMeasurement]) -> dict[int, int]:
    best: dict[int, LaunchCandidateMeasurement] = {}
    for one in measurements:
        known = best.get(one.kernel_id)
        if known is None or one.median_ns < known.median_ns:
            best[one.kernel_id] = one
    return {kernel_id: one.candidate_index for kernel_id, one in best.items()}
