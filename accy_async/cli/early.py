"""Ctrl-C while the command is still being imported, for a good part of a second.

An exception would have to find its way out through the libraries' own imports,
some of which catch everything. Nothing has been opened yet that could be left, so
the process says its line and ends there and then. In the command's own process that
begins with the import of this module, which imports nothing but the standard
library's smallest parts.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

__all__ = ["TEXT", "ending_at_once"]

TEXT = "interrupted; everything was given back"
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_UNTOUCHED = (signal.default_int_handler, signal.SIG_DFL)
_replaced: dict[signal.Signals, Any] = {}


@contextmanager
def ending_at_once() -> Iterator[None]:
    """A block in which Ctrl-C, or a polite kill, ends the process with one line.

    Signals that somebody handles already, or that are ignored, are left as they
    are; so is everything on a thread that is not the main one.
    """
    _catch()
    try:
        yield
    finally:
        while _replaced:
            signal.signal(*_replaced.popitem())


def _is_the_command() -> bool:
    name = os.path.basename(sys.argv[0]) if sys.argv else ""
    if name == "-m":  # what Python calls itself while it imports the package of a -m
        return "accy_async" in sys.orig_argv
    return name in ("accy-async", "accy-async.exe")


def _catch() -> None:
    if threading.current_thread() is threading.main_thread():
        for signum in _SIGNALS:
            if signal.getsignal(signum) in _UNTOUCHED:
                _replaced[signum] = signal.signal(signum, _end)


def _end(signum: int, frame: FrameType | None) -> None:
    del frame
    code = 128 + signum
    os.write(2, f"accy-async: {TEXT}\n".encode())
    if "--json" in sys.argv:
        error = f'{{"type": "KeyboardInterrupt", "message": "{TEXT}"}}'
        os.write(1, f'{{"error": {error}, "exit_code": {code}}}\n'.encode())
    os._exit(code)


if _is_the_command():  # from here on, until `ending_at_once` ends it
    _catch()
