"""Random work on random streams, of which the driver refuses now and then a part.

Whatever it refuses, and on whichever queue: every wait ends, everything is given back,
and what was refused nowhere is right.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence

import anyio.lowlevel
import numpy as np
import pytest

from accy_async.backends import BufferHandle, EventHandle, StreamHandle
from accy_async.backends.devicegraph import GraphFill, GraphNode, GraphRequest
from accy_async.backends.vulkan.results import VkResult
from accy_async.errors import AccyError
from tests.conformance.devices import VulkanDevice
from tests.vulkan.faults import FaultyLibrary, faulty_vulkan
from tests.vulkan.test_queues import LARGE, copying_family, several_queues

__all__ = ["copying_family", "several_queues"]

pytestmark = [pytest.mark.vulkan, pytest.mark.anyio]

REFUSED = frozenset({"vkQueueSubmit", "vkEndCommandBuffer", "vkBeginCommandBuffer"})
WORDS = np.arange(LARGE, dtype=np.uint32)


class Work:
    """Operations drawn at random.

    Attributes:
        used_bytes: how much memory was in use before.
    """

    def __init__(self, device: VulkanDevice, draw: random.Random) -> None:
        self._device, self._draw = device, draw
        backend = self._backend = device.vulkan
        self.used_bytes = backend.memory_statistics()["used_bytes"]
        self.streams = [
            backend.create_stream(priority=draw.choice([0, 0, -1])) for _ in range(5)
        ]
        self._events = [
            backend.create_event(timing=draw.random() < 0.3) for _ in range(4)
        ]
        self._recorded: list[EventHandle] = []
        sizes = [4 * LARGE] * 2 + [64] * 3
        self._buffers = [backend.allocate_buffer(size) for size in sizes]
        target = self._graph_buffer = backend.allocate_buffer(64)
        count = backend.prepare_launch(device.request("count", [target]))
        fill = GraphFill(target, b"\1", 64)
        nodes = GraphNode(fill), GraphNode(count, (0,))
        self._graph = backend.create_graph(GraphRequest(nodes))

    def do_one(self) -> None:
        """One of them."""
        draw, backend, device = self._draw, self._backend, self._device
        stream, buffer = draw.choice(self.streams), draw.choice(self._buffers)
        words = WORDS[: buffer.byte_size // 4]

        def record() -> None:
            event = draw.choice(self._events)
            backend.record_event(event, stream)
            self._recorded.append(event)

        def wait() -> None:
            if self._recorded:
                backend.stream_wait_event(stream, draw.choice(self._recorded))

        def copy() -> None:
            source = draw.choice(self._buffers)
            size = min(source.byte_size, buffer.byte_size)
            backend.copy_buffer(source, buffer, byte_size=size, stream=stream)

        operations: list[Callable[[], object]] = [
            lambda: backend.write_buffer(buffer, words, stream=stream),
            lambda: backend.read_buffer(buffer, np.empty_like(words), stream=stream),
            lambda: device.mix(buffer, draw.randrange(9), stream),
            lambda: device.mix(buffer, draw.randrange(9), stream),
            lambda: backend.launch_graph(self._graph, stream),
            lambda: self._replace(buffer),
            record,
            wait,
            copy,
        ]
        if draw.random() < 0.05:
            operations = [lambda: device.fail(stream)]
        draw.choice(operations)()

    def _replace(self, buffer: BufferHandle) -> None:
        self._backend.destroy(buffer)
        made = self._backend.allocate_buffer(buffer.byte_size)
        self._buffers[self._buffers.index(buffer)] = made

    def destroy(self) -> None:
        """Destroy all that it has."""
        self._backend.destroy(self._graph)
        self._backend.destroy(self._graph_buffer)
        for some in (self.streams, self._events, self._buffers):
            for handle in some:
                self._backend.destroy(handle)


@pytest.fixture
def library(
    several_queues: None, copying_family: None, monkeypatch: pytest.MonkeyPatch
) -> FaultyLibrary:
    return faulty_vulkan(monkeypatch)


@pytest.fixture
def device(library: FaultyLibrary) -> Iterator[VulkanDevice]:
    device = VulkanDevice()
    yield device
    library.fault = lambda number, name: None
    device.close()


async def settle(device: VulkanDevice, streams: Sequence[StreamHandle]) -> None:
    """Wait for all that they have, however it ends."""
    for stream in streams:
        for _ in range(9):  # a wait tells of one failure
            try:
                with anyio.fail_after(10):
                    await device.backend.wait_stream(stream)
            except AccyError:
                continue
            break


@pytest.mark.parametrize("anyio_backend", ["asyncio"])  # the driver knows no loop
@pytest.mark.parametrize("seed", range(8))
async def test_whatever_is_refused_all_of_it_ends(
    device: VulkanDevice, library: FaultyLibrary, seed: int
) -> None:
    draw, backend = random.Random(seed), device.vulkan
    work, left, refusals = Work(device, draw), 0, 0

    def fault(number: int, name: str) -> int | None:
        nonlocal left, refusals
        if not left or name not in REFUSED:
            return None
        left -= 1
        refusals += not left
        return None if left else VkResult.OUT_OF_HOST_MEMORY

    library.fault = fault
    for _ in range(100):
        if draw.random() < 0.1:
            left = draw.randrange(1, 4)
        try:
            if draw.random() < 0.2:
                with backend._gather():
                    for _ in range(4):
                        work.do_one()
            else:
                work.do_one()
        except AccyError:  # what nobody submits later has to end, too
            await settle(device, draw.sample(work.streams, 2))
    left = 0
    assert refusals
    await settle(device, work.streams)
    for stream in work.streams:  # all of them go on
        buffer = device.write([5], stream)
        device.mix(buffer, 1, stream)
        assert await device.read(buffer, stream) == [156]
        backend.destroy(buffer)
    work.destroy()
    with anyio.fail_after(10):
        while device.new_objects():
            await anyio.lowlevel.checkpoint()
    assert backend.memory_statistics()["used_bytes"] == work.used_bytes
    assert len(backend._clock._slots) % 256 == 0
