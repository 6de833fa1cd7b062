"""Handles die at once, objects when the device is done; counts say which."""

from __future__ import annotations

import copy
import functools
import pickle
from collections.abc import Callable

import attrs
import pytest

from accy_async.artifact.formats import BackendKind
from accy_async.artifact.kernel import ArtifactRequest
from accy_async.backends import (
    BufferHandle,
    EventHandle,
    Handle,
    LoadedArtifact,
    StreamHandle,
)
from accy_async.dtypes import ScalarArgument
from accy_async.errors import (
    AccyError,
    CapabilityMismatch,
    InvalidArtifact,
    InvalidBuffer,
    InvalidEvent,
    InvalidStream,
    InvalidType,
    SessionClosed,
    UnsupportedOperation,
)
from tests.conformance.devices import Device

pytestmark = pytest.mark.anyio


def make(device: Device, kind: type[Handle]) -> Handle:
    """A new object of a kind."""
    backend = device.backend
    if kind is BufferHandle:
        return backend.allocate_buffer(16)
    if kind is LoadedArtifact:
        return backend.load_artifact(device.artifact("count"))
    if kind is StreamHandle:
        return backend.create_stream()
    return backend.create_event()


KINDS: dict[type[Handle], tuple[str, type[AccyError]]] = {
    BufferHandle: ("buffers", InvalidBuffer),
    LoadedArtifact: ("artifacts", InvalidArtifact),
    StreamHandle: ("streams", InvalidStream),
    EventHandle: ("events", InvalidEvent),
}


def test_memory_is_counted_and_given_back(device: Device) -> None:
    backend = device.backend
    before = backend.memory_statistics()
    buffer = backend.allocate_buffer(1 << 20)
    during = backend.memory_statistics()
    assert during["used_bytes"] >= before["used_bytes"] + (1 << 20)
    assert during["used_bytes"] <= during["reserved_bytes"]
    unknown = backend.capabilities.identity.memory_bytes == 0
    assert unknown or during["reserved_bytes"] <= during["limit_bytes"]
    backend.destroy(buffer)
    backend.trim(1 << 40)
    backend.trim()
    after = backend.memory_statistics()
    assert after["used_bytes"] == before["used_bytes"]
    assert after["reserved_bytes"] <= during["reserved_bytes"]
    for wrong in (-1, 2**63):
        with pytest.raises(InvalidBuffer, match="keep_bytes"):
            backend.trim(wrong)
    with pytest.raises(InvalidType, match="keep_bytes"):
        backend.trim(1.5)  # type: ignore[arg-type]
    backend.close()
    for call in (backend.trim, backend.memory_statistics):
        with pytest.raises(SessionClosed):
            call()


@pytest.mark.parametrize("kind", KINDS)
def test_idle_object_is_freed_at_once(device: Device, kind: type[Handle]) -> None:
    name, error = KINDS[kind]
    handle = make(device, kind)
    assert device.new_objects() == {name: 1}
    assert device.backend.is_alive(handle)
    assert device.backend.object_name(handle).startswith(name[:-1])
    assert device.backend.destroy(handle) is True
    assert device.new_objects() == {}
    assert not device.backend.is_alive(handle)
    with pytest.raises(error, match="was destroyed"):
        device.backend.destroy(handle)


@pytest.mark.parametrize("kind", KINDS)
def test_foreign_and_invented_handles_are_refused(
    device: Device, kind: type[Handle]
) -> None:
    _, error = KINDS[kind]
    handle = make(device, kind)
    with pytest.raises(error, match="is of backend metal"):
        device.backend.destroy(attrs.evolve(handle, backend=BackendKind.METAL))
    with pytest.raises(error, match="never given out"):
        device.backend.destroy(attrs.evolve(handle, id=10**9))
    for other in KINDS:
        if other is not kind:
            masked = make(device, other)
            with pytest.raises(error):
                device.backend.destroy(attrs.evolve(handle, id=masked.id))


