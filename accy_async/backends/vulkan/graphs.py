"""Device graphs as command buffers that are recorded once and submitted again.

A graph is laid out in segments (see `segments`), each a run of command buffers. A
launch of it submits them, and asks the host only where the outcome of a kernel decides
what comes next. Other buffers and other scalars are new command buffers for the parts
that are touched; those that are at work stay as they are.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, cast

from accy_async.backends.devicegraph import GraphRecord
from accy_async.backends.hooks import EventState, GraphState, StreamState
from accy_async.backends.launch import PreparedLaunch
from accy_async.backends.vulkan.launching import VulkanLaunch
from accy_async.backends.vulkan.recorder import Recorder, Recording
from accy_async.backends.vulkan.replaying import (
    RecordedSegment,
    Replay,
    record_part,
)
from accy_async.backends.vulkan.segments import plan_segments
from accy_async.backends.vulkan.steps import StepMaker
from accy_async.backends.vulkan.submitting import VulkanSubmitting

if TYPE_CHECKING:
    from accy_async.backends.devicegraph import GraphOperation, GraphRequest
    from accy_async.backends.guards import GuardOf
    from accy_async.backends.handles import Handle
    from accy_async.backends.resources import Resource
    from accy_async.backends.vulkan.barriers import Synchronization
    from accy_async.backends.vulkan.memory import Allocator
    from accy_async.backends.vulkan.segments import Part
    from accy_async.backends.vulkan.status import StatusWords
    from accy_async.backends.vulkan.steps import Step
    from accy_async.backends.vulkan.streams import VulkanStream

__all__ = ["VulkanGraph", "VulkanGraphs"]


class VulkanGraph(GraphState):
    """A graph: its segments, and what they were recorded with.

    Attributes:
        segments: in the order in which they are submitted.
        steps: of each node, its step; None for one that comes to no command.
        maker: made the steps, and has their memory.
        recorder: records, and has the command buffers.
        record_numbers: of each node that records an event, which of them it is.
        priority: that of its least urgent launch.
    """

    segments: tuple[RecordedSegment, ...] = ()

    def __init__(
        self, request: GraphRequest, maker: StepMaker, recorder: Recorder
    ) -> None:
        super().__init__(request)
        self.maker = maker
        self.recorder = recorder
        self.steps: list[Step | None] = []
        places = [
            place
            for place, node in enumerate(request.body)
            if isinstance(node.operation, GraphRecord)
        ]
        self.record_numbers = {place: number for number, place in enumerate(places)}
        launches = [n for n in request.body if isinstance(n.operation, PreparedLaunch)]
        self.priority = max((node.priority for node in launches), default=0)


class VulkanGraphs(VulkanSubmitting):
    """The hooks of the backend for device graphs."""

    _allocator: Allocator
    _words: StatusWords
    _synchronization: Synchronization

    def _open_graph(
        self, request: GraphRequest, objects: Mapping[Handle, Resource]
    ) -> GraphState:
        maker = StepMaker(self._device.vulkan, self._allocator, self._words, self._lock)
        graph = VulkanGraph(request, maker, Recorder(self._device))
        try:
            maker.take_staging(request.body)
            graph.steps = [
                maker.make(place, node.operation, objects)
                for place, node in enumerate(request.body)
            ]
            steps = graph.steps
            segments = plan_segments(
                request.body,
                frozenset(p for p, step in enumerate(steps) if step is None),
                frozenset(
                    p
                    for p, node in enumerate(request.body)
                    if _can_fail(node.operation)
                ),
            )
            recorded = []
            for segment in segments:
                made = RecordedSegment(segment, request.body, steps)
                made.recordings = tuple(
                    self._record_part(graph, made, part, steps)
                    for part in segment.parts
                )
                recorded.append(made)
            graph.segments = tuple(recorded)
        except BaseException:
            self._close_graph(graph)
            raise
        return graph

    def _update_graph(
        self,
        graph: GraphState,
        request: GraphRequest,
        objects: Mapping[Handle, Resource],
    ) -> bool:
        mine = cast("VulkanGraph", graph)
        steps = list(mine.steps)
        touched: set[int] = set()
        old, new = graph.request.body, request.body
        for place, (before, now) in enumerate(zip(old, new, strict=True)):
            if before.operation is now.operation or before.operation == now.operation:
                continue
            if _can_fail(before.operation) != _can_fail(now.operation):
                return False  # it comes to other segments
            steps[place] = mine.maker.make(place, now.operation, objects)
            touched.add(place)
        mine.segments = tuple(
            segment
            if touched.isdisjoint(segment.steps)
            else self._record_again(mine, segment, request, steps, touched)
            for segment in mine.segments
        )
        mine.steps = steps
        return True

    def _launch_graph(
        self, stream: StreamState, graph: GraphState, guard_of: GuardOf | None
    ) -> int:
        mine = cast("VulkanGraph", graph)
        on = cast("VulkanStream", stream)
        for staging in mine.maker.staging.values():
            if staging.is_loaded:
                staging.load()
        # Where all of it is urgent it need not be the stream that says so.
        queue = self._queue_for(mine.priority) if mine.priority < 0 else on.queue
        replays = []
        position = 0
        with self._gather():
            for number, segment in enumerate(mine.segments):
                for _ in range(Replay.positions(segment)):
                    position = stream.timeline.advance()
                is_apart = number > 0 and bool(mine.segments[number - 1].plan.records)
                replay = Replay(
                    position, segment, queue, guard_of, self._words, is_apart=is_apart
                )
                self._submit(on, replay)
                replays.append(replay)
                for place in segment.plan.records:
                    event = mine.events[mine.record_numbers[place]]
                    position = self._record_in(on, cast("EventState", event.payload))
        for replay in replays:
            replay.asks = True  # those that were handed over have been through it
        return position

    def _record_in(self, stream: VulkanStream, event: EventState) -> int:
        """Have an event recorded behind what was submitted; its position."""
        position = stream.timeline.advance()
        event.mark = (stream.timeline, position)
        event.time_ns = None
        self._record(stream, position, event)
        return position

    def _record_again(
        self,
        graph: VulkanGraph,
        old: RecordedSegment,
        request: GraphRequest,
        steps: Sequence[Step | None],
        touched: Collection[int],
    ) -> RecordedSegment:
        """A segment with other nodes; its parts without any stay as they are."""
        made = RecordedSegment(old.plan, request.body, steps, old.turn)
        made.recordings = tuple(
            recording
            if part.isdisjoint(touched)
            else self._record_part(graph, made, part, steps)
            for part, recording in zip(old.plan.parts, old.recordings, strict=True)
        )
        return made

    def _record_part(
        self,
        graph: VulkanGraph,
        segment: RecordedSegment,
        part: Part,
        steps: Sequence[Step | None],
    ) -> Recording:
        """Record a part; the last one of a segment shows the host what it wrote."""
        is_last = part is segment.plan.parts[-1]
        return record_part(
            graph.recorder,
            part,
            steps,
            self._synchronization,
            self._device.vulkan,
            shows_host=is_last and segment.shows_host,
        )

    def _close_graph(self, graph: VulkanGraph) -> None:
        """Give back what a graph has; nothing of it may be in use."""
        graph.segments = ()
        graph.steps = []
        graph.recorder.close()
        graph.maker.close()


def _can_fail(operation: GraphOperation) -> bool:
    """Whether what follows a node has to wait for its outcome."""
    if not isinstance(operation, PreparedLaunch) or not operation.has_blocks:
        return False
    return cast("VulkanLaunch", operation.payload).kernel.can_fail
