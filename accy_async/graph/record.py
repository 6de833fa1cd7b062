"""What a run's nodes are told to have come to, by whoever knows, on any thread.

The runner says what it submitted, guards what failed or was skipped on the device. A
node that nobody asks about costs four stores. `progress` answers what is asked.

Indices: nodes have their place in the plan; loops follow, after the last node.
"""

from __future__ import annotations

import threading
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import anyio
import numpy as np

from accy_async.backends.completion import Completion
from accy_async.backends.timeline import Timeline
from accy_async.graph.relations import Relations

if TYPE_CHECKING:
    from accy_async.graph.plan import LaunchGraphPlan
    from accy_async.graph.tracker import Tracker

__all__ = [
    "BAD",
    "CANCELLED",
    "FAILED",
    "FINISHED",
    "SKIPPED",
    "SUBMITTED",
    "WAITING",
    "FindVerdicts",
    "RunRecord",
]

FindVerdicts = Callable[[], Mapping[int, Exception | None]]
"""Gives what loops of a device graph failed with, by their numbers in the plan."""

WAITING, SUBMITTED, FINISHED, FAILED, SKIPPED, CANCELLED = range(6)
BAD = frozenset({FAILED, SKIPPED, CANCELLED})


class RunRecord:
    """One run's nodes, as they are told of; see the module.

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
        # Of device graphs whose loops may fail: the lane, the position, and `find`.
        self._verdicts: list[tuple[int, int, FindVerdicts]] = []
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
        if self._flags[index] == WAITING:
            self._flags[index] = SUBMITTED
        self.submissions += 1
        if self._watched or self._trackers:
            self._tell(index)

    def loop_submitted(self, loop: int, lane: int) -> None:
        """A loop's last iteration was given to the device."""
        index = self.node_count + loop
        if lane < 0:  # of host calls alone
            if self._flags[index] not in BAD:
                self._flags[index] = FINISHED
            self._lane[index] = -1
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
        flags[flags == WAITING] = SUBMITTED
        self.submissions += 1
        if self._watched or self._trackers:
            for index in range(count):
                self._tell(index)

    def expect_verdicts(self, lane: int, position: int, find: FindVerdicts) -> None:
        """Of a device graph whose loops may fail by their limits; see `judge`.

        Args:
            lane: the stream that it is on.
            position: where it ends there.
            find: gives what they failed with, by the loops' numbers, when it has ended;
                None for a loop that another's failure has ended.
        """
        self._verdicts.append((lane, position, find))

    def judge(self) -> None:
        """Say what failed of device graphs, and was skipped, if they have ended.

        Whoever looks at a node first does, and the run's end does at the latest.
        """
        if not self._verdicts:
            return
        ended: list[tuple[int, int, FindVerdicts]] = []
        going: list[tuple[int, int, FindVerdicts]] = []
        for one in self._verdicts:
            line, position = self.timelines[one[0]], one[1]
            is_over = line.completed >= position and line.error_at(position) is None
            (ended if is_over else going).append(one)
        self._verdicts = going
        for _, _, find in ended:
            errors, cut_short = find(), []
            for loop, error in errors.items():
                if error is None:
                    cut_short.append(self.node_count + loop)
                else:
                    self.loop_failed(loop, error)
            for index in cut_short:  # it had turns, and nothing after it has
                self._flags[index] = FAILED
            if errors:
                self._skip_dependents()
            for index in cut_short:
                self._flags[index] = self._verdict()

    def submitted_part(self, indices: Sequence[int], lane: int, position: int) -> None:
        """Some nodes and loops were given to the device as one graph."""
        self.is_lowered = True
        for index in indices:
            self._lane[index] = lane
            self._position[index] = position
            if self._flags[index] == WAITING:
                self._flags[index] = SUBMITTED
        self.reached(lane, position)
        self.submissions += 1
        if self._watched or self._trackers:
            for index in indices:
                self._tell(index)

    def moved(self, indices: Iterable[int], lane: int, position: int) -> None:
        """Of a lowered run, nodes and loops that another stream tells of."""
        for index in indices:
            self._lane[index] = lane
            self._position[index] = position
        self.reached(lane, position)

    def host_started(self, index: int) -> None:
        """A host call begins."""
        self._flags[index] = SUBMITTED
        self._lane[index] = -1
        self._calling[index] = anyio.get_current_task().id
        self.host_calls += 1

    def host_finished(self, index: int) -> None:
        """A host call ended well."""
        self._flags[index] = FINISHED
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
            self._flags[index] = FAILED
            for loop in self.relations.loops_around(index):
                self._loop_errors.setdefault(loop, error)
                self._flags[loop] = FAILED
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
        if self._flags[index] in BAD:  # since an earlier iteration
            return True
        if not self._is_stopped and not self.follows_failure(index):
            return False
        verdict = self._flags[index] = self._verdict()
        for loop in self.relations.loops_around(index):
            if self._flags[loop] not in BAD:
                self._flags[loop] = verdict
        return True

    def loop_is_blocked(self, loop: int) -> bool:
        """True where the loop is not to go on."""
        index = self.node_count + loop
        return self.is_guarding and (self._flags[index] in BAD or self.blocks(index))

    def skips_loop(self, loop: int) -> bool:
        """True where the loop is not to begin; what lies in it is skipped with it.

        Also what had its turns before, where a loop around this one is at a later turn.
        """
        if not self.loop_is_blocked(loop):
            return False
        for inner in self.relations.within(self.node_count + loop):
            if self._flags[inner] not in BAD:
                self._flags[inner] = self._verdict()
            self._tell(inner)
        return True

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
        self.judge()
        rest = CANCELLED if self._is_stopped else SKIPPED
        for index in self._calling:
            if self._flags[index] == SUBMITTED:
                self._flags[index] = rest
        flags = np.frombuffer(self._flags, np.uint8)
        if self.relations.count > self.node_count and not self._is_stopped:
            for number in np.flatnonzero(flags == WAITING):
                if self._is_in_ended_loop(int(number)):
                    flags[number] = FINISHED
        flags[flags == WAITING] = rest
        for event in self._watched.values():
            event.set()
        self._watched.clear()
        self.done.set()
        for tracker in self._trackers:
            tracker.news.set()

    # Within

    def follows_failure(self, index: int) -> bool:
        """True where something that the node depends on went wrong.

        Loops and what is unguarded pass a failure on: they may have had their
        turn without anybody having asked.
        """
        return self._follows_failure(index, self.relations.blockers)

    def _is_left_out(self, index: int) -> bool:
        """True for what nobody had to ask about, and what it depends on went wrong.

        Not for what a loop had done by the time that something else in it failed.
        """
        return self._follows_failure(index, self._reasons)

    def _follows_failure(
        self, index: int, before: Callable[[int], Iterable[int]]
    ) -> bool:
        seen, todo = {index}, [index]
        while todo:
            for one in before(todo.pop()):
                if self._flags[one] in BAD:
                    return True
                if one not in seen and self._is_unguarded(one):
                    seen.add(one)
                    todo.append(one)
        return False

    def _reasons(self, index: int) -> list[int]:
        """What it has edges from, and the loop that it lies within, if that let it."""
        relations = self.relations
        around = relations.loops_around(index)[:1]
        begun = [loop for loop in around if self._flags[loop] == FAILED]
        return [*relations.before(index), *(around if not begun else ())]

    def _skip_dependents(self) -> None:
        """Mark what follows a failure, which the device has skipped by itself.

        What else lies in a loop that failed had its turn.
        """
        flags = self._flags
        for index in self.relations.in_order():
            if flags[index] not in BAD and any(
                flags[before] in BAD for before in self._reasons(index)
            ):
                flags[index] = self._verdict()

    def _is_in_ended_loop(self, index: int) -> bool:
        """True for what lies in a loop that had no iteration for it."""
        around = self.relations.loops_around(index)
        return any(self._flags[loop] == SUBMITTED for loop in around)

    def _verdict(self) -> int:
        return CANCELLED if self._is_stopped else SKIPPED

    def _is_unguarded(self, index: int) -> bool:
        return index >= self.node_count or index in self.unguarded

    def _tell(self, index: int) -> None:
        event = self._watched.pop(index, None)
        if event is not None:
            event.set()
        for tracker in self._trackers:
            tracker.add(index)
