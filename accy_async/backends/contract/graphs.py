"""Device graphs: given to the device once, updated in place, launched as a whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from accy_async.backends.contract.core import BackendCore, admit
from accy_async.backends.devicegraph import GraphRecord, GraphRequest, check_body
from accy_async.backends.handles import (
    BufferHandle,
    GraphHandle,
    Handle,
    ObjectKind,
    StreamHandle,
)
from accy_async.backends.hooks import GraphState, StreamState
from accy_async.backends.launch import refuse_foreign
from accy_async.backends.resources import refuse_destroyed
from accy_async.errors import (
    CapabilityMismatch,
    InvalidBuffer,
    InvalidGraph,
    InvalidType,
)

if TYPE_CHECKING:
    from accy_async.backends.guards import GuardOf
    from accy_async.backends.resources import Resource, Use

__all__ = ["Graphs"]


class Graphs(BackendCore):
    """The device graphs of one device.

    A graph's nodes are ordered by their edges alone, and each launch of it is one
    operation of a stream. What its nodes use is in use as long as a launch is, and a
    graph that uses what was destroyed cannot be launched any more.
    """

    def create_graph(self, request: GraphRequest) -> GraphHandle:
        """Make a device graph. May take some 10 us a node: not for an event loop.

        Raises:
            CapabilityMismatch: the device has no graphs, or no loops in them.
            InvalidArtifact, InvalidBuffer, InvalidEvent: a node uses what is not
                alive, or a handle of another size than its buffer has.
            InvalidType, InvalidValue: a node is none, or comes after one that is not
                before it; nothing was made.
        """
        with self._makers:
            self._check("create_graph")
            if not isinstance(request, GraphRequest):
                raise InvalidType("create_graph", request, "a GraphRequest")
            if not self.capabilities.device_graphs:
                raise CapabilityMismatch("create_graph: this device has no graphs")
            check_body(request.body)
            with self._lock:
                objects, every = self._objects_of(request)
            state = self._open_graph(request, objects)
            with self._lock:
                resource = self._keep(
                    ObjectKind.GRAPH,
                    lambda object_id: GraphHandle(
                        id=object_id, backend=self.kind, origin=self._origin
                    ),
                    state,
                )
                # Of what was destroyed meanwhile, it is never launched.
                self._compose(resource, state, objects, every)
        return cast("GraphHandle", resource.handle)

    def update_graph(self, graph: GraphHandle, request: GraphRequest) -> bool:
        """Change what a graph's nodes are about; launches under way are not affected.

        Args:
            graph: the graph.
            request: what it is to be from now on.

        Returns:
            True where it is. False where that takes another graph: the topology
            differs, or the device refuses. Then this one is of no use any more.

        Raises:
            InvalidGraph: the graph is not alive.
            InvalidArtifact, InvalidBuffer, InvalidEvent: a node uses what is not
                alive; the graph is as it was.
        """
        self._check("update_graph")
        with self._lock:
            resource = self._table.get(graph)
            state = cast("GraphState", resource.payload)
            objects, every = self._objects_of(request)
            if not state.request.has_topology_of(request):
                return False
            if not self._update_graph(state, request, objects):
                return False
            state.request = request
            resource.decompose()
            resource.broken_by = None
            self._compose(resource, state, objects, every)
            for use in resource.shared:
                use.epoch = None  # what launches it looks at it again
        return True

    def launch_graph(
        self,
        graph: GraphHandle,
        stream: StreamHandle | None = None,
        guard_of: GuardOf | None = None,
    ) -> int:
        """Submit all of a graph to a stream, as one operation.

        Args:
            graph: the graph.
            stream: where it runs; None for the default stream.
            guard_of: gives the guard of each node by its number, where the device
                asks them one by one; see `guards`.

        Returns:
            The position of its end on the stream's timeline.

        Raises:
            InvalidGraph: it is not alive, or something that it uses is not.
            InvalidStream: the stream is not alive.
        """
        with self._lock:
            resource = self._check_graph(graph)
            state: GraphState = resource.payload  # type: ignore[assignment]
            on = self._stream(stream)
            _admit_parts(on, resource)
            position = self._launch_graph(on, state, guard_of)
            resource.touch(on.timeline, position)
            for event in state.events:
                event.touch(on.timeline, position)
        return position

    def bind_graph(
        self, graph: GraphHandle, stream: StreamHandle
    ) -> Callable[[bool], int]:
        """Make what launches a graph on a stream again and again.

        Returns:
            A function that does what `launch_graph` does, and raises and returns the
            same; what can be looked up once is. It is told whether its caller will wait
            for the end at once, for a device that can be prepared for that.

        Raises:
            InvalidGraph, InvalidStream: one of them is not alive.
        """
        with self._lock:
            self._table.get(graph)
            self._stream(stream)

        def launch(is_awaited: bool) -> int:
            del is_awaited
            return self.launch_graph(graph, stream)

        return launch

    def _check_graph(self, graph: GraphHandle) -> Resource:
        """A graph that may be launched; under the lock.

        Raises:
            InvalidGraph: it is not alive, or something that it uses is not.
        """
        self._check("launch_graph")
        resource = self._table.get(graph)
        if resource.broken_by is not None:
            raise InvalidGraph(
                f"{resource.name} cannot be launched: {resource.broken_by.name}, "
                "which it uses, was destroyed"
            )
        return resource

    def _renew_graph(self, graph: GraphHandle, stream: StreamHandle, use: Use) -> None:
        """Check a bound graph in a new epoch; under the lock.

        Raises:
            As `launch_graph`.
        """
        epoch = self._table.epoch  # before the checks: losing takes no lock
        resource = self._check_graph(graph)
        _admit_parts(self._stream(stream), resource)
        if use.epoch is None:
            resource.share(use)
        use.epoch = epoch

    def _objects_of(
        self, request: GraphRequest
    ) -> tuple[dict[Handle, Resource], dict[Resource, None]]:
        """What a request's nodes use; refuses what is not alive.

        Returns:
            The objects of nodes that are no launches, by handle; and all objects.
        """
        found: dict[Handle, Resource] = {}
        launches, handles = request.parts()
        for handle in handles:
            resource = self._find_for_launch(handle)
            if resource is not None:  # else taken on trust, by a backend that does so
                if resource.handle is not handle:
                    _refuse_other_size(resource, handle)
                found[handle] = resource
        every = dict.fromkeys(found.values())
        for launch in launches:
            if launch.owner is not self._table:
                refuse_foreign(launch, self._origin.title)
            every.update(dict.fromkeys(launch.resources))
        for resource in every:
            if not resource.is_alive:
                refuse_destroyed(resource)
        return found, every

    def _compose(
        self,
        resource: Resource,
        state: GraphState,
        objects: dict[Handle, Resource],
        every: dict[Resource, None],
    ) -> None:
        state.events = tuple(
            objects[node.operation.event]
            for node in state.request.body
            if isinstance(node.operation, GraphRecord)
        )
        resource.compose(every)
        lost = next((part for part in every if not part.is_alive), None)
        resource.broken_by = lost


def _admit_parts(on: StreamState, graph: Resource) -> None:
    """Have a stream wait for what a graph uses and has not arrived yet."""
    if graph.arriving:
        admit(on, graph.arriving)
        graph.arriving = [part for part in graph.arriving if part.arrival]


def _refuse_other_size(resource: Resource, handle: Handle) -> None:
    """Refuse a handle, made by hand, by whose size a node was checked for nothing."""
    buffer = resource.handle
    if not isinstance(handle, BufferHandle) or not isinstance(buffer, BufferHandle):
        return
    if (handle.byte_size, handle.is_read_only) != (
        buffer.byte_size,
        buffer.is_read_only,
    ):
        raise InvalidBuffer(f"{resource.name}: got {handle}, expected {buffer}")
