"""What is of another device is refused before anything happens, by both names."""

from __future__ import annotations

from collections.abc import Callable

import attrs
import numpy as np
import pytest

from accy_async.backends import BufferBinding, LaunchRequest, RecordingBackend
from accy_async.dtypes import DType
from accy_async.errors import (
    InvalidArtifact,
    InvalidBuffer,
    InvalidEvent,
    InvalidStream,
    LaunchArgumentMismatch,
    UnsupportedOperation,
)
from accy_async.graph.builder import LaunchGraphBuilder
from accy_async.graph.options import LaunchOptions
from accy_async.session import open_session
from tests.devices.parts import ONE, alone, bound, check_all_empty, gpus, opened, ring
from tests.graph.graphs import kernel_entry

pytestmark = pytest.mark.anyio


async def test_a_plan_of_another_device_is_refused_by_a_session_of_one() -> None:
    """And by a seat; its own device's it runs. Nothing is loaded or allocated."""
    ours, other = LaunchGraphBuilder(), LaunchGraphBuilder()
    for b, name in ((ours, "cuda:0"), (other, "banana")):
        with b.on(name):
            b.fill(b.scratch("x", DType.F32, 4), 1.0)
    node = LaunchGraphBuilder()
    node.kernel(ONE, [node.scratch("x", DType.U32, 4)], name="work", device="banana")
    backend = gpus(1)[0]
    async with open_session(backend) as session:
        for plan, what in ((other.build(), "slot 'x'"), (node.build(), "node 'work'")):
            message = f"{what} is to be on banana; the session's device is cuda:0"
            for call in (session.start, session.run, session.prepare):
                with pytest.raises(LaunchArgumentMismatch, match=message):
                    await call(plan)
        assert not any(session.live_objects().values())
        await session.run(ours.build())
        await (await session.prepare(ours.build())).run()
    async with opened(gpus(2)) as several:
        on_both = ring(["cuda:0", "cuda:1"])
        with pytest.raises(LaunchArgumentMismatch, match=r"'x1'.*cuda:1.*is cuda:0"):
            await several.on("cuda:0").run(on_both, {"out": np.zeros(4, "<u4")})
        assert not any(several.live_objects().values())


def test_calls_on_the_host_are_on_no_device() -> None:
    b = LaunchGraphBuilder()
    b.host_call(lambda: None, device="banana")
    plan = b.build()
    assert not plan.named_devices
    assert not plan.names_devices


async def test_what_is_on_two_devices_is_refused_before_it_starts() -> None:
    """A kernel's buffers, slots and labels, each with both devices' names."""
    devices = gpus(2)
    async with opened(devices) as session:
        arrays = {f"x{i}": session.allocate(4, DType.U32, device=i) for i in range(2)}
        with pytest.raises(LaunchArgumentMismatch, match=r"cuda:0.*'x1'.*cuda:1"):
            session.start(bound(2), arrays)
        b = LaunchGraphBuilder()
        b.kernel(ONE, [b.buffer("x0", DType.U32, 4, device="cuda:1")], name="work")
        with pytest.raises(LaunchArgumentMismatch, match=r"on cuda:0.*on cuda:1"):
            session.start(b.build(), {"x0": arrays["x0"]})
        b = LaunchGraphBuilder()
        with b.on("cuda:0"):
            b.kernel(kernel_entry(0), stream="A", name="one")
        with b.on("cuda:1"):
            b.kernel(kernel_entry(0), stream="A", name="two")
        with pytest.raises(LaunchArgumentMismatch, match=r"'A'.*cuda:0.*cuda:1"):
            session.start(b.build())
        b = LaunchGraphBuilder()
        b.kernel(kernel_entry(0), device="cuda:8", name="work")
        with pytest.raises(LaunchArgumentMismatch, match=r"cuda:8; .*cuda:0, cuda:1"):
            session.start(b.build())
    assert not any(device.launch_count for device in devices)
    check_all_empty(devices)


async def test_foreign_handles_are_refused_with_both_names() -> None:
    """A buffer, an event and a kernel of a device that is none of the session's."""
    devices = gpus(2)
    stranger = RecordingBackend(index=4)
    buffer, event = stranger.allocate_buffer(16), stranger.create_event()
    stranger.record_event(event)
    async with opened(devices) as session:
        with pytest.raises(LaunchArgumentMismatch, match=r"cuda:4.*cuda:0, cuda:1"):
            session.start(bound(), {"x0": buffer})
        with pytest.raises(LaunchArgumentMismatch, match=r"cuda:4.*cuda:0"):
            session.start(alone(), options=LaunchOptions(wait_events=(event,)))
        plan = ring(["cuda:0", "cuda:1"])
        given = {"out": np.ones(4, np.uint32)}
        with pytest.raises(LaunchArgumentMismatch, match=r"cuda:4.*cuda:0, cuda:1"):
            session.start(plan, given, LaunchOptions(wait_events=(event,)))
        stream = session.on(1).backend.create_stream()
        with pytest.raises(LaunchArgumentMismatch, match="a stream is of one device"):
            session.start(plan, given, LaunchOptions(stream=stream))
    assert not any(device.launch_count for device in devices)


