"""Winners among launch candidates, as values and as bytes."""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from accy_async.artifact.formats import ArtifactFormat, BackendKind
from accy_async.artifact.tiles import (
    LaunchReduction,
    LaunchReductionKind,
    LaunchTile,
    LaunchTileKind,
)
from accy_async.dtypes import DType
from accy_async.errors import InvalidType, InvalidValue
from accy_async.tuning.choice import LaunchCandidateMeasurement
from accy_async.tuning.launches.key import LaunchTuningCacheKey
from accy_async.tuning.records.binary import (
    TEXT,
    RecordReader,
    RecordWriter,
    numbers_of,
)
from accy_async.tuning.records.codec import RecordCodec
from accy_async.tuning.records.measured import KeptRecord
from accy_async.values import instances, listed

__all__ = [
    "LAUNCH_CODEC",
    "LAUNCH_TUNING_ARTIFACT_VERSION",
    "LaunchTuningCacheRecord",
    "decode_launch_tuning_artifact",
    "encode_launch_tuning_artifact",
]

LAUNCH_TUNING_ARTIFACT_VERSION = 1

_WORK = numbers_of("4Q")
_CANDIDATES = numbers_of("IQ")
_SELECTION = numbers_of("2IQI")
_EXTENTS = numbers_of("4I")
_TILE_BYTES = numbers_of("3Q")
_REDUCTION = numbers_of("2IQ")

_TILES: dict[bytes, LaunchTile] = {}
"""Tiles that were read: a few for thousands of records."""


@attrs.frozen(kw_only=True)
class LaunchTuningCacheRecord(KeptRecord):
    """A winner, and what it is good for.

    Attributes:
        key: what it is good for.
        selection: the winner. Its ``kernel_id`` is that of the plan it was measured
            in; the key alone says which kernel it is.
    """

    key: LaunchTuningCacheKey = attrs.field(validator=instances(LaunchTuningCacheKey))
    selection: LaunchCandidateMeasurement = attrs.field(
        validator=instances(LaunchCandidateMeasurement)
    )

    def __attrs_post_init__(self) -> None:
        if self.selection.candidate_index >= self.key.candidate_count:
            raise InvalidValue(
                "LaunchTuningCacheRecord.selection",
                self.selection.candidate_index,
                f"one of {self.key.candidate_count} candidates",
            )

    @property
    def identity(self) -> LaunchTuningCacheKey:
        """Its key."""
        return self.key

    @property
    def rank(self) -> tuple[int, int]:
        """The winner's median, and its samples."""
        return self.selection.median_ns, self.selection.sample_count


def _write_device(writer: RecordWriter, key: LaunchTuningCacheKey) -> None:
    writer.member(key.backend)
    writer.unsigned(key.device, 8)


def _write_work(writer: RecordWriter, key: LaunchTuningCacheKey) -> None:
    writer.member(key.format)
    writer.unsigned(key.kernel_fingerprint, 8)
    writer.unsigned(key.output_layout_fingerprint, 8)
    writer.unsigned(key.input_layout_fingerprint, 8)
    writer.unsigned(key.element_count, 8)
    _write_tile(writer, key.tile)
    writer.unsigned(key.candidate_count, 4)
    writer.unsigned(key.launch_resource_fingerprint, 8)


def _write_index(writer: RecordWriter, key: LaunchTuningCacheKey) -> None:
    """All but the driver's version, as what another one had won is told of."""
    _write_device(writer, key)
    _write_work(writer, key)


def _read_index(reader: RecordReader) -> bytes:
    begin = reader.offset
    reader.skip_parts(TEXT, 8)
    device = reader.since(begin)
    reader.skip_parts(TEXT)
    begin = reader.offset
    reader.skip_parts(TEXT, 32)
    _skip_tile(reader)
    reader.skip(12)
    return device + reader.since(begin)


def _write(writer: RecordWriter, record: LaunchTuningCacheRecord) -> None:
    key, selection = record.key, record.selection
    _write_device(writer, key)
    writer.text(key.driver)
    _write_work(writer, key)
    writer.unsigned(selection.kernel_id, 4)
    writer.unsigned(selection.candidate_index, 4)
    writer.unsigned(selection.median_ns, 8)
    writer.unsigned(selection.sample_count, 4)