@pytest.mark.parametrize("kind", KINDS)
def test_handles_of_another_backend_are_refused(
    device: Device, kind: type[Handle]
) -> None:
    """Ids agree, the kind and the device too: it is another one nevertheless."""
    _, error = KINDS[kind]
    other = type(device)()
    try:
        theirs = make(other, kind)
        mine = make(device, kind)
        while mine.id < theirs.id:
            mine = make(device, kind)
        while theirs.id < mine.id:
            theirs = make(other, kind)
        assert mine == theirs
        title = device.backend.capabilities.identity.name
        for call in (device.backend.destroy, device.backend.object_name):
            with pytest.raises(error, match="is of another backend that was opened on"):
                call(theirs)
        assert not device.backend.is_alive(theirs)
        why = device.backend.foreign(theirs)
        assert f"on {device.backend.device} ({title})" in why
        assert device.backend.foreign(mine) == ""
        assert device.backend.is_alive(mine)
        assert other.backend.is_alive(theirs)
        for copied in (copy.copy(mine), copy.deepcopy(mine), attrs.evolve(mine)):
            assert device.backend.is_alive(copied)
            assert not other.backend.is_alive(copied)
        by_hand = pickle.loads(pickle.dumps(theirs))
        assert by_hand == theirs
        assert device.backend.is_alive(by_hand)
    finally:
        other.close()


async def test_destroyed_handles_are_refused_by_every_call(device: Device) -> None:
    backend = device.backend
    buffer, kernel, stream, event = (make(device, kind) for kind in KINDS)
    assert isinstance(buffer, BufferHandle)
    assert isinstance(kernel, LoadedArtifact)
    assert isinstance(stream, StreamHandle)
    assert isinstance(event, EventHandle)
    living = backend.allocate_buffer(16)
    request = device.request("count", [living])
    for handle in (buffer, kernel, stream, event):
        backend.destroy(handle)
    calls: list[tuple[type[AccyError], Callable[[], object]]] = [
        (InvalidBuffer, lambda: backend.write_buffer(buffer, b"")),
        (InvalidBuffer, lambda: backend.read_buffer(buffer, bytearray())),
        (InvalidBuffer, lambda: backend.launch(device.request("count", [buffer]))),
        (InvalidStream, lambda: backend.write_buffer(living, b"", stream=stream)),
        (InvalidStream, lambda: backend.is_stream_idle(stream)),
        (InvalidStream, lambda: backend.launch(attrs.evolve(request, stream=stream))),
        (InvalidArtifact, lambda: backend.launch(attrs.evolve(request, loaded=kernel))),
        (InvalidEvent, lambda: backend.record_event(event)),
        (InvalidEvent, lambda: backend.stream_wait_event(None, event)),
        (InvalidEvent, lambda: backend.is_event_complete(event)),
        (InvalidEvent, lambda: backend.elapsed_ns(event, event)),
    ]
    for error, call in calls:
        with pytest.raises(error, match="was destroyed"):
            call()
    with pytest.raises(InvalidStream):
        await backend.wait_stream(stream)
    with pytest.raises(InvalidEvent):
        await backend.wait_event(event)
    assert backend.is_stream_idle()


async def test_busy_objects_go_to_the_reaper_and_are_freed_when_done(
    device: Device,
) -> None:
    backend = device.backend
    stream = backend.create_stream()
    buffer, event = backend.allocate_buffer(16), backend.create_event()
    kernel = backend.load_artifact(device.artifact("mix"))
    release = device.hold(stream)
    request = device.request("mix", [buffer], [ScalarArgument.u32(1)], stream=stream)
    backend.launch(attrs.evolve(request, loaded=kernel))
    backend.record_event(event, stream)
    last = backend.create_event()
    backend.record_event(last, stream)
    for handle in (buffer, kernel, event, stream):
        assert backend.destroy(handle) is False
        assert not backend.is_alive(handle)
    expected = {"buffers": 1, "artifacts": 1, "streams": 1, "events": 2}
    assert device.new_objects() == expected
    assert len(backend.reaper) == 4
    assert backend.reaper.held() == (
        f"buffer {buffer.id} (16 bytes)",
        f"artifact {kernel.id} (mix)",
        f"event {event.id}",
        f"stream {stream.id}",
    )
    release()
    await backend.wait_event(last)
    backend.destroy(last)
    assert len(backend.reaper) == 0
    assert device.new_objects() == {}


async def test_object_used_by_two_streams_outlives_both(device: Device) -> None:
    """C01: freed after every stream that touched it, with nothing declared."""
    backend = device.backend
    first, second = (backend.create_stream() for _ in range(2))
    buffer = backend.allocate_buffer(4)
    holds = [device.hold(first), device.hold(second)]
    for stream in (first, second):
        backend.write_buffer(buffer, b"1234", stream=stream)
    assert backend.destroy(buffer) is False
    holds[0]()
    await backend.wait_stream(first)
    assert device.new_objects()["buffers"] == 1
    holds[1]()
    await backend.wait_stream(second)
    assert "buffers" not in device.new_objects()


