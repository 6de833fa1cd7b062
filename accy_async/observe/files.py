"""Writing a file so that a reader finds the old one or the new one, never half."""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path

__all__ = ["replace_file"]


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
