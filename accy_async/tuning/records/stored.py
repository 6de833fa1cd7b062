"""Records as a store's files hold them: each is decoded when it is asked for.

Of a hundred thousand records a program uses those of its own kernels. So when a store
is opened its files' seals are checked, and their bytes kept, by the part of a record
that it is looked up by. What a record says is checked before it is given to anybody,
each time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from accy_async.artifact.fingerprint import digest
from accy_async.errors import InvalidArtifact
from accy_async.tuning.records.codec import RecordCodec
from accy_async.tuning.records.measured import KeptRecord

__all__ = ["StoredRecords", "file_key"]

_R = TypeVar("_R", bound=KeptRecord)

_KEY_BYTES = 32


def file_key(record: KeptRecord) -> str:
    """The name of a record's file: what it is a record of and what it says, hashed."""
    return digest((record.identity, record))


class StoredRecords(Generic[_R]):
    """The records of one kind in a store, as they were when it was opened.

    Iterating gives the best record of each thing, in an order that follows from what
    they are of. Nothing here waits for a disk. Safe from any thread once it is made.

    Args:
        codec: the kind's.
        files: each file's key, with the artifact in it.
        source: the store's folder, for whoever looks in several.
        tell: called with the key of a file that cannot be used, and why; as often as
            it is asked for.
    """

    def __init__(
        self,
        codec: RecordCodec[_R],
        files: Iterator[tuple[str, bytes]],
        *,
        source: str,
        tell: Callable[[str, InvalidArtifact], None],
    ) -> None:
        self.source = source
        self._codec = codec
        self._tell = tell
        # The key of its file, then the payload: one object of bytes for a record.
        self._found: dict[bytes, list[bytes] | bytes] = {}
        for key, artifact in files:
            self._add(key, artifact)
        worse = [
            key
            for index, kept in list(self._found.items())
            if isinstance(kept, list)
            for key in self._settle(index, kept)
        ]
        self.worse: tuple[str, ...] = tuple(worse)
        """Files of records of which there is a better one."""

    def __len__(self) -> int:
        """How many there are, those that turn out to be of no use among them."""
        return sum(
            len(kept) if isinstance(kept, list) else 1 for kept in self._found.values()
        )

    def __bool__(self) -> bool:
        return bool(self._found)

    def __iter__(self) -> Iterator[_R]:
        for _, record in self._decoded():
            yield record

    def find(self, identity: object) -> _R | None:
        """The best record of just this; None where there is none that can be used."""
        for record in self.related(identity):
            if record.identity == identity:
                return record
        return None

    def related(self, identity: object) -> tuple[_R, ...]:
        """The record of this, and those that the codec looks up by the same bytes.

        As of a launch on other versions of the driver.
        """
        kept = self._found.get(self._codec.index_of(identity), [])
        decoded = map(self._decode, [kept] if isinstance(kept, bytes) else kept)
        return tuple(record for record in decoded if record is not None)

    def keys(self) -> frozenset[str]:
        """The files of the records that can be used; each is decoded for it."""
        return frozenset(_key(entry) for entry, _ in self._decoded())

    # Within

    def _add(self, key: str, artifact: bytes) -> None:
        try:
            index, payload = self._codec.glance(artifact)
        except InvalidArtifact as error:
            self._tell(key, error)
            return
        entry = bytes.fromhex(key) + payload
        kept = self._found.setdefault(index, entry)
        if isinstance(kept, list):
            kept.append(entry)
        elif kept is not entry:
            self._found[index] = [kept, entry]

    def _settle(self, index: bytes, entries: list[bytes]) -> list[str]:
        """Keep the best of each identity; the files of the others."""
        best: dict[object, tuple[_R, bytes]] = {}
        worse = []
        for entry in entries:
            record = self._decode(entry)
            if record is None:
                continue
            other = best.setdefault(record.identity, (record, entry))
            if other[1] is entry:
                continue
            if record.is_better_than(other[0]):
                best[record.identity] = record, entry
                worse.append(_key(other[1]))
            else:
                worse.append(_key(entry))
        left = [entry for _, entry in best.values()]
        if left:
            self._found[index] = left if len(left) > 1 else left[0]
        else:
            del self._found[index]
        return worse

    def _decoded(self) -> Iterator[tuple[bytes, _R]]:
        for index in sorted(self._found):
            kept = self._found[index]
            for entry in [kept] if isinstance(kept, bytes) else sorted(kept):
                record = self._decode(entry)
                if record is not None:
                    yield entry, record

    def _decode(self, entry: bytes) -> _R | None:
        """The one record of a file that is named after it; None for anything else."""
        key = _key(entry)
        try:
            records = self._codec.decode_payload(entry[_KEY_BYTES:])
            if len(records) != 1:
                raise InvalidArtifact(f"{len(records)} records, a file has one")
            if file_key(records[0]) != key:
                raise InvalidArtifact("the file is named after another record")
        except InvalidArtifact as error:
            self._tell(key, error)
            return None
        return records[0]


def _key(entry: bytes) -> str:
    return entry[:_KEY_BYTES].hex()
