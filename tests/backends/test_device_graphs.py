"""Device graphs: launched as one, with lifetimes and failures of their nodes' own."""

from __future__ import annotations

import attrs
import numpy as np
import pytest

from accy_async.artifact import (
    ArtifactFormat,
    ArtifactRequest,
    FixedLaunch,
    KernelArtifact,
    ScalarArgument,
)
from accy_async.backends import (
    BufferBinding,
    BufferHandle,
    LaunchRequest,
    RecordingBackend,
)
from accy_async.backends.devicegraph import (
    GraphCopy,
    GraphDownload,
    GraphFill,
    GraphLoop,
    GraphNode,
    GraphRecord,
    GraphRequest,
    GraphUpload,
    node_count,
    topology,
)
from accy_async.backends.launch import PreparedLaunch
from accy_async.errors import (
    CapabilityMismatch,
    DeviceError,
    InvalidBuffer,
    InvalidGraph,
)

pytestmark = pytest.mark.anyio
ARTIFACT = KernelArtifact.from_request(
    ArtifactRequest(
        kernel_name="step",
        requested_format=ArtifactFormat.CUDA_PTX,
        argument_count=2,
        scalar_argument_count=1,
        payload="ptx",
    )
)


class Parts:
    """A backend with a kernel and two buffers."""

    def __init__(self) -> None:
        self.backend = RecordingBackend()
        self.loaded = self.backend.load_artifact(ARTIFACT)
        self.one = self.backend.allocate_buffer(64)
        self.other = self.backend.allocate_buffer(64)

    def launch(
        self, buffer: BufferHandle, value: int = 0, name: str = "n", blocks: int = 1
    ) -> PreparedLaunch:
        return self.backend.prepare_launch(
            LaunchRequest(
                artifact=ARTIFACT,
                loaded=self.loaded,
                geometry=FixedLaunch(grid=(blocks, 1, 1), threadgroup=(1, 1, 1)),
                buffers=(BufferBinding(handle=buffer),),
                scalars=(ScalarArgument.u32(value),),
                diagnostic_id=name,
            )
        )


@pytest.fixture
def parts() -> Parts:
    return Parts()


def request(*nodes: GraphNode) -> GraphRequest:
    return GraphRequest(nodes)


async def test_nodes_run_in_order_loops_as_often_as_they_say(parts: Parts) -> None:
    """Each node has its turn once, and the bodies of a loop take turns."""
    turns = tuple(
        (GraphNode(parts.launch(buffer, name=name), name=name),)
        for name, buffer in (("even", parts.one), ("odd", parts.other))
    )
    out = np.ones(4, np.uint8)
    body = (
        GraphNode(GraphFill(parts.one, b"\1", 64)),
        GraphNode(GraphUpload(np.zeros(64, np.uint8), parts.other)),
        GraphNode(GraphLoop(turns, count=3), (0, 1)),
        GraphNode(GraphLoop(turns, conditions=(parts.one, parts.other)), (2,)),
        GraphNode(GraphCopy(parts.one, parts.other, 64), (3,)),
        GraphNode(GraphDownload(parts.one, out), (4,)),
    )
    graph = parts.backend.create_graph(request(*body))
    assert node_count(body) == 10
    position = parts.backend.launch_graph(graph)
    assert position == parts.backend.mark().position
    await parts.backend.wait_default_stream()
    assert [one.diagnostic_id for one in parts.backend.launches] == [
        "even",
        "odd",
        "even",
    ]
    assert not out.any()


async def test_what_a_graph_uses_is_in_use_while_it_runs(parts: Parts) -> None:
    """Buffers and the graph itself, destroyed in flight, are freed behind it."""
    backend = parts.backend
    backend.hold()
    graph = backend.create_graph(request(GraphNode(parts.launch(parts.one))))
    backend.launch_graph(graph)
    assert not backend.destroy(parts.one)
    assert not backend.destroy(graph)
    assert backend.destroy(parts.other)
    assert backend.live_objects()["graphs"] == 1
    assert set(backend.reaper.held()) == {
        "buffer 2 (64 bytes)",
        "graph 4",
    }
    backend.release()
    assert len(backend.reaper) == 0
    assert backend.live_objects()["graphs"] == 0


