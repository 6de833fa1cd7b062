"""Order within a stream, none across streams but by events, events' generations."""

from __future__ import annotations

import anyio.lowlevel
import pytest

from accy_async.artifact.formats import BackendKind
from accy_async.backends import EventHandle
from accy_async.errors import InvalidEvent
from tests.conformance.devices import Device

pytestmark = pytest.mark.anyio

_MASK = 2**32 - 1


def mixed(tags: list[int], start: int = 0) -> int:
    """What `Device.mix` makes of these tags in this order."""
    for tag in tags:
        start = (start * 31 + tag) & _MASK
    return start


async def test_stream_runs_operations_in_submission_order(device: Device) -> None:
    stream = device.backend.create_stream()
    buffer = device.write([0], stream)
    tags = list(range(1, 200))
    for tag in tags:
        device.mix(buffer, tag, stream)
    assert await device.read(buffer, stream) == [mixed(tags) if device.executes else 0]


async def test_default_stream_is_a_stream_like_the_others(device: Device) -> None:
    buffer = device.write([5])
    device.mix(buffer, 1)
    release = device.hold()
    device.mix(buffer, 2)
    assert not device.backend.is_stream_idle()
    release()
    value = mixed([1, 2], 5) if device.executes else 0
    assert await device.read(buffer) == [value]
    assert device.backend.is_stream_idle()


async def test_streams_do_not_wait_for_each_other(device: Device) -> None:
    held, free = (device.backend.create_stream() for _ in range(2))
    release = device.hold(held)
    buffer = device.write([1], free)
    assert await device.read(buffer, free) == [1 if device.executes else 0]
    assert device.backend.is_stream_idle(free)
    assert not device.backend.is_stream_idle(held)
    release()
    await device.backend.wait_stream(held)


async def test_event_holds_back_only_what_is_submitted_after_the_wait(
    device: Device,
) -> None:
    backend = device.backend
    first, second = (backend.create_stream() for _ in range(2))
    buffer = device.write([0], second)
    event, before = backend.create_event(), backend.create_event()
    release = device.hold(first)
    device.mix(buffer, 1, first)
    backend.record_event(event, first)
    backend.record_event(before, second)
    backend.stream_wait_event(second, event)
    device.mix(buffer, 2, second)
    await backend.wait_event(before)
    assert not backend.is_event_complete(event)
    assert not backend.is_stream_idle(second)
    release()
    assert await device.read(buffer, second) == [
        mixed([1, 2]) if device.executes else 0
    ]
    assert backend.is_event_complete(event)


async def test_event_wait_keeps_the_point_it_was_submitted_with(device: Device) -> None:
    """Recording again moves the event; who waits for the old point still does."""
    backend = device.backend
    first, second = (backend.create_stream() for _ in range(2))
    event = backend.create_event()
    backend.record_event(event, first)
    backend.stream_wait_event(second, event)
    release = device.hold(first)
    backend.record_event(event, first)
    await backend.wait_stream(second)  # passes although the new point is held
    assert not backend.is_event_complete(event)
    release()
    await backend.wait_event(event)


async def test_event_moves_to_another_stream_when_recorded_there(
    device: Device,
) -> None:
    backend = device.backend
    first, second = (backend.create_stream() for _ in range(2))
    event = backend.create_event()
    release = device.hold(first)
    backend.record_event(event, first)
    backend.record_event(event, second)
    await backend.wait_event(event)
    assert backend.is_event_complete(event)
    assert not backend.is_stream_idle(first)
    release()
    await backend.wait_device()


async def test_event_never_recorded_is_refused_everywhere(device: Device) -> None:
    """C19: it would wait for nothing, and the consumer would read old data."""
    backend = device.backend
    stream, event = backend.create_stream(), backend.create_event()
    with pytest.raises(InvalidEvent, match="never recorded"):
        backend.stream_wait_event(stream, event)
    with pytest.raises(InvalidEvent, match="never recorded"):
        await backend.wait_event(event)
    with pytest.raises(InvalidEvent, match="never recorded"):
        backend.is_event_complete(event)
    assert backend.is_stream_idle(stream)


