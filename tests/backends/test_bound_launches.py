"""Launches submitted again and again keep what they use in use, and no more."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Sequence
from typing import Any, cast

import attrs
import pytest

from accy_async.artifact.formats import ArtifactFormat, BackendKind
from accy_async.backends import (
    BufferBinding,
    BufferHandle,
    LaunchRequest,
    RecordingBackend,
    StreamHandle,
)
from accy_async.backends.launch import PreparedLaunch
from accy_async.backends.recording.records import RecordingStream
from accy_async.errors import CapabilityMismatch, DeviceError
from tests.graph.graphs import kernel_entry


class _Owner:
    """What a binding keeps alive."""


@pytest.fixture
def backend() -> RecordingBackend:
    return RecordingBackend()


def prepare(
    backend: RecordingBackend, *buffers: BufferHandle, owner: object = None
) -> PreparedLaunch:
    entry = kernel_entry(len(buffers))
    artifact = backend.create_artifact(entry.artifact_request(None))
    return backend.prepare_launch(
        LaunchRequest(
            artifact=artifact,
            loaded=backend.load_artifact(artifact),
            buffers=tuple(BufferBinding(handle=b, owner=owner) for b in buffers),
            geometry=entry.launch.geometry(()),
        )
    )


def submit(
    backend: RecordingBackend,
    prepared: PreparedLaunch,
    streams: Sequence[StreamHandle | None],
) -> list[int]:
    return [backend.submit_launch(prepared, stream) for stream in streams]


@pytest.mark.parametrize("times", [1, 2, 3, 10])
def test_a_buffer_is_freed_behind_its_last_launch(
    backend: RecordingBackend, times: int
) -> None:
    stream = backend.create_stream()
    buffer, other = backend.allocate_buffer(8), backend.allocate_buffer(8)
    prepared = prepare(backend, buffer, other)
    backend.hold(stream)
    assert submit(backend, prepared, [stream] * times) == list(range(1, times + 1))
    assert not backend.destroy(buffer)
    for _ in range(times - 1):
        backend.step(stream)
        assert buffer.id not in backend.destroyed_ids
    backend.step(stream)
    backend.reaper.sweep()
    assert buffer.id in backend.destroyed_ids
    assert backend.destroy(other)


def test_launches_on_several_streams_each_keep_their_position(
    backend: RecordingBackend,
) -> None:
    """Twenty streams in turns, which is more than a launch remembers."""
    streams = [backend.create_stream() for _ in range(20)]
    buffer = backend.allocate_buffer(8)
    prepared = prepare(backend, buffer)
    for stream in streams:
        backend.hold(stream)
    for turn in range(3):
        assert submit(backend, prepared, streams) == [turn + 1] * 20
    backend.destroy(buffer)
    for stream in streams:
        backend.reaper.sweep()
        assert buffer.id not in backend.destroyed_ids
        backend.release(stream)
    backend.reaper.sweep()
    assert buffer.id in backend.destroyed_ids


def test_a_buffer_used_by_very_many_launches_forgets_none(
    backend: RecordingBackend,
) -> None:
    """More than it keeps apart: what it folds away still counts, and goes on to."""
    stream = backend.create_stream()
    shared, own = backend.allocate_buffer(8), backend.allocate_buffer(8)
    first = prepare(backend, shared, own)
    submit(backend, first, [stream] * 3)
    many = [prepare(backend, shared) for _ in range(300)]
    for each in many:
        submit(backend, each, [stream] * 2)
    backend.hold(stream)
    submit(backend, first, [stream])
    assert not backend.destroy(own)
    assert not backend.destroy(shared)
    backend.release(stream)
    backend.reaper.sweep()
    assert {own.id, shared.id} <= set(backend.destroyed_ids)


def test_a_use_that_was_folded_away_still_holds_the_buffer(
    backend: RecordingBackend,
) -> None:
    slow, quick = backend.create_stream(), backend.create_stream()
    buffer = backend.allocate_buffer(8)
    first = prepare(backend, buffer)
    backend.hold(slow)
    submit(backend, first, [slow] * 3)
    for _ in range(300):
        submit(backend, prepare(backend, buffer), [quick] * 2)
    assert not backend.destroy(buffer)
    for _ in range(2):
        backend.step(slow)
        backend.reaper.sweep()
        assert buffer.id not in backend.destroyed_ids
    backend.release(slow)
    backend.reaper.sweep()
    assert buffer.id in backend.destroyed_ids


def test_a_buffer_that_arrives_again_is_waited_for(
    backend: RecordingBackend,
) -> None:
    """By launches that are bound already, too; once on each stream."""
    streams = [backend.create_stream() for _ in range(2)]
    buffer = backend.allocate_buffer(8)
    prepared = prepare(backend, buffer)
    submit(backend, prepared, [*streams, streams[1], streams[0], streams[0]])
    exchange = cast("RecordingStream", backend._open_exchange())
    exchange.is_held = True
    backend._arrive(backend._table.get(buffer), exchange)
    for stream in streams:
        submit(backend, prepared, [stream])
        assert not backend.is_stream_idle(stream)
    assert submit(backend, prepared, streams) == [6, 5]
    exchange.is_held = False
    backend.release_all()
    assert all(backend.is_stream_idle(stream) for stream in streams)


def test_an_equal_handle_is_as_good_as_the_one_given_out(
    backend: RecordingBackend,
) -> None:
    stream = backend.create_stream()
    copy = attrs.evolve(stream)
    prepared = prepare(backend, backend.allocate_buffer(8))
    assert submit(backend, prepared, [stream, copy, stream, copy]) == [1, 2, 3, 4]


def test_a_bound_launch_keeps_no_owner_alive(backend: RecordingBackend) -> None:
    """Buffers remember when they were used, and not by whom; no cycle holds it."""
    owner = _Owner()
    ended = weakref.ref(owner)
    prepared = prepare(backend, backend.allocate_buffer(8), owner=owner)
    submit(backend, prepared, [None] * 3)
    backend.launches.clear()
    gc.disable()
    try:
        del owner, prepared
        assert ended() is None
    finally:
        gc.enable()


@pytest.mark.anyio
async def test_waiting_for_a_buffer_tells_a_failure_once(
    backend: RecordingBackend,
) -> None:
    """However many launches shared their use of it."""
    buffer = backend.allocate_buffer(8)
    launches = [prepare(backend, buffer) for _ in range(3)]
    for each in launches:
        submit(backend, each, [None] * 2)
    backend.fail_execution(1)
    for each in launches:
        submit(backend, each, [None])
    with pytest.raises(DeviceError):
        await backend.wait_buffer(buffer)


def test_threads_share_a_launch_and_lose_no_position(
    backend: RecordingBackend,
) -> None:
    streams = [backend.create_stream() for _ in range(3)]
    prepared = prepare(backend, backend.allocate_buffer(8))
    positions: list[list[int]] = [[] for _ in range(6)]

    def work(number: int) -> None:
        mine = streams[number % 3]
        for _ in range(200):
            positions[number].append(backend.submit_launch(prepared, mine))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number in range(3):
        both = positions[number] + positions[number + 3]
        assert sorted(both) == list(range(1, 401))
        assert positions[number] == sorted(positions[number])
    assert len(backend.launches) == 1200


def test_many_launches_go_together_or_not_at_all(backend: RecordingBackend) -> None:
    buffers = [backend.allocate_buffer(8) for _ in range(2)]
    launches = [prepare(backend, buffer) for buffer in buffers]
    for _ in range(3):
        backend.submit_launches(launches)
    assert len(backend.launches) == 6
    backend.destroy(buffers[1])
    with pytest.raises(Exception, match=f"buffer {buffers[1].id}"):
        backend.submit_launches(launches)
    assert len(backend.launches) == 6


def test_attributes_of_a_launch_are_recorded(backend: RecordingBackend) -> None:
    request = prepare(backend).request
    geometry = attrs.evolve(
        request.geometry, grid=(8, 1, 1), cluster=(4, 1, 1), cooperative=True
    )
    backend.launch(request)
    backend.launch(attrs.evolve(request, geometry=geometry))
    found = [(record.cluster, record.cooperative) for record in backend.launches]
    assert found == [(None, False), ((4, 1, 1), True)]


@pytest.mark.parametrize("attribute", [{"cluster": (1, 1, 1)}, {"cooperative": True}])
def test_a_device_that_lacks_an_attribute_refuses_the_launch(
    attribute: dict[str, Any],
) -> None:
    backend = RecordingBackend(BackendKind.CPU, ArtifactFormat.CUDA_PTX)
    request = prepare(backend).request
    geometry = attrs.evolve(request.geometry, **attribute)
    with pytest.raises(CapabilityMismatch):
        backend.launch(attrs.evolve(request, geometry=geometry))
    assert not backend.launches
