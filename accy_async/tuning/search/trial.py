"""What is known of a schedule, and what of a search is kept to go on from."""

from __future__ import annotations

import math
from collections.abc import Mapping

import attrs
import msgspec
import numpy as np

from accy_async.artifact.sealed import seal, unseal
from accy_async.errors import InvalidArtifact, InvalidType
from accy_async.tuning.measuring import CandidateStatus
from accy_async.tuning.search.space import Schedule, Value
from accy_async.tuning.statistics import Interval, midmean, paired_intervals

__all__ = ["KeptSearch", "Trial"]

_SCHEMA = "kept_search"
_VERSION = "1"
_RESAMPLES = 200
_RANKING_CONFIDENCE = 0.8


@attrs.frozen(kw_only=True)
class Trial:
    """A schedule and how it compared with the baseline so far.

    Attributes:
        schedule: which.
        status: `MEASURED`, or why it was not.
        reason: the same in words; empty where it was.
        differences: of the logarithms of its times and the baseline's, one for each
            round that both were in; below 0 where it was faster.
        is_baseline: whether it is the baseline itself.
    """

    schedule: Schedule
    status: CandidateStatus = CandidateStatus.NOT_TRIED
    reason: str = ""
    differences: tuple[float, ...] = ()
    is_baseline: bool = False

    @property
    def rounds(self) -> int:
        """Rounds that it was measured in."""
        return len(self.differences)

    @property
    def is_measured(self) -> bool:
        """True where it has been measured, and nothing is wrong with it."""
        is_fit = self.status is CandidateStatus.MEASURED
        return is_fit and (self.is_baseline or self.rounds > 0)

    @property
    def is_rejected(self) -> bool:
        """True where it is out for good."""
        return self.status not in (CandidateStatus.MEASURED, CandidateStatus.NOT_TRIED)

    @property
    def estimate(self) -> float:
        """The midmean of the differences; not a number where there are none."""
        if self.is_baseline:
            return 0.0
        if not self.differences:
            return math.nan
        return float(midmean(np.array(self.differences)))

    @property
    def speedup(self) -> float:
        """The baseline's time over its own, as estimated."""
        return math.exp(-self.estimate)

    @property
    def bound(self) -> float:
        """What the difference hardly exceeds: the fewer rounds, the farther off.

        To rank by: of many that were measured in few rounds, the fastest by the
        estimates is one that was lucky.
        """
        return self.interval(_RANKING_CONFIDENCE).high

    def interval(self, confidence: float) -> Interval:
        """Where the difference is at that confidence; boundless from one round."""
        if self.is_baseline:
            return Interval(0.0, 0.0, 0.0)
        (found,) = paired_intervals(
            np.array(self.differences).reshape(1, -1),
            confidence=confidence,
            resamples=_RESAMPLES,
            generator=np.random.default_rng(self.rounds),
        )
        return found


@attrs.frozen(kw_only=True)
class KeptSearch:
    """What a search has measured, for another one to go on from.

    Attributes:
        baseline: what everything was compared with.
        trials: every schedule that something is known of, the baseline left out.
        launches: launches that a sample was of.
    """

    baseline: Schedule
    trials: tuple[Trial, ...] = ()
    launches: int = 1

    def to_bytes(self) -> bytes:
        """As JSON, sealed so that damage to it is noticed."""
        document = {
            "baseline": dict(self.baseline),
            "launches": self.launches,
            "trials": [
                {
                    "schedule": dict(one.schedule),
                    "status": str(one.status),
                    "reason": one.reason,
                    "differences": one.differences,
                }
                for one in self.trials
            ],
        }
        return seal(_SCHEMA, _VERSION, msgspec.json.encode(document))

    @classmethod
    def from_bytes(cls, data: bytes) -> KeptSearch:
        """What `to_bytes` gave.

        Raises:
            InvalidType: it is not bytes.
            InvalidArtifact: it is damaged, something else, or of another version.
        """
        if not isinstance(data, bytes):
            raise InvalidType("KeptSearch.from_bytes.data", data, "bytes")
        payload = unseal(data, _SCHEMA, _VERSION)
        try:
            found = msgspec.json.decode(payload, type=_Document)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise InvalidArtifact(f"kept search: {error}") from error
        baseline = _schedule(found.baseline)
        trials = tuple(_trial(one, baseline) for one in found.trials)
        return cls(baseline=baseline, trials=trials, launches=max(1, found.launches))


class _TrialDocument(msgspec.Struct):
    schedule: dict[str, bool | int | float | str | tuple[int, ...]]
    status: str
    reason: str
    differences: tuple[float, ...]


class _Document(msgspec.Struct):
    baseline: dict[str, bool | int | float | str | tuple[int, ...]]
    launches: int
    trials: list[_TrialDocument]


def _schedule(values: Mapping[str, Value]) -> Schedule:
    return Schedule(tuple(values.items()))


def _trial(found: _TrialDocument, baseline: Schedule) -> Trial:
    schedule = _schedule(found.schedule)
    where = f"kept search: trial {schedule}"
    if tuple(schedule) != tuple(baseline):
        raise InvalidArtifact(f"{where}: other parameters than the baseline's")
    try:
        status = CandidateStatus(found.status)
    except ValueError as error:
        raise InvalidArtifact(f"{where}: status {found.status!r}") from error
    return Trial(
        schedule=schedule,
        status=status,
        reason=found.reason,
        differences=found.differences,
    )
