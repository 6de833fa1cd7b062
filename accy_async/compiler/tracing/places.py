"""Where in the traced function something happens."""

from __future__ import annotations

import linecache
import sys
from pathlib import Path
from types import FrameType

import numpy as np

from accy_async.errors import InvalidProgram

__all__ = ["location", "refusal", "unknown"]

_OURS = (
    str(Path(__file__).parent),
    str(Path(__file__).parent.parent / "semantic"),
    str(Path(__file__).parent.parent / "tensor.py"),
    str(Path(np.__file__).parent),
)


def _caller() -> FrameType | None:
    """The innermost frame that is neither the tracer's nor numpy's."""
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - inspect reads sources
    while frame is not None and (
        frame.f_code.co_filename.startswith(_OURS)
        or frame.f_code.co_filename.startswith("<__array_function__")
    ):
        frame = frame.f_back
    return frame


def location() -> str | None:
    """The line being traced, such as ``model.py:12``."""
    frame = _caller()
    if frame is None:
        return None
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"


def refusal(message: str, *, operation: str | None = None) -> InvalidProgram:
    """The error for a step that cannot be traced, with the line it stands in."""
    frame = _caller()
    if frame is not None:
        name = Path(frame.f_code.co_filename).name
        line = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
        shown = f" ({line})" if line else ""
        message = f"{message}, at {name}:{frame.f_lineno}{shown}"
    return InvalidProgram(message, operation=operation)


def unknown(asked: str, instead: str) -> InvalidProgram:
    """The error for what needs an element's value while only types are known."""
    return refusal(f"a traced array has no values yet, so {asked}; {instead}")
