"""Two devices: waits for each other's events, copies between them, lifetimes."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from accy_async.backends import BackendKind, RecordingBackend
from accy_async.backends.cpu import CpuBackend
from accy_async.backends.routes import Way
from accy_async.errors import (
    DeviceError,
    InvalidBuffer,
    InvalidEvent,
    InvalidStream,
    UnsupportedOperation,
)
from tests.threads import join_threads

pytestmark = pytest.mark.anyio


def two(
    *, has_peer_access: bool = True, can_wait_for_peers: bool = True
) -> tuple[RecordingBackend, RecordingBackend]:
    one, other = (
        RecordingBackend(
            index=index,
            has_peer_access=has_peer_access,
            can_wait_for_peers=can_wait_for_peers,
        )
        for index in range(2)
    )
    return one, other


async def test_a_stream_waits_for_another_devices_event() -> None:
    """What follows the wait begins once the other device has come to the event."""
    one, other = two()
    first, second = one.create_stream(), other.create_stream()
    event, held = one.create_event(), one.allocate_buffer(4)
    one.hold(first)
    one.fill_buffer(held, b"\0", stream=first)
    one.record_event(event, first)

    other.wait_for_peer(second, event, one)
    assert not other.is_stream_idle(second)
    one.release(first)

    assert other.is_stream_idle(second)


async def test_a_stream_follows_all_that_another_was_given() -> None:
    """What it was given by then, and no more; on its own device and on the other."""
    one, other = two()
    leader, near, far = one.create_stream(), one.create_stream(), other.create_stream()
    buffer = one.allocate_buffer(4)
    one.hold(leader)
    one.fill_buffer(buffer, b"\0", stream=leader)

    one.follow_stream(near, leader, one)
    other.follow_stream(far, leader, one)
    assert not one.is_stream_idle(near)
    assert not other.is_stream_idle(far)
    one.fill_buffer(buffer, b"\0", stream=leader)
    one.step(leader)
    one.step(leader)
    one.step(leader)  # the fill, and the two points that are waited for

    assert one.is_stream_idle(near)
    assert other.is_stream_idle(far)
    assert not one.is_stream_idle(leader)
    one.release(leader)
    assert (one.destroy(leader), one.destroy(near), other.destroy(far)) == (True,) * 3


async def test_streams_that_cannot_be_followed_are_refused() -> None:
    """Each by name: another device's, one that was destroyed, and with no way to."""
    one, other = two()
    stream = one.create_stream()
    with pytest.raises(InvalidStream, match=r"of backend cuda:0.*this one is cuda:1"):
        other.follow_stream(None, stream, other)
    with pytest.raises(InvalidStream, match=r"of backend cuda:0.*this one is cuda:1"):
        other.follow_stream(stream, None, one)
    one.destroy(stream)
    with pytest.raises(InvalidStream, match="destroyed"):
        other.follow_stream(None, stream, one)
    deaf = RecordingBackend(index=3, can_wait_for_peers=False)
    with pytest.raises(UnsupportedOperation, match=r"cuda:3 .* cuda:0"):
        deaf.follow_stream(None, None, one)


async def test_devices_that_wait_for_each_other_in_turn() -> None:
    """A long chain to and fro needs no deep stack."""
    one, other = two()
    streams = one.create_stream(), other.create_stream()
    devices = one, other
    one.hold(streams[0])
    one.fill_buffer(one.allocate_buffer(4), b"\0", stream=streams[0])
    for step in range(2000):
        here, there = step % 2, 1 - step % 2
        event = devices[here].create_event()
        devices[here].record_event(event, streams[here])
        devices[there].wait_for_peer(streams[there], event, devices[here])

    one.release(streams[0])

    assert one.is_stream_idle(streams[0])
    assert other.is_stream_idle(streams[1])


async def test_a_failure_goes_over_to_the_device_that_waits() -> None:
    """The wait fails as a consequence, and names what failed first."""
    one, other = two()
    first, second = one.create_stream(), other.create_stream()
    event = one.create_event()
    one.record_event(event, first)
    one.hold(first)
    one.record_event(event, first)
    other.wait_for_peer(second, event, one)
    one.lose_device("gone")

    with pytest.raises(DeviceError, match="gone") as caught:
        await other.wait_stream(second)

    assert caught.value.is_consequence
    assert other.is_healthy


async def test_events_that_cannot_be_waited_for_are_refused() -> None:
    """Each by name: of a third device, never recorded, and with no way to wait."""
    one, other = two()
    third = RecordingBackend(index=2)
    event = third.create_event()
    third.record_event(event)
    with pytest.raises(InvalidEvent, match="is of backend cuda:2"):
        other.wait_for_peer(None, event, one)
    with pytest.raises(InvalidEvent, match="never recorded"):
        other.wait_for_peer(None, one.create_event(), one)
    with pytest.raises(InvalidEvent, match=r"cuda:2 .* this one is cuda:1"):
        other.stream_wait_event(None, event)
    deaf = RecordingBackend(index=3, can_wait_for_peers=False)
    assert not deaf.can_wait_for(one)
    with pytest.raises(UnsupportedOperation, match=r"cuda:3 .* cuda:2"):
        deaf.wait_for_peer(None, event, third)


