"""Tuning records on disk, in the user's cache folder, for any number of processes.

Each record is a file of its own, an artifact of one record, named after what it is a
record of and what it says. So nobody rewrites what another wrote, two writers of one
record write the same file, and no record is lost whatever happens between them. Of
two records of one thing the worse one's file is removed by whoever reads both: never
the better one's. What is damaged or of a newer version is left where it is, and not
used.

Opening reads every file of a kind and checks its seal; what a record says is checked
when it is asked for. See `accy_async.tuning.records.stored`.

Everything here reads and writes files: on an event loop, call it on a thread.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from accy_async.artifact.sealed import sealed_schema
from accy_async.artifact.store import ArtifactStore, default_store
from accy_async.errors import InvalidArtifact, InvalidType, InvalidValue
from accy_async.tuning.launches.records import LAUNCH_CODEC
from accy_async.tuning.records.codec import RecordCodec
from accy_async.tuning.records.family import FAMILY_CODEC
from accy_async.tuning.records.measured import KeptRecord
from accy_async.tuning.records.schedule import ScheduleFamily, schedule_codec
from accy_async.tuning.records.stored import StoredRecords, file_key

__all__ = ["CODECS", "TuningStore", "codec_of_artifact", "default_tuning_store"]

TUNING_FOLDER = "tuning"
MOST_TUNING_BYTES = 1 << 26
"""What records may take on disk: some hundred thousand of them."""

_AnyCodec = RecordCodec[Any]

_log = logging.getLogger("accy_async.tuning")

_ALL: tuple[_AnyCodec, ...] = (
    LAUNCH_CODEC,
    FAMILY_CODEC,
    *(schedule_codec(family) for family in ScheduleFamily),
)

CODECS: dict[str, _AnyCodec] = {codec.schema: codec for codec in _ALL}
"""How each kind of record is written, by the kind's name."""


