"""Choosing between ways to do the same: measured, kept, and found again.

* `measure`: candidates on a device, checked, in rounds, until it is known which is
  best, or that none is.
* `accy_async.tuning.launches`: a planned kernel's launch candidates, and the cache of
  their winners.
* `accy_async.tuning.search`: a space of schedules, within a budget.
* `accy_async.tuning.race`, `accy_async.tuning.statistics`: the deciding part, pure.
* `accy_async.tuning.records`: what was measured as values and as bytes.
* `accy_async.tuning.store`: the same on disk, for every process of a user.
"""

from accy_async.tuning import records
from accy_async.tuning.choice import (
    LaunchCandidateMeasurement,
    LaunchTuning,
    LaunchTuningSelection,
)
from accy_async.tuning.launches import (
    LaunchCandidateBenchmarkOptions,
    LaunchCandidateRecord,
    LaunchCandidateSynchronization,
    LaunchTuningCache,
    LaunchTuningCacheKey,
    LaunchTuningCacheRecord,
    decode_launch_tuning_artifact,
    encode_launch_tuning_artifact,
    launch_candidate_record,
    measure_launch_candidates,
    tune_launch,
)
from accy_async.tuning.measuring import (
    CacheState,
    Candidate,
    CandidateStatus,
    KeptRounds,
    MeasureOptions,
    MeasureOutcome,
    MeasureProgress,
    ResultCheck,
    TimeSource,
    measure,
    open_measurement,
)
from accy_async.tuning.pacing import TuningBudget
from accy_async.tuning.race import RaceRules, Standing
from accy_async.tuning.store import TuningStore, default_tuning_store

__all__ = [
    "CacheState",
    "Candidate",
    "CandidateStatus",
    "KeptRounds",
    "LaunchCandidateBenchmarkOptions",
    "LaunchCandidateMeasurement",
    "LaunchCandidateRecord",
    "LaunchCandidateSynchronization",
    "LaunchTuning",
    "LaunchTuningCache",
    "LaunchTuningCacheKey",
    "LaunchTuningCacheRecord",
    "LaunchTuningSelection",
    "MeasureOptions",
    "MeasureOutcome",
    "MeasureProgress",
    "RaceRules",
    "ResultCheck",
    "Standing",
    "TimeSource",
    "TuningBudget",
    "TuningStore",
    "decode_launch_tuning_artifact",
    "default_tuning_store",
    "encode_launch_tuning_artifact",
    "launch_candidate_record",
    "measure",
    "measure_launch_candidates",
    "open_measurement",
    "records",
    "tune_launch",
]