async def test_a_kernel_of_another_device_is_refused_before_its_launch() -> None:
    """It is named with both devices, and nothing is launched."""
    one, other = gpus(2)
    entry = kernel_entry(0)
    artifact = other.create_artifact(entry.artifact_request(None))
    request = LaunchRequest(
        artifact=artifact,
        loaded=other.load_artifact(artifact),
        geometry=entry.launch.geometry(()),
    )
    with pytest.raises(InvalidArtifact, match=r"of backend cuda:1.*one is cuda:0"):
        one.launch(request)
    prepared = other.prepare_launch(request)
    with pytest.raises(InvalidArtifact, match=r"cuda:1.*cuda:0"):
        one.submit_launch(prepared)
    assert (one.launch_count, other.launch_count) == (0, 0)


async def test_what_is_of_another_device_is_refused_by_the_device_itself() -> None:
    """A launch's buffer and stream, an event to wait for, a copy's end: by name."""
    one, other = gpus(2)
    entry = kernel_entry(1)
    artifact = one.create_artifact(entry.artifact_request(None))
    request = LaunchRequest(
        artifact=artifact,
        loaded=one.load_artifact(artifact),
        geometry=entry.launch.geometry(()),
        buffers=(BufferBinding(handle=one.allocate_buffer(16), access="read_write"),),
    )
    theirs = BufferBinding(handle=other.allocate_buffer(16), access="read_write")
    stream, event = other.create_stream(), other.create_event()
    other.record_event(event, stream)
    refusals: list[tuple[type[Exception], str, Callable[[], object]]] = [
        (
            InvalidBuffer,
            "buffer",
            lambda: one.launch(attrs.evolve(request, buffers=(theirs,))),
        ),
        (
            InvalidStream,
            "stream",
            lambda: one.launch(attrs.evolve(request, stream=stream)),
        ),
        (
            InvalidEvent,
            "event",
            lambda: one.stream_wait_event(one.create_stream(), event),
        ),
        (InvalidEvent, "event", lambda: one.record_event(event)),
        (
            InvalidBuffer,
            "buffer",
            lambda: one.copy_buffer(request.buffers[0].handle, theirs.handle),
        ),
    ]
    for error, what, call in refusals:
        with pytest.raises(error, match=rf"{what} \d+ is of backend cuda:1.*is cuda:0"):
            call()
    assert (one.launch_count, other.launch_count) == (0, 0)
    one.launch(request)  # its own it takes
    assert one.launch_count == 1


async def test_an_event_slot_is_bound_to_an_event_of_the_sessions_own() -> None:
    devices = gpus(2)
    stranger = RecordingBackend(index=4)
    event = stranger.create_event()
    stranger.record_event(event)
    b = LaunchGraphBuilder()
    b.external_event("ready")
    b.kernel(
        ONE, [b.scratch("x", DType.U32, 4)], name="work", after=b.wait_event("ready")
    )
    async with opened(devices) as session:
        message = r"bindings\['ready'\].*cuda:4.*cuda:0, cuda:1"
        with pytest.raises(LaunchArgumentMismatch, match=message):
            session.start(b.build(), {"ready": event})
    assert not any(device.launch_count for device in devices)


async def test_times_of_two_devices_are_not_mixed() -> None:
    """Elapsed time between events of two devices is refused by their names."""
    devices = gpus(2)
    events = [device.create_event(timing=True) for device in devices]
    for device, event in zip(devices, events, strict=True):
        device.record_event(event)
    with pytest.raises(InvalidEvent, match=r"cuda:1.*this one is cuda:0"):
        devices[0].elapsed_ns(*events)


async def test_no_way_between_devices_is_refused() -> None:
    """Without peer access and without waits there is none; both are named."""
    devices = gpus(2, has_peer_access=False, can_wait_for_peers=False)
    async with opened(devices) as session:
        with pytest.raises(UnsupportedOperation, match=r"cuda:0.*cuda:1"):
            session.start(ring(["cuda:0", "cuda:1"]), {"out": np.ones(4, np.uint32)})
