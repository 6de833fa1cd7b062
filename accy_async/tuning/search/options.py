"""How a search is made, and what comes of it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import attrs

from accy_async.artifact.entry import KernelCallArtifact
from accy_async.artifact.geometry import FixedLaunch
from accy_async.artifact.kernel import KernelArtifact
from accy_async.backends.handles import BufferBinding
from accy_async.backends.launch import LaunchRequest
from accy_async.backends.loading import LoadedKernel
from accy_async.dtypes import ScalarArgument
from accy_async.errors import InvalidValue
from accy_async.tuning.measuring import (
    Candidate,
    MeasureOptions,
    MeasureOutcome,
    TimeSource,
)
from accy_async.tuning.race import Standing
from accy_async.tuning.search.space import Schedule
from accy_async.tuning.search.trial import KeptSearch, Trial
from accy_async.values import instances, integer, number, optional, to_tuple, tuple_of

__all__ = ["SearchOptions", "SearchOutcome", "SearchProgress", "Variant"]


@attrs.frozen(kw_only=True)
class Variant:
    """What a schedule becomes: a kernel and how it is launched.

    Attributes:
        artifact: the kernel, as an entry of a registry or as the artifact itself.
            Variants of equal artifacts are loaded once.
        geometry: the launch's; what the entry derives from the scalars if left out.
        scalars: the kernel's scalar arguments.
    """

    artifact: KernelCallArtifact | KernelArtifact = attrs.field(
        validator=instances(KernelCallArtifact, KernelArtifact)
    )
    geometry: FixedLaunch | None = attrs.field(
        default=None, validator=optional(instances(FixedLaunch))
    )
    scalars: tuple[ScalarArgument, ...] = attrs.field(
        default=(),
        converter=to_tuple,
        validator=tuple_of(ScalarArgument, expected="ScalarArgument values"),
    )

    def __attrs_post_init__(self) -> None:
        if self.geometry is None and isinstance(self.artifact, KernelArtifact):
            raise InvalidValue(
                "Variant.geometry", None, "a geometry, which a KernelArtifact has not"
            )

    def candidate(
        self, name: str, kernel: LoadedKernel, buffers: Sequence[BufferBinding]
    ) -> Candidate:
        """It as a candidate to measure.

        Args:
            name: the candidate's.
            kernel: its artifact, loaded.
            buffers: the kernel's buffer arguments.
        """
        geometry = self.geometry
        if geometry is None:
            assert isinstance(self.artifact, KernelCallArtifact)
            geometry = self.artifact.launch.geometry(self.scalars)
        return Candidate(
            name=name,
            request=LaunchRequest(
                artifact=kernel.artifact,
                loaded=kernel.loaded,
                geometry=geometry,
                buffers=tuple(buffers),
                scalars=self.scalars,
                diagnostic_id=name,
            ),
        )


@attrs.frozen(kw_only=True)
class SearchOptions:
    """How a search is made.

    Attributes:
        budget_s: seconds of the device that it may take, by the device's clock where
            it has one: what launches take that are checked, warmed up and measured.
            Else seconds of waiting for it.
        wall_s: seconds of waiting for it at most, compilers and all; None for as many
            as it takes.
        final_share: the part of both that is kept for the final race; more where that
            takes more, as far as 0.6.
        finalists: schedules in the final race, beside the baseline; fewer where the
            budget has no room for so many.
        heat: schedules that are measured together, beside the baseline.
        workers: threads that compile ahead while others are measured; 0 to compile
            only while nothing is measured, for a device that is the processor itself.
        build_limit_s: after which building a schedule is given up, and the schedule
            with it; the thread is left to itself, and others go on.
        measure: how samples are taken; its rules are those of the final race.
    """

    budget_s: float = attrs.field(default=10.0, validator=number(1e-6, 1e6))
    wall_s: float | None = attrs.field(
        default=None, validator=optional(number(1e-6, 1e6))
    )
    final_share: float = attrs.field(default=0.25, validator=number(0.01, 0.99))
    finalists: int = attrs.field(default=4, validator=integer(1, 64))
    heat: int = attrs.field(default=8, validator=integer(1, 256))
    workers: int = attrs.field(default=2, validator=integer(0, 256))
    build_limit_s: float = attrs.field(default=120.0, validator=number(0.001, 1e6))
    measure: MeasureOptions = attrs.field(
        factory=MeasureOptions, validator=instances(MeasureOptions)
    )


@attrs.frozen(kw_only=True)
class SearchProgress:
    """How far a search has come.

    Attributes:
        step: ``heat`` or ``final``.
        trials: schedules that more is known of since the turn before.
        measured: schedules measured so far.
        rejected: schedules that are out for good.
        best: what seems best so far; the baseline where nothing does.
        spent_s: seconds of the budget that are spent.
        budget_s: the budget.
    """

    step: str
    trials: tuple[Trial, ...]
    measured: int
    rejected: int
    best: Trial
    spent_s: float
    budget_s: float


@attrs.frozen(kw_only=True)
class SearchOutcome:
    """What a search found.

    Attributes:
        winner: the schedule to use: the baseline unless one beat it in the final race.
        baseline: what everything was compared with.
        standing: the winner's against the baseline.
        final: the final race; None where it came to none.
        trials: every schedule that something is known of, those that were measured
            first, the best of them first.
        is_exhausted: whether the strategy had nothing left to propose.
        spent_s: seconds of the budget that were spent.
        source: whose clock was read.
        kept: what to go on from.
        is_storable: whether the final's times may be kept for others.
        why_not: what speaks against that; empty where nothing does.
    """

    winner: Schedule
    baseline: Schedule
    standing: Standing
    final: MeasureOutcome | None
    trials: tuple[Trial, ...]
    is_exhausted: bool
    spent_s: float
    source: TimeSource
    kept: KeptSearch
    is_storable: bool
    why_not: str = ""

    @property
    def speedup(self) -> float:
        """The baseline's time over the winner's in the final race; 1.0 for itself."""
        if self.final is None or self.winner == self.baseline:
            return 1.0
        comparison = self.final.candidate(str(self.winner)).comparison
        assert comparison is not None
        return math.exp(-comparison.interval.estimate)