async def test_stream_waiting_for_its_own_event_goes_on(device: Device) -> None:
    backend = device.backend
    stream, event = backend.create_stream(), backend.create_event()
    backend.record_event(event, stream)
    backend.stream_wait_event(stream, event)
    await backend.wait_stream(stream)


async def test_chain_of_events_carries_order_through_many_streams(
    device: Device,
) -> None:
    backend = device.backend
    streams = [backend.create_stream() for _ in range(4)]
    buffer = device.write([0], streams[0])
    tags = list(range(1, 101))
    for tag in tags:
        here, after = streams[tag % 4], streams[(tag + 1) % 4]
        if tag == 1:
            event = backend.create_event()
            backend.record_event(event, streams[0])
            backend.stream_wait_event(here, event)
        device.mix(buffer, tag, here)
        event = backend.create_event()
        backend.record_event(event, here)
        backend.stream_wait_event(after, event)
        backend.destroy(event)
    last = streams[(tags[-1] + 1) % 4]
    assert await device.read(buffer, last) == [mixed(tags) if device.executes else 0]


async def test_elapsed_time_has_its_own_message_for_each_reason(
    device: Device,
) -> None:
    """C50: untimed, never recorded, not reached, of another device."""
    backend = device.backend
    assert backend.capabilities.timing_resolution_ns > 0
    stream = backend.create_stream()
    start, end, fresh = (backend.create_event(timing=True) for _ in range(3))
    untimed = backend.create_event()
    backend.record_event(start, stream)
    backend.record_event(untimed, stream)
    await backend.wait_stream(stream)
    release = device.hold(stream)
    backend.record_event(end, stream)
    messages = []

    foreign = EventHandle(id=start.id, backend=BackendKind.METAL, has_timing=True)
    for event in (untimed, fresh, end, foreign):
        with pytest.raises(InvalidEvent) as caught:
            backend.elapsed_ns(start, event)
        messages.append(str(caught.value))
    assert "timing=True" in messages[0]
    assert "never recorded" in messages[1]
    assert "has not been reached" in messages[2]
    assert "is of backend metal" in messages[3]
    release()
    await backend.wait_event(end)
    assert backend.elapsed_ns(start, end) >= 0
    assert backend.elapsed_ns(end, start) <= 0
    assert backend.elapsed_ns(start, start) == 0


async def test_recording_again_takes_the_time_anew(device: Device) -> None:
    backend = device.backend
    start, end = (backend.create_event(timing=True) for _ in range(2))
    buffer = device.write([0])
    for _ in range(3):
        backend.record_event(start)
        device.mix(buffer, 1)
        backend.record_event(end)
        await backend.wait_event(end)
        assert backend.elapsed_ns(start, end) > 0


async def test_tasks_cannot_bleed_into_each_others_streams(device: Device) -> None:
    """C46: there is no current stream; each launch goes where it says."""
    backend = device.backend
    streams = [backend.create_stream() for _ in range(2)]
    buffers = [device.write([0], stream) for stream in streams]

    async def launch(index: int) -> None:
        for tag in range(100):
            device.mix(buffers[index], tag + index, streams[index])
            await anyio.lowlevel.checkpoint()

    async with anyio.create_task_group() as group:
        for index in range(2):
            group.start_soon(launch, index)
    for index, (buffer, stream) in enumerate(zip(buffers, streams, strict=True)):
        tags = [tag + index for tag in range(100)]
        expected = mixed(tags) if device.executes else 0
        assert await device.read(buffer, stream) == [expected]


async def test_priorities_are_clamped_to_what_the_device_has(device: Device) -> None:
    least, greatest = device.backend.capabilities.priorities
    assert device.backend.create_stream(priority=1000).priority == least
    assert device.backend.create_stream(priority=-1000).priority == greatest
    assert device.backend.create_stream().priority == 0


async def test_destroyed_stream_finishes_what_it_was_given(device: Device) -> None:
    backend = device.backend
    stream, event = backend.create_stream(), backend.create_event()
    buffer = device.write([0], stream)
    release = device.hold(stream)
    device.mix(buffer, 3, stream)
    backend.record_event(event, stream)
    assert backend.destroy(stream) is False
    release()
    await backend.wait_event(event)
    assert await device.read(buffer) == [3 if device.executes else 0]
