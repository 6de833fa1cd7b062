"""Device graphs are the same on every backend that has them; the others refuse."""

from __future__ import annotations

import attrs
import numpy as np
import pytest

from accy_async.backends import BufferHandle
from accy_async.backends.devicegraph import (
    GraphCopy,
    GraphDownload,
    GraphFill,
    GraphJoin,
    GraphLoop,
    GraphNode,
    GraphOperation,
    GraphRecord,
    GraphRequest,
    GraphUpload,
)
from accy_async.dtypes import ScalarArgument
from accy_async.errors import (
    CapabilityMismatch,
    InvalidBuffer,
    InvalidGraph,
    InvalidType,
    InvalidValue,
)
from tests.conformance.devices import Device

pytestmark = pytest.mark.anyio


def mixing(device: Device, buffer: BufferHandle, tag: int) -> GraphOperation:
    """``w[0] = w[0] * 31 + tag``."""
    request = device.request("mix", [buffer], [ScalarArgument.u32(tag)])
    return device.backend.prepare_launch(request)


def chain(*operations: GraphOperation) -> GraphRequest:
    """Each after the one before."""
    return GraphRequest(
        tuple(
            GraphNode(operation, (place - 1,) if place else ())
            for place, operation in enumerate(operations)
        )
    )


async def test_a_device_without_graphs_refuses_them(device: Device) -> None:
    if device.backend.capabilities.device_graphs:
        return
    with pytest.raises(CapabilityMismatch, match="has no graphs"):
        device.backend.create_graph(chain(GraphJoin()))


async def test_nodes_follow_their_edges_and_launches_each_other(graphs: Device) -> None:
    """In whatever order independent nodes run; other work comes before and behind."""
    backend = graphs.backend
    one, two, both = (graphs.write([1]) for _ in range(3))
    nodes: list[GraphNode] = []
    last: dict[int, int] = {}
    for tag in range(80):
        buffer = (one, two)[tag % 2]
        after = (last[tag % 2],) if tag > 1 else ()
        nodes.append(GraphNode(mixing(graphs, buffer, tag), after))
        last[tag % 2] = tag
    nodes.append(GraphNode(GraphJoin(), (78, 79)))
    nodes.append(GraphNode(GraphCopy(two, both, 4), (80,)))
    graph = backend.create_graph(GraphRequest(tuple(nodes)))
    expected = [1, 1]
    for turn in range(3):
        graphs.mix(one, turn)
        backend.launch_graph(graph)
        graphs.mix(one, 5)
        expected[0] = (expected[0] * 31 + turn) % 2**32
        for tag in range(80):
            expected[tag % 2] = (expected[tag % 2] * 31 + tag) % 2**32
        expected[0] = (expected[0] * 31 + 5) % 2**32
    assert await graphs.read(one) == [expected[0]]
    assert await graphs.read(both) == [expected[1]]
    backend.destroy(graph)
    for buffer in (one, two, both):
        backend.destroy(buffer)
    assert graphs.new_objects() == {}


async def test_fills_copies_and_arrays_of_the_host(graphs: Device) -> None:
    backend = graphs.backend
    x, y = backend.allocate_buffer(16), backend.allocate_buffer(16)
    given, out = np.arange(4, dtype=np.uint32), np.zeros(4, np.uint32)
    graph = backend.create_graph(
        chain(
            GraphFill(x, b"\7\0\0\0", 16),
            GraphUpload(given, y),
            mixing(graphs, y, 9),
            GraphCopy(y, x, 8),
            GraphDownload(x, out),
        )
    )
    for first in (0, 100):
        given[0] = first
        backend.launch_graph(graph)
        await backend.wait_default_stream()
        assert out.tolist() == [first * 31 + 9, 1, 7, 7]
        out.fill(0)