async def test_waiting_for_a_buffer_waits_for_the_graph(parts: Parts) -> None:
    """A graph's launch counts as a use of each buffer that its nodes have."""
    backend = parts.backend
    graph = backend.create_graph(request(GraphNode(parts.launch(parts.one))))
    backend.fail_execution(1)
    backend.launch_graph(graph)
    with pytest.raises(DeviceError, match="kernel=step, node=n"):
        await backend.wait_buffer(parts.one)


async def test_a_graph_that_uses_what_was_destroyed_is_refused(parts: Parts) -> None:
    """Not launched with a stale address; updated to other buffers it works again."""
    backend = parts.backend
    node = GraphNode(parts.launch(parts.one))
    graph = backend.create_graph(request(node))
    backend.destroy(parts.one)
    with pytest.raises(InvalidGraph, match=r"graph 4 .* buffer 2 .* was destroyed"):
        backend.launch_graph(graph)
    with pytest.raises(InvalidBuffer, match=r"buffer 2 .*was destroyed"):
        backend.update_graph(graph, request(node))
    other = attrs.evolve(node, operation=parts.launch(parts.other, 7))
    assert backend.update_graph(graph, request(other))
    backend.launch_graph(graph)
    assert backend.launches[-1].buffer_ids == (parts.other.id,)


async def test_buffers_left_by_an_update_stay_in_use_till_then(parts: Parts) -> None:
    """A launch under way keeps what the graph no longer uses."""
    backend = parts.backend
    backend.hold()
    graph = backend.create_graph(request(GraphNode(parts.launch(parts.one))))
    backend.launch_graph(graph)
    assert backend.update_graph(graph, request(GraphNode(parts.launch(parts.other))))
    assert not backend.destroy(parts.one)
    backend.release()
    assert len(backend.reaper) == 0


async def test_another_topology_is_not_an_update(parts: Parts) -> None:
    """Nodes, edges and empty grids are; numbers, buffers and kernels are not."""
    node = GraphNode(parts.launch(parts.one))
    same = GraphNode(parts.launch(parts.other, 3, blocks=9))
    graph = parts.backend.create_graph(request(node, node))
    assert parts.backend.update_graph(graph, request(same, node))
    for others in (
        (node,),
        (node, attrs.evolve(node, after=(0,))),
        (node, GraphNode(GraphFill(parts.one, b"\0", 64))),
        (node, GraphNode(parts.launch(parts.one, blocks=0))),
    ):
        assert topology(others) != topology((node, node))
        assert not parts.backend.update_graph(graph, request(*others))


async def test_a_node_fails_by_itself_where_it_has_a_guard(parts: Parts) -> None:
    """Its guard is told; the nodes after it are asked of theirs, and run."""
    told: list[tuple[int, str]] = []

    class Told:
        def __init__(self, number: int) -> None:
            self.number = number

        def blocks(self) -> bool:
            return self.number == 2

        def ended(self) -> None:
            told.append((self.number, "ended"))

        def failed(self, error: DeviceError) -> None:
            told.append((self.number, f"failed {error.node}"))

    body = tuple(
        GraphNode(parts.launch(parts.one, name=f"n{i}"), number=i) for i in range(4)
    )
    graph = parts.backend.create_graph(request(*body))
    parts.backend.fail_execution(2)
    parts.backend.launch_graph(graph, guard_of=Told)
    assert told == [(0, "ended"), (1, "failed n1"), (3, "ended")]
    await parts.backend.wait_default_stream()


async def test_an_event_is_recorded_in_its_place(parts: Parts) -> None:
    """Another stream that waits for it goes on before the graph is done."""
    backend = parts.backend
    backend.hold_all()
    stream, side = backend.create_stream(), backend.create_stream()
    event = backend.create_event()
    first, last = (GraphNode(parts.launch(one)) for one in (parts.one, parts.other))
    record = GraphNode(GraphRecord(event), (0,))
    graph = backend.create_graph(request(first, record, last))
    backend.launch_graph(graph, stream)
    waited = backend.stream_wait_event(side, event)
    backend.release(side)
    timeline = backend.mark(side).timeline
    backend.step(stream)
    assert not timeline.has_reached(waited)
    backend.step(stream)  # the event
    assert timeline.has_reached(waited)
    assert not backend.is_stream_idle(stream)
    backend.release_all()


async def test_a_device_without_graphs_refuses_them() -> None:
    """Its capabilities say so beforehand."""
    backend = RecordingBackend(has_graphs=False)
    assert not backend.capabilities.device_graphs
    with pytest.raises(CapabilityMismatch, match="no graphs"):
        backend.create_graph(request())
