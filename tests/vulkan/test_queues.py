"""Several queues: what crosses from one to another is waited for.

A device with one queue gets four of ours over it, each with a semaphore of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import anyio
import attrs
import numpy as np
import pytest

from accy_async.backends.completion import Completion
from accy_async.backends.devicegraph import GraphNode, GraphRequest
from accy_async.backends.loops import current_bell
from accy_async.backends.vulkan import VulkanBackend, streams
from accy_async.backends.vulkan.device import VulkanDevice as NativeDevice
from accy_async.backends.vulkan.families import QueueFamily
from accy_async.dtypes import DType, ScalarArgument
from accy_async.graph import LaunchGraphBuilder, LaunchOptions
from accy_async.session import open_session
from tests.conformance.devices import VulkanDevice
from tests.graphs.programs import Program
from tests.graphs.starting import start_program
from tests.vulkan import harness
from tests.vulkan.harness import join_threads
from tests.vulkan.sessions import kernels

pytestmark = pytest.mark.vulkan

QUEUES = 4


@pytest.fixture(autouse=True)
def several_queues(monkeypatch: pytest.MonkeyPatch) -> None:
    create, queue = NativeDevice._create, NativeDevice.queue

    def create_and_pretend(device: NativeDevice) -> None:
        create(device)
        device.family = attrs.evolve(device.family, count=QUEUES, urgent=1)

    def same_queue(device: NativeDevice, family: int, index: int) -> Any:
        assert index < QUEUES
        return queue(device, family, 0)

    monkeypatch.setattr(NativeDevice, "_create", create_and_pretend)
    monkeypatch.setattr(NativeDevice, "queue", same_queue)


@pytest.fixture
def device() -> Iterator[VulkanDevice]:
    device = VulkanDevice()
    yield device
    device.close()


@pytest.mark.anyio
async def test_streams_are_spread_over_the_queues(device: VulkanDevice) -> None:
    streams = [device.backend.create_stream() for _ in range(2 * QUEUES)]
    found = [device.vulkan._stream(stream).queue for stream in streams]  # type: ignore[attr-defined]
    # But not over those for urgent streams, and for copies alone.
    assert set(found) == set(device.vulkan._computing[:-1])
    for stream in streams:
        device.backend.destroy(stream)
    assert sum(queue.streams for queue in device.vulkan._queues) == 1


@pytest.mark.anyio
async def test_urgent_streams_have_a_queue_of_their_own(device: VulkanDevice) -> None:
    backend = device.backend
    assert backend.capabilities.priorities == (0, -1)
    stream = backend.create_stream(priority=-5)
    assert stream.priority == -1
    urgent = device.vulkan._computing[-1]
    assert device.vulkan._stream(stream).queue is urgent  # type: ignore[attr-defined]
    lazy = backend.create_stream(priority=5)
    assert lazy.priority == 0
    assert device.vulkan._stream(lazy).queue is not urgent  # type: ignore[attr-defined]


@pytest.mark.anyio
async def test_graphs_go_where_all_of_their_launches_are_urgent(
    device: VulkanDevice,
) -> None:
    """In order with what their stream does before and after, elsewhere."""
    backend, urgent = device.vulkan, device.vulkan._computing[-1]
    stream, buffer = backend.create_stream(), device.write([0])
    await backend.wait_default_stream()
    mix = backend.prepare_launch(
        device.request("mix", [buffer], [ScalarArgument.u32(1)])
    )
    first, second = GraphNode(mix, priority=-1), GraphNode(mix, (0,))
    for body, submitted in (
        ((first, attrs.evolve(second, priority=-2)), 1),
        ((first, second), 0),
    ):
        graph, before = backend.create_graph(GraphRequest(body)), urgent.submitted
        expected = 0
        backend.fill_buffer(buffer, b"\0", stream=stream)
        for tag in range(1, 9):
            device.mix(buffer, tag, stream)
            backend.launch_graph(graph, stream)
            expected = (expected * 31 + tag) * 31 * 31 + 31 + 1
        assert await device.read(buffer, stream) == [expected % 2**32]
        assert urgent.submitted - before == 8 * submitted


@pytest.mark.anyio
async def test_urgent_nodes_of_plans_run_there(device: VulkanDevice) -> None:
    urgent = device.vulkan._computing[-1]
    async with open_session(device.vulkan) as session:
        for lowering in ("never", "always"):
            before = urgent.submitted
            b = LaunchGraphBuilder()
            x = b.buffer("x", DType.U32, 1)
            b.fill(x, 3, priority=-1)
            count = (ScalarArgument.u32(1),)
            add = kernels().add
            b.kernel(add, [x.write, x.read, x.read], count, priority=-1)
            array = session.allocate(1, DType.U32)
            options = LaunchOptions(lowering=lowering)
            await session.run(b.build(), {"x": array}, options)
            assert (await session.download(array)).tolist() == [6]
            assert urgent.submitted > before


@pytest.mark.anyio
async def test_what_other_queues_wrote_is_waited_for(device: VulkanDevice) -> None:
    """By events, and by the buffers themselves."""
    backend = device.backend
    streams = [backend.create_stream() for _ in range(QUEUES)]
    event = backend.create_event()
    buffer = device.write([1], streams[0])
    expected = 1
    for turn in range(60):
        stream = streams[turn % QUEUES]
        if turn:
            backend.stream_wait_event(stream, event)
        device.mix(buffer, turn, stream)
        expected = (expected * 31 + turn) % 2**32
        backend.record_event(event, stream)
    last = streams[59 % QUEUES]
    assert await device.read(buffer, last) == [expected]
    other = streams[0]
    out = np.zeros(1, np.uint32)
    backend.read_buffer(buffer, out, stream=other)
    await backend.wait_stream(other)
    assert out.tolist() == [expected]


@pytest.mark.anyio
async def test_the_thread_hears_of_queues_that_it_does_not_wait_for(
    device: VulkanDevice,
) -> None:
    backend = device.backend
    streams = [backend.create_stream() for _ in range(QUEUES)]
    buffers = [device.write([n], stream) for n, stream in enumerate(streams)]
    for _ in range(20):
        async with anyio.create_task_group() as group:
            for stream, buffer in zip(streams, buffers, strict=True):
                device.mix(buffer, 1, stream)
                group.start_soon(backend.wait_stream, stream)
                await anyio.lowlevel.checkpoint()


@pytest.mark.anyio
async def test_streams_that_only_wait_for_other_queues_are_followed_there(
    device: VulkanDevice,
) -> None:
    """By who looks, and by who sleeps until a position that is not the last."""
    backend = device.backend
    one, other = backend.create_stream(), backend.create_stream()
    event = backend.create_event()
    buffer = device.write([1], one)
    line = backend.mark(other).timeline
    for sleeps in (False, True):
        completions = []
        for turn in range(2):
            device.mix(buffer, turn, one)
            backend.record_event(event, one)
            backend.stream_wait_event(other, event)
            if sleeps:
                completions.append(Completion(current_bell()))
                line.watch(line.submitted, completions[-1])
        with anyio.fail_after(5):
            for completion in completions:
                await completion.wait()
            while not backend.is_stream_idle(other):
                await anyio.lowlevel.checkpoint()
    state = device.vulkan._stream(other)
    device.mix(buffer, 2, other)
    backend.record_event(event, other)
    await backend.wait_stream(other)
    backend.stream_wait_event(other, event)
    assert state.queues == state._own  # type: ignore[attr-defined]


@pytest.mark.parametrize("loop", ["asyncio", "trio"])
@pytest.mark.parametrize("seed", range(2))
def test_random_graphs_leave_what_their_models_leave(loop: str, seed: int) -> None:
    run_programs(loop, seed)


def run_programs(loop: str, seed: int) -> None:
    backend = VulkanBackend(validation=harness.has_validation())
    programs = [Program(70 * seed + n, n, kernels()) for n in (10, 30, 60)]
    expected = [program.expected() for program in programs]

    async def main() -> None:
        async with open_session(backend) as session:
            runs = [start_program(session, program) for program in programs]
            with anyio.fail_after(100):
                for run in runs:
                    await run

    anyio.run(main, backend=loop)
    for program, values in zip(programs, expected, strict=True):
        program.check(values)
    backend.close()
    join_threads()
    assert backend._device.made() == {}
    assert backend.validation_messages == ()


# A queue for copies


@pytest.fixture
def copying_family(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if devices had a family for copies; it is ours, and only copies."""
    found = NativeDevice._families

    def and_copies(device: NativeDevice) -> tuple[QueueFamily, QueueFamily]:
        kernels, _ = found(device)
        return kernels, QueueFamily(kernels.index, 1, can_compute=False)

    def created_once(device: NativeDevice) -> None:
        both, device.copying = device.copying, None
        create(device)
        device.copying = both

    create = NativeDevice._create
    monkeypatch.setattr(NativeDevice, "_families", and_copies)
    monkeypatch.setattr(NativeDevice, "_create", created_once)


