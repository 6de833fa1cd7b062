"""Carrying a plan out: one submitting task, host calls beside it, one exit.

The runner does what the layout and `BlockState` decide. A block without host
work is submitted straight through, in the layout's order: every wait in it is
the device's. A block with host work is driven by a `BlockState`: what is ready is
submitted, and each host item runs in a task that first awaits what it depends on.

Submitting gives way to the event loop after a bounded stretch (`SLICE_NS`), and
waits, in an await, while there is no room for more of the session's work in flight.

Failure. A node's error goes to its guard, not to its stream: what depends on the
node is skipped when its turn comes on the device, everything else goes on.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, cast

import anyio
import numpy as np

from accy_async.backends.loops import uninterrupted
from accy_async.backends.nativecancel import after_first_step
from accy_async.backends.timeline import Mark
from accy_async.graph.hostcalls import call_host, lost_call
from accy_async.graph.lowering.verdicts import limit_reached
from accy_async.graph.nodes import HostCall, RuntimeScalar
from accy_async.graph.pace import Pace
from accy_async.graph.state import BlockState
from accy_async.graph.submitting import Frame, Submitter
from accy_async.observe.protocol import HOST_STREAM

if TYPE_CHECKING:
    from accy_async.backends.base import Backend
    from accy_async.backends.handles import BufferHandle, EventHandle, StreamHandle
    from accy_async.graph.bindings import Memory
    from accy_async.graph.governor import Governor
    from accy_async.graph.layout import BlockLayout, Step
    from accy_async.graph.prepared import PreparedGraph
    from accy_async.graph.progress import RunProgress
    from accy_async.graph.telling import Telling

__all__ = ["Runner"]


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


@uninterrupted
class Runner:
    """Runs one prepared plan on leased streams.

    Args:
        backend: the device.
        prepared: the plan.
        progress: what has become of the nodes.
        streams: the streams of this run.
        take_event: gives a pooled event for a stream.
        governor: shares the room in flight.
        telling: tells an observer; None where there is none.
    """

    def __init__(
        self,
        backend: Backend,
        prepared: PreparedGraph,
        progress: RunProgress,
        streams: list[StreamHandle],
        take_event: Callable[[StreamHandle], EventHandle],
        governor: Governor,
        telling: Telling | None,
    ) -> None:
        self._telling = telling
        self._backend = backend
        self._prepared = prepared
        self._plan = prepared.plan
        self._progress = progress
        self._pace = Pace(progress, governor)
        self._submitter = Submitter(
            backend, prepared, progress, streams, take_event, telling
        )

    @property
    def memories(self) -> Sequence[Memory]:
        """What holds each slot's value now, carries swapped."""
        return self._submitter.memories

    async def run(self, layout: BlockLayout) -> None:
        """Submit everything, and return when the last host item is done.

        Args:
            layout: the plan's, for as many streams as the run has.

        Cancellation: nothing further is submitted; host calls are cancelled.
        """
        with self._pace:
            await self._run_block(self._submitter.top_frame(layout))

    # Blocks

    async def _run_block(self, frame: Frame) -> None:
        if frame.layout.is_static:
            await self._run_static(frame)
        else:
            await self._run_dynamic(frame)

    async def _run_static(self, frame: Frame) -> None:
        """Submit a block without host work, which is what every node's cost is.

        So launches are submitted several at a time, where nobody is told of each.
        """
        every, pace = frame.layout.steps, self._pace
        for start in range(0, len(every), pace.together):
            steps = every[start : start + pace.together]
            operations = _count(steps)
            if not pace.has_room(operations):
                await pace.wait_for_room(operations)
            done = self._submitter.submit_together(frame, steps)
            for step in steps[done:]:
                await self._take_step(frame, step)
            if pace.is_due(len(steps)):
                await pace.breathe()

    async def _take_step(self, frame: Frame, step: Step) -> None:
        index, body, place, waits, record = step
        lane = frame.lanes[place]
        for number in waits:
            mark = self._submitter.wait_for(frame, number, lane)
            if mark is not None:
                await self._wait_across(mark)
        if body is None:
            if index in self._prepared.rereads:
                await self._wait_to_read(index)
            self._submitter.submit(index, lane)
        else:
            await self._run_counted(index, body, lane)
        if record >= 0:
            self._submitter.record(frame, record, lane)

    async def _run_dynamic(self, frame: Frame) -> None:
        layout = frame.layout
        rank = [0] * len(layout.items)
        for place, item in enumerate(layout.order):
            rank[item] = place
        state = BlockState(
            rank, layout.preds, layout.succs, layout.is_host, layout.follows
        )
        await self._drive(
            state,
            layout.is_host,
            functools.partial(self._submit_item, frame),
            functools.partial(self._run_host_item, frame),
            functools.partial(self._lost_task, frame),
        )

    async def _drive(
        self,
        state: BlockState,
        is_host: Sequence[bool],
        submit: Callable[[int], Awaitable[None]],
        run_on_host: Callable[[int], Awaitable[None]],
        lose: Callable[[int, BaseException | None], None],
    ) -> None:
        """Have each item of a block begin when it may, until all have.

        Args:
            state: which of them may.
            is_host: of each, whether the host resolves it, in a task of its own.
            submit: gives one to the device.
            run_on_host: is that task.
            lose: told of one whose task was cancelled, or never began.
        """
        news = _News()
        begun: set[int] = set()

        async def serve(item: int) -> None:
            begun.add(item)
            try:
                await run_on_host(item)
            except anyio.get_cancelled_exc_class() as error:
                if anyio.current_effective_deadline() == -math.inf:
                    raise  # the run was cancelled; else its task alone was
                lose(item, error)
            state.ended(item)
            news.tell()

        def see_begun(item: int) -> None:
            if item not in begun:
                lose(item, None)
                state.ended(item)
                news.tell()

        async with anyio.create_task_group() as group:
            while not state.is_done:
                ready = state.take()
                if ready is None:
                    await news.wait()
                elif is_host[ready]:
                    group.start_soon(serve, ready)
                    after_first_step(functools.partial(see_begun, ready))
                else:
                    await submit(ready)
                    state.submitted(ready)
                    if self._pace.is_due(1):
                        await self._pace.breathe()

    async def _submit_item(self, frame: Frame, item: int) -> None:
        layout, submitter = frame.layout, self._submitter
        entry, lane = layout.items[item], frame.lane_of(item)
        operations = len(layout.waits[item]) + (entry.body is None) + 1
        if not self._pace.has_room(operations):
            await self._pace.wait_for_room(operations)
        await self._wait_across(*submitter.wait_before(frame, item))
        if entry.body is None:
            if entry.index in self._prepared.rereads:
                await self._wait_to_read(entry.index)
            submitter.submit(entry.index, lane)
        else:
            await self._run_counted(entry.index, entry.body, lane)
        submitter.record_after(frame, item)

    async def _wait_to_read(self, index: int) -> None:
        """Wait for the copies to the host memory that a copy is from."""
        for before in self._prepared.rereads[index]:
            await self._progress.wait_device(before)

    async def _run_host_item(self, frame: Frame, item: int) -> None:
        """A host call, or a loop that the host steps: after what it depends on."""
        entry = frame.layout.items[item]
        if entry.body is None:
            await self._wait_on_host(frame, item)
            await self._call(entry.index)
            return
        await self._wait_across(*self._submitter.wait_before(frame, item))
        await self._run_loop(entry.index, entry.body, frame.lane_of(item))
        self._submitter.record_after(frame, item)

    def _lost_task(self, frame: Frame, item: int, error: BaseException | None) -> None:
        """The item's own task was cancelled, before its end or before its beginning."""
        entry = frame.layout.items[item]
        if entry.body is not None:
            self._progress.loop_failed(entry.index, lost_call(error, None))
        else:
            name = self._plan.nodes[entry.index].name
            self._progress.failed(entry.index, lost_call(error, name))

    # Loops

    async def _run_counted(self, index: int, body: BlockLayout, lane: int) -> None:
        loop = self._plan.loops[index]
        count = loop.count
        if isinstance(count, RuntimeScalar):
            count = int(self._prepared.options.runtime_scalars[count.index].value)
        assert count is not None
        progress = self._progress
        frame = self._submitter.body_frame(body, lane)
        if not progress.skips_loop(index):
            for _ in range(count):
                if progress.loop_is_blocked(index):
                    break
                await self._iterate(index, frame)
        progress.loop_submitted(index, lane)

    async def _run_loop(self, index: int, body: BlockLayout, lane: int) -> None:
        """A loop that the host steps: for its condition, or for calls within."""
        loop = self._plan.loops[index]
        if loop.condition is None:
            await self._run_counted(index, body, lane)
            return
        frame = self._submitter.body_frame(body, lane)
        value = np.zeros(1, dtype=np.uint32)
        slot = self._prepared.slot_index(loop.condition)
        iterations = 0
        if self._progress.skips_loop(index):
            self._progress.loop_submitted(index, lane)
            return
        while await self._holds(index, slot, value, lane):
            if loop.max_iterations is not None and iterations >= loop.max_iterations:
                self._progress.loop_failed(
                    index,
                    limit_reached(self._plan, index),
                )
                break
            await self._iterate(index, frame)
            iterations += 1
        self._progress.loop_submitted(index, lane)

    async def _holds(self, index: int, slot: int, value: np.ndarray, lane: int) -> bool:
        if self._progress.loop_is_blocked(index):
            return False
        stream = self._submitter.streams[lane]
        buffer = cast("BufferHandle", self._submitter.memories[slot])
        try:
            position = self._backend.read_buffer(buffer, value, stream=stream)
            self._progress.reached(lane, position)
            await Mark(self._progress.timelines[lane], position).wait()
        except Exception as error:
            if not self._backend.is_healthy:
                raise
            self._progress.loop_failed(index, error)
            return False
        return bool(value[0]) and not self._progress.loop_is_blocked(index)

    async def _iterate(self, index: int, frame: Frame) -> None:
        submitter, lanes = self._submitter, frame.lanes
        if len(lanes) > 1:
            operations = 2 * len(lanes)
            if not self._pace.has_room(operations):
                await self._pace.wait_for_room(operations)
            await self._wait_across(*submitter.fork(frame))
        if lanes and not frame.layout.is_static:
            frame.began = self._progress.last_mark(lanes[0])
        await self._run_block(frame)
        await self._wait_across(*submitter.join(frame))
        slot = self._prepared.slot_index
        for carry in self._plan.loops[index].carries:
            submitter.swap(slot(carry.current), slot(carry.next))

    async def _wait_across(self, *marks: Mark | None) -> None:
        """Wait here for points that one device cannot wait for on another.

        Raises:
            DeviceError: the other device, or its stream, failed by then.
        """
        for mark in marks:
            if mark is None:
                continue
            await mark.wait_reached()
            error = mark.timeline.error_at(mark.position)
            if error is not None:
                raise error.copy() from error

    # Host calls

    async def _call(self, node: int) -> None:
        progress = self._progress
        if not self._backend.is_healthy and (lost := progress.device_loss()):
            raise lost.copy() from lost.__cause__  # what it would read is not there
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

    async def _wait_on_host(self, frame: Frame, item: int) -> None:
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


def _count(steps: Sequence[Step]) -> int:
    """How many operations these take at most, loops' own ones left out."""
    count = 0
    for _, body, _, waits, record in steps:
        count += (body is None) + len(waits) + (record >= 0)
    return count
