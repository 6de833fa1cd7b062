"""What has become of each node of a run, told by whoever knows, on any thread.

The runner says what it submitted, guards what failed or was skipped on the
device, streams' timelines how far they came. A node that is submitted and whose
stream has come past it is finished: nobody has to say so, and a node that nobody
asks about costs three stores.

Indices: nodes have their place in the plan; loops follow, after the last node.
"""

from __future__ import annotations

import threading
from array import array
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

import anyio
import anyio.lowlevel
import numpy as np

from accy_async.backends.completion import Completion
from accy_async.backends.timeline import Mark, Timeline
from accy_async.errors import DeviceError, GraphError
from accy_async.graph.outcome import NodeState, RunCancelled, RunStatistics
from accy_async.graph.relations import Relations
from accy_async.graph.tracker import Tracker

if TYPE_CHECKING:
    from accy_async.graph.plan import LaunchGraphPlan

__all__ = ["NodeGuard", "RunProgress"]

_WAITING, _SUBMITTED, _FINISHED, _FAILED, _SKIPPED, _CANCELLED = range(6)
_BAD = frozenset({_FAILED, _SKIPPED, _CANCELLED})
_STATES = {
    _WAITING: NodeState.WAITING,
    _SUBMITTED: NodeState.SUBMITTED,
    _FINISHED: NodeState.FINISHED,
    _FAILED: NodeState.FAILED,
    _SKIPPED: NodeState.SKIPPED,
    _CANCELLED: NodeState.CANCELLED,
}


class NodeGuard:
    """Stands between a node and the device; see `accy_async.backends.guards`."""

    __slots__ = ("_index", "_progress")

    def __init__(self, progress: RunProgress, index: int) -> None:
        self._progress = progress
        self._index = index

    def blocks(self) -> bool:
        """True where the node is not to run after all; called in its turn."""
        progress = self._progress
        return progress.is_guarding and progress.blocks(self._index)

    def ended(self) -> None:
        """The node ran; nobody needs to hear it from here."""

    def failed(self, error: BaseException) -> None:
        """The node failed on the device; any thread."""
        self._progress.failed(self._index, error)


