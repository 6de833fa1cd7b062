"""Schedules that won: which layout of a generated kernel was fastest where.

A schedule is written as a few numbers, its *choice*: threads of a block along each
axis, or whatever the family's kernels are laid out by. Who makes the kernels says
which choices there are; the record keeps a fingerprint of them, so that it no longer
counts where there are others to choose from.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from functools import cache
from typing import TYPE_CHECKING, Any

import attrs

from accy_async.artifact.fingerprint import fingerprint
from accy_async.artifact.formats import ArtifactFormat, artifact_format
from accy_async.dtypes import DType
from accy_async.errors import InvalidArtifact, InvalidValue
from accy_async.tuning.records.binary import (
    TEXT,
    RecordReader,
    RecordWriter,
    numbers_of,
)
from accy_async.tuning.records.cache import RecordCache
from accy_async.tuning.records.codec import RecordCodec
from accy_async.tuning.records.known import LookedUpRecords
from accy_async.tuning.records.measured import (
    TuningRecord,
    read_measurement,
    write_measurement,
)
from accy_async.values import (
    U32_MAX,
    enum,
    field_name,
    instances,
    integer,
    integers,
    member_of,
    to_tuple,
    tuple_of,
)

if TYPE_CHECKING:
    from accy_async.values import Validator

__all__ = [
    "Choice",
    "ScheduleFamily",
    "ScheduleReader",
    "ScheduleTuningKey",
    "ScheduleTuningProblem",
    "ScheduleTuningRecord",
    "decode_schedule_tuning_artifact",
    "encode_schedule_tuning_artifact",
    "schedule_codec",
    "schedule_kind",
]

Choice = tuple[int, ...]
"""A schedule's numbers, in the order of its fields."""

_U64 = integer(0, 2**64 - 1)
_MOST_NUMBERS = 16


def _few(check: Validator) -> Validator:
    """At most so many numbers as a record has room for, each as it should be."""

    def both(instance: object, attribute: attrs.Attribute[Any], value: object) -> None:
        check(instance, attribute, value)
        if isinstance(value, tuple) and len(value) > _MOST_NUMBERS:
            name = field_name(instance, attribute)
            raise InvalidValue(name, value, f"at most {_MOST_NUMBERS} members")

    return both


_CHOICE = _few(integers(0, U32_MAX))
_EXTENTS = _few(integers(0, 2**64 - 1))
_DTYPES = _few(tuple_of(DType, expected="DType members"))


class ScheduleFamily(str, Enum):
    """Kernels that one kind of schedule lays out."""

    MATRIX_PRODUCT = "matrix_product"
    """Extents m, n, k, batch; the choice is threads along x and y, or the six numbers
    of a tile for tensor cores."""

    SCAN = "generated_scan"
    """Extents lines, elements of a line."""

    ROW_PIPELINE = "generated_row_pipeline"
    """Extents rows, columns."""

    def __str__(self) -> str:
        return self.value


def _family(value: ScheduleFamily | str) -> ScheduleFamily:
    return member_of(ScheduleFamily, value)


def _dtypes() -> tuple[DType, ...]:
    field: tuple[DType, ...] = attrs.field(converter=to_tuple, validator=_DTYPES)
    return field


@attrs.frozen(kw_only=True)
class ScheduleTuningProblem:
    """What there is a choice for.

    Attributes:
        family: the kernels.
        format: the format of their code.
        extents: the problem's, as the family says.
        dtypes: of what is read, of the result, of the sums.
        version: of the code that makes the kernels.
        candidates: the choices there are, the one used untuned first.
    """

    family: ScheduleFamily = attrs.field(
        converter=_family, validator=enum(ScheduleFamily)
    )
    format: ArtifactFormat = attrs.field(
        converter=artifact_format, validator=enum(ArtifactFormat)
    )
    extents: tuple[int, ...] = attrs.field(converter=to_tuple, validator=_EXTENTS)
    dtypes: tuple[DType, ...] = _dtypes()
    version: int = attrs.field(default=1, validator=integer(1))
    candidates: tuple[Choice, ...] = attrs.field(
        converter=to_tuple, validator=tuple_of(tuple, expected="tuples of integers")
    )

    def __attrs_post_init__(self) -> None:
        expected = "at least one, all different"
        if not self.candidates or len(set(self.candidates)) < len(self.candidates):
            raise InvalidValue(
                "ScheduleTuningProblem.candidates", self.candidates, expected
            )

    @property
    def candidate_fingerprint(self) -> int:
        """64 bits that name the candidates and their order."""
        return fingerprint(self.candidates)


@attrs.frozen(kw_only=True)
class ScheduleTuningKey:
    """All that a schedule's measurement is good for.

    Attributes:
        device: the fingerprint of the device that it was measured on.
        family: as the problem's; so are the others.
        format: of the code.
        extents: the problem's.
        dtypes: the problem's.
        version: of the code that made the kernels.
        candidates: the fingerprint of what there was to choose from.
    """

    device: int = attrs.field(validator=_U64)
    family: ScheduleFamily = attrs.field(
        converter=_family, validator=enum(ScheduleFamily)
    )
    format: ArtifactFormat = attrs.field(
        converter=artifact_format, validator=enum(ArtifactFormat)
    )
    extents: tuple[int, ...] = attrs.field(converter=to_tuple, validator=_EXTENTS)
    dtypes: tuple[DType, ...] = _dtypes()
    version: int = attrs.field(validator=integer(1))
    candidates: int = attrs.field(validator=_U64)

    @classmethod
    def of(cls, device: int, problem: ScheduleTuningProblem) -> ScheduleTuningKey:
        """The key of a problem on a device, ``capabilities.fingerprint``."""
        return cls(
            device=device,
            family=problem.family,
            format=problem.format,
            extents=problem.extents,
            dtypes=problem.dtypes,
            version=problem.version,
            candidates=problem.candidate_fingerprint,
        )


