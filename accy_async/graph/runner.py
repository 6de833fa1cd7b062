"""Carrying a plan out: one submitting task, host calls beside it, one exit.

The runner does what the layout and `BlockState` decide. A block without host
work is submitted straight through, in the layout's order: every wait in it is
the device's. A block with host work is driven by a `BlockState`: what is ready is
submitted, and each host item runs in a task that first awaits what it depends on.

Submitting gives way to the event loop after a bounded stretch (`SLICE_NS`), and
waits, in an await, while more than its share of the session's work is in flight.

Failure. A node's error goes to its guard, not to its stream: what depends on the
node is skipped when its turn comes on the device, everything else goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, cast

import anyio
import numpy as np

from accy_async.backends.timeline import Mark
from accy_async.errors import GraphError
from accy_async.graph.hostcalls import call_host
from accy_async.graph.nodes import HostCall, RuntimeScalar
from accy_async.graph.pace import TOGETHER, Pace
from accy_async.graph.progress import NodeGuard, RunProgress
from accy_async.graph.state import BlockState
from accy_async.observe.protocol import HOST_STREAM

if TYPE_CHECKING:
    from accy_async.backends.base import Backend
    from accy_async.backends.contract.steps import LaunchStep
    from accy_async.backends.guards import Guard
    from accy_async.backends.handles import BufferHandle, EventHandle, StreamHandle
    from accy_async.errors import DeviceError
    from accy_async.graph.governor import Governor
    from accy_async.graph.layout import BlockLayout, Step
    from accy_async.graph.prepared import Memory, PreparedGraph
    from accy_async.graph.telling import Telling

__all__ = ["Runner"]

_FORK = -1
"""The number of the event that a loop's other streams begin after."""


class _Frame:
    """A block being run: its layout, its streams' places, its events by number."""

    __slots__ = ("began", "events", "lanes", "layout")

    def __init__(self, layout: BlockLayout, lanes: list[int]) -> None:
        self.layout = layout
        self.lanes = lanes
        self.events: dict[int, EventHandle] = {}
        # Where the device was when this turn of a loop began, for host calls.
        self.began: Mark | None = None


class _News:
    """Wakes the one who waits for something to have changed since it last did."""

    __slots__ = ("_event",)

    def __init__(self) -> None:
        self._event = anyio.Event()

    def tell(self) -> None:
        self._event.set()

    async def wait(self) -> None:
        await self._event.wait()
        self._event = anyio.Event()


