"""From events to spans: what recorder, log and OpenTelemetry have in common.

Invariants:

1. What began ends once: by its own event, by the end of its run, or by `close`.
2. A span never ends before it starts. Where nobody tells the start, it is
   inferred from the order of the stream (see `Span.is_start_inferred`).
3. No exception is kept, only its text: a traceback would hold every frame and
   what lives in it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from accy_async.observe.protocol import HOST_STREAM, Dim3, Observer, State
from accy_async.observe.trace import PhaseSpan, RunSpan, Span

__all__ = ["SpanTracker", "error_text"]

_ERROR_LENGTH = 300
_Ends = TypeVar("_Ends", RunSpan, PhaseSpan)


def error_text(error: BaseException | None) -> str | None:
    """An error's type and message, of bounded length."""
    if error is None:
        return None
    try:
        text = f"{type(error).__name__}: {error}"
    except Exception as worse:  # noqa: BLE001 - an observer must not raise
        text = f"{type(error).__name__} whose message raises {type(worse).__name__}"
    return text if len(text) <= _ERROR_LENGTH else f"{text[: _ERROR_LENGTH - 3]}..."


class SpanTracker(Observer):
    """Follows nodes, runs and phases, and hands each on when it has ended.

    Safe to call from several threads: bookkeeping is under one lock, and what
    has ended is handed on outside it, to the ``_on_`` methods.

    Attributes:
        origin_ns: what all times are relative to, of ``clock``.
        open_limit: nodes followed at once; further ones are lost, and counted
            by `_on_node_lost`.
    """

    def __init__(
        self,
        *,
        origin_ns: int = 0,
        open_limit: int | None = None,
        clock: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        self.origin_ns = origin_ns
        self.open_limit = open_limit
        self._clock = clock
        self._lock = threading.Lock()
        self._nodes: dict[int, dict[int, Span]] = {}
        self._node_count = 0
        self._runs: dict[int, RunSpan] = {}
        self._phases: dict[int, PhaseSpan] = {}
        self._stream_ends: dict[int, int] = {}
        self._unmatched = 0
        self._repaired = 0
        self._is_closed = False

    def _at(self, time_ns: int) -> int:
        return (time_ns if time_ns > 0 else self._clock()) - self.origin_ns

    # What a user of the spans overrides

    def _on_run_started(self, run: RunSpan) -> None:
        """A run began."""

    def _on_node_submitted(self, span: Span) -> None:
        """A node was submitted."""

    def _on_node_lost(self) -> None:
        """A node is not followed: too many are open, or all is closed."""

    def _on_node_ended(self, span: Span, error: BaseException | None) -> None:
        """A node ended; its span changes no more."""

    def _on_run_ended(self, run: RunSpan, error: BaseException | None) -> None:
        """A run ended."""

    def _on_phase_started(self, phase: PhaseSpan) -> None:
        """A phase began."""

    def _on_phase_ended(self, phase: PhaseSpan, error: BaseException | None) -> None:
        """A phase ended."""

    # Runs and phases

    def run_started(  # noqa: D102 - as in the protocol
        self, run_id: int, plan_name: str, node_count: int, time_ns: int
    ) -> None:
        run = RunSpan(
            run_id=run_id,
            name=plan_name,
            node_count=node_count,
            started_ns=self._at(time_ns),
        )
        with self._lock:
            if self._is_closed:
                return
            self._runs[run_id] = run
        self._on_run_started(run)

    def run_finished(  # noqa: D102 - as in the protocol
        self, run_id: int, time_ns: int, state: State, error: BaseException | None
    ) -> None:
        at = self._at(time_ns)
        with self._lock:
            run = self._runs.pop(run_id, None)
            forgotten = self._take_nodes(run_id)
            for span in forgotten:
                self._end(span, at, "cancelled", None)
            if not self._runs and not self._nodes:
                self._stream_ends.clear()
            if run is None:
                self._unmatched += 1
        for span in forgotten:
            self._on_node_ended(span, None)
        if run is not None:
            self._on_run_ended(_ended(run, at, state, error), error)

    def phase_started(  # noqa: D102 - as in the protocol
        self, phase_id: int, name: str, detail: str, time_ns: int
    ) -> None:
        phase = PhaseSpan(
            phase_id=phase_id, name=name, detail=detail, started_ns=self._at(time_ns)
        )
        with self._lock:
            if self._is_closed:
                return
            self._phases[phase_id] = phase
        self._on_phase_started(phase)

    def phase_finished(  # noqa: D102 - as in the protocol
        self, phase_id: int, time_ns: int, state: State, error: BaseException | None
    ) -> None:
        with self._lock:
            phase = self._phases.pop(phase_id, None)
            if phase is None:
                self._unmatched += 1
                return
        self._on_phase_ended(_ended(phase, self._at(time_ns), state, error), error)

    # Nodes

    def node_submitted(  # noqa: D102 - as in the protocol
        self,
        run_id: int,
        node_id: int,
        name: str,
        kind: str,
        stream_id: int,
        time_ns: int,
    ) -> None:
        span = Span(run_id, node_id, name, kind, stream_id, self._at(time_ns))
        limit = self.open_limit
        with self._lock:
            is_lost = self._is_closed or (
                limit is not None and self._node_count >= limit
            )
            if not is_lost:
                nodes = self._nodes.setdefault(run_id, {})
                if node_id in nodes:
                    self._unmatched += 1
                else:
                    self._node_count += 1
                nodes[node_id] = span
        if is_lost:
            self._on_node_lost()
        else:
            self._on_node_submitted(span)

    def node_details(  # noqa: D102 - as in the protocol
        self,
        run_id: int,
        node_id: int,
        byte_count: int,
        grid: Dim3 | None,
        threadgroup: Dim3 | None,
    ) -> None:
        span = self._find(run_id, node_id)
        if span is not None:
            span.byte_count = byte_count
            span.grid = grid
            span.threadgroup = threadgroup

    def node_started(self, run_id: int, node_id: int, time_ns: int) -> None:  # noqa: D102
        span = self._find(run_id, node_id)
        if span is not None:
            span.started_ns = self._at(time_ns)

    def node_finished(  # noqa: D102 - as in the protocol
        self,
        run_id: int,
        node_id: int,
        time_ns: int,
        state: State,
        error: BaseException | None,
    ) -> None:
        at = self._at(time_ns)
        text = error_text(error)
        with self._lock:
            nodes = self._nodes.get(run_id)
            span = nodes.pop(node_id, None) if nodes is not None else None
            if span is None:
                self._unmatched += 1
                return
            self._node_count -= 1
            if not nodes:
                del self._nodes[run_id]
            self._end(span, at, state, text)
        self._on_node_ended(span, error)

    def node_skipped(  # noqa: D102 - as in the protocol
        self,
        run_id: int,
        node_id: int,
        name: str,
        kind: str,
        stream_id: int,
        time_ns: int,
        state: State,
        error: BaseException | None,
    ) -> None:
        at = self._at(time_ns)
        span = Span(run_id, node_id, name, kind, stream_id, at)
        span.started_ns = span.finished_ns = at
        span.state = state
        span.error = error_text(error)
        with self._lock:
            is_closed = self._is_closed
        if is_closed:
            self._on_node_lost()
        else:
            self._on_node_ended(span, error)

    def close(self) -> None:
        """End what is open as cancelled, and follow nothing more; may be repeated."""
        at = self._at(0)
        with self._lock:
            self._is_closed = True
            spans = [
                span for run in list(self._nodes) for span in self._take_nodes(run)
            ]
            for span in spans:
                self._end(span, at, "cancelled", None)
            runs = list(self._runs.values())
            phases = list(self._phases.values())
            self._runs.clear()
            self._phases.clear()
        for span in spans:
            self._on_node_ended(span, None)
        for phase in phases:
            self._on_phase_ended(_ended(phase, at, "cancelled", None), None)
        for run in runs:
            self._on_run_ended(_ended(run, at, "cancelled", None), None)

    # Under the lock

    def _find(self, run_id: int, node_id: int) -> Span | None:
        with self._lock:
            span = self._nodes.get(run_id, {}).get(node_id)
            if span is None:
                self._unmatched += 1
            return span

    def _take_nodes(self, run_id: int) -> Sequence[Span]:
        spans = list(self._nodes.pop(run_id, {}).values())
        self._node_count -= len(spans)
        return spans

    def _end(self, span: Span, at: int, state: State, error: str | None) -> None:
        stream = span.stream_id
        if span.started_ns is None:
            span.is_start_inferred = True
            if state == "skipped":
                span.started_ns = at
            else:
                free = self._stream_ends.get(stream, span.submitted_ns)
                span.started_ns = min(at, max(span.submitted_ns, free))
        if at < span.started_ns:
            self._repaired += 1
            at = span.started_ns
        span.finished_ns = at
        span.state = state
        span.error = error
        if stream != HOST_STREAM and at > self._stream_ends.get(stream, 0):
            self._stream_ends[stream] = at


def _ended(span: _Ends, at: int, state: State, error: BaseException | None) -> _Ends:
    span.finished_ns = max(at, span.started_ns)
    span.state = state
    span.error = error_text(error)
    return span