@pytest.fixture
def copying(copying_family: None) -> Iterator[VulkanDevice]:
    device = VulkanDevice()
    yield device
    device.close()


LARGE = 1 << 18
"""Words of a buffer whose copies go to that queue."""


@pytest.mark.anyio
async def test_large_copies_go_to_a_queue_of_their_own(copying: VulkanDevice) -> None:
    """And kernels, small copies and events of a stream stay in order with them."""
    backend = copying.vulkan
    queue = backend._copying
    assert queue is not None
    stream = backend.create_stream()
    buffer = copying.write([0] * LARGE, stream)
    before = queue.submitted
    small = copying.write([1], stream)
    assert (before, queue.submitted) == (1, 1)
    expected = 1
    values = np.zeros(LARGE, np.uint32)
    event = backend.create_event(timing=True)
    for turn in range(5):
        values[0] = expected
        backend.write_buffer(buffer, values, stream=stream)
        copying.mix(buffer, turn, stream)
        backend.record_event(event, stream)
        backend.copy_buffer(buffer, small, byte_size=4, stream=stream)
        out = np.zeros(LARGE, np.uint32)
        backend.read_buffer(buffer, out, stream=stream)
        await backend.wait_event(event)
        expected = (expected * 31 + turn) % 2**32
        assert await copying.read(small, stream) == [expected]
        assert out[0] == expected
    assert queue.submitted == 11
    assert backend.is_stream_idle(stream)


