"""What was to follow a batch that the driver has refused, on its queue and others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, cast

import anyio
import attrs
import numpy as np
import pytest

from accy_async.backends import BufferHandle, EventHandle, StreamHandle
from accy_async.backends.vulkan.choice import DeviceType
from accy_async.backends.vulkan.queue import VulkanQueue
from accy_async.backends.vulkan.results import VkResult
from accy_async.backends.vulkan.streams import VulkanStream
from accy_async.errors import DeviceError, OutOfMemory
from tests.conformance.devices import VulkanDevice
from tests.vulkan.faults import FaultyLibrary, faulty_vulkan
from tests.vulkan.test_queues import LARGE, copying_family, several_queues

__all__ = ["copying_family", "several_queues"]

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


# Behind what is on another queue


@attrs.frozen
class Scene:
    """A stream with a large copy at work, and a launch behind it that was refused.

    Attributes:
        device: the device.
        copying: the copy's queue, which is not seen to have run anything.
        stream: the stream.
        large: what the copy writes.
        event: recorded with the launch.
        let_go: has the queue seen.
    """

    device: VulkanDevice
    copying: VulkanQueue
    stream: StreamHandle
    large: BufferHandle
    event: EventHandle
    let_go: Callable[[], None]


@pytest.fixture
def scene(
    copying_family: None,
    device: VulkanDevice,
    library: FaultyLibrary,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Scene]:
    backend, copying = device.backend, device.vulkan._copying
    assert copying is not None
    ask, hidden = VulkanQueue._ask, [copying]

    def ask_others(queue: VulkanQueue, counter: Any) -> None:
        ask(queue, counter)
        if queue in hidden:
            counter[0] = 0

    monkeypatch.setattr(VulkanQueue, "_ask", ask_others)
    stream = backend.create_stream()
    small = device.write([1], backend.create_stream())
    large = backend.allocate_buffer(4 * LARGE)
    backend.write_buffer(large, np.ones(LARGE, np.uint32), stream=stream)
    event = backend.create_event()
    refuse(library, "vkQueueSubmit")
    with pytest.raises(OutOfMemory), device.vulkan._gather():
        device.mix(small, 1, stream)
        backend.record_event(event, stream)
    refuse(library, "")
    yield Scene(device, copying, stream, large, event, hidden.clear)
    hidden.clear()


async def test_what_was_refused_ends_behind_a_copy_on_another_queue(
    scene: Scene,
) -> None:
    backend = scene.device.backend
    assert not backend.is_stream_idle(scene.stream)
    with pytest.raises(TimeoutError), anyio.fail_after(0.01):
        await backend.wait_stream(scene.stream)
    scene.let_go()
    with pytest.raises(DeviceError, match="refused"), anyio.fail_after(5):
        await backend.wait_stream(scene.stream)


async def test_nothing_is_freed_that_a_copy_before_what_was_refused_writes(
    scene: Scene,
) -> None:
    backend = scene.device.vulkan
    used = backend.memory_statistics()["used_bytes"]
    backend.destroy(scene.large)
    assert backend.memory_statistics()["used_bytes"] == used
    scene.let_go()
    with pytest.raises(DeviceError, match="refused"), anyio.fail_after(5):
        await backend.wait_stream(scene.stream)
    backend.live_objects()  # looks
    assert backend.memory_statistics()["used_bytes"] == used - 4 * LARGE


async def test_others_wait_for_the_copy_by_an_event_that_was_refused(
    scene: Scene,
) -> None:
    """One recorded with the launch, and one recorded after it."""
    backend = scene.device.vulkan
    later = backend.create_event()
    backend.record_event(later, scene.stream)
    for event in (scene.event, later):
        other = backend.create_stream()
        backend.stream_wait_event(other, event)
        assert not backend.is_stream_idle(other)
        state = cast("VulkanStream", backend._stream(other))
        assert state.batch is not None
        assert state.batch.queue is scene.copying
    scene.let_go()
    with pytest.raises(DeviceError, match="refused"), anyio.fail_after(5):
        await backend.wait_stream(other)


async def test_a_refused_copy_ends_behind_the_launches_before_it(
    copying_family: None,
    device: VulkanDevice,
    library: FaultyLibrary,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    backend = device.backend
    stream = backend.create_stream()
    buffer = device.write([0] * LARGE, stream)
    await backend.wait_stream(stream)
    ask, queue, hidden = VulkanQueue._ask, queue_of(device, stream), [True]
    before = queue.reached()

    def ask_others(asked: VulkanQueue, counter: Any) -> None:
        ask(asked, counter)
        if asked is queue and hidden:
            counter[0] = before

    monkeypatch.setattr(VulkanQueue, "_ask", ask_others)
    device.mix(buffer, 1, stream)
    refuse(library, "vkQueueSubmit")
    with pytest.raises(OutOfMemory):
        backend.read_buffer(buffer, np.zeros(LARGE, np.uint32), stream=stream)
    refuse(library, "")
    assert not backend.is_stream_idle(stream)
    hidden.clear()
    with pytest.raises(DeviceError, match="refused"), anyio.fail_after(5):
        await backend.wait_stream(stream)


async def test_the_query_of_a_refused_time_stamp_is_used_again(
    device: VulkanDevice, library: FaultyLibrary
) -> None:
    backend, clock = device.backend, device.vulkan._clock
    if clock.source != "device":
        pytest.skip("the device takes no time stamps")
    event = backend.create_event(timing=True)
    backend.record_event(event)
    await backend.wait_event(event)
    idle = len(clock._slots)
    refuse(library, "vkQueueSubmit")
    with pytest.raises(OutOfMemory):
        backend.record_event(event)
    refuse(library, "")
    assert len(clock._slots) == idle
