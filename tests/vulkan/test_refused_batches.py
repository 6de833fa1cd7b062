"""What was to follow a batch that the driver has refused, on its queue and others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import anyio
import attrs
import pytest

from accy_async.backends import StreamHandle
from accy_async.backends.vulkan.choice import DeviceType
from accy_async.backends.vulkan.queue import VulkanQueue
from accy_async.backends.vulkan.results import VkResult
from accy_async.backends.vulkan.streams import VulkanStream
from accy_async.errors import DeviceError, OutOfMemory
from tests.conformance.devices import VulkanDevice
from tests.vulkan.faults import FaultyLibrary, faulty_vulkan
from tests.vulkan.test_queues import several_queues

__all__ = ["several_queues"]

pytestmark = [pytest.mark.vulkan, pytest.mark.anyio]


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch, several_queues: None) -> FaultyLibrary:
    return faulty_vulkan(monkeypatch)


@pytest.fixture
def device(library: FaultyLibrary) -> Iterator[VulkanDevice]:
    device = VulkanDevice()
    yield device
    library.fault = lambda number, name: None
    device.close()


def queue_of(device: VulkanDevice, stream: StreamHandle | None = None) -> VulkanQueue:
    return cast("VulkanStream", device.vulkan._stream(stream)).queue


def refuse(library: FaultyLibrary, refused: str) -> None:
    library.fault = lambda number, name: (
        VkResult.OUT_OF_HOST_MEMORY if name == refused else None
    )


async def test_other_queues_wait_for_no_batch_that_was_refused(
    device: VulkanDevice, library: FaultyLibrary
) -> None:
    backend = device.backend
    one, other = backend.create_stream(), backend.create_stream()
    buffer = device.write([1], one)
    refuse(library, "vkQueueSubmit")
    with pytest.raises(OutOfMemory):
        device.mix(buffer, 1, one)
    refuse(library, "")
    device.mix(buffer, 2, other)
    with anyio.fail_after(5):
        assert await device.read(buffer, other) == [33]
    with pytest.raises(DeviceError):
        await backend.wait_stream(one)


async def test_what_a_refused_batch_was_to_wait_for_is_waited_for_in_its_place(
    device: VulkanDevice, library: FaultyLibrary
) -> None:
    """By the next batch of its queue, and by what would have waited for it."""
    streams = [device.backend.create_stream() for _ in range(3)]
    queues = [queue_of(device, stream) for stream in streams]
    buffer = device.write([1], streams[0])
    refuse(library, "vkQueueSubmit")
    with pytest.raises(OutOfMemory):
        device.mix(buffer, 1, streams[1])
    refuse(library, "")
    queues[2].wait_for(queues[1], queues[1].submitted + 1)
    for queue in queues[1:]:
        assert queue.batch().waits == {queues[0]: 1}


@pytest.mark.parametrize(
    "refused", ["vkQueueSubmit", "vkEndCommandBuffer", "vkBeginCommandBuffer"]
)
async def test_barriers_are_not_lost_with_their_batch(
    device: VulkanDevice,
    library: FaultyLibrary,
    refused: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    backend = device.backend
    native = device.vulkan._device
    native.chosen = attrs.evolve(native.chosen, kind=DeviceType.DISCRETE_GPU)
    source, one, other = (device.write([n]) for n in range(3))
    count = backend.prepare_launch(device.request("count", [source]))
    copy = backend.prepare_launch(device.request("copy", [one, source]))
    backend.submit_launches([count, copy])
    await backend.wait_default_stream()
    backend.submit_launch(count)
    refuse(library, refused)
    with pytest.raises(OutOfMemory):  # is recorded for itself where it comes again
        backend.submit_launch(copy)
    refuse(library, "")
    if refused == "vkQueueSubmit":
        with pytest.raises(DeviceError):
            await backend.wait_default_stream()
    barriers: list[object] = []
    synchronization = queue_of(device).synchronization
    monkeypatch.setattr(synchronization, "hold_apart", barriers.append)
    backend.copy_buffer(source, other)
    assert barriers
