"""Measuring candidates on a device: `measure`, or `open_measurement` to watch it."""

from accy_async.tuning.measuring.candidate import (
    CacheState,
    Candidate,
    CandidateOutcome,
    CandidateStatus,
    KeptRounds,
    MeasureOptions,
    MeasureOutcome,
    MeasureProgress,
    ResultCheck,
    TimeSource,
)
from accy_async.tuning.measuring.core import Pace
from accy_async.tuning.measuring.measuring import Measuring
from accy_async.tuning.measuring.opening import measure, open_measurement

__all__ = [
    "CacheState",
    "Candidate",
    "CandidateOutcome",
    "CandidateStatus",
    "KeptRounds",
    "MeasureOptions",
    "MeasureOutcome",
    "MeasureProgress",
    "Measuring",
    "Pace",
    "ResultCheck",
    "TimeSource",
    "measure",
    "open_measurement",
]
