"""Seeing what runs: spans, traces, progress, logs, through one observer protocol.

Everything but the protocol is imported when it is first asked for, so that the
rooms that only tell what happens load nothing else.
"""

import importlib
from typing import TYPE_CHECKING

from accy_async.observe.protocol import (
    DEFAULT_STREAM,
    HOST_STREAM,
    ClockAlignment,
    Observer,
    State,
    new_id,
    phase,
    state_of,
)

if TYPE_CHECKING:
    from accy_async.observe.check import validate_trace
    from accy_async.observe.chrome import encode_trace, save_trace
    from accy_async.observe.combine import CombinedObserver, combine_observers
    from accy_async.observe.logs import LogObserver
    from accy_async.observe.nvtx import NvtxObserver
    from accy_async.observe.otel import OpenTelemetryObserver
    from accy_async.observe.progress import ProgressObserver
    from accy_async.observe.reading import read_trace
    from accy_async.observe.spans import SpanRecorder
    from accy_async.observe.svg import draw_trace
    from accy_async.observe.trace import PhaseSpan, RunSpan, Span, Trace

__all__ = [
    "DEFAULT_STREAM",
    "HOST_STREAM",
    "ClockAlignment",
    "CombinedObserver",
    "LogObserver",
    "NvtxObserver",
    "Observer",
    "OpenTelemetryObserver",
    "PhaseSpan",
    "ProgressObserver",
    "RunSpan",
    "Span",
    "SpanRecorder",
    "State",
    "Trace",
    "combine_observers",
    "draw_trace",
    "encode_trace",
    "new_id",
    "phase",
    "read_trace",
    "save_trace",
    "state_of",
    "validate_trace",
]

_LAZY = {
    "CombinedObserver": "combine",
    "LogObserver": "logs",
    "NvtxObserver": "nvtx",
    "OpenTelemetryObserver": "otel",
    "PhaseSpan": "trace",
    "ProgressObserver": "progress",
    "RunSpan": "trace",
    "Span": "trace",
    "SpanRecorder": "spans",
    "Trace": "trace",
    "combine_observers": "combine",
    "draw_trace": "svg",
    "encode_trace": "chrome",
    "read_trace": "reading",
    "save_trace": "chrome",
    "validate_trace": "check",
}


def __getattr__(name: str) -> object:
    """Import a name of `_LAZY` when it is first used."""
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(importlib.import_module(f"{__name__}.{_LAZY[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
