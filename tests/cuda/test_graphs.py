"""What the backend asks of the driver for device graphs, on a made-up one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import numpy as np
import pytest

import accy_async
from accy_async.artifact import ArtifactFormat, FixedLaunch, KernelArtifact
from accy_async.backends import BufferBinding, BufferHandle, LaunchRequest
from accy_async.backends.cuda import CudaBackend
from accy_async.backends.devicegraph import (
    GraphCopy,
    GraphDownload,
    GraphFill,
    GraphJoin,
    GraphLoop,
    GraphNode,
    GraphRecord,
    GraphRequest,
    GraphUpload,
)
from accy_async.backends.launch import PreparedLaunch
from accy_async.errors import AccyError, DeviceError
from accy_async.graph import LaunchGraphBuilder
from tests.graph.graphs import kernel_entry

if TYPE_CHECKING:
    from tests.cuda.fake import FakeDriver

KERNEL = KernelArtifact(
    kernel_name="step",
    format=ArtifactFormat.CUDA_PTX,
    argument_count=1,
    scalar_argument_count=0,
    payload=".version 7.0\n.target sm_80\n.visible .entry step(.param .u64 x) { ret; }",
)


class Parts:
    """Two buffers and a kernel."""

    def __init__(self, backend: CudaBackend) -> None:
        self.backend = backend
        self.loaded = backend.load_artifact(KERNEL)
        self.one, self.other = (backend.allocate_buffer(64) for _ in range(2))

    def launch(self, buffer: BufferHandle, **geometry: object) -> PreparedLaunch:
        options = {"grid": (2, 1, 1), "threadgroup": (32, 1, 1), **geometry}
        return self.backend.prepare_launch(
            LaunchRequest(
                artifact=KERNEL,
                loaded=self.loaded,
                geometry=FixedLaunch(**options),  # type: ignore[arg-type]
                buffers=(BufferBinding(handle=buffer),),
            )
        )

    def everything(self, buffer: BufferHandle) -> GraphRequest:
        """A graph with nodes of every kind."""
        turns = tuple((GraphNode(self.launch(b)),) for b in (self.one, self.other))
        return GraphRequest(
            (
                GraphNode(GraphFill(buffer, b"\1\2", 64)),
                GraphNode(GraphFill(self.other, bytes(range(8)), 64), (0,)),
                GraphNode(GraphUpload(ARRAY, buffer), (1,)),
                GraphNode(self.launch(buffer), (1, 2), priority=-1),
                GraphNode(GraphCopy(buffer, self.other, 64), (3,)),
                GraphNode(GraphLoop(turns, count=7), (4,)),
                GraphNode(GraphLoop(turns[:1], conditions=(self.other,)), (5,)),
                GraphNode(GraphDownload(buffer, ARRAY), (6,)),
                GraphNode(GraphJoin(), (7,)),
            )
        )


ARRAY = np.arange(64, dtype=np.uint8)


def calls_since(driver: FakeDriver, before: dict[str, int]) -> dict[str, int]:
    now = {name: n - before.get(name, 0) for name, n in driver.calls.items()}
    return {name: n for name, n in now.items() if n and name.startswith("cuGraph")}


def test_every_node_becomes_one_of_the_drivers(
    driver: FakeDriver, backend: CudaBackend
) -> None:
    """Two for eight-byte fills; loops have kernels that decide, and bodies within."""
    parts = Parts(backend)
    graph = backend.create_graph(parts.everything(parts.one))
    assert calls_since(driver, {}) == {
        "cuGraphCreate": 1,
        "cuGraphAddMemsetNode": 3,
        "cuGraphAddMemcpyNode": 3,
        # One node; two turns, their begin and what decides after each; a turn more.
        "cuGraphAddKernelNode": 1 + (2 + 1 + 2) + (1 + 1 + 1),
        "cuGraphKernelNodeSetAttribute": 1,
        "cuGraphAddNode": 3,
        "cuGraphConditionalHandleCreate": 3,
        "cuGraphAddEmptyNode": 1,
        "cuGraphInstantiate": 1,
    }
    before = dict(driver.calls)
    backend.launch_graph(graph)
    assert calls_since(driver, before) == {"cuGraphLaunch": 1}
    anyio.run(backend.wait_default_stream)
    backend.destroy(graph)
    assert driver.calls["cuGraphExecDestroy"] == driver.calls["cuGraphDestroy"] == 1


def test_an_update_sets_what_changed_alone(
    driver: FakeDriver, backend: CudaBackend
) -> None:
    """In place, unless the driver refuses or a loop is concerned."""
    parts = Parts(backend)
    stays = GraphNode(parts.launch(parts.one))
    fill = GraphNode(GraphFill(parts.one, b"\0", 64))
    graph = backend.create_graph(GraphRequest((stays, fill, stays)))
    moved = GraphNode(GraphFill(parts.other, b"\1", 64))
    before = dict(driver.calls)
    assert backend.update_graph(graph, GraphRequest((stays, moved, stays)))
    assert calls_since(driver, before) == {"cuGraphExecMemsetNodeSetParams": 1}
    driver.answers["cuGraphExecKernelNodeSetParams"] = [910]
    other = GraphNode(parts.launch(parts.other))
    assert not backend.update_graph(graph, GraphRequest((stays, moved, other)))
    looped = backend.create_graph(parts.everything(parts.one))
    third = backend.allocate_buffer(64)
    assert not backend.update_graph(looped, parts.everything(third))


def test_a_graph_that_cannot_be_made_leaves_nothing(
    driver: FakeDriver, backend: CudaBackend
) -> None:
    """Whichever call of the driver's fails: what was made before is destroyed."""
    parts = Parts(backend)
    backend.destroy(backend.create_graph(parts.everything(parts.one)))
    for name in calls_since(driver, {}):
        if "Destroy" in name:
            continue
        driver.answers[name] = [1]
        with pytest.raises(AccyError, match=name):
            backend.create_graph(parts.everything(parts.one))
        # A graph that was not created need not be destroyed: the first name's.
        assert driver.calls["cuGraphCreate"] == driver.calls["cuGraphDestroy"] + 1
    assert backend.live_objects()["graphs"] == 0