class RunProgress:
    """One run's nodes; see the module.

    Args:
        plan: the plan.
        cancels_on_error: True to give up everything once a node has failed.

    Attributes:
        timelines: of the run's streams, once it has them; see `use_streams`.
        errors: what nodes failed with, by index.
        run_error: what the run as such failed with, e.g. in preparing.
        is_guarding: True once nodes must ask whether they may still run.
        has_submitted_all: True once nothing is left to submit.
        has_failed: set when a node fails and everything is to be given up.
        is_lowered: True where all of it was given to the device as one graph.
        awaited: nodes and loops that somebody has awaited by themselves.
        unguarded: nodes that the device does not ask about in their turn: those
            that only wait for or signal an event, launches of no blocks.
        done: set when the run is over.
    """

    def __init__(self, plan: LaunchGraphPlan, *, cancels_on_error: bool) -> None:
        self.relations = Relations(plan)
        self.node_count = self.relations.node_count
        self.timelines: list[Timeline] = []
        # How far each of them holds work of this run: others may share it.
        self._ends: list[int] = []
        self.errors: dict[int, BaseException] = {}
        self.run_error: Exception | None = None
        self.is_guarding = False
        self.has_submitted_all = False
        self.has_failed = Completion()
        self.is_lowered = False
        self.awaited: set[int] = set()
        self.unguarded: set[int] = set()
        self.done = anyio.Event()
        self.submissions = self.event_records = self.event_waits = 0
        self.host_calls = self.yields = self.waits_for_room = self.submit_ns = 0
        self._cancels_on_error = cancels_on_error
        self._is_stopped = False
        self._flags = bytearray(self.relations.count)
        # Arrays, which numpy can count in and the garbage collector passes by.
        self._lane = array("i", [0]) * self.relations.count
        self._position = array("q", [0]) * self.relations.count
        self._calling: dict[int, int] = {}  # host calls, and the tasks they are in
        self._loop_errors: dict[int, BaseException] = {}
        self._watched: dict[int, anyio.Event] = {}
        self._trackers: list[Tracker] = []
        self._lock = threading.Lock()

    # Told by the runner

    def use_streams(self, timelines: list[Timeline]) -> None:
        """The run has its streams; those that it has now are its lanes, by number."""
        self.timelines = timelines
        self._ends = [0] * len(timelines)

    def reached(self, lane: int, position: int) -> None:
        """An operation that is no node was given to a stream, e.g. an event's."""
        self._ends[lane] = position

    def submitted(self, index: int, lane: int, position: int) -> None:
        """A node was given to the device."""
        self._lane[index] = lane
        self._position[index] = position
        self._ends[lane] = position
        if self._flags[index] == _WAITING:
            self._flags[index] = _SUBMITTED
        self.submissions += 1
        if self._watched or self._trackers:
            self._tell(index)

    def loop_submitted(self, loop: int, lane: int) -> None:
        """A loop's last iteration was given to the device."""
        index = self.node_count + loop
        if lane < 0:  # of host calls alone
            self._flags[index] = _FINISHED
            self._tell(index)
        else:
            self.submitted(index, lane, self._ends[lane])
            self.submissions -= 1
        if self._trackers and not self.relations.loops_around(index):
            for inner in self.relations.within(index):
                self._tell(inner)

    def submitted_whole(self, lane: int, position: int) -> None:
        """All nodes and loops were given to the device as one graph."""
        self.is_lowered = True
        count = self.relations.count
        self._lane = array("i", [lane]) * count
        self._position = array("q", [position]) * count
        self.reached(lane, position)
        flags = np.frombuffer(self._flags, np.uint8)
        flags[flags == _WAITING] = _SUBMITTED
        self.submissions += 1
        if self._watched or self._trackers:
            for index in range(count):
                self._tell(index)

    def moved(self, indices: Iterable[int], lane: int, position: int) -> None:
        """Of a lowered run, nodes and loops that another stream tells of."""
        for index in indices:
            self._lane[index] = lane
            self._position[index] = position
        self.reached(lane, position)

    def host_started(self, index: int) -> None:
        """A host call begins."""
        self._flags[index] = _SUBMITTED
        self._lane[index] = -1
        self._calling[index] = anyio.get_current_task().id
        self.host_calls += 1

    def host_finished(self, index: int) -> None:
        """A host call ended well."""
        self._flags[index] = _FINISHED
        self._calling.pop(index, None)
        self._tell(index)

    def skipped(self, index: int) -> None:
        """A node was not run, as `blocks` or `failed` had said."""
        self._tell(index)

    # Told by anybody, on any thread

    def failed(self, index: int, error: BaseException) -> None:
        """A node or a loop failed."""
        with self._lock:
            self.errors.setdefault(index, error)
            self._calling.pop(index, None)
            self._flags[index] = _FAILED
            for loop in self.relations.loops_around(index):
                self._loop_errors.setdefault(loop, error)
                self._flags[loop] = _FAILED
            if self._cancels_on_error:
                self._is_stopped = True
            self.is_guarding = True
        if self._cancels_on_error:
            self.has_failed.set()

    def loop_failed(self, loop: int, error: BaseException) -> None:
        """A loop failed as such."""
        self.failed(self.node_count + loop, error)

    def blocks(self, index: int) -> bool:
        """True where something that the node depends on went wrong.

        The node then counts as skipped, or as cancelled.
        """
        if self._flags[index] in _BAD:  # since an earlier iteration
            return True
        if not self._is_stopped and not self.follows_failure(index):
            return False
        verdict = self._flags[index] = self._verdict()
        for loop in self.relations.loops_around(index):
            if self._flags[loop] not in _BAD:
                self._flags[loop] = verdict
        return True

    def loop_is_blocked(self, loop: int) -> bool:
        """True where the loop is not to go on."""
        index = self.node_count + loop
        return self.is_guarding and (self._flags[index] in _BAD or self.blocks(index))

    def abort(self, error: Exception) -> None:
        """The run as such failed: what it has not submitted it never will."""
        self.run_error = error

    def stop(self) -> None:
        """Cancelled: nothing runs any more that has not begun."""
        self._is_stopped = True
        self.is_guarding = True

    def stop_unless_submitted(self) -> None:
        """The run ends here: stopped, if it was not all submitted before."""
        has_failed = self.errors or self.run_error is not None
        if not self.has_submitted_all and not has_failed:
            self.stop()

    def finish(self) -> None:
        """The run is over: what was never submitted never will be."""
        rest = _CANCELLED if self._is_stopped else _SKIPPED
        for index in self._calling:
            if self._flags[index] == _SUBMITTED:
                self._flags[index] = rest
        flags = np.frombuffer(self._flags, np.uint8)
        if self.relations.count > self.node_count and not self._is_stopped:
            for number in np.flatnonzero(flags == _WAITING):
                if self._is_in_ended_loop(int(number)):
                    flags[number] = _FINISHED
        flags[flags == _WAITING] = rest
        for event in self._watched.values():
            event.set()
        self._watched.clear()
        self.done.set()
        for tracker in self._trackers:
            tracker.news.set()

    # Asked

    def guard(self, index: int) -> NodeGuard:
        """What a node is submitted under."""
        return NodeGuard(self, index)

    def place(self, index: int) -> tuple[int, int] | None:
        """The stream and position of a node that the device has; None elsewhere."""
        if self._flags[index] != _SUBMITTED or self._lane[index] < 0:
            return None
        return self._lane[index], self._position[index]

    def begun(self) -> list[int]:
        """The nodes and loops that do not wait any more, in order on each stream."""
        begun = [index for index, flag in enumerate(self._flags) if flag != _WAITING]
        return sorted(begun, key=self._position.__getitem__)

    def follows_failure(self, index: int) -> bool:
        """True where something that the node depends on went wrong.

        Loops and what is unguarded pass a failure on: they may have had their
        turn without anybody having asked.
        """
        seen, todo = {index}, [index]
        while todo:
            for before in self.relations.blockers(todo.pop()):
                if self._flags[before] in _BAD:
                    return True
                if before not in seen and self._is_unguarded(before):
                    seen.add(before)
                    todo.append(before)
        return False

    def mark_of(self, index: int) -> Mark:
        """Where a submitted node or loop ends on the device."""
        return Mark(self.timelines[self._lane[index]], self._position[index])

    def last_mark(self, lane: int) -> Mark:
        """Where the work ends that a stream holds of this run."""
        return Mark(self.timelines[lane], self._ends[lane])

    def state(self, index: int) -> NodeState:
        """Where a node or loop stands.

        What lies within a loop stands where its last iteration does.
        """
        flag = self._flags[index]
        if flag in (_SUBMITTED, _FINISHED) and self._may_run_again(index):
            return NodeState.SUBMITTED
        if flag == _SUBMITTED and self._lane[index] >= 0:
            mark = self.mark_of(index)
            if mark.is_reached:
                # It may have failed or been skipped between the two looks.
                flag = self._flags[index]
                if flag == _SUBMITTED:
                    if (
                        self.is_guarding
                        and self._is_unguarded(index)
                        and self.follows_failure(index)
                    ):
                        return _STATES[self._verdict()]
                    lost = mark.timeline.error_at(mark.position)
                    return NodeState.FINISHED if lost is None else NodeState.FAILED
        return _STATES[flag]

    def error(self, index: int) -> BaseException | None:
        """What a node or loop failed with, if it did."""
        found = self.errors.get(index) or self._loop_errors.get(index)
        if found is None and self.state(index) is NodeState.FAILED:
            mark = self.mark_of(index)
            return mark.timeline.error_at(mark.position)
        return found

    def cause_of_skip(self, index: int) -> BaseException | None:
        """The failure that a skipped node goes back to."""
        seen, todo = {index}, [index]
        while todo:
            for before in self.relations.blockers(todo.pop()):
                if before in seen:
                    continue
                seen.add(before)
                error = self.error(before)
                if error is not None:
                    return error
                todo.append(before)
        return self.run_error

    async def wait_device(self, index: int) -> None:
        """Return when what was submitted of a node or loop has ended, if any was."""
        if self._flags[index] != _WAITING and self._lane[index] >= 0:
            await self.mark_of(index).wait_reached()

    def refuse_to_wait(self, index: int | None = None) -> None:
        """Refuse a host call that waits for what waits for it; None for the run.

        Raises:
            GraphError: it would never end.
        """
        if not self._calling:
            return
        me = anyio.get_current_task().id
        for call, task in self._calling.items():
            if task == me and (index is None or self._comes_after(call, index)):
                what = "its run" if index is None else repr(self.relations.name(index))
                raise GraphError(
                    f"host call {self.relations.name(call)!r} awaits {what}, which "
                    "waits for the call itself"
                )

    async def wait(self, index: int) -> None:
        """Return when a node or loop is done, in whatever way."""
        self.awaited.add(index)
        while True:
            flag = self._flags[index]
            watched = index
            if flag in (_SUBMITTED, _FINISHED) and self._may_run_again(index):
                watched = self.relations.loops_around(index)[-1]
            elif flag == _SUBMITTED and self._lane[index] >= 0:
                await self.mark_of(index).wait_reached()
                return
            elif flag not in (_WAITING, _SUBMITTED) or self.done.is_set():
                await anyio.lowlevel.checkpoint()
                return
            event = self._watched.setdefault(watched, anyio.Event())
            await event.wait()

    def in_flight(self) -> int:
        """Operations that the run's last ones on its streams wait for, and these."""
        total = 0
        for line, end in zip(self.timelines, self._ends, strict=True):
            left = end - line.completed
            if left > 0:
                total += left
        return total

    async def wait_streams(self) -> None:
        """Return when everything that the run submitted has ended on the device."""
        for line, end in zip(self.timelines, self._ends, strict=True):
            await line.wait_reached(end)

    def device_loss(self) -> DeviceError | None:
        """What the streams themselves failed with, e.g. the device's loss."""
        for line, end in zip(self.timelines, self._ends, strict=True):
            error = line.error_at(end)
            if error is not None:
                return error
        return None

    def statistics(self) -> RunStatistics:
        """The run at this moment."""
        return RunStatistics(
            nodes=self._count_states(),
            submissions=self.submissions,
            in_flight=self.in_flight(),
            event_records=self.event_records,
            event_waits=self.event_waits,
            streams=len(self.timelines),
            host_calls=self.host_calls,
            yields=self.yields,
            waits_for_room=self.waits_for_room,
            submit_ns=self.submit_ns,
            is_lowered=self.is_lowered,
        )

    def track(self) -> Tracker:
        """Have somebody told of what gets done, until `untrack`."""
        tracker = Tracker(self)
        self._trackers.append(tracker)
        return tracker

    def untrack(self, tracker: Tracker) -> None:
        """Tell it no more; harmless when repeated."""
        if tracker in self._trackers:
            self._trackers.remove(tracker)

    # Within

    def _comes_after(self, call: int, index: int) -> bool:
        """True for a call, what depends on it, and what ends with a loop around it."""
        around_call = self.relations.loops_around(call)
        shared = set(around_call).intersection(self.relations.loops_around(index))
        if shared or index == call or index in around_call:
            return True
        seen, todo = {index}, [index]
        while todo:
            for before in self.relations.blockers(todo.pop()):
                if before == call or before in around_call:
                    return True
                if before not in seen:
                    seen.add(before)
                    todo.append(before)
        return False

    def _may_run_again(self, index: int) -> bool:
        """True for what lies in a loop that has iterations to come."""
        if self.relations.count == self.node_count or self.done.is_set():
            return False
        around = self.relations.loops_around(index)
        return bool(around) and self._flags[around[-1]] == _WAITING

    def _is_in_ended_loop(self, index: int) -> bool:
        """True for what lies in a loop that had no iteration for it."""
        around = self.relations.loops_around(index)
        return bool(around) and self._flags[around[-1]] == _SUBMITTED

    def _verdict(self) -> int:
        return _CANCELLED if self._is_stopped else _SKIPPED

    def _is_unguarded(self, index: int) -> bool:
        return index >= self.node_count or index in self.unguarded

    def _count_states(self) -> dict[NodeState, int]:
        """How many nodes stand where, without asking each of 100,000."""
        flags = np.frombuffer(self._flags, np.uint8, self.node_count)
        lanes = np.frombuffer(self._lane, np.intc, self.node_count)
        counts = Counter(
            {state: int((flags == flag).sum()) for flag, state in _STATES.items()}
        )
        given = np.flatnonzero((flags == _SUBMITTED) & (lanes >= 0))
        counts[NodeState.SUBMITTED] -= len(given)
        if (
            self.is_guarding
            or self.relations.count > self.node_count  # loops
            or any(line.has_failed for line in self.timelines)
        ):
            counts.update(self.state(int(index)) for index in given)
        elif len(given):
            completed = np.array([line.completed for line in self.timelines])
            positions = np.frombuffer(self._position, np.int64, self.node_count)
            is_done = positions[given] <= completed[lanes[given]]
            counts[NodeState.FINISHED] += int(is_done.sum())
            counts[NodeState.SUBMITTED] += len(given) - int(is_done.sum())
        return {state: count for state, count in counts.items() if count}

    def _tell(self, index: int) -> None:
        event = self._watched.pop(index, None)
        if event is not None:
            event.set()
        for tracker in self._trackers:
            tracker.add(index)

    def outcome_error(self, name: str) -> Exception | None:
        """What awaiting the run raises, if anything."""
        errors = [e for e in self.errors.values() if isinstance(e, Exception)]
        lost = self.device_loss()
        if isinstance(lost, Exception) and not errors:
            errors.append(lost)
        if errors:
            return ExceptionGroup(f"run {name!r} failed", errors)
        if self._is_stopped:
            return RunCancelled(f"run {name!r} was cancelled")
        return None
