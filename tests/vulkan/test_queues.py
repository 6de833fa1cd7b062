"""Several queues: what crosses from one to another is waited for.

A device with one queue gets three of ours over it, each with a semaphore of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import anyio
import attrs
import numpy as np
import pytest

from accy_async.backends.vulkan import VulkanBackend
from accy_async.backends.vulkan.device import VulkanDevice as NativeDevice
from accy_async.session import open_session
from tests.conformance.devices import VulkanDevice, join_threads
from tests.graphs.programs import Program
from tests.graphs.test_properties import start
from tests.vulkan.test_runs import kernels

pytestmark = pytest.mark.vulkan

QUEUES = 3


@pytest.fixture(autouse=True)
def several_queues(monkeypatch: pytest.MonkeyPatch) -> None:
    create, queue = NativeDevice._create, NativeDevice.queue

    def create_and_pretend(device: NativeDevice) -> None:
        create(device)
        device.family = attrs.evolve(device.family, count=QUEUES)

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
    assert set(found) == set(device.vulkan._queues)
    for stream in streams:
        device.backend.destroy(stream)
    assert sum(queue.streams for queue in device.vulkan._queues) == 1


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


@pytest.mark.parametrize("loop", ["asyncio", "trio"])
@pytest.mark.parametrize("seed", range(2))
def test_random_graphs_leave_what_their_models_leave(loop: str, seed: int) -> None:
    programs = [Program(70 * seed + n, n, kernels()) for n in (10, 30, 60)]
    expected = [program.expected() for program in programs]
    backend = VulkanBackend()

    async def main() -> None:
        async with open_session(backend) as session:
            runs = [start(session, program, None) for program in programs]
            with anyio.fail_after(100):
                for run in runs:
                    await run

    anyio.run(main, backend=loop)
    for program, values in zip(programs, expected, strict=True):
        for name, array in values.items():
            np.testing.assert_array_equal(program.hosts[name], array, name)
    backend.close()
    join_threads()
    assert backend._device.made() == {}
