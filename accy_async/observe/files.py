"""Files written so that a reader finds the old one or the new one; pipes read."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import select
import stat
from pathlib import Path

__all__ = ["read_file", "replace_file"]

_WRITER_WITHIN_S = 5.0
"""How long a named pipe is waited for that nobody has opened to write."""


def read_file(path: str | os.PathLike[str], most_bytes: int = -1) -> bytes:
    """The bytes of a file, or of a pipe until its writers are done.

    Args:
        path: of the file.
        most_bytes: that are read; all of them if below 0.

    Raises:
        OSError: it cannot be read; or it is a named pipe and nobody comes to write to
            it, for which opening it would wait for ever.
    """
    with open(path, "rb", opener=_open_at_once) as file:
        head = b""
        if stat.S_ISFIFO(os.fstat(file.fileno()).st_mode):
            head = _await_writer(file.fileno(), path)
            os.set_blocking(file.fileno(), True)
        return head + file.read(most_bytes)


def _open_at_once(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def _await_writer(pipe: int, path: str | os.PathLike[str]) -> bytes:
    """Wait until there is something to read, or to wait for; what had to be read."""
    if select.select([pipe], [], [], _WRITER_WITHIN_S)[0]:
        return b""
    try:
        head = os.read(pipe, 1)
    except BlockingIOError:  # somebody has it open, and takes their time
        return b""
    if not head:
        raise OSError(errno.ENXIO, "nobody writes to this pipe", os.fspath(path))
    return head


def replace_file(path: str | os.PathLike[str], data: bytes) -> None:
    """Write a file beside the target, then rename it over the target.

    Several writers do not disturb each other: the last to finish wins. A link stays
    one; what is no file, as ``/dev/null`` or a pipe, is written to.

    Raises:
        OSError: the file cannot be written; the target is as it was, and nothing
            is left beside it.
    """
    target = Path(path)
    if target.exists() and not target.is_file():
        target.write_bytes(data)
        return
    target = Path(os.path.realpath(target))
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(6)}.tmp")
    try:
        with temporary.open("xb") as file:
            file.write(data)
        temporary.replace(target)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
