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

import inspect
import math
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, cast

import anyio
import anyio.lowlevel
import numpy as np

from accy_async.backends.completion import run_abandonable
from accy_async.backends.lifetimes import Mark
from accy_async.errors import GraphError
from accy_async.graph.nodes import HostCall, RuntimeScalar
from accy_async.graph.outcome import HostCallFailed
from accy_async.graph.progress import RunProgress
from accy_async.graph.slices import SLICE_NS
from accy_async.graph.state import BlockState
from accy_async.observe.protocol import HOST_STREAM

if TYPE_CHECKING:
    from accy_async.backends.base import Backend
    from accy_async.backends.guards import Guard
    from accy_async.backends.handles import BufferHandle, EventHandle, StreamHandle
    from accy_async.errors import DeviceError
    from accy_async.graph.governor import Governor
    from accy_async.graph.layout import BlockLayout
    from accy_async.graph.prepared import PreparedGraph
    from accy_async.graph.telling import Telling

__all__ = ["Runner"]

_CHECK_EVERY = 8
"""Submissions between two looks at the clock."""

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
        self._governor = governor
        self._memories = list(prepared.initial_memories)
        self._until_check = _CHECK_EVERY
        self._slice_began_ns = 0
        # A plan without loops that carry has one action for each node.
        self._fixed = prepared.actions if not prepared.carried else None

    async def run(self, layout: BlockLayout) -> None:
        """Submit everything, and return when the last host item is done.

        Args:
            layout: the plan's, for as many streams as the run has.

        Cancellation: nothing further is submitted; host calls are cancelled.
        """
        lanes = list(range(len(self._streams)))
        self._slice_began_ns = time.perf_counter_ns()
        try:
            await self._run_block(_Frame(layout, lanes))
        finally:
            self._progress.submit_ns += time.perf_counter_ns() - self._slice_began_ns

    # Blocks

    async def _run_block(self, frame: _Frame) -> None:
        if frame.layout.is_static:
            await self._run_static(frame)
        else:
            await self._run_dynamic(frame)

    async def _run_static(self, frame: _Frame) -> None:
        """Submit a block without host work, which is what every node's cost is.

        So everything that a step needs is a local variable, and nothing is looked
        up that the layout could say.
        """
        lanes, streams, events = frame.lanes, self._streams, frame.events
        wait, progress = self._backend.stream_wait_event, self._progress
        for index, body, place, waits, record in frame.layout.steps:
            lane = lanes[place]
            if waits:
                stream = streams[lane]
                for number in waits:
                    wait(stream, events[number])
                progress.event_waits += len(waits)
            if body is None:
                self._submit(index, lane)
            else:
                await self._run_counted(index, body, frame, lane)
            if record >= 0:
                self._record_as(frame, record, lane)
            self._until_check -= 1
            if self._until_check <= 0:
                await self._breathe()

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
                    self._until_check -= 1
                    if self._until_check <= 0:
                        await self._breathe()

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
        action = (
            self._fixed[node]
            if self._fixed is not None
            else self._prepared.action(node, self._memories)
        )
        assert action is not None
        progress = self._progress
        if progress.is_guarding and progress.blocks(node):
            progress.skipped(node)
            return
        stream = self._streams[lane]
        if self._telling is None:
            guard: Guard = progress.guard(node)
        else:
            guard = self._telling.guard(node, stream.id)
        try:
            position = action(stream, guard)
        except Exception as error:
            if not self._backend.is_healthy:
                raise
            error.add_note(f"in submitting node {self._plan.nodes[node].name!r}")
            guard.failed(cast("DeviceError", error))
            progress.skipped(node)
            return
        progress.submitted(node, lane, position)

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
            await _call_host(operation.function, self._plan.nodes[node].name)
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

    # Room

    async def _breathe(self) -> None:
        """Give way to the loop if the slice is used up, and wait for room."""
        progress, governor = self._progress, self._governor
        self._until_check = _CHECK_EVERY
        now = time.perf_counter_ns()
        if now - self._slice_began_ns >= SLICE_NS * governor.slice_part(progress):
            progress.submit_ns += now - self._slice_began_ns
            progress.yields += 1
            await anyio.lowlevel.checkpoint()
            self._slice_began_ns = time.perf_counter_ns()
        share = governor.share(progress)
        if progress.in_flight() > share:
            progress.submit_ns += time.perf_counter_ns() - self._slice_began_ns
            progress.waits_for_room += 1
            while progress.in_flight() > share:
                await progress.wait_for_room(share)
                share = governor.share(progress)
            self._slice_began_ns = time.perf_counter_ns()


async def _call_host(function: Callable[[], object], name: str) -> None:
    """Call a function: an async one here, another on a thread.

    Raises:
        Exception: what it raised.
        HostCallFailed: it raised what is no Exception, or StopIteration, or gave
            back an awaitable that nobody would await.

    Cancellation: an async function is cancelled; one on a thread is left to end
        by itself, and its outcome is dropped.
    """
    target = getattr(function, "func", function)
    is_async = inspect.iscoroutinefunction(target) or inspect.iscoroutinefunction(
        getattr(target, "__call__", None)  # noqa: B004 - a callable object's own
    )
    if is_async:
        try:
            await cast("Awaitable[object]", function())
        except (GeneratorExit, SystemExit) as error:
            raise HostCallFailed(f"the call raised {type(error).__name__}") from error
        except anyio.get_cancelled_exc_class() as error:
            if anyio.current_effective_deadline() == -math.inf:
                raise
            raise HostCallFailed("what the call awaited was cancelled") from error
        return
    try:
        result = await run_abandonable(function, _drop, name=f"host call {name}")
    except (GeneratorExit, SystemExit) as error:
        raise HostCallFailed(f"the call raised {type(error).__name__}") from error
    if inspect.isawaitable(result):
        if inspect.iscoroutine(result):
            result.close()
        raise HostCallFailed(
            "the call returned an awaitable: make it an async function"
        )


def _drop(result: object) -> None:
    if inspect.iscoroutine(result):
        result.close()