def test_events_are_recorded_in_the_graph_and_stores_follow(
    driver: FakeDriver, backend: CudaBackend
) -> None:
    """Who waits for one finds in the host's array what was copied out before it."""
    parts = Parts(backend)
    first, second = np.zeros(64, np.uint8), np.zeros(64, np.uint8)
    event = backend.create_event()
    request = GraphRequest(
        (
            GraphNode(GraphDownload(parts.one, first)),
            GraphNode(GraphRecord(event), (0,)),
            GraphNode(GraphDownload(parts.other, second), (0,)),
        )
    )
    graph = backend.create_graph(request)
    assert driver.calls["cuGraphAddEventRecordNode"] == 1
    backend.launch_graph(graph)
    side = backend.create_stream()
    backend.stream_wait_event(side, event)
    anyio.run(backend.wait_stream, side)
    anyio.run(backend.wait_default_stream)
    assert backend.is_event_complete(event)


@pytest.mark.parametrize("tells_addresses", [False, True])
def test_a_launch_that_is_refused_is_told(
    driver: FakeDriver, backend: CudaBackend, tells_addresses: bool
) -> None:
    """With the call and the driver's code; the next one works."""
    driver.tells_addresses = tells_addresses
    parts = Parts(backend)
    graph = backend.create_graph(GraphRequest((GraphNode(parts.launch(parts.one)),)))
    driver.answers["cuGraphLaunch"] = [801, 1]
    with pytest.raises(AccyError, match="cuGraphLaunch"):
        backend.launch_graph(graph)
    with pytest.raises(DeviceError, match="cuGraphLaunch"):
        backend.launch_graph(graph)
    backend.launch_graph(graph)


@pytest.mark.parametrize("tells_addresses", [False, True])
def test_a_graph_is_launched_on_the_stream_that_it_is_given(
    driver: FakeDriver,
    backend: CudaBackend,
    monkeypatch: pytest.MonkeyPatch,
    tells_addresses: bool,
) -> None:
    driver.tells_addresses = tells_addresses
    parts, launched = Parts(backend), []

    def launch(executable: object, stream: object) -> tuple[int]:
        launched.append((int(executable), int(stream)))  # type: ignore[call-overload]
        return (0,)

    monkeypatch.setitem(driver._made, "cuGraphLaunch", launch)
    graph = backend.create_graph(GraphRequest((GraphNode(parts.launch(parts.one)),)))
    streams = [backend.create_stream() for _ in range(2)]
    for stream in (*streams, *streams):
        backend.launch_graph(graph, stream)
    numbers = [int(backend._stream(one).native) for one in streams]  # type: ignore[attr-defined]
    assert [stream for _, stream in launched] == 2 * numbers
    assert len({executable for executable, _ in launched}) == 1


def test_a_plan_with_calls_is_a_graph_for_each_part(driver: FakeDriver) -> None:
    """From its second run on; and each call is told of by an event of its own."""
    entry = kernel_entry(0, payload=KERNEL.payload, entry_name="step")
    b = LaunchGraphBuilder(edges="explicit")
    last: tuple[str, ...] = ()
    for part in range(3):
        for place in range(8):
            b.kernel(entry, name=f"k{part}{place}", after=last)
            last = (f"k{part}{place}",)
        if part < 2:
            b.host_call(lambda: None, name=f"call{part}", after=last)
            last = (f"call{part}",)
    plan = b.build()

    async def main() -> None:
        async with accy_async.open_session(CudaBackend()) as session:
            assert not (await session.run(plan)).is_lowered
            for _ in range(2):
                before = driver.calls.copy()
                statistics = await session.run(plan)
                calls = driver.calls - before
                assert statistics.is_lowered
                assert statistics.host_calls == 2
                assert calls["cuGraphLaunch"] == 3
                assert calls["cuLaunchKernelEx"] == 0
            assert calls["cuGraphInstantiate"] == 0
            assert calls["cuStreamWaitEvent"] == 2

    accy_async.run(main)