class TuningStore:
    """Records in a folder; see the module. Safe from any thread, and any process.

    Args:
        store: where the files are.

    Raises:
        InvalidType: it is no store.
    """

    def __init__(self, store: ArtifactStore) -> None:
        if not isinstance(store, ArtifactStore):
            raise InvalidType("TuningStore.store", store, "an ArtifactStore")
        self.files = store
        self._told: set[str] = set()

    def __repr__(self) -> str:
        return f"TuningStore({str(self.files.folder)!r})"

    @property
    def folder(self) -> Path:
        """Where the files are."""
        return self.files.folder

    def open(self, kind: str) -> StoredRecords[Any]:
        """The records of a kind as they are now, to look some of them up.

        Of two of one thing the worse one's file is removed.

        Args:
            kind: one of `CODECS`.

        Raises:
            InvalidValue: there is no such kind.
        """
        return self._open(_codec(kind))[0]

    def load(self, kind: str) -> tuple[Any, ...]:
        """The best record of each thing; `open` is far quicker where few are wanted.

        Args:
            kind: one of `CODECS`.

        Raises:
            InvalidValue: there is no such kind.
        """
        return tuple(self.open(kind))

    def keep(self, kind: str, records: Iterable[KeptRecord]) -> int:
        """Keep records, for this process and all others.

        Returns:
            How many are kept: fewer than were given where the disk takes none, which
            is logged.

        Raises:
            InvalidValue: there is no such kind.
            InvalidType: a record is of another kind; none was kept.
        """
        codec = _codec(kind)
        given = tuple(records)
        artifacts = [codec.encode([record]) for record in given]
        return sum(
            self.files.put(_schema(codec), file_key(record), artifact)
            for record, artifact in zip(given, artifacts, strict=True)
        )

    def forget(self, kind: str, record: KeptRecord) -> bool:
        """Remove a record, as of a winner that failed to launch; True if it was there.

        Raises:
            InvalidValue: there is no such kind.
        """
        return self.files.remove(_schema(_codec(kind)), file_key(record))

    def counts(self) -> dict[str, int]:
        """How many records there are, by kind; kinds that have none are left out."""
        found = {kind: len(self.open(kind).keys()) for kind in CODECS}
        return {kind: count for kind, count in found.items() if count}

    def export(self, kind: str) -> bytes:
        """All records of a kind as one artifact.

        Raises:
            InvalidValue: there is no such kind.
            InvalidArtifact: they are too many for one.
        """
        return _codec(kind).encode(self.load(kind))

    def import_artifact(self, artifact: bytes) -> tuple[str, int]:
        """Keep all records of an artifact.

        Returns:
            Their kind, and how many there are.

        Raises:
            InvalidArtifact: it cannot be read; nothing was kept.
        """
        codec = codec_of_artifact(artifact)
        records = codec.decode(artifact)
        self.keep(codec.schema, records)
        return codec.schema, len(records)

    def prune(self, kind: str | None = None) -> int:
        """Remove files that are of no use.

        They are damaged, or records of what there is a better one of. What killed
        writers left goes too.

        Args:
            kind: only of this kind; of every kind if left out.

        Returns:
            How many records were removed.

        Raises:
            InvalidValue: there is no such kind.
        """
        removed = 0
        for codec in CODECS.values() if kind is None else [_codec(kind)]:
            schema = _schema(codec)
            before = self.files.keys(schema)
            opened, worse = self._open(codec)
            removed += worse
            for key in before - opened.keys():
                removed += self.files.remove(schema, key)
        return removed + self.files.prune().removed

    def clear(self, kind: str | None = None) -> int:
        """Remove every record, of one kind or of all; returns how many files.

        Raises:
            InvalidValue: there is no such kind.
        """
        removed = 0
        for codec in CODECS.values() if kind is None else [_codec(kind)]:
            schema = _schema(codec)
            for key in self.files.keys(schema):
                removed += self.files.remove(schema, key)
        return removed

    # Within

    def _open(self, codec: _AnyCodec) -> tuple[StoredRecords[Any], int]:
        """The records of a kind, and how many files of worse ones were removed."""
        schema = _schema(codec)

        def tell(key: str, error: InvalidArtifact) -> None:
            if key not in self._told:
                self._told.add(key)
                _log.warning(
                    "record %s of %s in %s not used: %s",
                    key,
                    schema,
                    self.folder,
                    error,
                )

        files = self.files.items(schema)
        opened = StoredRecords(codec, files, source=str(self.folder), tell=tell)
        return opened, sum(self.files.remove(schema, key) for key in opened.worse)


def default_tuning_store() -> TuningStore | None:
    """The user's own; None where ``ACCY_ASYNC_CACHE_DIR`` is empty."""
    whole = default_store()
    if whole is None:
        return None
    return TuningStore(
        ArtifactStore(whole.folder / TUNING_FOLDER, max_bytes=MOST_TUNING_BYTES)
    )


def codec_of_artifact(artifact: bytes) -> _AnyCodec:
    """The codec of the kind that an artifact says it is of; it may refuse it yet.

    Raises:
        InvalidType: it is not bytes.
        InvalidArtifact: it is of no kind.
    """
    if not isinstance(artifact, bytes):
        raise InvalidType("artifact", artifact, "bytes")
    codec = CODECS.get(sealed_schema(artifact) or "")
    if codec is not None:
        return codec
    try:
        LAUNCH_CODEC.decode(artifact)
    except InvalidArtifact as error:
        what = error.args[0].removeprefix(f"{LAUNCH_CODEC.schema}: ")
        what = what.partition(f", {LAUNCH_CODEC.schema} of version")[0]
        raise InvalidArtifact(f"no tuning artifact: {what}") from error
    raise AssertionError("it names another schema")


def _codec(kind: str) -> _AnyCodec:
    if kind not in CODECS:
        raise InvalidValue("kind", kind, "one of " + ", ".join(CODECS))
    return CODECS[kind]


def _schema(codec: _AnyCodec) -> str:
    return f"{codec.schema}-{codec.version}"