async def test_routes_say_which_way_and_why() -> None:
    """Straight with peer access; staged without; on one device neither."""
    one, other = two()
    route = one.route_to(other)
    assert (route.way, route.device) == (Way.PEER, "cuda:0")
    assert "peer access" in str(route)
    assert one.route_to(one).way is Way.LOCAL
    far, away = two(has_peer_access=False)
    route = far.route_to(away)
    assert (route.way, route.device) == (Way.STAGED, "cuda:1")
    assert "no peer access" in route.why
    deaf, mute = two(has_peer_access=False, can_wait_for_peers=False)
    with pytest.raises(UnsupportedOperation, match=r"cuda:0 .* to cuda:1"):
        deaf.route_to(mute)


@pytest.mark.parametrize("size", [0, 1, 63, 64, 65, 127, 128, 129, 1000])
async def test_staged_copies_of_every_size_move_every_byte(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sizes around the edges of the pieces come over whole, and nothing beyond."""
    monkeypatch.setattr(CpuBackend, "staging_bytes", 64)
    monkeypatch.setattr(CpuBackend, "_way_to", lambda *_: (None, "told not to"))
    one, other = CpuBackend(workers=1), CpuBackend(workers=1, index=1)
    try:
        assert one.route_to(other).way is Way.STAGED
        values = np.random.default_rng(size).integers(0, 256, size + 8, np.uint8)
        source, target = one.allocate_buffer(size + 8), other.allocate_buffer(size + 8)
        one.write_buffer(source, values)
        await one.wait_default_stream()
        other.fill_buffer(target, b"\7")

        one.copy_to_peer(source, target, other, byte_size=size)
        one.destroy(source)
        found = np.empty(size + 8, np.uint8)
        other.read_buffer(target, found)
        await other.wait_default_stream()

        np.testing.assert_array_equal(found[:size], values[:size])
        assert (found[size:] == 7).all()
        other.destroy(target)
        assert not any(one.live_objects().values())
        assert not any(other.live_objects().values())
    finally:
        one.close()
        other.close()
    join_threads()  # those of the streams that the pieces went through, too


async def test_staged_copies_read_one_piece_while_writing_another() -> None:
    """Two pieces are under way; a third is read when the first has been written."""
    one, other = two(has_peer_access=False)
    one.staging_bytes = 10  # type: ignore[misc]
    source, target = one.allocate_buffer(45), other.allocate_buffer(45)
    one.hold_all()
    other.hold_all()

    one.copy_to_peer(source, target, other)
    (out,) = one._exchange
    seen = []
    for _ in range(100):
        before = one.stage_count, other.stage_count
        one.release_all()
        seen.append(out.timeline.completed)
        one.hold_all()
        if not other.ready_streams():
            break
        other.step(None)
        del before

    assert (one.stage_count, other.stage_count) == (5, 5)
    assert seen == sorted(seen)
    assert len(set(seen)) > 3  # it came on bit by bit, as pieces were written
    other.release_all()
    one.release_all()
    assert other.is_stream_idle(None)


async def test_what_a_peer_uses_is_freed_when_it_is_done() -> None:
    """A buffer destroyed while another device copies it lives until then."""
    for has_peer_access in (True, False):
        one, other = two(has_peer_access=has_peer_access)
        source, target = one.allocate_buffer(64), other.allocate_buffer(64)
        device = one if one.route_to(other).device == "cuda:0" else other
        stream = device.create_stream()
        device.hold(stream)
        one.copy_to_peer(source, target, other, stream=stream)

        assert not one.destroy(source)
        assert not other.destroy(target)
        device.release(stream)
        device.destroy(stream)

        assert not any(one.live_objects().values())
        assert not any(other.live_objects().values())


async def test_copies_that_do_not_fit_are_refused() -> None:
    """A buffer of the wrong device, one that was freed, and sizes beyond the end."""
    one, other = two()
    source, target = one.allocate_buffer(8), other.allocate_buffer(4)
    with pytest.raises(InvalidBuffer, match="passes the end"):
        one.copy_to_peer(source, target, other)
    with pytest.raises(
        InvalidBuffer, match=r"is of backend cuda:1.*this one is cuda:0"
    ):
        one.copy_to_peer(target, target, other)
    with pytest.raises(
        InvalidBuffer, match=r"is of backend cuda:0.*this one is cuda:1"
    ):
        one.copy_to_peer(source, source, other)
    other.destroy(target)
    with pytest.raises(InvalidBuffer, match="was destroyed"):
        one.copy_to_peer(source, target, other, byte_size=4)


async def test_a_processor_waits_for_any_device() -> None:
    """Its stream holds still until a recording device has come to the event."""
    device = RecordingBackend()
    stream = device.create_stream()
    event = device.create_event()
    device.hold(stream)
    device.record_event(event, stream)
    cpu = CpuBackend(workers=1)
    try:
        buffer = cpu.allocate_buffer(4)
        cpu.wait_for_peer(None, event, device)
        cpu.fill_buffer(buffer, b"\1")
        assert not cpu.is_buffer_idle(buffer)
        threading.Timer(0.01, device.release, [stream]).start()
        await cpu.wait_buffer(buffer)
        assert device.is_event_complete(event)
    finally:
        cpu.close()


async def test_a_recording_device_waits_for_a_processor() -> None:
    """Its stream goes on once the processor has come to the event."""
    device = RecordingBackend(BackendKind.CUDA)
    cpu = CpuBackend(workers=1)
    try:
        event, buffer = cpu.create_event(), cpu.allocate_buffer(1 << 20)
        cpu.fill_buffer(buffer, b"\1")
        cpu.record_event(event)
        stream = device.create_stream()
        device.wait_for_peer(stream, event, cpu)
        await device.wait_stream(stream)
        assert cpu.is_event_complete(event)
    finally:
        cpu.close()
