"""Device errors: raised by the waits that cover them, told once, named in full."""

from __future__ import annotations

import pytest

from accy_async.errors import DeviceError
from tests.conformance.devices import Device

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def soft_failures(device: Device) -> None:
    """Skips where a kernel that fails takes the whole device with it."""
    if not device.fails_softly:
        pytest.skip(
            "a kernel that fails loses the device; see tests/gpu/test_errors.py"
        )


async def test_failure_names_kernel_node_stream_call_and_code(device: Device) -> None:
    stream = device.backend.create_stream()
    device.fail(stream, code=42, node="softmax")
    with pytest.raises(DeviceError) as caught:
        await device.backend.wait_stream(stream)
    error = caught.value
    facts = error.call, error.kernel, error.node, error.stream, error.code
    assert facts == ("launch", "fail", "softmax", stream.id, 42)
    assert not error.is_consequence
    assert device.backend.is_healthy


async def test_failure_on_the_default_stream_names_no_stream(device: Device) -> None:
    device.fail(node="first")
    with pytest.raises(DeviceError) as caught:
        await device.backend.wait_default_stream()
    assert (caught.value.stream, caught.value.node) == (None, "first")


async def test_waits_before_the_failure_are_unharmed(device: Device) -> None:
    backend = device.backend
    stream, before, after = (
        backend.create_stream(),
        backend.create_event(),
        backend.create_event(),
    )
    backend.record_event(before, stream)
    device.fail(stream)
    backend.record_event(after, stream)
    await backend.wait_event(before)
    with pytest.raises(DeviceError):
        await backend.wait_event(after)
    await backend.wait_event(before)


async def test_every_wait_in_the_failed_range_raises_its_own_error(
    device: Device,
) -> None:
    backend = device.backend
    stream = backend.create_stream()
    events = [backend.create_event() for _ in range(3)]
    device.fail(stream, node="root")
    for event in events:
        backend.record_event(event, stream)
    errors = []
    for event in (*events, *events):
        with pytest.raises(DeviceError) as caught:
            await backend.wait_event(event)
        errors.append(caught.value)
    assert len({id(error) for error in errors}) == len(errors)
    assert {error.node for error in errors} == {"root"}


async def test_operations_behind_a_failure_are_skipped(device: Device) -> None:
    backend = device.backend
    stream = backend.create_stream()
    buffer = device.write([1], stream)
    release = device.hold(stream)
    device.fail(stream)
    device.mix(buffer, 5, stream)
    release()
    with pytest.raises(DeviceError):
        await backend.wait_stream(stream)
    assert await device.read(buffer, stream) == [1 if device.executes else 0]


async def test_work_submitted_after_the_failure_was_told_runs(device: Device) -> None:
    backend = device.backend
    stream = backend.create_stream()
    buffer = device.write([0], stream)
    for round_ in range(1, 100):
        device.fail(stream, code=round_)
        with pytest.raises(DeviceError) as caught:
            await backend.wait_stream(stream)
        assert caught.value.code == round_
    device.mix(buffer, 9, stream)
    assert await device.read(buffer, stream) == [9 if device.executes else 0]


async def test_other_streams_are_unaffected(device: Device) -> None:
    backend = device.backend
    failing, fine = (backend.create_stream() for _ in range(2))
    buffer = device.write([0], fine)
    device.fail(failing)
    device.mix(buffer, 3, fine)
    assert await device.read(buffer, fine) == [3 if device.executes else 0]
    with pytest.raises(DeviceError):
        await backend.wait_stream(failing)


async def test_submissions_do_not_raise_an_earlier_failure(device: Device) -> None:
    backend = device.backend
    stream, event = backend.create_stream(), backend.create_event()
    device.fail(stream)
    backend.record_event(event, stream)
    with pytest.raises(DeviceError):
        await backend.wait_event(event)
    buffer = device.write([0], stream)
    device.mix(buffer, 1, stream)
    assert backend.is_event_complete(event)
    assert backend.destroy(stream) in (True, False)


async def test_failure_reaches_other_streams_through_events_as_a_consequence(
    device: Device,
) -> None:
    backend = device.backend
    first, second, third = (backend.create_stream() for _ in range(3))
    buffer = device.write([1], third)
    release = device.hold(first)
    device.fail(first, node="root", code=11)
    for upstream, downstream in ((first, second), (second, third)):
        event = backend.create_event()
        backend.record_event(event, upstream)
        backend.stream_wait_event(downstream, event)
    device.mix(buffer, 5, third)
    release()
    with pytest.raises(DeviceError) as caught:
        await backend.wait_stream(third)
    error = caught.value
    assert error.is_consequence
    assert (error.node, error.kernel, error.code) == ("root", "fail", 11)
    root = error.__cause__
    while isinstance(root, DeviceError) and root.is_consequence:
        root = root.__cause__
    assert isinstance(root, DeviceError)
    assert root.node == "root"
    with pytest.raises(DeviceError) as caught:
        await backend.wait_stream(first)
    assert not caught.value.is_consequence
    assert await device.read(buffer, third) == [1 if device.executes else 0]


async def test_failure_told_before_the_event_wait_still_reaches_it(
    device: Device,
) -> None:
    backend = device.backend
    first, second = (backend.create_stream() for _ in range(2))
    event = backend.create_event()
    device.fail(first)
    backend.record_event(event, first)
    with pytest.raises(DeviceError):
        await backend.wait_event(event)
    backend.stream_wait_event(second, event)
    with pytest.raises(DeviceError) as caught:
        await backend.wait_stream(second)
    assert caught.value.is_consequence


async def test_order_through_a_failed_stream_still_holds(device: Device) -> None:
    """An event wait behind a failure is not skipped: later work relies on it."""
    backend = device.backend
    first, second = (backend.create_stream() for _ in range(2))
    told, event = backend.create_event(), backend.create_event()
    release = device.hold(first)
    backend.record_event(event, first)
    device.fail(second)
    backend.record_event(told, second)
    backend.stream_wait_event(second, event)
    with pytest.raises(DeviceError):
        await backend.wait_event(told)
    buffer = device.write([1], second)
    assert not backend.is_stream_idle(second)
    release()
    assert await device.read(buffer, second) == [1 if device.executes else 0]


async def test_device_wait_raises_one_failure_alone_and_several_in_a_group(
    device: Device,
) -> None:
    backend = device.backend
    streams = [backend.create_stream() for _ in range(3)]
    device.fail(streams[1], node="only")
    with pytest.raises(DeviceError, match="only"):
        await backend.wait_device()
    for stream in streams:
        device.fail(stream, node=f"node {stream.id}")
    with pytest.raises(ExceptionGroup, match="several streams") as caught:
        await backend.wait_device()
    nodes = {getattr(error, "node", None) for error in caught.value.exceptions}
    assert nodes == {f"node {stream.id}" for stream in streams}
    event = backend.create_event()
    for stream in streams:
        backend.record_event(event, stream)
    await backend.wait_device()


async def test_failing_work_frees_its_objects_like_any_other(device: Device) -> None:
    backend = device.backend
    stream = backend.create_stream()
    release = device.hold(stream)
    buffer = device.write([0], stream)
    device.fail(stream)
    device.mix(buffer, 1, stream)
    assert backend.destroy(buffer) is False
    release()
    with pytest.raises(DeviceError):
        await backend.wait_stream(stream)
    backend.destroy(stream)
    assert device.new_objects() == {}
