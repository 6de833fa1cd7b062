"""What tuning remembers: records as values, as bytes, and the best of several.

* `ScheduleTuningRecord`: which layout of a generated kernel was fastest, for one
  problem on one device. `ScheduleReader` finds it again.
* `FamilyTuningRecord`: which kernel of a family of ready-made ones was fastest.
  `FamilyTuningReader` finds it again.
* `RecordCodec`: records of one kind as an *artifact*, and back. Decoding yields all
  of its records or raises `InvalidArtifact` with the offset.
* `RecordCache`: of several records of one key the better one, whatever their order.
* `StoredRecords`: those of a store, each decoded when it is looked up.
* `KnownRecords`: those of stores and those learnt since, looked up likewise.

A record is used only where all that it was measured on is the same: it names the
device, the format, the problem, the candidates that it won against and the version
of the code that makes them.
"""

from accy_async.tuning.records.binary import RecordReader, RecordWriter
from accy_async.tuning.records.cache import RecordCache
from accy_async.tuning.records.codec import MAX_ARTIFACT_BYTES, RecordCodec
from accy_async.tuning.records.family import (
    FAMILY_CODEC,
    FamilyTuningKey,
    FamilyTuningReader,
    FamilyTuningRecord,
    decode_family_tuning_artifact,
    encode_family_tuning_artifact,
)
from accy_async.tuning.records.known import KnownRecords, LookedUpRecords
from accy_async.tuning.records.measured import TuningRecord
from accy_async.tuning.records.schedule import (
    Choice,
    ScheduleFamily,
    ScheduleReader,
    ScheduleTuningKey,
    ScheduleTuningProblem,
    ScheduleTuningRecord,
    decode_schedule_tuning_artifact,
    encode_schedule_tuning_artifact,
    schedule_codec,
    schedule_kind,
)
from accy_async.tuning.records.stored import StoredRecords

__all__ = [
    "FAMILY_CODEC",
    "MAX_ARTIFACT_BYTES",
    "Choice",
    "FamilyTuningKey",
    "FamilyTuningReader",
    "FamilyTuningRecord",
    "KnownRecords",
    "LookedUpRecords",
    "RecordCache",
    "RecordCodec",
    "RecordReader",
    "RecordWriter",
    "ScheduleFamily",
    "ScheduleReader",
    "ScheduleTuningKey",
    "ScheduleTuningProblem",
    "ScheduleTuningRecord",
    "StoredRecords",
    "TuningRecord",
    "decode_family_tuning_artifact",
    "decode_schedule_tuning_artifact",
    "encode_family_tuning_artifact",
    "encode_schedule_tuning_artifact",
    "schedule_codec",
    "schedule_kind",
]
