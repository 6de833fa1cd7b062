"""What has become of each node of a run: asked here, told to its `record`.

Streams' timelines say how far they came. A node that is submitted and whose stream
has come past it is finished: nobody has to say so.
"""

from __future__ import annotations

from collections import Counter

import anyio
import anyio.lowlevel
import numpy as np

from accy_async.backends.timeline import Mark
from accy_async.errors import DeviceError, GraphError
from accy_async.graph.outcome import NodeState, RunCancelled, RunStatistics
from accy_async.graph.record import (
    CANCELLED,
    FAILED,
    FINISHED,
    SKIPPED,
    SUBMITTED,
    WAITING,
    RunRecord,
)
from accy_async.graph.tracker import Tracker

__all__ = ["NodeGuard", "RunProgress"]

_STATES = {
    WAITING: NodeState.WAITING,
    SUBMITTED: NodeState.SUBMITTED,
    FINISHED: NodeState.FINISHED,
    FAILED: NodeState.FAILED,
    SKIPPED: NodeState.SKIPPED,
    CANCELLED: NodeState.CANCELLED,
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


class RunProgress(RunRecord):
    """One run's nodes, as they are asked about; see the module.

    Args:
        plan: the plan.
        cancels_on_error: True to give up everything once a node has failed.
    """

    def guard(self, index: int) -> NodeGuard:
        """What a node is submitted under."""
        return NodeGuard(self, index)

    def place(self, index: int) -> tuple[int, int] | None:
        """The stream and position of a node that the device has; None elsewhere."""
        if self._flags[index] != SUBMITTED or self._lane[index] < 0:
            return None
        return self._lane[index], self._position[index]

    def begun(self) -> list[int]:
        """The nodes and loops that do not wait any more, in order on each stream."""
        begun = [index for index, flag in enumerate(self._flags) if flag != WAITING]
        return sorted(begun, key=self._position.__getitem__)

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
        if flag in (SUBMITTED, FINISHED) and self._may_run_again(index):
            return NodeState.SUBMITTED
        if flag == SUBMITTED and self._lane[index] >= 0:
            mark = self.mark_of(index)
            if mark.is_reached:
                self.judge()
                # It may have failed or been skipped between the two looks.
                flag = self._flags[index]
                if flag == SUBMITTED:
                    if (
                        self.is_guarding
                        and self._is_unguarded(index)
                        and self._is_left_out(index)
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
        if self._flags[index] != WAITING and self._lane[index] >= 0:
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
            if flag in (SUBMITTED, FINISHED) and self._may_run_again(index):
                watched = self.relations.loops_around(index)[-1]
            elif flag == SUBMITTED and self._lane[index] >= 0:
                await self.mark_of(index).wait_reached()
                return
            elif flag not in (WAITING, SUBMITTED) or self.done.is_set():
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
        return bool(around) and self._flags[around[-1]] == WAITING

    def _count_states(self) -> dict[NodeState, int]:
        """How many nodes stand where, without asking each of 100,000."""
        self.judge()
        flags = np.frombuffer(self._flags, np.uint8, self.node_count)
        lanes = np.frombuffer(self._lane, np.intc, self.node_count)
        counts = Counter(
            {state: int((flags == flag).sum()) for flag, state in _STATES.items()}
        )
        given = np.flatnonzero((flags == SUBMITTED) & (lanes >= 0))
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
