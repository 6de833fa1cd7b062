"""A store's files: listed and read with as few calls of the system as it takes.

Whoever opens a store of 100,000 entries waits for these calls more than for anything
else. So paths are strings here, folders are listed once and their names believed, and
files are read some at a time.
"""

from __future__ import annotations

import logging
import os
import re
import stat
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from accy_async.artifact.sealed import MOST_PAYLOAD_BYTES
from accy_async.errors import InvalidArtifact

__all__ = [
    "KEY_NAME",
    "SCHEMA_NAME",
    "SUFFIX",
    "EntryFile",
    "WholeFile",
    "entries_of",
    "files_of",
    "key_of",
    "read_files",
    "unlink",
    "was_used_since",
]

SUFFIX = ".sealed"
SCHEMA_NAME = r"[a-z][a-z0-9_]*(-[0-9]+)?"
KEY_NAME = r"[0-9a-f]{64}"

_SCHEMA = re.compile(SCHEMA_NAME)
_FILE = re.compile(f"({KEY_NAME}){re.escape(SUFFIX)}")

_MOST_FILE_BYTES = MOST_PAYLOAD_BYTES + 4096
"""More than the largest payload takes with its header, names and checksum."""

# A pipe that somebody put there is opened at once and found out; Windows has to be
# told that bytes are bytes.
_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)

_CAN_ADVISE = hasattr(os, "posix_fadvise")

_log = logging.getLogger("accy_async.artifact.store")


class WholeFile(NamedTuple):
    """What a file held, and when it was last written or said to be used."""

    data: bytes
    used_at: float


class EntryFile(NamedTuple):
    """An entry as it is found: its path, and what `StoreEntry` says of it."""

    path: str
    schema: str
    key: str
    byte_size: int
    used_at: float


def files_of(
    folder: str, schema: str | None = None
) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """What lies where entries do, each with the name of its schema.

    Args:
        folder: the store's; nothing is found where it cannot be read, which is logged.
        schema: only of this one; no other folder is looked at.
    """
    names = [entry.name for entry in _inside(folder)] if schema is None else [schema]
    for name in names:
        for part in _inside(os.path.join(folder, name)):
            if len(part.name) == 2:
                for file in _inside(part.path):
                    yield name, file


def key_of(file_name: str) -> str | None:
    """The key that a file is named after; None where it is no entry's name."""
    named = _FILE.fullmatch(file_name)
    return named[1] if named else None


def entries_of(files: Iterable[tuple[str, os.DirEntry[str]]]) -> Iterator[EntryFile]:
    """Those of a store's files that are entries, by their names and what they are."""
    for name, file in files:
        key = key_of(file.name)
        if key is None or not _SCHEMA.fullmatch(name):
            continue
        try:
            status = file.stat()
        except OSError:  # gone since
            continue
        if stat.S_ISREG(status.st_mode):
            size, used_at = status.st_size, status.st_mtime
            yield EntryFile(file.path, name, key, size, used_at)


def was_used_since(entry: EntryFile) -> bool:
    """Whether an entry was written or read since it was found."""
    try:
        return os.stat(entry.path).st_mtime != entry.used_at
    except OSError:
        return False


def read_files(paths: Sequence[str]) -> list[WholeFile | OSError | InvalidArtifact]:
    """All of some files, or why one of them could not be read, in their order.

    All are opened, and the disk asked for them, before the first is waited for: one
    that is asked for a small file at a time mostly waits for the next question.
    """
    left = deque(zip(paths, map(_open_ahead, paths), strict=True))
    found: list[WholeFile | OSError | InvalidArtifact] = []
    try:
        while left:
            path, descriptor = left.popleft()
            try:
                found.append(_read(path, descriptor))
            except (OSError, InvalidArtifact) as error:
                found.append(error)
    finally:
        for _, descriptor in left:
            if descriptor is not None:
                os.close(descriptor)
    return found


def _open_ahead(path: str) -> int | None:
    """The descriptor; None where it has to be tried again, as of too many at once."""
    try:
        descriptor = os.open(path, _FLAGS)
    except OSError:
        return None
    if _CAN_ADVISE:
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_WILLNEED)
        except OSError:  # no file: that is found out when it is read
            pass
    return descriptor


def _read(path: str, descriptor: int | None) -> WholeFile:
    """All of a file, which is closed behind it.

    Raises:
        OSError: it cannot be read.
        InvalidArtifact: it is no file, or larger than any entry.
    """
    if descriptor is None:
        descriptor = os.open(path, _FLAGS)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise InvalidArtifact("no file")
        size = status.st_size
        if size > _MOST_FILE_BYTES:
            raise InvalidArtifact("larger than any entry")
        data = os.read(descriptor, size)
        while len(data) < size and (more := os.read(descriptor, size - len(data))):
            data += more
    finally:
        os.close(descriptor)
    return WholeFile(data, status.st_mtime)


def unlink(path: str) -> bool:
    """Remove a file; True if it was there. What hinders it is logged."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        return False
    except OSError as error:
        _log.warning("cache file %s not removed: %s", path, error)
        return False
    return True


def _inside(folder: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as found:
            return list(found)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        _log.warning("cache folder %s not read: %s", folder, error)
        return []
