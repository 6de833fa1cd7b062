"""Reading a saved trace back."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from accy_async.errors import InvalidValue
from accy_async.observe.protocol import Dim3, State
from accy_async.observe.trace import Span, Trace

__all__ = ["decode_document", "nanoseconds", "read_trace"]

Json: TypeAlias = dict[str, object]


class _ReadArgs(msgspec.Struct):
    state: State
    run: int
    node: int
    kind: str
    stream: int
    queued_us: float = 0.0
    bytes: int = 0
    grid: Dim3 | None = None
    threadgroup: Dim3 | None = None
    error: str | None = None
    start_inferred: bool = False


class _ReadSlice(msgspec.Struct):
    name: str
    ts: float
    dur: float
    args: _ReadArgs


class _ReadEdge(msgspec.Struct):
    run: int
    before: int
    after: int


class _OtherData(msgspec.Struct):
    shift_ns: int = 0
    open_spans: int = 0
    dropped_spans: int = 0
    dropped_edges: int = 0
    dropped_others: int = 0
    unmatched_events: int = 0
    repaired_times: int = 0


class _Document(msgspec.Struct):
    traceEvents: list[Json]  # noqa: N815 - the format's own name
    otherData: _OtherData = msgspec.field(default_factory=_OtherData)  # noqa: N815


def decode_document(data: bytes | str) -> object:
    """What a JSON text says.

    Raises:
        InvalidValue: it is no JSON, or nests too deeply.
    """
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        given = f"{len(data)} {'bytes' if isinstance(data, bytes) else 'characters'}"
        raise InvalidValue("trace", given, f"JSON: {error}") from error


def read_trace(data: bytes | str) -> Trace:
    """Read back what `encode_trace` wrote: nodes, edges and what was dropped.

    Runs, phases and other programs' events are left out.

    Raises:
        InvalidValue: it is not such a document; `validate_trace` says more.
    """
    document = decode_document(data)
    try:
        wanted = msgspec.convert(document, _Document)
        shift = wanted.otherData.shift_ns
        spans: list[Span] = []
        edges: list[tuple[int, tuple[tuple[int, int]]]] = []
        for event in wanted.traceEvents:
            if event.get("ph") == "X" and event.get("cat") == "node":
                spans.append(_span(msgspec.convert(event, _ReadSlice), shift))
            elif event.get("ph") == "s" and event.get("cat") == "edge":
                edge = msgspec.convert(event.get("args"), _ReadEdge)
                edges.append((edge.run, ((edge.before, edge.after),)))
    except msgspec.ValidationError as error:
        raise InvalidValue("trace", "a document", f"a saved trace: {error}") from error
    other = wanted.otherData
    return Trace(
        spans=tuple(spans),
        edges=tuple(edges),
        open_spans=other.open_spans,
        dropped_spans=other.dropped_spans,
        dropped_edges=other.dropped_edges,
        dropped_others=other.dropped_others,
        unmatched_events=other.unmatched_events,
        repaired_times=other.repaired_times,
    )


def nanoseconds(microseconds: float) -> int:
    """A ``ts`` or ``dur`` as it was written: exact to the nanosecond for 100 days."""
    return round(microseconds * 1000)


def _span(event: _ReadSlice, shift: int) -> Span:
    args = event.args
    start = nanoseconds(event.ts) - shift
    return Span(
        args.run,
        args.node,
        event.name,
        args.kind,
        args.stream,
        start - nanoseconds(args.queued_us),
        start,
        start + max(0, nanoseconds(event.dur)),
        args.state,
        args.error,
        args.bytes,
        args.grid,
        args.threadgroup,
        args.start_inferred,
    )
