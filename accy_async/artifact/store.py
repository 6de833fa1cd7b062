"""A cache on disk: bytes under a fingerprint of everything that they depend on.

One store serves all that is worth keeping between processes, told apart by the
name of a *schema*, which says what the bytes are and in which version. An entry is
a file, ``FOLDER/SCHEMA/AB/ABCD....sealed``, as `accy_async.artifact.sealed` has it.

What can be relied on:

* A lookup gives the bytes that were kept, or nothing. A file that is cut short,
  damaged or of another version is nothing; that is logged once, and the next
  `ArtifactStore.put` replaces it.
* Files appear whole, by a rename. Any number of processes may read, write and prune
  at once, without locks; one that is killed leaves at most a temporary file, which
  pruning removes.
* Trouble with the disk is logged and costs the entry, nothing else: whoever keeps
  something has it already.
* The folder's size is bounded: what was used longest ago goes first, to within the
  hour where all of a schema was read at once. Each process
  looks at the whole folder only after it has written a part of the limit, so that
  several at once may go beyond it by that part each.

A kernel that comes from here is run: the folder is made for its owner alone, and
belongs on no shared disk that others may write to.
"""

from __future__ import annotations

import logging
import os
import tempfile
import threading
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import attrs

from accy_async.artifact.files import (
    KEY_NAME,
    SCHEMA_NAME,
    SUFFIX,
    WholeFile,
    entries_of,
    files_of,
    key_of,
    read_files,
    unlink,
    was_used_since,
)
from accy_async.artifact.sealed import MOST_PAYLOAD_BYTES, seal, sealed_size, unseal
from accy_async.errors import InvalidArtifact, InvalidType, InvalidValue
from accy_async.values import integer, number, text

__all__ = [
    "CACHE_FOLDER_VARIABLE",
    "DEFAULT_STORE_BYTES",
    "ArtifactStore",
    "PruneReport",
    "StoreEntry",
    "default_store",
]

CACHE_FOLDER_VARIABLE = "ACCY_ASYNC_CACHE_DIR"
"""The environment variable that names the folder; empty for no cache at all."""

DEFAULT_STORE_BYTES = 1 << 30

_TEMPORARY = ".new-"
_STALE_TEMPORARY_S = 3600.0
"""A temporary file as old as this has no writer any more."""

_PRUNE_TO = 0.9
"""Pruning leaves this part of the limit, so that the next entry has room."""

_USED_WITHIN_S = 3600.0
"""Reading a whole schema leaves the time of use of what was used so lately as it is."""

_AT_ONCE = 64
"""Files of a schema that are open at the same time, while it is read."""

_LOOK_AFTER = 1 / 16
"""The part of the limit that a process writes before it looks at the whole folder."""

_log = logging.getLogger("accy_async.artifact.store")

_SCHEMA = text(pattern=SCHEMA_NAME, what="a name as cubin-1")
_KEY = text(pattern=KEY_NAME, what="a SHA-256 in hexadecimal, from `digest`")


@attrs.frozen(kw_only=True)
class StoreEntry:
    """One file of a store.

    Attributes:
        schema: what it holds.
        key: under which fingerprint.
        byte_size: of the file.
        used_at: when it was last written or read, in seconds since the epoch.
    """

    schema: str = attrs.field(validator=_SCHEMA)
    key: str = attrs.field(validator=_KEY)
    byte_size: int = attrs.field(validator=integer(0, 2**63 - 1))
    used_at: float = attrs.field(validator=number(float("-inf")))


@attrs.frozen(kw_only=True)
class PruneReport:
    """What pruning did.

    Attributes:
        removed: entries removed.
        removed_bytes: their size.
        kept: entries left.
        kept_bytes: theirs.
    """

    removed: int
    removed_bytes: int
    kept: int
    kept_bytes: int


@attrs.frozen
class _Schema:
    """What a folder's name says: checked, so that it is a path within the folder."""

    schema: str = attrs.field(validator=_SCHEMA)


@attrs.frozen
class _Address(_Schema):
    """Where something is kept, checked as well."""

    key: str = attrs.field(validator=_KEY)


