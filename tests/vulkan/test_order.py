"""C77: barriers where buffers ask for them; the validation layer sees one missing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import cast

import numpy as np
import pytest

from accy_async.backends import BufferAccess
from accy_async.backends.vulkan.queue import VulkanQueue
from accy_async.backends.vulkan.streams import VulkanStream
from accy_async.dtypes import ScalarArgument
from tests.conformance.devices import VulkanDevice
from tests.vulkan import harness

pytestmark = [pytest.mark.vulkan, pytest.mark.anyio]


@pytest.fixture
def opened() -> Iterator[VulkanDevice]:
    if not harness.has_validation():
        pytest.skip("the validation layer is not installed")
    opened = VulkanDevice()
    yield opened
    opened.backend.close()


def two(device: VulkanDevice, first: str, second: str) -> Callable[[], None]:
    """Submits two operations that share a buffer, in one batch."""
    backend = device.vulkan
    a, b, c = (device.write([value]) for value in (1, 2, 3))
    operations: dict[str, Callable[[], object]] = {
        "write": lambda: device.mix(a, 1),
        "read": lambda: backend.launch(device.request("copy", [b, a])),
        "fill": lambda: backend.fill_buffer(a, b"\1"),
        "copy": lambda: backend.copy_buffer(a, c),
        "other": lambda: backend.launch(device.request("count", [b])),
    }

    def submit() -> None:
        queue = the_queue(device)
        with backend._gather():
            # As if all before were ordered already.
            queue.hazards.ordered = queue.hazards.serial
            operations[first]()
            operations[second]()

    return submit


def the_queue(device: VulkanDevice) -> VulkanQueue:
    return cast("VulkanStream", device.vulkan._default).queue


HAZARDS = [
    ("write", "read"),
    ("read", "write"),
    ("fill", "fill"),
    ("fill", "write"),
    ("copy", "write"),
    ("write", "copy"),
    ("read", "fill"),
]


@pytest.mark.parametrize(("first", "second"), HAZARDS)
async def test_every_hazard_has_a_barrier(
    opened: VulkanDevice, first: str, second: str
) -> None:
    submit = two(opened, first, second)
    await opened.backend.wait_default_stream()
    submit()
    await opened.backend.wait_default_stream()
    assert opened.vulkan.validation_messages == ()


@pytest.mark.parametrize(("first", "second"), HAZARDS)
async def test_validation_reports_a_barrier_that_is_left_out(
    opened: VulkanDevice, first: str, second: str
) -> None:
    submit = two(opened, first, second)
    await opened.backend.wait_default_stream()
    queue = the_queue(opened)
    queue.dropped_barriers = 1
    submit()
    await opened.backend.wait_default_stream()
    assert queue.dropped_barriers == 0
    (message, *_) = opened.vulkan.validation_messages
    assert "SYNC-HAZARD" in message


async def test_no_barrier_without_a_hazard(opened: VulkanDevice) -> None:
    submit = two(opened, "write", "other")
    await opened.backend.wait_default_stream()
    queue = the_queue(opened)
    queue.dropped_barriers = 1
    submit()
    await opened.backend.wait_default_stream()
    assert queue.dropped_barriers == 1
    assert opened.vulkan.validation_messages == ()


async def test_transfer_to_shader_to_host(opened: VulkanDevice) -> None:
    backend = opened.backend
    buffer = opened.write([5])
    backend.fill_buffer(buffer, b"\3\0\0\0")
    opened.mix(buffer, 1)
    other = backend.allocate_buffer(4)
    backend.copy_buffer(buffer, other)
    opened.mix(buffer, 2)
    assert await opened.read(other) == [94]
    assert await opened.read(buffer) == [94 * 31 + 2]
    assert opened.vulkan.validation_messages == ()


async def test_streams_on_one_queue_do_not_block_each_other(
    opened: VulkanDevice,
) -> None:
    """A stream that stands still, and one that waits for it, hold up no third."""
    backend = opened.backend
    held, waiting, free = (backend.create_stream() for _ in range(3))
    buffer = opened.write([1], free)
    release = opened.hold(held)
    event = backend.create_event()
    backend.record_event(event, held)
    backend.stream_wait_event(waiting, event)
    late = opened.write([7], waiting)
    for tag in range(5):
        opened.mix(buffer, tag, free)
    expected = 1
    for tag in range(5):
        expected = expected * 31 + tag
    assert await opened.read(buffer, free) == [expected]
    assert not backend.is_stream_idle(waiting)
    release()
    assert await opened.read(late, waiting) == [7]


async def test_many_launches_share_batches(opened: VulkanDevice) -> None:
    buffer = opened.write([0])
    queue = the_queue(opened)
    request = opened.request("count", [buffer], access=BufferAccess.READ_WRITE)
    prepared = [opened.backend.prepare_launch(request)] * 1000
    before = queue.submitted
    opened.backend.submit_launches(prepared)
    assert await opened.read(buffer) == [1000]
    assert queue.submitted - before <= 4


async def test_more_streams_than_words_for_assertions(opened: VulkanDevice) -> None:
    """Launches that may fail wait for a word where there is none."""
    opened.vulkan._words._idle[:] = opened.vulkan._words._idle[:2]
    buffer = opened.write([0])
    scalars = [ScalarArgument.u64(9), ScalarArgument.i32(1)]  # no block fails
    streams = [opened.backend.create_stream() for _ in range(6)]
    holds = [opened.hold(stream) for stream in streams]
    for stream in streams:
        opened.backend.launch(opened.request("fail", [buffer], scalars, stream=stream))
    for release in holds:
        release()
    await opened.backend.wait_device()
    assert len(opened.vulkan._words._idle) == 2
    out = np.zeros(1, np.uint32)
    opened.backend.read_buffer(buffer, out)
    await opened.backend.wait_default_stream()
    assert opened.vulkan.validation_messages == ()
