"""Recorded plans that change: other buffers, other scalars, other awaited nodes."""

from __future__ import annotations

from typing import Any

import anyio
import attrs
import numpy as np
import pytest

from accy_async.backends.devicegraph import GraphNode, GraphRequest
from accy_async.backends.vulkan import VulkanBackend
from accy_async.dtypes import DType, ScalarArgument
from accy_async.graph import LaunchGraphBuilder, LaunchOptions
from accy_async.graph.lowering import LoweredGraph
from accy_async.session import Session
from tests.conformance.devices import VulkanDevice
from tests.vulkan.sessions import kernels, on_vulkan, two_kernels

pytestmark = pytest.mark.vulkan

U32 = DType.U32
ALWAYS = LaunchOptions(lowering="always")
ONE = ScalarArgument.u32(1)


def test_c63_new_buffers_and_scalars_each_time() -> None:
    """C63: replays with buffers of five sizes in turn; one graph, memory flat."""
    most, sizes = 512, (512, 1, 63, 200, 511)
    plan = two_kernels(most)

    async def work(session: Session, backend: VulkanBackend) -> None:
        values = np.arange(most, dtype=np.uint32)
        x = await session.upload(values)
        prepared = None
        used, made = [], []
        for number in range(100):
            size = sizes[number % 5]
            y, z = session.allocate(most, U32), session.allocate(most, U32)
            scalars = (ScalarArgument.u32(size), ScalarArgument.u32(number))
            if prepared is None:
                options = attrs.evolve(ALWAYS, runtime_scalars=scalars)
                bindings = {"x": x, "y": y, "z": z}
                prepared = await session.prepare(plan, bindings, options)
            else:
                await prepared.rebind({"y": y, "z": z}, scalars)
            await prepared.run()
            found = await session.download(z)
            wanted = values[:size] * np.uint32(number) + 2 * values[:size]
            np.testing.assert_array_equal(found[:size], wanted)
            used.append(backend.memory_statistics()["used_bytes"])
            made.append(backend._device.made())
            y.free()
            z.free()
        assert prepared is not None
        assert prepared.made == 1
        assert max(used[10:]) <= max(used[:10])
        assert made[10] == made[-1]

    on_vulkan(work)


def test_changes_leave_what_is_in_flight() -> None:
    """Behind a gate or not, each launch has the scalar that it was submitted with."""
    device = VulkanDevice()
    backend = device.backend

    def mixing(tag: int) -> GraphRequest:
        request = device.request("mix", [buffer], [ScalarArgument.u32(tag)])
        return GraphRequest((GraphNode(backend.prepare_launch(request)),))

    async def main() -> None:
        graph = backend.create_graph(mixing(0))
        expected = 1
        with device.vulkan._gather():  # none of it is with the driver meanwhile
            for tag in range(40):
                if tag:
                    assert backend.update_graph(graph, mixing(tag))
                backend.launch_graph(graph)
                expected = (expected * 31 + tag) % 2**32
        assert await device.read(buffer) == [expected]
        backend.destroy(graph)

    buffer = device.write([1])
    anyio.run(main, backend="asyncio")
    device.close()


def test_only_touched_parts_are_recorded_again() -> None:
    """Of a hundred nodes in four parts, the one with the last node."""
    b = LaunchGraphBuilder()
    x, y, one = b.buffer("x", U32, 1), b.buffer("y", U32, 1), b.buffer("one", U32, 1)
    for _ in range(100):
        b.kernel(kernels().add, [x.read_write, x.read_write, one.read], (ONE,))
    b.kernel(kernels().add, [y.write, x.read, one.read], (ONE,))
    plan = b.build()

    async def work(session: Session, backend: VulkanBackend) -> None:
        arrays = [await session.upload(np.array([n], np.uint32)) for n in (0, 0, 1)]
        bindings = dict(zip(("x", "y", "one"), arrays, strict=True))
        prepared = await session.prepare(
            plan, bindings, attrs.evolve(ALWAYS, runtime_scalars=())
        )
        lowered = prepared._prepared.lowered
        assert isinstance(lowered, LoweredGraph)
        graph = backend._table.get(lowered._graph).payload  # type: ignore[arg-type]
        before = graph.segments[0].recordings  # type: ignore[attr-defined]
        other = session.allocate(1, U32)
        await prepared.rebind({"y": other})
        after = graph.segments[0].recordings  # type: ignore[attr-defined]
        same = [a is b for a, b in zip(before, after, strict=True)]
        assert same == [True, True, True, False]
        await prepared.run()
        assert (await session.download(other))[0] == 101

    on_vulkan(work)


def test_awaited_nodes_and_their_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node awaited before is told of while the graph goes on, its array filled."""
    b = LaunchGraphBuilder()
    x = b.scratch("x", U32, 1000)
    first, second = b.host("first", U32, 1000), b.host("second", U32, 1000)
    b.fill(x, 1, name="ones")
    b.copy_out(x, first, name="read ones")
    b.fill(x, 2, name="twos")
    b.copy_out(x, second, name="read twos")
    plan = b.build()
    launched: list[int] = []
    launch = VulkanBackend._launch_graph

    def counting(self: VulkanBackend, stream: Any, graph: Any, guard_of: Any) -> int:
        launched.append(len(graph.segments))
        return launch(self, stream, graph, guard_of)

    monkeypatch.setattr(VulkanBackend, "_launch_graph", counting)

    async def work(session: Session, backend: VulkanBackend) -> None:
        one, two = np.zeros(1000, np.uint32), np.zeros(1000, np.uint32)
        for _ in range(3):
            run = session.start(plan, {"first": one, "second": two}, ALWAYS)
            await run["read ones"]
            assert one.sum() == 1000
            await run
            assert two.sum() == 2000
            one.fill(0)
            two.fill(0)
        assert launched == [1, 2, 2]

    on_vulkan(work)
