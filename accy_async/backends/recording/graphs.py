"""Device graphs on the pretended device: their nodes, one after the other.

A launch of a graph takes a position of its stream for each node that has its turn,
loops unrolled, so that streams can be held and stepped within it. Each node is
asked of its guard and may fail by itself, as if it had been submitted alone. Loops
that a value decides have no turns, since reads give zeros.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, cast

from accy_async.backends.devicegraph import (
    GraphBody,
    GraphBranch,
    GraphDownload,
    GraphLoop,
    GraphNode,
    GraphRecord,
)
from accy_async.backends.hooks import EventState, GraphState, StreamState
from accy_async.backends.launch import PreparedLaunch
from accy_async.backends.recording.hooks import RecordingHooks

if TYPE_CHECKING:
    from accy_async.backends.devicegraph import GraphRequest
    from accy_async.backends.guards import Guard, GuardOf
    from accy_async.backends.handles import Handle
    from accy_async.backends.resources import Resource

__all__ = ["RecordingGraphs"]


class RecordingGraphs(RecordingHooks):
    """What a device graph comes to where nothing is executed."""

    def _open_graph(
        self, request: GraphRequest, objects: Mapping[Handle, Resource]
    ) -> GraphState:
        del objects
        return GraphState(request)

    def _update_graph(
        self,
        graph: GraphState,
        request: GraphRequest,
        objects: Mapping[Handle, Resource],
    ) -> bool:
        del graph, request, objects
        return True

    def _launch_graph(
        self, stream: StreamState, graph: GraphState, guard_of: GuardOf | None
    ) -> int:
        self._play(stream, graph.request.body, guard_of, iter(graph.events))
        # The end is a position of its own, also of a graph without nodes.
        position = stream.timeline.advance()
        self._submit(stream, position)
        return position

    def _play(
        self,
        stream: StreamState,
        body: GraphBody,
        guard_of: GuardOf | None,
        events: Iterator[Resource],
    ) -> None:
        for node in body:
            operation = node.operation
            if isinstance(operation, GraphLoop):
                for turn in range(operation.count or 0):
                    bodies = operation.turns
                    self._play(stream, bodies[turn % len(bodies)], guard_of, events)
            elif isinstance(operation, GraphBranch):  # no loop fails: it has no turns
                self._play(stream, operation.body, guard_of, events)
            elif isinstance(operation, GraphRecord):
                self._play_event(stream, next(events))
            else:
                self._play_node(stream, node, guard_of)

    def _play_node(
        self, stream: StreamState, node: GraphNode, guard_of: GuardOf | None
    ) -> None:
        guard: Guard | None = None
        if guard_of is not None and node.number >= 0:
            guard = guard_of(node.number)
        operation = node.operation
        if isinstance(operation, PreparedLaunch):
            if operation.has_blocks:
                self._launch(stream, stream.timeline.advance(), operation, guard)
            return
        run = None
        if isinstance(operation, GraphDownload):
            array = operation.array

            def run() -> None:
                array.fill(0)

        self._submit(stream, stream.timeline.advance(), run, guard=guard)

    def _play_event(self, stream: StreamState, event: Resource) -> None:
        state = cast("EventState", event.payload)
        position = stream.timeline.advance()
        state.mark = (stream.timeline, position)
        state.time_ns = None
        self._record(stream, position, state)
