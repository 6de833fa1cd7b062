"""Kernels of a family that won: which ready-made kernel was fastest for a problem."""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from accy_async.artifact.formats import ArtifactFormat, artifact_format
from accy_async.tuning.records.binary import TEXT, RecordReader, RecordWriter
from accy_async.tuning.records.cache import RecordCache
from accy_async.tuning.records.codec import RecordCodec
from accy_async.tuning.records.known import LookedUpRecords
from accy_async.tuning.records.measured import (
    TuningRecord,
    read_measurement,
    write_measurement,
)
from accy_async.values import enum, instances, integer, text

__all__ = [
    "FAMILY_CODEC",
    "FamilyTuningKey",
    "FamilyTuningReader",
    "FamilyTuningRecord",
    "decode_family_tuning_artifact",
    "encode_family_tuning_artifact",
]


@attrs.frozen(kw_only=True)
class FamilyTuningKey:
    """All that a measurement of a family's kernels is good for.

    Attributes:
        device: the fingerprint of the device that it was measured on.
        format: of the kernels' code.
        family: the family's name, as ``accy.kernel.matrix_product``.
        version: the family's.
        problem: what is to be computed, in the family's own words.
    """

    device: int = attrs.field(validator=integer(0, 2**64 - 1))
    format: ArtifactFormat = attrs.field(
        converter=artifact_format, validator=enum(ArtifactFormat)
    )
    family: str = attrs.field(validator=text())
    version: int = attrs.field(validator=integer(1))
    problem: str = attrs.field(validator=text())


@attrs.frozen(kw_only=True)
class FamilyTuningRecord(TuningRecord):
    """A kernel that won.

    Attributes:
        key: what it is good for.
        target: the name under which registries have the kernel.
    """

    key: FamilyTuningKey = attrs.field(validator=instances(FamilyTuningKey))
    target: str = attrs.field(validator=text())

    @property
    def identity(self) -> FamilyTuningKey:
        """Its key."""
        return self.key


def _write_key(writer: RecordWriter, key: FamilyTuningKey) -> None:
    writer.unsigned(key.device, 8)
    writer.member(key.format)
    writer.text(key.family)
    writer.unsigned(key.version, 4)
    writer.text(key.problem)


def _read_index(reader: RecordReader) -> bytes:
    begin = reader.offset
    reader.skip_parts(8, TEXT, TEXT, 4, TEXT)
    return reader.since(begin)


def _write(writer: RecordWriter, record: FamilyTuningRecord) -> None:
    _write_key(writer, record.key)
    writer.text(record.target)
    write_measurement(writer, record)


def _read(reader: RecordReader) -> FamilyTuningRecord:
    key = FamilyTuningKey(
        device=reader.unsigned(8),
        format=reader.member(ArtifactFormat),
        family=reader.text(),
        version=reader.unsigned(4),
        problem=reader.text(),
    )
    target = reader.text()
    return FamilyTuningRecord(key=key, target=target, **read_measurement(reader))


FAMILY_CODEC = RecordCodec(
    schema="family_tuning",
    version=1,
    kind=FamilyTuningRecord,
    least_bytes=45,
    write=_write,
    read=_read,
    write_index=_write_key,
    read_index=_read_index,
)
"""The codec of family records."""


def encode_family_tuning_artifact(records: Iterable[FamilyTuningRecord]) -> bytes:
    """Records as an artifact.

    Raises:
        InvalidArtifact: they are too many.
    """
    return FAMILY_CODEC.encode(records)


def decode_family_tuning_artifact(artifact: bytes) -> tuple[FamilyTuningRecord, ...]:
    """All records of an artifact.

    Raises:
        InvalidArtifact: it is damaged or of another version; with the offset where
            that shows.
    """
    return FAMILY_CODEC.decode(artifact)


class FamilyTuningReader:
    """Finds the winners for one device.

    Args:
        device: the fingerprint of the device, ``capabilities.fingerprint``.
        records: of any devices; of several for one key the best counts.
            `LookedUpRecords` are not listed but looked up, each when it is wanted.
    """

    def __init__(
        self,
        device: int,
        records: Iterable[FamilyTuningRecord] | LookedUpRecords[FamilyTuningRecord],
    ) -> None:
        self.device = device
        self._known: (
            RecordCache[FamilyTuningRecord] | LookedUpRecords[FamilyTuningRecord]
        )
        if isinstance(records, LookedUpRecords):
            self._known = records
        else:
            self._known = RecordCache(records)

    @property
    def records(self) -> tuple[FamilyTuningRecord, ...]:
        """The records, one for each key."""
        return self._known.export_records()

    def resolve(self, key: FamilyTuningKey) -> str | None:
        """The winner's name, or None where nothing was measured on just this.

        A key of another device finds nothing: what was measured there does not count.
        """
        if key.device != self.device:
            return None
        record = self._known.find(key)
        return None if record is None else record.target
