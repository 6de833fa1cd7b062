"""What nobody asks about nobody follows, and what is launched again is not recorded."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import cast

import anyio.lowlevel
import attrs
import numpy as np
import pytest

from accy_async.backends.vulkan import VulkanBackend
from accy_async.backends.vulkan.choice import DeviceType
from accy_async.backends.vulkan.hub import wait_for
from accy_async.backends.vulkan.queue import VulkanQueue
from accy_async.backends.vulkan.streams import VulkanStream
from accy_async.errors import InvalidType, InvalidValue
from tests.conformance.devices import VulkanDevice
from tests.vulkan.faults import faulty_vulkan

pytestmark = [pytest.mark.vulkan, pytest.mark.anyio]


@pytest.fixture
def device() -> Iterator[VulkanDevice]:
    device = VulkanDevice()
    yield device
    device.close()


def queue_of(device: VulkanDevice) -> VulkanQueue:
    return cast("VulkanStream", device.vulkan._default).queue


def until_run(device: VulkanDevice) -> None:
    """Wait for the device itself, of which the backend hears nothing."""
    queue = queue_of(device)
    pairs = [(queue.semaphore, queue.submitted)]
    assert wait_for(device.vulkan._device, pairs, 10**10) == 0


async def test_launches_that_nobody_waits_for_have_no_thread(
    device: VulkanDevice,
) -> None:
    before = set(threading.enumerate())
    buffer = device.write([0])
    prepared = device.backend.prepare_launch(device.request("count", [buffer]))
    for _ in range(100):
        device.backend.submit_launch(prepared)
    assert set(threading.enumerate()) == before
    assert await device.read(buffer) == [100]


async def test_what_has_run_is_forgotten_where_nobody_waits(
    device: VulkanDevice,
) -> None:
    buffer = device.write([0])
    await device.backend.wait_default_stream()
    prepared = device.backend.prepare_launch(device.request("count", [buffer]))
    queue = queue_of(device)
    for _ in range(6):
        for _ in range(32):
            device.backend.submit_launch(prepared)
        until_run(device)
    assert len(queue.flying) <= 64
    assert await device.read(buffer) == [192]


async def test_who_looks_without_waiting_sees_the_end(device: VulkanDevice) -> None:
    """Also where something is to be done on the host first, be it long or short."""
    backend = device.backend
    for words in (1, 1 << 17):
        data = np.arange(words, dtype=np.uint32)
        buffer = backend.allocate_buffer(data.nbytes)
        backend.write_buffer(buffer, data)
        out = np.zeros_like(data)
        backend.read_buffer(buffer, out)
        with anyio.fail_after(20):
            while not backend.is_stream_idle():
                await anyio.lowlevel.checkpoint()
        np.testing.assert_array_equal(out, data)


@pytest.mark.parametrize("kind", [DeviceType.CPU, DeviceType.DISCRETE_GPU])
async def test_launches_made_again_are_recorded_once(
    monkeypatch: pytest.MonkeyPatch, kind: DeviceType
) -> None:
    """Each alone, and together where that is good for the device."""
    library = faulty_vulkan(monkeypatch)
    device = VulkanDevice()
    native = device.vulkan._device
    native.chosen = attrs.evolve(native.chosen, kind=kind)
    backend = device.backend
    one, other = (device.write([0]) for _ in range(2))
    first, second = (
        backend.prepare_launch(device.request("count", [buffer]))
        for buffer in (one, other)
    )
    copy = backend.prepare_launch(device.request("copy", [other, one]))
    for number in range(4):
        library.calls.clear()
        for _ in range(3):
            for prepared in (first, second, first, copy):
                backend.submit_launch(prepared)
        backend.submit_launches([first, second, copy])
        begun = library.calls.count("vkBeginCommandBuffer")
        assert number < 2 or begun == (kind is DeviceType.CPU)
        # Seven of the first kind; the copies behind them give the other the same.
        assert await device.read(one) == [7 * (number + 1)]
        assert await device.read(other) == [7 * (number + 1)]
    device.close()


async def test_as_many_queues_as_are_asked_for() -> None:
    backend = VulkanBackend(queues=1)
    assert len(backend._computing) == 1
    backend.close()
    with pytest.raises(InvalidValue, match=r"VulkanBackend\.queues: got 0"):
        VulkanBackend(queues=0)
    with pytest.raises(InvalidType, match=r"VulkanBackend\.queues"):
        VulkanBackend(queues=True)
