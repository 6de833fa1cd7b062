"""What is measured, how, and what comes out."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

import attrs

from accy_async.backends.launch import LaunchRequest
from accy_async.dtypes import DType
from accy_async.tuning.race import Comparison, RaceRules, RaceVerdict, Standing
from accy_async.values import (
    enum,
    instances,
    integer,
    member_of,
    number,
    optional,
    text,
    to_tuple,
    tuple_of,
)

__all__ = [
    "CacheState",
    "Candidate",
    "CandidateOutcome",
    "CandidateStatus",
    "KeptRounds",
    "MeasureOptions",
    "MeasureOutcome",
    "MeasureProgress",
    "ResultCheck",
    "TimeSource",
]


@attrs.frozen(kw_only=True)
class Candidate:
    """One way to do the work: a kernel launch.

    All candidates of a measurement take the same buffers in the same roles. Those
    that are written are replaced by private ones; the caller's are read only.

    Attributes:
        name: how it is called in outcomes; no two have the same.
        request: the launch; its stream is not used.
    """

    name: str = attrs.field(validator=text())
    request: LaunchRequest = attrs.field(validator=instances(LaunchRequest))


class CandidateStatus(str, Enum):
    """What became of a candidate."""

    MEASURED = "measured"
    WRONG_RESULT = "wrong result"
    FAILED = "failed"
    TIMED_OUT = "timed out"
    NOT_TRIED = "not tried"

    def __str__(self) -> str:
        return self.value


class TimeSource(str, Enum):
    """Whose clock was read."""

    DEVICE = "device"
    """The device's, by events on the stream: nothing of the host is in it."""

    HOST = "host"
    """This process's, from the submission to the wake-up: for devices without one."""

    def __str__(self) -> str:
        return self.value


class CacheState(str, Enum):
    """What the device's caches hold when a sample begins."""

    WARM = "warm"
    """What the sample before left there, which is the same kernel's work."""

    COLD = "cold"
    """Something else: they are overwritten before each launch."""

    def __str__(self) -> str:
        return self.value


def _cache(value: CacheState | str) -> CacheState:
    return member_of(CacheState, value)


@attrs.frozen(kw_only=True)
class ResultCheck:
    """How a candidate's results are compared with the baseline's.

    Attributes:
        dtypes: the element type of each buffer argument, None to compare its bits;
            bits for all if left out.
        relative: difference of floats that is allowed, relative to the greater one.
        absolute: the same in absolute terms; either will do.
        of_largest: the same relative to the largest finite number of the buffer that
            is compared with: for sums in another order, some of which come out small.
        reference: the right bytes of a buffer argument, by its place; where there are
            any, the baseline is held against them as well.
    """

    dtypes: tuple[DType | None, ...] = attrs.field(
        default=(),
        converter=to_tuple,
        validator=tuple_of(DType, type(None), expected="DType values or None"),
    )
    relative: float = attrs.field(default=1e-5, validator=number(0.0))
    absolute: float = attrs.field(default=0.0, validator=number(0.0))
    of_largest: float = attrs.field(default=0.0, validator=number(0.0))
    reference: Mapping[int, bytes] = attrs.field(factory=dict)


@attrs.frozen(kw_only=True)
class MeasureOptions:
    """How candidates are measured.

    Attributes:
        rules: when enough was measured.
        warmup: samples of each candidate that are thrown away.
        time_limit_s: after which a sample is given up, and its candidate with it.
        cache: what the device's caches hold when a launch begins.
        flush_bytes: what is overwritten to make them cold; more than they hold.
        check: how results are compared; None to believe every candidate.
        least_sample_ns: samples of shorter kernels are of several launches.
        most_launches: of a sample.
        priority: of the stream that it runs on; None for the device's least urgent.
    """

    rules: RaceRules = attrs.field(factory=RaceRules, validator=instances(RaceRules))
    warmup: int = attrs.field(default=2, validator=integer(0, 10_000))
    time_limit_s: float = attrs.field(default=10.0, validator=number(0.001, 1e6))
    cache: CacheState = attrs.field(
        default=CacheState.WARM, converter=_cache, validator=enum(CacheState)
    )
    flush_bytes: int = attrs.field(default=1 << 28, validator=integer(1, 1 << 40))
    check: ResultCheck | None = attrs.field(
        factory=ResultCheck, validator=optional(instances(ResultCheck))
    )
    least_sample_ns: float | None = attrs.field(
        default=None, validator=optional(number(0.0))
    )
    most_launches: int = attrs.field(default=256, validator=integer(1, 65_536))
    priority: int | None = attrs.field(
        default=None, validator=optional(integer(-(2**31), 2**31 - 1))
    )


@attrs.frozen(kw_only=True)
class KeptRounds:
    """What was measured so far, to go on from.

    Rounds are whole in themselves: each holds the baseline. So those of a measurement
    that was stopped serve the next one, also where candidates were added since.

    Attributes:
        rounds: what each candidate took in nanoseconds, by name, for each round.
        launches: launches that a sample was of.
        source: whose clock was read.
    """

    rounds: tuple[Mapping[str, float], ...] = ()
    launches: int = 1
    source: TimeSource = TimeSource.DEVICE


@attrs.frozen(kw_only=True)
class MeasureProgress:
    """How far a measurement has come.

    Attributes:
        step: what it does: ``check``, ``warm up`` or ``round``.
        rounds: rounds done.
        contestants: names of those still in the race.
        rejected: names of those that are out for good, in order.
    """

    step: str
    rounds: int
    contestants: tuple[str, ...]
    rejected: tuple[str, ...]


@attrs.frozen(kw_only=True)
class CandidateOutcome:
    """What became of one candidate.

    Attributes:
        name: its own.
        status: whether it was measured, or why not.
        reason: the same in words; empty where it was.
        median_ns: the median of its samples, None where it was not measured.
        mad_ns: their median absolute deviation.
        sample_count: how many there were.
        comparison: against the baseline; None for itself, and where there is none.
    """

    name: str
    status: CandidateStatus
    reason: str = ""
    median_ns: float | None = None
    mad_ns: float | None = None
    sample_count: int = 0
    comparison: Comparison | None = None


@attrs.frozen(kw_only=True)
class MeasureOutcome:
    """What a measurement found.

    Attributes:
        winner: the candidate to use: the baseline unless one is faster; None where
            there is nothing to use.
        baseline: what the others were compared with: the first one that works.
        standing: the winner's against the baseline.
        candidates: every candidate, in the order given.
        verdict: the race's; None where none was run.
        source: whose clock was read.
        launches: launches that a sample was of.
        kept: what to go on from.
        is_storable: whether the times may be kept for others: everything was decided,
            on a machine that held still.
        why_not: what speaks against that; empty where nothing does.
    """

    winner: str | None
    baseline: str | None
    standing: Standing
    candidates: tuple[CandidateOutcome, ...]
    verdict: RaceVerdict | None
    source: TimeSource
    launches: int
    kept: KeptRounds
    is_storable: bool
    why_not: str = ""

    def candidate(self, name: str) -> CandidateOutcome:
        """What became of the candidate of that name; KeyError for none."""
        for one in self.candidates:
            if one.name == name:
                return one
        raise KeyError(name)
