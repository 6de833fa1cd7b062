"""What has become of each node of a run, told by whoever knows, on any thread.

The runner says what it submitted, guards what failed or was skipped on the
device, streams' timelines how far they came. A node that is submitted and whose
stream has come past it is finished: nobody has to say so, and a node that nobody
asks about costs three stores.

Indices: nodes have their place in the plan; loops follow, after the last node.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import anyio
import anyio.lowlevel

from accy_async.backends.completion import Completion
from accy_async.backends.lifetimes import Mark, Timeline
from accy_async.graph.outcome import NodeState, RunCancelled, RunStatistics
from accy_async.graph.relations import Relations

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
        timelines: of the run's streams, once it has them.
        guards: each node's guard.
        errors: what nodes failed with, by index.
        is_guarding: True once nodes must ask whether they may still run.
        has_submitted_all: True once nothing is left to submit.
        has_failed: set when a node fails and everything is to be given up.
        done: set when the run is over.
    """

    def __init__(self, plan: LaunchGraphPlan, *, cancels_on_error: bool) -> None:
        self.relations = Relations(plan)
        count = self.node_count = self.relations.node_count
        self.timelines: list[Timeline] = []
        self.guards = [NodeGuard(self, index) for index in range(count)]
        self.errors: dict[int, BaseException] = {}
        self.is_guarding = False
        self.has_submitted_all = False
        self.has_failed = Completion()
        self.done = anyio.Event()
        self.submissions = self.event_records = self.event_waits = 0
        self.host_calls = self.yields = self.waits_for_room = self.submit_ns = 0
        self._cancels_on_error = cancels_on_error
        self._is_stopped = False
        self._flags = bytearray(self.relations.count)
        self._lane = [0] * self.relations.count
        self._position = [0] * self.relations.count
        self._loop_errors: dict[int, BaseException] = {}
        self._watched: dict[int, anyio.Event] = {}
        self._trackers: list[_Tracker] = []
        self._lock = threading.Lock()

    # Told by the runner

    def submitted(self, index: int, lane: int, position: int) -> None:
        """A node was given to the device."""
        self._lane[index] = lane
        self._position[index] = position
        if self._flags[index] == _WAITING:
            self._flags[index] = _SUBMITTED
        self.submissions += 1
        if self._watched or self._trackers:
            self._tell(index)

    def loop_submitted(self, loop: int, lane: int) -> None:
        """A loop's last iteration was given to the device."""
        timeline = self.timelines[lane]
        self.submitted(self.node_count + loop, lane, timeline.submitted)
        self.submissions -= 1

    def host_started(self, index: int) -> None:
        """A host call begins."""
        self._flags[index] = _SUBMITTED
        self._lane[index] = -1
        self.host_calls += 1

    def host_finished(self, index: int) -> None:
        """A host call ended well."""
        self._flags[index] = _FINISHED
        self._tell(index)

    def skipped(self, index: int) -> None:
        """A node was not run, as `blocks` had said."""
        self._tell(index)

    # Told by anybody, on any thread

    def failed(self, index: int, error: BaseException) -> None:
        """A node or a loop failed."""
        with self._lock:
            self.errors.setdefault(index, error)
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
        if self._is_stopped:
            verdict = _CANCELLED
        elif any(self._flags[i] in _BAD for i in self.relations.blockers(index)):
            verdict = _SKIPPED
        else:
            return False
        self._flags[index] = verdict
        for loop in self.relations.loops_around(index):
            if self._flags[loop] not in _BAD:
                self._flags[loop] = verdict
        return True

    def loop_is_blocked(self, loop: int) -> bool:
        """True where the loop is not to go on."""
        index = self.node_count + loop
        return self.is_guarding and (self._flags[index] in _BAD or self.blocks(index))

    def stop(self) -> None:
        """Cancelled: nothing runs any more that has not begun."""
        self._is_stopped = True
        self.is_guarding = True

    def stop_unless_submitted(self) -> None:
        """The run ends here: stopped, if it was not all submitted before."""
        if not self.has_submitted_all and not self.errors:
            self.stop()

    def finish(self) -> None:
        """The run is over: what was never submitted never will be."""
        rest = _CANCELLED if self._is_stopped else _SKIPPED
        for index, flag in enumerate(self._flags):
            if flag == _WAITING or (flag == _SUBMITTED and self._lane[index] < 0):
                self._flags[index] = rest
        for event in self._watched.values():
            event.set()
        self._watched.clear()
        self.done.set()
        for tracker in self._trackers:
            tracker.news.set()

    # Asked

    def mark_of(self, index: int) -> Mark:
        """Where a submitted node or loop ends on the device."""
        return Mark(self.timelines[self._lane[index]], self._position[index])

    def state(self, index: int) -> NodeState:
        """Where a node or loop stands."""
        flag = self._flags[index]
        if flag == _SUBMITTED and self._lane[index] >= 0:
            mark = self.mark_of(index)
            if mark.is_reached:
                # It may have failed or been skipped between the two looks.
                flag = self._flags[index]
                if flag == _SUBMITTED:
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
        return None

    async def wait_device(self, index: int) -> None:
        """Return when what was submitted of a node or loop has ended, if any was."""
        if self._flags[index] != _WAITING and self._lane[index] >= 0:
            await self.mark_of(index).wait_reached()

    async def wait(self, index: int) -> None:
        """Return when a node or loop is done, in whatever way."""
        while True:
            flag = self._flags[index]
            if flag == _SUBMITTED and self._lane[index] >= 0:
                await self.mark_of(index).wait_reached()
                return
            if flag not in (_WAITING, _SUBMITTED) or self.done.is_set():
                await anyio.lowlevel.checkpoint()
                return
            event = self._watched.setdefault(index, anyio.Event())
            await event.wait()

    def in_flight(self) -> int:
        """Operations submitted to the run's streams and not completed."""
        return sum(line.submitted - line.completed for line in self.timelines)

    async def wait_for_room(self, share: int) -> None:
        """Return when the fullest stream has done a part of its work."""
        line = max(self.timelines, key=lambda one: one.submitted - one.completed)
        left = max(0, min(share // 2, line.submitted - line.completed - 1))
        await line.wait_reached(line.submitted - left)

    async def wait_streams(self) -> None:
        """Return when everything submitted has ended on the device."""
        for line in self.timelines:
            await line.wait_reached(line.submitted)

    def device_loss(self) -> BaseException | None:
        """What the streams themselves failed with, e.g. the device's loss."""
        for line in self.timelines:
            error = line.error_at(line.submitted)
            if error is not None:
                return error
        return None

    def statistics(self) -> RunStatistics:
        """The run at this moment."""
        states: dict[NodeState, int] = {}
        for index in range(self.node_count):
            state = self.state(index)
            states[state] = states.get(state, 0) + 1
        return RunStatistics(
            nodes=states,
            submissions=self.submissions,
            in_flight=self.in_flight(),
            event_records=self.event_records,
            event_waits=self.event_waits,
            streams=len(self.timelines),
            host_calls=self.host_calls,
            yields=self.yields,
            waits_for_room=self.waits_for_room,
            submit_ns=self.submit_ns,
        )

    async def as_done(self) -> AsyncIterator[int]:
        """Each node's and loop's index, once, as it gets done."""
        tracker = _Tracker(self)
        self._trackers.append(tracker)
        try:
            remaining = len(self._flags)
            while remaining:
                for index in tracker.take():
                    remaining -= 1
                    yield index
                if remaining:
                    await tracker.wait()
        finally:
            self._trackers.remove(tracker)

    # Within

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


class _Tracker:
    """Finds what got done since the last look, in time linear in all nodes."""

    def __init__(self, progress: RunProgress) -> None:
        self.news = Completion()
        self._progress = progress
        self._lanes: dict[int, deque[tuple[int, int]]] = {}
        self._others: deque[int] = deque()
        self._given = bytearray(len(progress._flags))  # noqa: SLF001
        submitted = [
            (progress._position[i], i)  # noqa: SLF001
            for i, flag in enumerate(progress._flags)  # noqa: SLF001
            if flag != _WAITING
        ]
        for _, index in sorted(submitted):
            self.add(index)

    def add(self, index: int) -> None:
        """A node was submitted, or is done."""
        progress = self._progress
        lane = progress._lane[index]  # noqa: SLF001
        if progress._flags[index] == _SUBMITTED and lane >= 0:  # noqa: SLF001
            position = progress._position[index]  # noqa: SLF001
            self._lanes.setdefault(lane, deque()).append((position, index))
        else:
            self._others.append(index)
        self.news.set()

    def take(self) -> list[int]:
        """What got done."""
        progress = self._progress
        found = []
        for lane, waiting in self._lanes.items():
            completed = progress.timelines[lane].completed
            while waiting and waiting[0][0] <= completed:
                found.append(waiting.popleft()[1])
        while self._others:
            index = self._others.popleft()
            if progress.state(index).is_final:
                found.append(index)
        if progress.done.is_set():
            found += range(len(self._given))
        fresh = []
        for index in found:
            if not self._given[index] and progress.state(index).is_final:
                self._given[index] = 1
                fresh.append(index)
        return fresh

    async def wait(self) -> None:
        """Return when something may have got done."""
        progress = self._progress
        news = self.news = Completion()
        lines = []
        for lane, waiting in self._lanes.items():
            if waiting:
                line = progress.timelines[lane]
                line.watch(waiting[0][0], news)
                lines.append(line)
        if self._others or progress.done.is_set():
            news.set()
        try:
            await news.wait()
        finally:
            for line in lines:
                line.unwatch(news)
