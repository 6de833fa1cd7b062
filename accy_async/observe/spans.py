"""Recording every span, in bounded memory.

::

    with SpanRecorder() as recorder:
        async with open_session(observer=recorder) as session:
            ...
    save_trace(recorder.trace(), "trace.json")  # opens in ui.perfetto.dev
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Literal, Self, TypeVar

from accy_async.errors import InvalidValue
from accy_async.observe.trace import PhaseSpan, RunSpan, Span, Trace
from accy_async.observe.tracking import SpanTracker

__all__ = ["DEFAULT_SPAN_LIMIT", "SpanRecorder"]

DEFAULT_SPAN_LIMIT = 200_000
"""Nodes kept: some 60 MB, and a file that a browser still opens."""

_EDGES_PER_SPAN = 4
_T = TypeVar("_T")


class SpanRecorder(SpanTracker):
    """Keeps the spans of nodes, runs and phases, and the edges of the graphs.

    Memory is bounded: beyond the limit the oldest that have ended (or, as
    asked, the newest) are dropped, and counted; so are edges beyond four times
    as many. Leaving its ``with`` block closes it.
    """

    def __init__(
        self,
        *,
        max_spans: int = DEFAULT_SPAN_LIMIT,
        drop: Literal["oldest", "newest"] = "oldest",
        clock: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        """Start recording.

        Args:
            max_spans: nodes kept; as many may be open at once; as many runs and
                phases are kept too.
            drop: what gives way beyond that.
            clock: for tests; the host's clock otherwise.

        Raises:
            InvalidValue: a limit below 1, or no such way to drop.
        """
        if isinstance(max_spans, bool) or not max_spans >= 1:
            raise InvalidValue("SpanRecorder.max_spans", max_spans, "1 or more")
        if drop not in ("oldest", "newest"):
            raise InvalidValue("SpanRecorder.drop", drop, "'oldest' or 'newest'")
        super().__init__(origin_ns=clock(), open_limit=max_spans, clock=clock)
        self.max_spans = max_spans
        self._drops_oldest = drop == "oldest"
        self._spans: deque[Span] = deque()
        self._ended_runs: deque[RunSpan] = deque()
        self._ended_phases: deque[PhaseSpan] = deque()
        self._edges: deque[tuple[int, Sequence[tuple[int, int]]]] = deque()
        self._edge_count = 0
        self._dropped_spans = 0
        self._dropped_edges = 0
        self._dropped_others = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __len__(self) -> int:
        """How many nodes are kept."""
        return len(self._spans)

    def trace(self) -> Trace:
        """What has been recorded by now. Nodes that run still are only counted."""
        with self._lock:
            return Trace(
                spans=tuple(self._spans),
                edges=tuple(self._edges),
                runs=tuple(self._ended_runs),
                phases=tuple(self._ended_phases),
                open_spans=self._node_count + len(self._runs) + len(self._phases),
                dropped_spans=self._dropped_spans,
                dropped_edges=self._dropped_edges,
                dropped_others=self._dropped_others,
                unmatched_events=self._unmatched,
                repaired_times=self._repaired,
            )

    def run_edges(self, run_id: int, pairs: Sequence[tuple[int, int]]) -> None:  # noqa: D102
        limit = self.max_spans * _EDGES_PER_SPAN
        with self._lock:
            if self._is_closed:
                return
            if not self._drops_oldest and self._edge_count + len(pairs) > limit:
                self._dropped_edges += len(pairs)
                return
            self._edges.append((run_id, pairs))
            self._edge_count += len(pairs)
            while self._edge_count > limit:
                dropped = len(self._edges.popleft()[1])
                self._edge_count -= dropped
                self._dropped_edges += dropped

    def _on_node_lost(self) -> None:
        with self._lock:
            self._dropped_spans += 1

    def _on_node_ended(self, span: Span, error: BaseException | None) -> None:
        with self._lock:
            self._dropped_spans += self._keep(self._spans, span)

    def _on_run_ended(self, run: RunSpan, error: BaseException | None) -> None:
        with self._lock:
            self._dropped_others += self._keep(self._ended_runs, run)

    def _on_phase_ended(self, phase: PhaseSpan, error: BaseException | None) -> None:
        with self._lock:
            self._dropped_others += self._keep(self._ended_phases, phase)

    def _keep(self, kept: deque[_T], new: _T) -> int:
        """Add to what is kept; the number that gave way for it, itself included."""
        if len(kept) < self.max_spans:
            kept.append(new)
            return 0
        if self._drops_oldest:
            kept.popleft()
            kept.append(new)
        return 1
