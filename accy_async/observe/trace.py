"""What was recorded, as values: the spans of nodes, runs and phases, the edges.

All times are integers in nanoseconds since the recorder's start, so that a
microsecond is as plain after ten days as at once; floats of absolute times are
not used anywhere.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

import attrs

from accy_async.observe.protocol import DEFAULT_STREAM, HOST_STREAM, Dim3, State

__all__ = ["PhaseSpan", "RunSpan", "Span", "Trace", "lanes", "stream_name"]


@attrs.define(kw_only=True)
class RunSpan:
    """One run; read-only once it has ended.

    Attributes:
        run_id: its id.
        name: the plan's name.
        node_count: nodes it expected.
        started_ns, finished_ns: when.
        state: how it ended.
        error: the error's text, or None.
    """

    run_id: int
    name: str
    node_count: int = 0
    started_ns: int
    finished_ns: int = 0
    state: State = "ok"
    error: str | None = None


@attrs.define(kw_only=True)
class PhaseSpan:
    """One phase of the host; read-only once it has ended.

    Attributes:
        phase_id: its id.
        name: what was done.
        detail: what it was done to.
        started_ns, finished_ns: when.
        state: how it ended.
        error: the error's text, or None.
    """

    phase_id: int
    name: str
    detail: str = ""
    started_ns: int
    finished_ns: int = 0
    state: State = "ok"
    error: str | None = None


@attrs.define
class Span:
    """One node; read-only once it has ended.

    Attributes:
        run_id, node_id: which node it is.
        name: the node's name.
        kind: what it did.
        stream_id: where.
        submitted_ns: when it was submitted, or given up.
        started_ns: when it began to run; None only while it is not known.
        finished_ns: when it ended, never before it started.
        state: how it ended.
        error: the error's text, or None.
        byte_count: bytes it works on; 0 if not known.
        grid, threadgroup: its launch, if it is one.
        is_start_inferred: True where nobody told when it started: it is then
            when it was submitted, or when the node before it on its stream
            ended, whichever is later.
    """

    run_id: int
    node_id: int
    name: str
    kind: str
    stream_id: int
    submitted_ns: int
    started_ns: int | None = None
    finished_ns: int = 0
    state: State = "ok"
    error: str | None = None
    byte_count: int = 0
    grid: Dim3 | None = None
    threadgroup: Dim3 | None = None
    is_start_inferred: bool = False

    @property
    def start_ns(self) -> int:
        """When it began to run; when it was submitted, while that is not known."""
        return self.submitted_ns if self.started_ns is None else self.started_ns

    @property
    def duration_ns(self) -> int:
        """How long it ran."""
        return self.finished_ns - self.start_ns


@attrs.frozen(kw_only=True)
class Trace:
    """A recording at one moment.

    Attributes:
        spans: the nodes that have ended.
        edges: the graphs' edges, as (run id, pairs of before and after).
        runs: the runs that have ended.
        phases: the phases that have ended.
        open_spans: nodes, runs and phases that had not ended.
        dropped_spans: nodes left out for want of room.
        dropped_edges: edges left out for want of room.
        dropped_others: runs and phases left out for want of room.
        unmatched_events: calls about a node, run or phase that nobody began, or
            that was dropped while it ran.
        repaired_times: nodes said to end before they started; they end as they
            start.
    """

    spans: tuple[Span, ...] = ()
    edges: tuple[tuple[int, Sequence[tuple[int, int]]], ...] = ()
    runs: tuple[RunSpan, ...] = ()
    phases: tuple[PhaseSpan, ...] = ()
    open_spans: int = 0
    dropped_spans: int = 0
    dropped_edges: int = 0
    dropped_others: int = 0
    unmatched_events: int = 0
    repaired_times: int = 0

    @property
    def start_ns(self) -> int:
        """When the first node began; 0 if there is none."""
        return min((span.start_ns for span in self.spans), default=0)

    @property
    def end_ns(self) -> int:
        """When the last node ended, whichever started last; 0 if there is none."""
        return max((span.finished_ns for span in self.spans), default=0)

    @property
    def wall_ns(self) -> int:
        """From the first node's start to the last end."""
        return self.end_ns - self.start_ns

    def by_stream(self) -> dict[int, list[Span]]:
        """The spans of each stream in order of their start, the host's last."""
        streams: dict[int, list[Span]] = {}
        for span in self.spans:
            streams.setdefault(span.stream_id, []).append(span)
        ordered = sorted(streams, key=lambda stream: (stream == HOST_STREAM, stream))
        return {
            stream: sorted(
                streams[stream], key=lambda span: (span.start_ns, span.finished_ns)
            )
            for stream in ordered
        }

    def linked_edges(self) -> Iterator[tuple[int, Span, Span]]:
        """Each edge once, with both its spans; those with a span missing are not."""
        found = {(span.run_id, span.node_id): span for span in self.spans}
        seen: set[tuple[int, int, int]] = set()
        for run_id, pairs in self.edges:
            for before, after in pairs:
                key = (run_id, before, after)
                source = found.get((run_id, before))
                target = found.get((run_id, after))
                if source is not None and target is not None and key not in seen:
                    seen.add(key)
                    yield run_id, source, target

    def busy_ns(self) -> dict[int, int]:
        """How long each stream had something running; overlaps count once."""
        return {stream: _covered(spans) for stream, spans in self.by_stream().items()}


_T = TypeVar("_T")


def lanes(spans: Iterable[tuple[int, int, _T]]) -> list[list[tuple[int, int, _T]]]:
    """Lay (start, end, thing) on the fewest rows on which none overlap.

    Each goes to the first row that is free at its start: viewers hide or drop
    slices that overlap on one track.
    """
    ordered = sorted(spans, key=lambda span: span[:2])
    rows: list[list[tuple[int, int, _T]]] = []
    busy: list[tuple[int, int]] = []  # (end, row)
    free: list[int] = []
    for span in ordered:
        while busy and busy[0][0] <= span[0]:
            heapq.heappush(free, heapq.heappop(busy)[1])
        if free:
            row = heapq.heappop(free)
            rows[row].append(span)
        else:
            row = len(rows)
            rows.append([span])
        heapq.heappush(busy, (span[1], row))
    return rows


def stream_name(stream_id: int, lane: int = 0) -> str:
    """What to call a stream, and a further row of it."""
    if stream_id == HOST_STREAM:
        name = "host"
    elif stream_id == DEFAULT_STREAM:
        name = "default stream"
    else:
        name = f"stream {stream_id}"
    return f"{name} ({lane + 1})" if lane else name


def _covered(spans: Sequence[Span]) -> int:
    total = 0
    reached: int | None = None
    for span in spans:
        begin = span.start_ns if reached is None else max(reached, span.start_ns)
        total += max(0, span.finished_ns - begin)
        reached = max(span.finished_ns, begin)
    return total