@pytest.mark.anyio
async def test_a_long_copy_is_followed_whatever_has_it_submitted(
    copying: VulkanDevice,
) -> None:
    """Nobody waits: what it was staged in is given back nevertheless."""
    backend = copying.vulkan
    stream, small = backend.create_stream(), copying.write([1])
    buffer = backend.allocate_buffer(4 * LARGE)
    await backend.wait_device()
    used = backend.memory_statistics()["staging_used_bytes"]
    with backend._gather():
        backend.write_buffer(buffer, np.ones(LARGE, np.uint32), stream=stream)
        backend.copy_buffer(buffer, small, byte_size=4, stream=stream)
    with anyio.fail_after(5):
        while backend.memory_statistics()["staging_used_bytes"] > used:
            await anyio.lowlevel.checkpoint()
    assert await copying.read(small, stream) == [1]


@pytest.mark.anyio
async def test_other_streams_wait_for_copies_by_events(copying: VulkanDevice) -> None:
    backend = copying.vulkan
    first, second = backend.create_stream(), backend.create_stream()
    event = backend.create_event()
    values = np.full(LARGE, 7, np.uint32)
    buffer = backend.allocate_buffer(values.nbytes)
    small = copying.write([2], second)
    for turn in range(5):
        backend.write_buffer(buffer, values + np.uint32(turn), stream=first)
        backend.record_event(event, first)
        copying.mix(small, 1, second)
        backend.stream_wait_event(second, event)
        backend.copy_buffer(buffer, small, byte_size=4, stream=second)
        assert await copying.read(small, second) == [7 + turn]


@pytest.mark.parametrize("seed", [2, 3])
def test_random_graphs_with_every_copy_on_that_queue(
    copying: VulkanDevice, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "_LEAST_APART_BYTES", 0)
    run_programs("asyncio", seed)


def test_barriers_of_a_copying_family_name_no_shader(copying: VulkanDevice) -> None:
    backend = copying.vulkan
    queue, lib = backend._copying, backend._device.vulkan.lib
    assert queue is not None
    for barrier in (queue.synchronization, backend._queues[0].synchronization):
        is_copying = barrier is queue.synchronization
        shaders = lib.VK_ACCESS_SHADER_WRITE_BIT | lib.VK_ACCESS_SHADER_READ_BIT
        stage = lib.VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT
        assert bool(barrier._work & stage) is not is_copying
        for one in (barrier._apart, barrier._to_host):
            assert bool(one.srcAccessMask & shaders) is not is_copying


def test_buffers_are_shared_by_both_families(copying: VulkanDevice) -> None:
    device = copying.vulkan._device
    lib = device.vulkan.lib
    assert device.sharing == {"sharingMode": lib.VK_SHARING_MODE_EXCLUSIVE}
    device.copying = QueueFamily(device.family.index + 2, 1, can_compute=False)
    shared = device.sharing
    assert shared["sharingMode"] == lib.VK_SHARING_MODE_CONCURRENT
    assert shared["queueFamilyIndexCount"] == 2
    both = [device.family.index, device.family.index + 2]
    assert list(shared["pQueueFamilyIndices"]) == both  # type: ignore[call-overload]
