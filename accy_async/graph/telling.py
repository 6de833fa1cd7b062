"""Telling an observer what becomes of a run's nodes.

With an observer every submission gets a guard of its own, which sees the node's
turn come and end on the device, and says so. Without one nothing of this exists.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from accy_async.backends.completion import Completion
from accy_async.graph.nodes import EventSignal, EventWait, Fill, HostCall, KernelCall
from accy_async.graph.outcome import NodeState
from accy_async.graph.progress import NodeGuard, RunProgress
from accy_async.observe.protocol import DEFAULT_STREAM, Dim3, Observer, State, new_id

if TYPE_CHECKING:
    from accy_async.backends.guards import Guard
    from accy_async.backends.timeline import Timeline
    from accy_async.graph.prepared import PreparedGraph

__all__ = ["Telling"]

_KINDS: dict[type, str] = {
    KernelCall: "kernel",
    Fill: "fill",
    HostCall: "host",
    EventWait: "event wait",
    EventSignal: "event signal",
}
_STATES: dict[NodeState, State] = {
    NodeState.FINISHED: "ok",
    NodeState.FAILED: "failed",
    NodeState.SKIPPED: "skipped",
}


class _TellingGuard(NodeGuard):
    """A node's guard that tells when its turn comes and ends."""

    __slots__ = ("_node_id", "_telling")

    def __init__(
        self, progress: RunProgress, index: int, telling: Telling, node_id: int
    ) -> None:
        super().__init__(progress, index)
        self._telling = telling
        self._node_id = node_id

    def blocks(self) -> bool:
        if super().blocks():
            state = self._progress.state(self._index)
            self._telling.finished(self._node_id, _STATES.get(state, "cancelled"))
            return True
        self._telling.started(self._node_id)
        return False

    def ended(self) -> None:
        self._telling.finished(self._node_id, "ok")

    def failed(self, error: BaseException) -> None:
        self._telling.finished(self._node_id, "failed", error)
        super().failed(error)

    def passed(self) -> None:
        """The stream came past the node."""
        if self._progress.done.is_set():
            return
        self._telling.started(self._node_id)
        has_failed = self._progress.follows_failure(self._index)
        self._telling.finished(self._node_id, "skipped" if has_failed else "ok")


class _Passing(Completion):
    """Set when a stream comes past a node that the device does not ask about."""

    __slots__ = ("_guard",)

    def __init__(self, guard: _TellingGuard) -> None:
        super().__init__()
        self._guard = guard

    def set(self) -> None:
        super().set()
        self._guard.passed()


class Telling:
    """Tells one observer of one run.

    Node ids are the nodes' indices at their first submission; those of later
    iterations of a loop count on from there.
    """

    def __init__(
        self,
        observer: Observer,
        name: str,
        prepared: PreparedGraph,
        progress: RunProgress,
    ) -> None:
        self._observer = observer
        self._plan = prepared.plan
        self._prepared = prepared
        self._progress = progress
        self._run_id = new_id()
        self._next_id = len(self._plan.nodes)
        self._is_submitted = bytearray(len(self._plan.nodes))
        now = time.perf_counter_ns()
        observer.run_started(self._run_id, name, len(self._plan.nodes), now)
        index = self._plan.node_index
        observer.run_edges(
            self._run_id,
            tuple((index[e.before], index[e.after]) for e in self._plan.dependencies),
        )

    def watch(self, guard: Guard, timeline: Timeline, position: int) -> None:
        """Tell when the stream comes past a node that nobody asks about then."""
        if isinstance(guard, _TellingGuard):
            timeline.watch(position, _Passing(guard))

    def guard(self, node: int, stream_id: int) -> NodeGuard:
        """Tell of a submission; returns the guard to submit it under."""
        node_id = node
        if self._is_submitted[node]:
            node_id = self._next_id
            self._next_id += 1
        self._is_submitted[node] = 1
        now = time.perf_counter_ns()
        name, kind = self._plan.nodes[node].name, self._kind(node)
        self._observer.node_submitted(self._run_id, node_id, name, kind, stream_id, now)
        grid, threadgroup = self._shape(node)
        self._observer.node_details(
            self._run_id, node_id, self._bytes(node), grid, threadgroup
        )
        return _TellingGuard(self._progress, node, self, node_id)

    def started(self, node_id: int) -> None:
        """A node's turn came."""
        self._observer.node_started(self._run_id, node_id, time.perf_counter_ns())

    def finished(
        self, node_id: int, state: State, error: BaseException | None = None
    ) -> None:
        """A node that was submitted ended."""
        self._observer.node_finished(
            self._run_id, node_id, time.perf_counter_ns(), state, error
        )

    def close(self, state: State, error: BaseException | None) -> None:
        """The run is over; nodes that were never submitted are told of."""
        now = time.perf_counter_ns()
        for node, was_submitted in enumerate(self._is_submitted):
            if was_submitted:
                continue
            became = _STATES.get(self._progress.state(node), "cancelled")
            self._observer.node_skipped(
                self._run_id,
                node,
                self._plan.nodes[node].name,
                self._kind(node),
                DEFAULT_STREAM,
                now,
                "cancelled" if became == "ok" else became,
                self._progress.cause_of_skip(node),
            )
        self._observer.run_finished(self._run_id, now, state, error)

    def _kind(self, node: int) -> str:
        return _KINDS.get(type(self._plan.nodes[node].operation), "copy")

    def _bytes(self, node: int) -> int:
        slot = self._plan.slot
        return sum(slot(name).byte_size for name, _ in self._plan.nodes[node].uses())

    def _shape(self, node: int) -> tuple[Dim3 | None, Dim3 | None]:
        geometry = self._prepared.geometries.get(node)
        if geometry is None:
            return None, None
        return geometry.grid, geometry.threadgroup
