r"""Records of one kind as bytes: an *artifact* to keep in a file or to hand on.

An artifact is a sealed record, see `accy_async.artifact.sealed`, with its magic, its
sizes and its checksum, under the kind's name and version. Its payload::

    count      u32       of records, little-endian as all numbers
    ...                  the records, one after the other
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

import attrs

from accy_async.artifact.sealed import seal, unseal
from accy_async.errors import InvalidArtifact, InvalidType, InvalidValue
from accy_async.tuning.records.binary import RecordReader, RecordWriter
from accy_async.tuning.records.measured import KeptRecord
from accy_async.values import integer, text

__all__ = ["MAX_ARTIFACT_BYTES", "RecordCodec"]

MAX_ARTIFACT_BYTES = 1 << 24
"""The largest artifact that is read."""

_INDEX_BYTES = 16

_R = TypeVar("_R", bound=KeptRecord)


@attrs.frozen(kw_only=True)
class RecordCodec(Generic[_R]):
    """How records of one kind are written and read.

    Attributes:
        schema: the kind's name.
        version: of the records' layout; another one is not read.
        kind: the records' class.
        least_bytes: that any record takes, so that a count can be refused at once.
        write: appends one record.
        read: takes one record; what it raises of `InvalidValue` becomes
            `InvalidArtifact` at the record's offset.
        write_index: appends what records are looked up by, from an identity: all of
            it, or as much as related ones have in common.
        read_index: takes the same bytes from where a record begins, without looking
            at what they say.
    """

    schema: str = attrs.field(validator=text())
    version: int = attrs.field(validator=integer(1))
    kind: type[_R]
    least_bytes: int = attrs.field(validator=integer(1))
    write: Callable[[RecordWriter, _R], None]
    read: Callable[[RecordReader], _R]
    write_index: Callable[[RecordWriter, Any], None]
    read_index: Callable[[RecordReader], bytes]

    def encode(self, records: Iterable[_R]) -> bytes:
        """The artifact of these records, in their order.

        Raises:
            InvalidType: one is no record of this kind.
            InvalidArtifact: they are too many.
        """
        kept = tuple(records)
        writer = RecordWriter()
        writer.unsigned(len(kept), 4)
        for index, record in enumerate(kept):
            if not isinstance(record, self.kind):
                raise InvalidType(f"records[{index}]", record, self.kind.__name__)
            self.write(writer, record)
        artifact = seal(self.schema, str(self.version), writer.bytes())
        if len(artifact) > MAX_ARTIFACT_BYTES:
            raise InvalidArtifact(
                f"{self.schema}: {len(artifact)} bytes, at most {MAX_ARTIFACT_BYTES}"
            )
        return artifact

    def decode(self, artifact: bytes) -> tuple[_R, ...]:
        """All records of an artifact.

        Raises:
            InvalidType: it is not bytes.
            InvalidArtifact: it is cut short, damaged, too large, or of another kind
                or version; with the offset where that shows.
        """
        if not isinstance(artifact, bytes):
            raise InvalidType(self.schema, artifact, "bytes")
        if len(artifact) > MAX_ARTIFACT_BYTES:
            raise InvalidArtifact(
                f"{self.schema}: {len(artifact)} bytes, at most {MAX_ARTIFACT_BYTES}",
                offset=MAX_ARTIFACT_BYTES,
            )
        return self.decode_payload(self._unseal(artifact))

    def glance(self, artifact: bytes) -> tuple[bytes, bytes]:
        """What an artifact's first record is looked up by, and the payload.

        The seal is checked, and nothing of what the record says: that takes
        `decode_payload`, when it is used.

        Raises:
            InvalidArtifact: it is cut short, damaged, of another kind or version, or of
                no record.
        """
        payload = self._unseal(artifact)
        reader = RecordReader(payload, self.schema)
        if not reader.unsigned(4):
            raise reader.fault("no record", 0)
        return _short(self.read_index(reader)), payload

    def index_of(self, identity: object) -> bytes:
        """What records of this identity are looked up by, as `glance` gives it."""
        writer = RecordWriter()
        self.write_index(writer, identity)
        return _short(writer.bytes())

    def decode_payload(self, payload: bytes) -> tuple[_R, ...]:
        """All records of what an artifact seals.

        Raises:
            InvalidArtifact: it is no such payload, with the offset where that shows.
        """
        reader = RecordReader(payload, self.schema)
        count = reader.unsigned(4)
        if count > reader.remaining // self.least_bytes:
            raise reader.fault(f"{count} records in {reader.remaining} bytes", 0)
        records = tuple(self._record(reader) for _ in range(count))
        if reader.remaining:
            raise reader.fault(f"{reader.remaining} bytes after the last record")
        return records

    def _unseal(self, artifact: bytes) -> bytes:
        try:
            return unseal(artifact, self.schema, str(self.version))
        except InvalidArtifact as error:
            message = error.args[0].partition(" (at byte")[0]
            raise InvalidArtifact(
                f"{self.schema}: {message}", offset=error.offset
            ) from None

    def _record(self, reader: RecordReader) -> _R:
        at = reader.offset
        try:
            return self.read(reader)
        except InvalidValue as error:
            raise reader.fault(str(error), at) from error


def _short(index: bytes) -> bytes:
    return hashlib.blake2b(index, digest_size=_INDEX_BYTES).digest()
