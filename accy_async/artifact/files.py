"""A store's files: listed and read with as few calls of the system as it takes.

Whoever opens a store of 100,000 entries waits for these calls more than for anything
else. So paths are strings here, folders are listed once and their names believed, and
a file is opened, asked for its size, read and closed, in four calls.
"""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Iterator
from typing import NamedTuple

from accy_async.artifact.sealed import MOST_PAYLOAD_BYTES
from accy_async.errors import InvalidArtifact

__all__ = ["SUFFIX", "WholeFile", "files_of", "read_file", "unlink"]

SUFFIX = ".sealed"

_MOST_FILE_BYTES = MOST_PAYLOAD_BYTES + 4096
"""More than the largest payload takes with its header, names and checksum."""

# A pipe that somebody put there is opened at once and found out; Windows has to be
# told that bytes are bytes.
_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)

_log = logging.getLogger("accy_async.artifact.store")


class WholeFile(NamedTuple):
    """What a file held, and when it was last written or said to be used."""

    data: bytes
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


def read_file(path: str) -> WholeFile:
    """All of a file.

    Raises:
        OSError: it cannot be read.
        InvalidArtifact: it is no file, or larger than any entry.
    """
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