async def test_a_body_that_leads_nowhere_is_refused_before_anything_is_made(
    graphs: Device,
) -> None:
    """So is one by a handle that says more than its buffer has."""
    backend = graphs.backend
    buffer, event = graphs.write([1]), backend.create_event()
    fill, record = GraphNode(GraphFill(buffer, b"\1", 4)), GraphRecord(event)
    larger = attrs.evolve(buffer, byte_size=1 << 20)
    before = graphs.new_objects()
    for nodes, message in (
        ((fill, attrs.evolve(fill, after=(1,))), r"after: got \(1,\), .* which is 1"),
        ((attrs.evolve(fill, after=(-1,)),), r"GraphNode.after: got \(-1,\), expected"),
        ((fill.operation,), r"GraphBody\[0\]: .* expected a GraphNode"),
        ((GraphNode(fill),), r"GraphNode.operation: .* GraphFill or"),  # type: ignore[arg-type]
        (
            (GraphNode(GraphLoop(((GraphNode(record),),), count=1)),),
            r"GraphNode.operation: .* one of the outermost body",
        ),
        (
            (GraphNode(GraphFill(larger, b"\1", 1 << 20)),),
            r"got BufferHandle.*=1048576,.* expected BufferHandle.*size=4,",
        ),
    ):
        with pytest.raises((InvalidValue, InvalidType, InvalidBuffer), match=message):
            backend.create_graph(GraphRequest(nodes))  # type: ignore[arg-type]
    assert graphs.new_objects() == before
    graph = backend.create_graph(GraphRequest((fill,)))
    backend.launch_graph(graph)
    assert await graphs.read(buffer) == [0x01010101]


async def test_an_update_is_of_the_launches_to_come(graphs: Device) -> None:
    """One that was submitted, and stands still, is as it was."""
    backend = graphs.backend
    buffer, other = graphs.write([1]), graphs.write([2])
    await backend.wait_default_stream()
    graph = backend.create_graph(chain(mixing(graphs, buffer, 3), GraphJoin()))
    release = graphs.hold()
    backend.launch_graph(graph)
    assert backend.update_graph(graph, chain(mixing(graphs, buffer, 4), GraphJoin()))
    backend.launch_graph(graph)
    assert backend.update_graph(graph, chain(mixing(graphs, other, 5), GraphJoin()))
    backend.launch_graph(graph)
    release()
    assert await graphs.read(buffer) == [(31 + 3) * 31 + 4]
    assert await graphs.read(other) == [2 * 31 + 5]
    assert not backend.update_graph(graph, chain(mixing(graphs, other, 6)))


async def test_events_are_recorded_in_their_places(graphs: Device) -> None:
    """Behind what they come after; another stream goes on from there."""
    backend = graphs.backend
    event = backend.create_event()
    stream = backend.create_stream()
    buffer, other = graphs.write([1]), graphs.write([0])
    await backend.wait_default_stream()
    graph = backend.create_graph(
        chain(
            mixing(graphs, buffer, 3),
            GraphCopy(buffer, other, 4),
            GraphRecord(event),
            mixing(graphs, buffer, 4),
        )
    )
    backend.launch_graph(graph)
    backend.stream_wait_event(stream, event)
    graphs.mix(other, 1, stream)
    await backend.wait_event(event)
    assert await graphs.read(other, stream) == [(31 + 3) * 31 + 1]
    assert await graphs.read(buffer) == [(31 + 3) * 31 + 4]


async def test_what_a_graph_uses_is_in_use_and_missed_when_gone(
    graphs: Device,
) -> None:
    backend = graphs.backend
    buffer, other = graphs.write([1]), graphs.write([1])
    await backend.wait_default_stream()
    graph = backend.create_graph(chain(mixing(graphs, buffer, 3)))
    release = graphs.hold()
    backend.launch_graph(graph)
    backend.destroy(buffer)
    assert backend.live_objects()["buffers"] > 0
    with pytest.raises(InvalidGraph, match="was destroyed"):
        backend.launch_graph(graph)
    assert backend.update_graph(graph, chain(mixing(graphs, other, 3)))
    backend.launch_graph(graph)
    release()
    assert await graphs.read(other) == [34]
    backend.destroy(graph)


async def test_loops_are_run_or_refused(graphs: Device) -> None:
    backend = graphs.backend
    buffer = graphs.write([1])
    turn = (GraphNode(mixing(graphs, buffer, 2)),)
    request = chain(GraphLoop((turn,), 3))
    if not backend.capabilities.device_loops:
        with pytest.raises(CapabilityMismatch, match="loops"):
            backend.create_graph(request)
        return
    backend.launch_graph(backend.create_graph(request))
    assert await graphs.read(buffer) == [((31 + 2) * 31 + 2) * 31 + 2]
