"""Telling an observer what becomes of a run's nodes.

With an observer every submission gets a guard of its own, which sees the node's
turn come and end on the device, and says so. A device that asks no guards takes the
time itself, by events around the node (`DeviceClock`), which are read once its stream
came past them. Without an observer nothing of this exists.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import TYPE_CHECKING

from accy_async.backends.completion import Completion
from accy_async.errors import AccyError
from accy_async.graph.nodes import EventSignal, EventWait, Fill, HostCall, KernelCall
from accy_async.graph.outcome import NodeState
from accy_async.graph.progress import NodeGuard, RunProgress
from accy_async.observe.protocol import DEFAULT_STREAM, Dim3, Observer, State, new_id

if TYPE_CHECKING:
    from accy_async.backends.guards import Guard
    from accy_async.backends.handles import StreamHandle
    from accy_async.backends.timeline import Timeline
    from accy_async.errors import DeviceError
    from accy_async.graph.clock import DeviceClock, Stamp
    from accy_async.graph.prepared import PreparedGraph

__all__ = ["Telling"]

_LOOK_EVERY_NS = 2_000_000
"""How often a stream is looked at while a run is being submitted."""

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

    __slots__ = ("_node_id", "_telling", "position", "stamp")

    def __init__(
        self, progress: RunProgress, index: int, telling: Telling, node_id: int
    ) -> None:
        super().__init__(progress, index)
        self._telling = telling
        self._node_id = node_id
        self.stamp: Stamp | None = None  # where the device takes the time
        self.position = 0  # and where it is past it

    @property
    def index(self) -> int:
        """The node's."""
        return self._index

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

    def took(self, start_ns: int, end_ns: int) -> None:
        """The node ran, at these times."""
        self._telling.ran(self._node_id, start_ns, end_ns)

    def went_with(self, error: DeviceError) -> None:
        """The device was lost before the node had ended for certain."""
        is_suspect = self._telling.name_of(self._index) in (
            error.node,
            *(suspect.node for suspect in error.suspects),
        )
        state: State = "failed" if is_suspect else "cancelled"
        self._telling.finished(self._node_id, state, error)

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


class _Lane:
    """The nodes of one stream that are not known to have ended, in order."""

    __slots__ = ("guards", "is_watched", "looked_ns", "timeline")

    def __init__(self, timeline: Timeline) -> None:
        self.timeline = timeline
        self.guards: deque[_TellingGuard] = deque()
        self.is_watched = False
        self.looked_ns = 0


class _Look(Completion):
    """Set when a stream comes past the last node that it had."""

    __slots__ = ("_lane", "_telling")

    def __init__(self, telling: Telling, lane: _Lane) -> None:
        super().__init__()
        self._telling = telling
        self._lane = lane

    def set(self) -> None:
        super().set()
        self._telling.look(self._lane)


class Telling:
    """Tells one observer of one run.

    Args:
        observer: whom.
        name: the run's.
        prepared: the plan.
        progress: what has become of the nodes.
        clock: takes the time on the device; None where it asks the guards.

    Node ids are the nodes' indices at their first submission; those of later
    iterations of a loop count on from there.
    """

    def __init__(
        self,
        observer: Observer,
        name: str,
        prepared: PreparedGraph,
        progress: RunProgress,
        clock: DeviceClock | None = None,
    ) -> None:
        self._clock = clock
        self._lanes: dict[Timeline, _Lane] = {}
        self._passed: deque[_Lane] = deque()
        self._is_telling = self._is_closed = self._is_all_submitted = False
        self._change = threading.Condition(threading.Lock())
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

    def begin(self, guard: Guard, stream: StreamHandle) -> None:
        """A node is about to be submitted to the stream."""
        clock = self._clock
        if clock is None or not isinstance(guard, _TellingGuard):
            return
        if clock.takes(stream):
            try:
                guard.stamp = clock.begin(stream)
            except AccyError:
                return  # submitting the node will say the same

    def submitted(
        self, guard: Guard, stream: StreamHandle, timeline: Timeline, position: int
    ) -> None:
        """A node was submitted; tell when the stream comes past it.

        Nothing to do where the device asks its guard.
        """
        if not isinstance(guard, _TellingGuard):
            return
        if self._clock is None or not self._clock.takes(stream):
            if guard.index in self._progress.unguarded:
                timeline.watch(position, _Passing(guard))
            return
        if guard.stamp is not None:
            try:
                position = self._clock.end(guard.stamp, stream)
            except AccyError:
                self._clock.forget(guard.stamp)
                guard.stamp = None
        guard.position = position
        lane = self._lanes.get(timeline)
        if lane is None:
            lane = self._lanes[timeline] = _Lane(timeline)
        lane.guards.append(guard)
        if not lane.is_watched:
            self._watch(lane)

    def all_submitted(self) -> None:
        """Nothing more comes: what is under way is to be looked at behind its end."""
        self._is_all_submitted = True
        for lane in self._lanes.values():
            self._watch(lane)

    def look(self, lane: _Lane) -> None:
        """Tell of every node that a stream came past; any thread, and never blocks.

        Whoever comes while another tells leaves it to that one. No lock is held while
        anything is called: who calls this may hold the backend's.
        """
        with self._change:
            lane.is_watched = False
            self._passed.append(lane)
            if self._is_telling:
                return
            self._is_telling = True
        while True:
            with self._change:
                if not self._passed:
                    self._is_telling = False
                    self._change.notify_all()
                    return
                lane = self._passed.popleft()
            self._tell_of(lane)
            self._watch(lane)

    def _watch(self, lane: _Lane) -> None:
        """Look at a stream again when it has come past the last of its nodes.

        One look at a time: what is submitted meanwhile is seen at the next. While more
        is being submitted, which every look holds up, they come not too often.
        """
        now = time.perf_counter_ns()
        with self._change:
            if not lane.guards or lane.is_watched or self._is_closed:
                return
            if not self._is_all_submitted and now < lane.looked_ns + _LOOK_EVERY_NS:
                return
            lane.is_watched = True
            lane.looked_ns = now
            last = lane.guards[-1].position
        lane.timeline.watch(last, _Look(self, lane))

    def _tell_of(self, lane: _Lane) -> None:
        """Tell of what a stream came past; one thread at a time."""
        clock, timeline = self._clock, lane.timeline
        assert clock is not None
        while lane.guards and lane.guards[0].position <= timeline.completed:
            guard = lane.guards.popleft()
            stamp, guard.stamp = guard.stamp, None
            lost = timeline.error_at(guard.position)
            if lost is not None:
                guard.went_with(lost)
                continue
            try:
                if stamp is None:
                    guard.passed()
                else:
                    guard.took(*clock.read(stamp))
            except AccyError:  # the device was lost between the two looks
                guard.ended()

    def _stop_looking(self) -> None:
        """Tell of what the streams have come past by now, and of no more."""
        with self._change:
            self._is_closed = True
            while self._is_telling:
                self._change.wait()
            self._is_telling = True  # and stays so: later looks leave it to us
        for lane in self._lanes.values():
            self._tell_of(lane)
            while lane.guards:
                stamp = lane.guards.popleft().stamp
                if stamp is not None and self._clock is not None:
                    self._clock.forget(stamp)

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

    def name_of(self, node: int) -> str:
        """A node's name."""
        return self._plan.nodes[node].name

    def ran(self, node_id: int, start_ns: int, end_ns: int) -> None:
        """A node ran, as the device says."""
        self._observer.node_started(self._run_id, node_id, start_ns)
        self._observer.node_finished(self._run_id, node_id, end_ns, "ok", None)

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
        self._stop_looking()
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
