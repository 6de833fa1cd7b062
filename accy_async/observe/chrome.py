"""Traces as JSON of the Trace Event Format, for ui.perfetto.dev and chrome://tracing.

How a trace is told there:

* Each node is a complete event (``ph`` ``X``) on the track of its stream. The
  format lets slices of one track nest only, and viewers hide those that overlap:
  where spans of a stream do, it gets further tracks.
* Each edge is a flow: an ``s`` in the last nanosecond of the one slice and an
  ``f`` (``bp`` ``e``: it binds to the slice around it) at the start of the other.
* Runs and phases of the host overlap as they like: they are nestable async
  events (``b``, ``e``), each with an id of its own.
* ``ts`` and ``dur`` are microseconds, written from integers with three digits,
  and positive: viewers take 0 for no time. A recording that began after its
  first span is moved as a whole, by the nanoseconds in ``otherData``, where it
  is also said what was dropped.

Source: "Trace Event Format", docs.google.com/document/d/
1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU; perfetto.dev/docs/faq on overlaps.
"""

from __future__ import annotations

import os
from typing import TypeAlias

import msgspec

from accy_async.observe.files import replace_file
from accy_async.observe.protocol import Dim3
from accy_async.observe.trace import PhaseSpan, RunSpan, Span, Trace, lanes, stream_name

__all__ = ["PRODUCER", "encode_trace", "save_trace"]

PRODUCER = "accy_async"
_PID = 1
_TRACK_TID = 1
_FIRST_TID = 10

# Only numbers differ: to fill them in is three times as fast as a struct for each.
_FLOW_START = (
    b'{"ph":"s","name":"edge","cat":"edge","id":%d,"pid":%d,"tid":%d,"ts":%d.%03d,'
    b'"args":{"run":%d,"before":%d,"after":%d}}'
)
_FLOW_END = (
    b'{"ph":"f","bp":"e","name":"edge","cat":"edge","id":%d,"pid":%d,"tid":%d,'
    b'"ts":%d.%03d}'
)


class _NodeArgs(msgspec.Struct, omit_defaults=True, gc=False):
    state: str
    run: int
    node: int
    kind: str
    stream: int
    queued_us: msgspec.Raw
    bytes: int = 0
    grid: Dim3 | None = None
    threadgroup: Dim3 | None = None
    error: str | None = None
    start_inferred: bool = False


class _RunArgs(msgspec.Struct, omit_defaults=True, gc=False):
    state: str
    nodes: int = 0
    detail: str = ""
    error: str | None = None


class _NameArgs(msgspec.Struct, gc=False):
    name: str


class _OrderArgs(msgspec.Struct, gc=False):
    sort_index: int


class _Metadata(msgspec.Struct, tag_field="ph", tag="M", gc=False):
    name: str
    pid: int
    tid: int
    args: _NameArgs | _OrderArgs


class _Slice(msgspec.Struct, tag_field="ph", tag="X", gc=False):
    name: str
    cat: str
    pid: int
    tid: int
    ts: msgspec.Raw
    dur: msgspec.Raw
    args: _NodeArgs


class _AsyncBegin(msgspec.Struct, tag_field="ph", tag="b", gc=False):
    name: str
    cat: str
    id: str
    pid: int
    tid: int
    ts: msgspec.Raw
    args: _RunArgs


class _AsyncEnd(msgspec.Struct, tag_field="ph", tag="e", gc=False):
    name: str
    cat: str
    id: str
    pid: int
    tid: int
    ts: msgspec.Raw


_Event: TypeAlias = _Metadata | _Slice | _AsyncBegin | _AsyncEnd | msgspec.Raw


def encode_trace(trace: Trace) -> bytes:
    """The trace as one JSON document.

    Sync, and some milliseconds for each thousand nodes: beside an event loop,
    call it in a worker thread.
    """
    shift = _shift(trace)
    events: list[_Event] = [
        _Metadata("process_name", _PID, _TRACK_TID, _NameArgs(PRODUCER)),
        _Metadata("thread_name", _PID, _TRACK_TID, _NameArgs("runs and phases")),
    ]
    tids = _add_slices(events, trace, shift)
    edge_count = _add_edges(events, trace, tids, shift)
    for run in trace.runs:
        args = _RunArgs(run.state, run.node_count, "", _text(run.error))
        _add_async(events, "run", run.run_id, run, args, shift)
    for phase in trace.phases:
        args = _RunArgs(phase.state, 0, _clean(phase.detail), _text(phase.error))
        _add_async(events, "phase", phase.phase_id, phase, args, shift)
    told_edges = sum(len(pairs) for _, pairs in trace.edges)
    document = {
        "displayTimeUnit": "ns",
        "otherData": {
            "producer": PRODUCER,
            "spans": len(trace.spans),
            "edges": edge_count,
            "wall_ns": trace.wall_ns,
            "shift_ns": shift,
            "open_spans": trace.open_spans,
            "dropped_spans": trace.dropped_spans,
            "dropped_edges": trace.dropped_edges,
            "dropped_others": trace.dropped_others,
            "edges_not_drawn": told_edges - edge_count,
            "unmatched_events": trace.unmatched_events,
            "repaired_times": trace.repaired_times,
        },
        "traceEvents": events,
    }
    return msgspec.json.encode(document)