async def test_closed_backend_refuses_every_call(device: Device) -> None:
    backend = device.backend
    buffer, stream = backend.allocate_buffer(4), backend.create_stream()
    event = backend.create_event(timing=True)
    backend.record_event(event)
    await backend.wait_default_stream()
    artifact = device.artifact("count")
    request = device.request("count", [buffer])
    assert backend.is_healthy
    backend.close()
    assert not backend.is_healthy
    calls: list[Callable[[], object]] = [
        functools.partial(backend.load_artifact, artifact),
        lambda: backend.allocate_buffer(4),
        lambda: backend.write_buffer(buffer, b"1234"),
        lambda: backend.read_buffer(buffer, bytearray(4)),
        backend.create_stream,
        backend.create_event,
        lambda: backend.record_event(event),
        lambda: backend.stream_wait_event(stream, event),
        lambda: backend.is_event_complete(event),
        backend.is_stream_idle,
        lambda: backend.elapsed_ns(event, event),
        lambda: backend.launch(request),
    ]
    for call in calls:
        with pytest.raises(SessionClosed, match="closed"):
            call()
    waits = [
        functools.partial(backend.wait_stream, stream),
        functools.partial(backend.wait_event, event),
        backend.wait_default_stream,
        backend.wait_device,
    ]
    for wait in waits:
        with pytest.raises(SessionClosed, match="closed"):
            await wait()
    assert set(backend.live_objects().values()) == {0}


async def test_close_is_idempotent_and_waits_for_nothing(device: Device) -> None:
    backend = device.backend
    stream, event = backend.create_stream(), backend.create_event()
    backend.record_event(event, stream)
    await backend.wait_event(event)
    release = device.hold(stream)
    buffer = backend.allocate_buffer(4)
    backend.write_buffer(buffer, b"1234", stream=stream)
    backend.close()
    backend.close()
    assert not backend.is_alive(buffer)
    held = backend.reaper.held()
    assert f"stream {stream.id}" in held
    assert f"buffer {buffer.id} (4 bytes)" in held
    assert f"event {event.id}" not in held
    release()


async def test_many_objects_leave_no_trace(device: Device) -> None:
    backend = device.backend
    for _ in range(100):
        handles = [make(device, kind) for kind in KINDS]
        stream = next(h for h in handles if isinstance(h, StreamHandle))
        buffer = next(h for h in handles if isinstance(h, BufferHandle))
        event = next(h for h in handles if isinstance(h, EventHandle))
        backend.write_buffer(buffer, b"1234", stream=stream)
        backend.record_event(event, stream)
        backend.stream_wait_event(None, event)
        for handle in handles:
            backend.destroy(handle)
    await backend.wait_device()
    assert device.new_objects() == {}
    assert len(backend.reaper) == 0


def test_requests_for_other_formats_are_refused(device: Device) -> None:
    with pytest.raises(UnsupportedOperation, match="metal_msl"):
        device.backend.create_artifact(
            ArtifactRequest(
                kernel_name="k",
                requested_format="metal_msl",
                argument_count=0,
                payload="kernel",
            )
        )


def test_capabilities_never_change(device: Device) -> None:
    capabilities = device.backend.capabilities
    assert device.backend.capabilities is capabilities
    assert capabilities.identity.backend is device.backend.kind
    assert device.backend.default_format in capabilities.formats


def test_geometry_beyond_the_limits_is_refused(device: Device) -> None:
    capabilities = device.backend.capabilities
    buffer = device.backend.allocate_buffer(4)
    too_much = capabilities.max_shared_memory_bytes + 1
    with pytest.raises(CapabilityMismatch, match=str(too_much)):
        device.backend.launch(device.request("count", [buffer], shared_bytes=too_much))
    request = device.request("count", [buffer])
    geometry = attrs.evolve(request.geometry, threadgroup=(1024, 1024, 1))
    with pytest.raises(CapabilityMismatch, match="1048576 threads"):
        device.backend.launch(attrs.evolve(request, geometry=geometry))
    assert device.backend.is_stream_idle()