@attrs.frozen(kw_only=True)
class ScheduleTuningRecord(TuningRecord):
    """A schedule that won.

    Attributes:
        key: what it is good for.
        choice: the schedule's numbers.
    """

    key: ScheduleTuningKey = attrs.field(validator=instances(ScheduleTuningKey))
    choice: Choice = attrs.field(converter=to_tuple, validator=_CHOICE)

    @property
    def identity(self) -> ScheduleTuningKey:
        """Its key."""
        return self.key


_CODES = {4: "I", 8: "Q"}
"""What `numbers_of` calls a number of so many bytes."""


def _write_numbers(writer: RecordWriter, numbers: tuple[int, ...], size: int) -> None:
    writer.unsigned(len(numbers), 1)
    for value in numbers:
        writer.unsigned(value, size)


def _read_numbers(reader: RecordReader, size: int) -> tuple[int, ...]:
    return reader.numbers(numbers_of(f"{reader.unsigned(1)}{_CODES[size]}"))


def _write_key(writer: RecordWriter, key: ScheduleTuningKey) -> None:
    writer.unsigned(key.device, 8)
    writer.member(key.format)
    _write_numbers(writer, key.extents, 8)
    writer.unsigned(len(key.dtypes), 1)
    for dtype in key.dtypes:
        writer.member(dtype)
    writer.unsigned(key.version, 4)
    writer.unsigned(key.candidates, 8)


def _read_index(reader: RecordReader) -> bytes:
    begin = reader.offset
    reader.skip_parts(8, TEXT)
    reader.skip(8 * reader.unsigned(1))
    reader.skip_parts(*[TEXT] * reader.unsigned(1), 12)
    return reader.since(begin)


def _write(writer: RecordWriter, record: ScheduleTuningRecord) -> None:
    _write_key(writer, record.key)
    _write_numbers(writer, record.choice, 4)
    write_measurement(writer, record)


def schedule_kind(family: ScheduleFamily) -> str:
    """What stores call a family's records, and the options that find them."""
    return f"{family}_schedule_tuning"


@cache
def schedule_codec(family: ScheduleFamily) -> RecordCodec[ScheduleTuningRecord]:
    """The codec of a family's records; one of another family it does not take."""

    def write(writer: RecordWriter, record: ScheduleTuningRecord) -> None:
        if record.key.family is not family:
            raise InvalidValue("ScheduleTuningKey.family", record.key.family, family)
        _write(writer, record)

    def read(reader: RecordReader) -> ScheduleTuningRecord:
        key = ScheduleTuningKey(
            device=reader.unsigned(8),
            family=family,
            format=reader.member(ArtifactFormat),
            extents=_read_numbers(reader, 8),
            dtypes=tuple(reader.member(DType) for _ in range(reader.unsigned(1))),
            version=reader.unsigned(4),
            candidates=reader.unsigned(8),
        )
        choice = _read_numbers(reader, 4)
        return ScheduleTuningRecord(key=key, choice=choice, **read_measurement(reader))

    return RecordCodec(
        schema=schedule_kind(family),
        version=1,
        kind=ScheduleTuningRecord,
        least_bytes=45,
        write=write,
        read=read,
        write_index=_write_key,
        read_index=_read_index,
    )


def encode_schedule_tuning_artifact(
    family: ScheduleFamily | str, records: Iterable[ScheduleTuningRecord]
) -> bytes:
    """A family's records as an artifact.

    Raises:
        InvalidValue: a record is of another family.
        InvalidArtifact: they are too many.
    """
    return schedule_codec(ScheduleFamily(family)).encode(records)


def decode_schedule_tuning_artifact(
    family: ScheduleFamily | str, artifact: bytes
) -> tuple[ScheduleTuningRecord, ...]:
    """All records of a family's artifact.

    Raises:
        InvalidArtifact: it is damaged, or of another family or version; with the
            offset where that shows.
    """
    return schedule_codec(ScheduleFamily(family)).decode(artifact)


class ScheduleReader:
    """Finds the winners for one device and format.

    Args:
        device: the fingerprint of the device, ``capabilities.fingerprint``.
        records: of any devices and formats; of several for one key the best counts.
            `LookedUpRecords` are not listed but looked up, each when it is wanted.
    """

    def __init__(
        self,
        device: int,
        records: Iterable[ScheduleTuningRecord] | LookedUpRecords[ScheduleTuningRecord],
    ) -> None:
        self.device = device
        self._known: (
            RecordCache[ScheduleTuningRecord] | LookedUpRecords[ScheduleTuningRecord]
        )
        if isinstance(records, LookedUpRecords):
            self._known = records
        else:
            self._known = RecordCache(records)

    @property
    def records(self) -> tuple[ScheduleTuningRecord, ...]:
        """The records, one for each key."""
        return self._known.export_records()

    def resolve(self, problem: ScheduleTuningProblem) -> Choice | None:
        """The winner, or None where nothing was measured on just this problem.

        Raises:
            InvalidArtifact: the winner is none of the problem's candidates.
        """
        record = self._known.find(ScheduleTuningKey.of(self.device, problem))
        if record is None:
            return None
        if record.choice not in problem.candidates:
            extents = "x".join(map(str, problem.extents))
            raise InvalidArtifact(
                f"{problem.family} of {extents}: the winner {record.choice} is none of "
                f"the candidates {', '.join(map(str, problem.candidates))}"
            )
        return record.choice