def save_trace(trace: Trace, path: str | os.PathLike[str]) -> None:
    """Write the trace to a file, which is afterwards either the old or the new one.

    Sync: beside an event loop, call it in a worker thread.

    Raises:
        OSError: the file cannot be written; nothing is left over.
    """
    replace_file(path, encode_trace(trace))


def _shift(trace: Trace) -> int:
    starts = [span.start_ns for span in trace.spans]
    starts += [run.started_ns for run in trace.runs]
    starts += [phase.started_ns for phase in trace.phases]
    return max(0, 1 - min(starts, default=1))


def _microseconds(ns: int) -> msgspec.Raw:
    return msgspec.Raw(b"%d.%03d" % divmod(ns, 1000))


def _clean(text: str) -> str:
    """Text that UTF-8 can hold: a file name that it cannot is escaped."""
    if text.isascii():
        return text
    return text.encode("utf-8", "backslashreplace").decode()


def _text(text: str | None) -> str | None:
    return None if text is None else _clean(text)


def _add_slices(
    events: list[_Event], trace: Trace, shift: int
) -> dict[tuple[int, int], int]:
    tids: dict[tuple[int, int], int] = {}
    tid = _FIRST_TID
    for stream, spans in trace.by_stream().items():
        rows = lanes((span.start_ns, span.finished_ns, span) for span in spans)
        for lane, row in enumerate(rows):
            name = stream_name(stream, lane)
            events.append(_Metadata("thread_name", _PID, tid, _NameArgs(name)))
            events.append(_Metadata("thread_sort_index", _PID, tid, _OrderArgs(tid)))
            for start, end, span in row:
                tids[span.run_id, span.node_id] = tid
                events.append(_slice(span, tid, start + shift, end - start))
            tid += 1
    return tids


def _slice(span: Span, tid: int, start: int, duration: int) -> _Slice:
    return _Slice(
        _clean(span.name),
        "node",
        _PID,
        tid,
        _microseconds(start),
        _microseconds(duration),
        _NodeArgs(
            span.state,
            span.run_id,
            span.node_id,
            _clean(span.kind),
            span.stream_id,
            _microseconds(max(0, span.start_ns - span.submitted_ns)),
            span.byte_count,
            span.grid,
            span.threadgroup,
            _text(span.error),
            span.is_start_inferred,
        ),
    )


def _add_edges(
    events: list[_Event], trace: Trace, tids: dict[tuple[int, int], int], shift: int
) -> int:
    count = 0
    for run, before, after in trace.linked_edges():
        count += 1
        arrives = after.start_ns
        leaves = min(max(before.start_ns, before.finished_ns - 1), arrives)
        leaves = max(leaves, before.start_ns)
        source, target = tids[run, before.node_id], tids[run, after.node_id]
        edge = (run, before.node_id, after.node_id)
        at = divmod(leaves + shift, 1000)
        events.append(msgspec.Raw(_FLOW_START % (count, _PID, source, *at, *edge)))
        at = divmod(arrives + shift, 1000)
        events.append(msgspec.Raw(_FLOW_END % (count, _PID, target, *at)))
    return count


def _add_async(
    events: list[_Event],
    category: str,
    number: int,
    span: RunSpan | PhaseSpan,
    args: _RunArgs,
    shift: int,
) -> None:
    name = _clean(span.name)
    begin, end = _microseconds(span.started_ns + shift), span.finished_ns + shift
    key = hex(number)
    events.append(_AsyncBegin(name, category, key, _PID, _TRACK_TID, begin, args))
    events.append(_AsyncEnd(name, category, key, _PID, _TRACK_TID, _microseconds(end)))
