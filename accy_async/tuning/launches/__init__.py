"""Launch tuning: which of a planned kernel's launch candidates to use.

* `LaunchTuningCacheKey.of`: all that a measurement is good for.
* `LaunchTuningCache`: the winners that are known, imported, replaced and exported as
  artifacts.
* `tune_launch`, `measure_launch_candidates`: measure them, thoroughly or plainly.
* `LaunchCandidateRecord`: a measured candidate with what it was measured on.
"""

from accy_async.tuning.launches.cache import (
    LaunchTuningCache,
    best_measurement,
    is_tunable,
)
from accy_async.tuning.launches.candidates import (
    LaunchCandidateBenchmarkOptions,
    LaunchCandidateRecord,
    LaunchCandidateSynchronization,
    MeasuredKernel,
    check_record,
    launch_candidate_record,
)
from accy_async.tuning.launches.key import LaunchTuningCacheKey
from accy_async.tuning.launches.measuring import (
    LaunchTuningOutcome,
    launch_candidates,
    launch_requests,
    measure_launch_candidates,
    tune_launch,
    winning_records,
)
from accy_async.tuning.launches.records import (
    LAUNCH_CODEC,
    LAUNCH_TUNING_ARTIFACT_VERSION,
    LaunchTuningCacheRecord,
    decode_launch_tuning_artifact,
    encode_launch_tuning_artifact,
)

__all__ = [
    "LAUNCH_CODEC",
    "LAUNCH_TUNING_ARTIFACT_VERSION",
    "LaunchCandidateBenchmarkOptions",
    "LaunchCandidateRecord",
    "LaunchCandidateSynchronization",
    "LaunchTuningCache",
    "LaunchTuningCacheKey",
    "LaunchTuningCacheRecord",
    "LaunchTuningOutcome",
    "MeasuredKernel",
    "best_measurement",
    "check_record",
    "decode_launch_tuning_artifact",
    "encode_launch_tuning_artifact",
    "is_tunable",
    "launch_candidate_record",
    "launch_candidates",
    "launch_requests",
    "measure_launch_candidates",
    "tune_launch",
    "winning_records",
]