class ArtifactStore:
    """Entries in a folder; see the module. Safe from any thread.

    Args:
        folder: where; made when the first entry is kept.
        max_bytes: the size of all entries together, roughly.

    Raises:
        InvalidType: ``folder`` is no path.
        InvalidValue: ``max_bytes`` is below 0.
    """

    def __init__(
        self, folder: str | os.PathLike[str], *, max_bytes: int = DEFAULT_STORE_BYTES
    ) -> None:
        if not isinstance(folder, (str, os.PathLike)):
            raise InvalidType("ArtifactStore.folder", folder, "a path")
        _check_number("ArtifactStore.max_bytes", max_bytes, (int,))
        self.folder = Path(folder)
        if "\0" in str(self.folder):
            raise InvalidValue("ArtifactStore.folder", folder, "a path without NUL")
        self.max_bytes = max_bytes
        self._lock = threading.Lock()
        self._written_bytes = max_bytes  # so that the first entry makes it look
        self._told: set[str] = set()

    def __repr__(self) -> str:
        return f"ArtifactStore({str(self.folder)!r}, max_bytes={self.max_bytes})"

    def get(self, schema: str, key: str) -> bytes | None:
        """The bytes kept under a key; None if there are none, or none that are whole.

        Args:
            schema: what they are, as ``cubin-1``.
            key: from `accy_async.artifact.fingerprint.digest`.

        Raises:
            InvalidValue: the schema or key is none.
        """
        path = self._path(schema, key)
        (file,) = read_files([path])
        return self._payload(path, schema, key, file, float("inf"))

    def items(self, schema: str) -> Iterator[tuple[str, bytes]]:
        """Every key of a schema with its bytes, in no order: as `get`, for very many.

        What is kept after the first one was asked for may be among them or not.

        Raises:
            InvalidValue: the schema is none.
        """
        touched_before = time.time() - _USED_WITHIN_S
        listed = self._keyed(schema)
        while piece := list(islice(listed, _AT_ONCE)):
            files = read_files([path for path, _ in piece])
            for (path, key), file in zip(piece, files, strict=True):
                payload = self._payload(path, schema, key, file, touched_before)
                if payload is not None:
                    yield key, payload

    def keys(self, schema: str) -> frozenset[str]:
        """Every key of a schema, whether or not what is kept there is whole.

        Raises:
            InvalidValue: the schema is none.
        """
        return frozenset(key for _, key in self._keyed(schema))

    def put(self, schema: str, key: str, payload: bytes) -> bool:
        """Keep bytes under a key, in place of what may be there.

        Returns:
            True if they are kept; False where they are too large for the store or
            the disk does not take them, which is logged.

        Raises:
            InvalidValue: the schema or key is none.
            InvalidType: the payload is not bytes.
        """
        if not isinstance(payload, bytes):
            raise InvalidType("ArtifactStore.put.payload", payload, "bytes")
        path = self._path(schema, key)
        size = sealed_size(schema, key, len(payload))
        if size > self.max_bytes or len(payload) > MOST_PAYLOAD_BYTES:
            return False
        try:
            self._write(Path(path), seal(schema, key, payload))
        except OSError as error:
            self._tell(path, f"not kept: {error}")
            return False
        with self._lock:
            self._told.discard(path)
            self._written_bytes += size
            is_due = self._written_bytes > self.max_bytes * _LOOK_AFTER
            if is_due:
                self._written_bytes = 0
        if is_due:
            self._prune_to(self.max_bytes, int(self.max_bytes * _PRUNE_TO))
        return True

    def remove(self, schema: str, key: str) -> bool:
        """Remove an entry; True if it was there."""
        return unlink(self._path(schema, key))

    def entries(self, schema: str | None = None) -> tuple[StoreEntry, ...]:
        """Every entry, the one used longest ago first.

        Args:
            schema: only those of this one.
        """
        found = sorted(
            entries_of(files_of(str(self.folder), schema)),
            key=lambda file: file.used_at,
        )
        return tuple(
            StoreEntry(
                schema=file.schema,
                key=file.key,
                byte_size=file.byte_size,
                used_at=file.used_at,
            )
            for file in found
        )

    def prune(
        self, max_bytes: int | None = None, *, max_age_s: float | None = None
    ) -> PruneReport:
        """Remove what was used longest ago, and what killed writers left.

        Args:
            max_bytes: what may stay; the store's own limit if left out.
            max_age_s: also remove what was not used for so many seconds.

        Raises:
            InvalidType, InvalidValue: one is no number, or below 0.
        """
        if max_bytes is not None:
            _check_number("ArtifactStore.prune.max_bytes", max_bytes, (int,))
        if max_age_s is not None:
            _check_number("ArtifactStore.prune.max_age_s", max_age_s, (int, float))
        limit = self.max_bytes if max_bytes is None else max_bytes
        return self._prune_to(limit, limit, max_age_s)

    def clear(self) -> PruneReport:
        """Remove every entry; files that are none of the store's stay."""
        return self._prune_to(-1, -1)

    # Within

    def _path(self, schema: str, key: str) -> str:
        _Address(schema, key)
        return os.path.join(self.folder, schema, key[:2], key + SUFFIX)

    def _payload(
        self,
        path: str,
        schema: str,
        key: str,
        file: WholeFile | OSError | InvalidArtifact,
        touched_before: float,
    ) -> bytes | None:
        """What is kept in a file; it counts as used where that was before a time."""
        try:
            if isinstance(file, Exception):
                raise file
            payload = unseal(file.data, schema, key, key_is="key")
        except FileNotFoundError:
            return None
        except (InvalidArtifact, OSError) as error:
            self._tell(path, f"not used: {error}; it is replaced in time")
            return None
        if file.used_at < touched_before:
            try:
                os.utime(path)
            except OSError:  # a read-only folder, or pruned since: it was read
                pass
        return payload

    def _write(self, path: Path, record: bytes) -> None:
        if not path.parent.is_dir():
            self.folder.parent.mkdir(parents=True, exist_ok=True)
            # Each for itself: the mode is not that of parents made on the way.
            for folder in (self.folder, path.parent.parent, path.parent):
                folder.mkdir(mode=0o700, exist_ok=True)
        descriptor, name = tempfile.mkstemp(prefix=_TEMPORARY, dir=path.parent)
        try:
            with open(descriptor, "wb") as file:
                file.write(record)
            os.replace(name, path)
        except BaseException:
            unlink(name)
            raise

    def _tell(self, path: str, what: str) -> None:
        with self._lock:
            if path in self._told:
                return
            self._told.add(path)
        _log.warning("cache entry %s %s", path, what)

    def _keyed(self, schema: str) -> Iterator[tuple[str, str]]:
        """Path and key of every entry of a schema."""
        _Schema(schema)
        for _, file in files_of(str(self.folder), schema):
            key = key_of(file.name)
            if key is not None:
                yield file.path, key

    def _prune_to(
        self, most: int, least: int, max_age_s: float | None = None
    ) -> PruneReport:
        """Where there is more than ``most``, remove down to ``least``."""
        now = time.time()
        files = list(files_of(str(self.folder)))
        for _, file in files:
            if file.name.startswith(_TEMPORARY):
                try:
                    is_stale = now - file.stat().st_mtime > _STALE_TEMPORARY_S
                except OSError:
                    continue
                if is_stale or most < 0:
                    unlink(file.path)
        found = sorted(entries_of(files), key=lambda file: file.used_at)
        left = sum(entry.byte_size for entry in found)
        kept, removed, removed_bytes = len(found), 0, 0
        target = least if left > most else most
        for entry in found:
            is_old = max_age_s is not None and now - entry.used_at > max_age_s
            if left <= target and not is_old:
                continue
            if was_used_since(entry) or not unlink(entry.path):
                continue
            kept -= 1
            removed += 1
            left -= entry.byte_size
            removed_bytes += entry.byte_size
        return PruneReport(
            removed=removed, removed_bytes=removed_bytes, kept=kept, kept_bytes=left
        )


def default_store() -> ArtifactStore | None:
    """The user's own store; None where ``ACCY_ASYNC_CACHE_DIR`` is empty.

    In that variable's folder, or else in the user's cache folder, as
    ``~/.cache/accy_async`` on Linux.
    """
    folder = os.environ.get(CACHE_FOLDER_VARIABLE)
    if folder is None:
        import platformdirs  # who keeps nothing need not load it

        folder = platformdirs.user_cache_dir("accy_async", appauthor=False)
    return ArtifactStore(folder) if folder else None


def _check_number(field: str, value: object, types: tuple[type, ...]) -> None:
    if isinstance(value, bool) or not isinstance(value, types):
        raise InvalidType(field, value, " or ".join(one.__name__ for one in types))
    if not value >= 0:  # type: ignore[operator]
        raise InvalidValue(field, value, "0 or more")