class Runner:
    """Runs one prepared plan on leased streams.

    Args:
        backend: the device.
        prepared: the plan.
        progress: what has become of the nodes.
        streams: the streams of this run.
        take_event: gives a pooled event.
        governor: shares the room in flight.
        telling: tells an observer; None where there is none.
    """

    def __init__(
        self,
        backend: Backend,
        prepared: PreparedGraph,
        progress: RunProgress,
        streams: list[StreamHandle],
        take_event: Callable[[], EventHandle],
        governor: Governor,
        telling: Telling | None,
    ) -> None:
        self._telling = telling
        self._backend = backend
        self._prepared = prepared
        self._plan = prepared.plan
        self._progress = progress
        self._streams = streams
        self._take_event = take_event
        self._pace = Pace(progress, governor)
        self._memories = list(prepared.initial_memories)
        # Where nobody is told of each, and loops change no buffers.
        self._is_plain = telling is None and not prepared.carried

    @property
    def memories(self) -> Sequence[Memory]:
        """What holds each slot's value now, carries swapped."""
        return self._memories

    async def run(self, layout: BlockLayout) -> None:
        """Submit everything, and return when the last host item is done.

        Args:
            layout: the plan's, for as many streams as the run has.

        Cancellation: nothing further is submitted; host calls are cancelled.
        """
        lanes = list(range(len(self._streams)))
        with self._pace:
            await self._run_block(_Frame(layout, lanes))

    # Blocks

    async def _run_block(self, frame: _Frame) -> None:
        if frame.layout.is_static:
            await self._run_static(frame)
        else:
            await self._run_dynamic(frame)

    async def _run_static(self, frame: _Frame) -> None:
        """Submit a block without host work, which is what every node's cost is.

        So launches are submitted several at a time, where nobody is told of each.
        """
        every = frame.layout.steps
        for start in range(0, len(every), TOGETHER):
            steps = every[start : start + TOGETHER]
            done = self._submit_together(frame, steps) if self._is_plain else 0
            for step in steps[done:]:
                await self._take_step(frame, step)
            if self._pace.is_due(len(steps)):
                await self._pace.breathe()

    def _submit_together(self, frame: _Frame, steps: Sequence[Step]) -> int:
        """Submit plain launches from the front of some steps; returns how many."""
        progress, launches = self._progress, self._prepared.launches
        lanes, streams, events = frame.lanes, self._streams, frame.events
        if progress.is_guarding:
            return 0
        together: list[LaunchStep] = []
        for index, body, place, waits, record in steps:
            launch = launches[index] if body is None else None
            if launch is None:
                break
            before = [events[number] for number in waits] if waits else ()
            after = None
            if record >= 0:
                after = events.get(record)
                if after is None:
                    after = events[record] = self._take_event()
            guard = NodeGuard(progress, index)
            together.append((streams[lanes[place]], before, launch, guard, after))
        positions: list[int] = []
        refusal: Exception | None = None
        try:
            self._backend.submit_steps(together, positions)
        except Exception as error:  # noqa: BLE001 - it is a node's outcome
            refusal = error
        done = len(positions)
        for step, position in zip(steps, positions, strict=False):
            index, _, place, waits, record = step
            progress.submitted(index, lanes[place], position)
            progress.event_waits += len(waits)
            progress.event_records += record >= 0
        if refusal is not None:
            index, _, place, _, record = steps[done]
            self._refused(index, together[done][3], refusal)
            if record >= 0:
                self._record_as(frame, record, lanes[place])
            done += 1
        return done

    async def _take_step(self, frame: _Frame, step: Step) -> None:
        index, body, place, waits, record = step
        lane = frame.lanes[place]
        for number in waits:
            self._wait_for(frame, number, lane)
        if body is None:
            self._submit(index, lane)
        else:
            await self._run_counted(index, body, frame, lane)
        if record >= 0:
            self._record_as(frame, record, lane)

    async def _run_dynamic(self, frame: _Frame) -> None:
        layout = frame.layout
        rank = [0] * len(layout.items)
        for place, item in enumerate(layout.order):
            rank[item] = place
        state = BlockState(
            rank, layout.preds, layout.succs, layout.is_host, layout.follows
        )
        news = _News()

        async def serve(item: int) -> None:
            await self._run_host_item(frame, item)
            state.ended(item)
            news.tell()

        async with anyio.create_task_group() as group:
            while not state.is_done:
                ready = state.take()
                if ready is None:
                    await news.wait()
                elif layout.is_host[ready]:
                    group.start_soon(serve, ready)
                else:
                    await self._submit_item(frame, ready)
                    state.submitted(ready)
                    if self._pace.is_due(1):
                        await self._pace.breathe()

    async def _submit_item(self, frame: _Frame, item: int) -> None:
        layout = frame.layout
        entry = layout.items[item]
        self._wait_before(frame, item)
        lane = frame.lanes[layout.stream[item]]
        if entry.body is None:
            self._submit(entry.index, lane)
        else:
            await self._run_counted(entry.index, entry.body, frame, lane)
        if layout.records[item]:
            self._record(frame, item, lane)

    async def _run_host_item(self, frame: _Frame, item: int) -> None:
        """A host call, or a loop that the host steps: after what it depends on."""
        layout = frame.layout
        entry = layout.items[item]
        if entry.body is None:
            await self._wait_on_host(frame, item)
            await self._call(entry.index)
            return
        self._wait_before(frame, item)
        lane = frame.lanes[layout.stream[item]]
        await self._run_loop(entry.index, entry.body, frame, lane)
        if layout.records[item]:
            self._record(frame, item, lane)

    def _wait_before(self, frame: _Frame, item: int) -> None:
        waits = frame.layout.waits[item]
        if waits:
            stream = self._streams[frame.lanes[frame.layout.stream[item]]]
            numbers = frame.layout.events
            for signaller in waits:
                event = frame.events[numbers[signaller]]
                self._backend.stream_wait_event(stream, event)
            self._progress.event_waits += len(waits)

    def _record(self, frame: _Frame, item: int, lane: int) -> None:
        self._record_as(frame, frame.layout.events[item], lane)

    def _record_as(self, frame: _Frame, number: int, lane: int) -> None:
        event = frame.events.get(number)
        if event is None:
            event = frame.events[number] = self._take_event()
        self._backend.record_event(event, self._streams[lane])
        self._progress.event_records += 1

    def _submit(self, node: int, lane: int) -> None:
        action = self._prepared.action(node, self._memories)
        progress = self._progress
        if progress.is_guarding and progress.blocks(node):
            progress.skipped(node)
            return
        stream = self._streams[lane]
        if self._telling is None:
            guard: Guard = progress.guard(node)
        else:
            guard = self._telling.guard(node, stream.id)
            self._telling.begin(guard, stream)
        try:
            position = action(stream, guard)
        except Exception as error:  # noqa: BLE001 - it is the node's outcome
            self._refused(node, guard, error)
        else:
            progress.submitted(node, lane, position)
            if self._telling is not None:
                timeline = progress.timelines[lane]
                self._telling.submitted(guard, stream, timeline, position)

    def _refused(self, node: int, guard: Guard, error: Exception) -> None:
        """A node could not be submitted: it failed, unless the device is lost."""
        if not self._backend.is_healthy:
            raise error
        error.add_note(f"in submitting node {self._plan.nodes[node].name!r}")
        guard.failed(cast("DeviceError", error))
        self._progress.skipped(node)

    # Loops

    async def _run_counted(
        self, index: int, body: BlockLayout, outer: _Frame, lane: int
    ) -> None:
        loop = self._plan.loops[index]
        count = loop.count
        if isinstance(count, RuntimeScalar):
            count = int(self._prepared.options.runtime_scalars[count.index].value)
        assert count is not None
        frame = self._body_frame(body, outer, lane)
        for _ in range(count):
            if self._progress.loop_is_blocked(index):
                break
            await self._iterate(index, frame)
        self._progress.loop_submitted(index, lane)

    async def _run_loop(
        self, index: int, body: BlockLayout, outer: _Frame, lane: int
    ) -> None:
        """A loop that the host steps: for its condition, or for calls within."""
        loop = self._plan.loops[index]
        if loop.condition is None:
            await self._run_counted(index, body, outer, lane)
            return
        frame = self._body_frame(body, outer, lane)
        value = np.zeros(1, dtype=np.uint32)
        slot = self._prepared.slot_index(loop.condition)
        iterations = 0
        while await self._holds(index, slot, value, lane):
            if loop.max_iterations is not None and iterations >= loop.max_iterations:
                self._progress.loop_failed(
                    index,
                    GraphError(
                        f"loop {loop.name!r}: its condition still holds after "
                        f"max_iterations={loop.max_iterations}"
                    ),
                )
                break
            await self._iterate(index, frame)
            iterations += 1
        self._progress.loop_submitted(index, lane)

    async def _holds(self, index: int, slot: int, value: np.ndarray, lane: int) -> bool:
        if self._progress.loop_is_blocked(index):
            return False
        stream = self._streams[lane]
        buffer = cast("BufferHandle", self._memories[slot])
        try:
            position = self._backend.read_buffer(buffer, value, stream=stream)
            await Mark(self._progress.timelines[lane], position).wait()
        except Exception as error:
            if not self._backend.is_healthy:
                raise
            self._progress.loop_failed(index, error)
            return False
        return bool(value[0]) and not self._progress.loop_is_blocked(index)

    async def _iterate(self, index: int, frame: _Frame) -> None:
        self._fork(frame)
        if not frame.layout.is_static:
            frame.began = self._mark(frame.lanes[0])
        await self._run_block(frame)
        self._join(frame)
        for carry in self._plan.loops[index].carries:
            first = self._prepared.slot_index(carry.current)
            second = self._prepared.slot_index(carry.next)
            memories = self._memories
            memories[first], memories[second] = memories[second], memories[first]

    def _mark(self, lane: int) -> Mark:
        timeline = self._progress.timelines[lane]
        return Mark(timeline, timeline.submitted)

    def _body_frame(self, body: BlockLayout, outer: _Frame, lane: int) -> _Frame:
        """The body on the loop's own stream, and on the next ones of the run."""
        count = len(self._streams)
        return _Frame(
            body, [(lane + i) % count for i in range(max(1, body.stream_count))]
        )

    def _fork(self, frame: _Frame) -> None:
        """The iteration's other streams begin after its first one's work so far."""
        others = set(frame.lanes[1:]) - {frame.lanes[0]}
        if others:
            self._record_as(frame, _FORK, frame.lanes[0])
            for lane in others:
                self._wait_for(frame, _FORK, lane)

    def _join(self, frame: _Frame) -> None:
        """The iteration's first stream goes on after all of its others' work."""
        layout = frame.layout
        for item in layout.ends:
            stream = layout.stream[item]
            if stream >= 0 and frame.lanes[stream] != frame.lanes[0]:
                self._wait_for(frame, layout.events[item], frame.lanes[0])

    def _wait_for(self, frame: _Frame, number: int, lane: int) -> None:
        self._backend.stream_wait_event(self._streams[lane], frame.events[number])
        self._progress.event_waits += 1

    # Host calls

    async def _call(self, node: int) -> None:
        progress = self._progress
        if progress.is_guarding and progress.blocks(node):
            progress.skipped(node)
            return
        operation = cast("HostCall", self._plan.nodes[node].operation)
        progress.host_started(node)
        guard = progress.guard(node)
        if self._telling is not None:
            guard = self._telling.guard(node, HOST_STREAM)
            guard.blocks()
        try:
            await call_host(operation.function, self._plan.nodes[node].name)
        except Exception as error:  # noqa: BLE001 - it is the node's outcome
            error.add_note(f"in node {self._plan.nodes[node].name!r}")
            guard.failed(error)
        else:
            guard.ended()
            progress.host_finished(node)

    async def _wait_on_host(self, frame: _Frame, item: int) -> None:
        """Return when what a host call depends on has ended on the device."""
        layout = frame.layout
        if frame.began is not None:
            await frame.began.wait_reached()
        for before in layout.awaits.get(item, ()):
            entry = layout.items[before]
            if entry.body is not None:
                index = self._progress.relations.loop(entry.index)
            else:
                index = entry.index
            await self._progress.wait_device(index)