def _read(reader: RecordReader) -> LaunchTuningCacheRecord:
    backend = reader.member(BackendKind)
    device = reader.unsigned(8)
    driver = reader.text()
    format = reader.member(ArtifactFormat)
    kernel, output_layout, input_layout, element_count = reader.numbers(_WORK)
    tile = reader.part(_TILES, _skip_tile, _read_tile)
    candidate_count, resources = reader.numbers(_CANDIDATES)
    kernel_id, candidate_index, median_ns, sample_count = reader.numbers(_SELECTION)
    key = LaunchTuningCacheKey(
        backend=backend,
        device=device,
        driver=driver,
        format=format,
        kernel_fingerprint=kernel,
        output_layout_fingerprint=output_layout,
        input_layout_fingerprint=input_layout,
        element_count=element_count,
        tile=tile,
        candidate_count=candidate_count,
        launch_resource_fingerprint=resources,
    )
    selection = LaunchCandidateMeasurement(
        kernel_id=kernel_id,
        candidate_index=candidate_index,
        median_ns=median_ns,
        sample_count=sample_count,
    )
    return LaunchTuningCacheRecord(key=key, selection=selection)


def _write_tile(writer: RecordWriter, tile: LaunchTile) -> None:
    writer.member(tile.kind)
    for value in (tile.m, tile.n, tile.k, tile.batch):
        writer.unsigned(value, 4)
    for dtype in (tile.input_dtype, tile.output_dtype):
        writer.text("" if dtype is None else dtype.value)
    for size in (
        tile.input_tile_bytes,
        tile.output_tile_bytes,
        tile.scratch_memory_bytes,
    ):
        writer.unsigned(size, 8)
    reduction = tile.reduction
    writer.unsigned(int(reduction is not None), 1)
    if reduction is not None:
        writer.member(reduction.kind)
        writer.unsigned(reduction.rank, 4)
        writer.unsigned(reduction.axis, 4)
        writer.unsigned(reduction.extent, 8)


def _skip_tile(reader: RecordReader) -> None:
    reader.skip_parts(TEXT, 16, TEXT, TEXT, 24)
    if reader.unsigned(1):
        reader.skip_parts(TEXT, 16)


def _read_tile(reader: RecordReader) -> LaunchTile:
    kind = reader.member(LaunchTileKind)
    m, n, k, batch = reader.numbers(_EXTENTS)
    input_dtype, output_dtype = _read_dtype(reader), _read_dtype(reader)
    input_bytes, output_bytes, scratch_bytes = reader.numbers(_TILE_BYTES)
    reduction = None
    at = reader.offset
    has_reduction = reader.unsigned(1)
    if has_reduction > 1:
        raise reader.fault(f"a flag of {has_reduction}", at)
    if has_reduction:
        kind_of = reader.member(LaunchReductionKind)
        rank, axis, extent = reader.numbers(_REDUCTION)
        reduction = LaunchReduction(kind=kind_of, rank=rank, axis=axis, extent=extent)
    return LaunchTile(
        kind=kind,
        m=m,
        n=n,
        k=k,
        batch=batch,
        input_dtype=input_dtype,
        output_dtype=output_dtype,
        input_tile_bytes=input_bytes,
        output_tile_bytes=output_bytes,
        scratch_memory_bytes=scratch_bytes,
        reduction=reduction,
    )


def _read_dtype(reader: RecordReader) -> DType | None:
    at = reader.offset
    name = reader.text()
    if not name:
        return None
    try:
        return DType(name)
    except ValueError:
        raise reader.fault(f"{name!r} is no DType", at) from None


LAUNCH_CODEC = RecordCodec(
    schema="launch_tuning",
    version=LAUNCH_TUNING_ARTIFACT_VERSION,
    kind=LaunchTuningCacheRecord,
    least_bytes=139,
    write=_write,
    read=_read,
    write_index=_write_index,
    read_index=_read_index,
)
"""The codec of launch records."""


def encode_launch_tuning_artifact(
    records: Iterable[LaunchTuningCacheRecord],
) -> bytes:
    """Records as an artifact.

    Raises:
        InvalidArtifact: they are too many.
        InvalidType: they are no records.
    """
    expected = "LaunchTuningCacheRecord values"
    given = listed("encode_launch_tuning_artifact", records, expected)
    for record in given:
        if not isinstance(record, LaunchTuningCacheRecord):
            raise InvalidType("encode_launch_tuning_artifact", record, expected)
    return LAUNCH_CODEC.encode(given)


def decode_launch_tuning_artifact(
    artifact: bytes,
) -> tuple[LaunchTuningCacheRecord, ...]:
    """All records of an artifact.

    Raises:
        InvalidArtifact: it is damaged, of another kind or of another version, which is
            named; with the offset where that shows.
    """
    return LAUNCH_CODEC.decode(artifact)
