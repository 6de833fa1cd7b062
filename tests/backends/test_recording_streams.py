"""Held streams, events between them, and failures of the work itself."""

from __future__ import annotations

import itertools

import pytest

from accy_async.artifact import (
    ArtifactFormat,
    BackendKind,
    FixedLaunch,
    KernelArtifact,
)
from accy_async.backends import LaunchRequest, LoadedArtifact, StreamHandle
from accy_async.backends.recording import RecordingBackend
from accy_async.errors import DeviceError, DeviceLost, InvalidEvent, InvalidStream

pytestmark = pytest.mark.anyio
ARTIFACT = KernelArtifact(
    kernel_name="scan",
    format=ArtifactFormat.CUDA_PTX,
    argument_count=0,
    scalar_argument_count=0,
    payload="ptx",
)
LOADED = LoadedArtifact(id=1000, backend=BackendKind.CUDA, kernel_name="scan")
GEOMETRY = FixedLaunch(grid=(1, 1, 1), threadgroup=(1, 1, 1))


@pytest.fixture
def backend() -> RecordingBackend:
    return RecordingBackend()


def launch(
    backend: RecordingBackend, stream: StreamHandle | None = None, name: str = "node"
) -> None:
    backend.launch(
        LaunchRequest(
            artifact=ARTIFACT,
            loaded=LOADED,
            geometry=GEOMETRY,
            stream=stream,
            diagnostic_id=name,
        )
    )


def idle(backend: RecordingBackend, *streams: StreamHandle) -> list[bool]:
    return [backend.is_stream_idle(stream) for stream in streams]


def test_work_completes_as_it_is_submitted(backend: RecordingBackend) -> None:
    """A stream that is not held is idle after every submission."""
    stream = backend.create_stream()
    launch(backend, stream)
    launch(backend)
    assert idle(backend, stream) == [True]
    assert backend.is_stream_idle()


def test_held_stream_leaves_others_alone(backend: RecordingBackend) -> None:
    """Holding one stream holds no other, and release lets all its work through."""
    held, free = backend.create_stream(), backend.create_stream()
    backend.hold(held)
    for stream in (held, free, held):
        launch(backend, stream)
    assert idle(backend, held, free) == [False, True]
    backend.release(held)
    assert idle(backend, held, free) == [True, True]


def test_step_lets_operations_through_one_by_one(backend: RecordingBackend) -> None:
    """As many operations complete as are let through, and the stream stays held."""
    stream = backend.create_stream()
    backend.hold(stream)
    events = [backend.create_event() for _ in range(4)]
    for event in events:
        backend.record_event(event, stream)
    reached = []
    for count in (1, 2, 1):
        backend.step(stream, count)
        reached.append([backend.is_event_complete(event) for event in events])
    assert reached == [
        [True, False, False, False],
        [True, True, True, False],
        [True, True, True, True],
    ]
    launch(backend, stream)
    assert not backend.is_stream_idle(stream)


def test_hold_all_holds_what_is_opened_later() -> None:
    """Every stream is held, those of now and those to come, until all are released."""
    backend = RecordingBackend(is_holding=True)
    early = backend.create_stream()
    backend.release_all()
    backend.hold_all()
    late = backend.create_stream()
    for stream in (early, late, None):
        launch(backend, stream)
    assert idle(backend, early, late) == [False, False]
    assert not backend.is_stream_idle()
    backend.release_all()
    assert idle(backend, early, late, backend.create_stream()) == [True] * 3
    assert backend.is_stream_idle()


def test_event_orders_work_of_two_streams(backend: RecordingBackend) -> None:
    """What waits for an event of a held stream completes after it, not before."""
    first, second = backend.create_stream(), backend.create_stream()
    backend.hold(first)
    launch(backend, first)
    event = backend.create_event()
    backend.record_event(event, first)
    backend.stream_wait_event(second, event)
    launch(backend, second)
    assert idle(backend, first, second) == [False, False]
    backend.step(first)
    assert not backend.is_event_complete(event)
    assert idle(backend, second) == [False]
    backend.step(first)
    assert backend.is_event_complete(event)
    assert idle(backend, first, second) == [True, True]


def test_event_chain_runs_through_many_streams(backend: RecordingBackend) -> None:
    """Letting go of the first of a chain lets all the others run."""
    streams = [backend.create_stream() for _ in range(5)]
    backend.hold(streams[0])
    launch(backend, streams[0])
    for before, after in itertools.pairwise(streams):
        event = backend.create_event()
        backend.record_event(event, before)
        backend.stream_wait_event(after, event)
        launch(backend, after)
    assert idle(backend, *streams) == [False] * 5
    backend.release(streams[0])
    assert idle(backend, *streams) == [True] * 5


def test_recording_again_moves_the_event_only(backend: RecordingBackend) -> None:
    """Who waits for an event's old point is not held back by its new one."""
    first, second, third = (backend.create_stream() for _ in range(3))
    event = backend.create_event()
    backend.record_event(event, first)
    backend.hold(second)
    backend.hold(third)
    backend.stream_wait_event(third, event)
    launch(backend, second)
    backend.record_event(event, second)
    backend.release(third)
    assert idle(backend, second, third) == [False, True]
    assert not backend.is_event_complete(event)


def test_unrecorded_event_is_refused(backend: RecordingBackend) -> None:
    """Waiting for an event that was never recorded would wait for nothing."""
    event = backend.create_event()
    with pytest.raises(InvalidEvent, match="event 1 was never recorded"):
        backend.stream_wait_event(None, event)


def test_events_take_simulated_time() -> None:
    """Each launch takes the same device time, so that elapsed times are exact."""
    backend = RecordingBackend(operation_ns=250.0)
    start, end = (backend.create_event(timing=True) for _ in range(2))
    backend.record_event(start)
    for _ in range(3):
        launch(backend)
    backend.record_event(end)
    assert backend.elapsed_ns(start, end) == 750.0


def test_destroyed_stream_finishes_its_work(backend: RecordingBackend) -> None:
    """A busy stream is unusable at once, and goes when its work is done."""
    stream = backend.create_stream()
    backend.hold(stream)
    launch(backend, stream)
    assert not backend.destroy(stream)
    with pytest.raises(InvalidStream, match="stream 1 was destroyed"):
        launch(backend, stream)
    assert backend.live_objects()["streams"] == 1
    backend.release_all()
    assert backend.live_objects()["streams"] == 0


async def test_failed_launch_is_told_by_its_wait(backend: RecordingBackend) -> None:
    """The wait names kernel, node, stream and code; other streams are not concerned."""
    broken, sound = backend.create_stream(), backend.create_stream()
    backend.fail_execution(2, code=719, message="misaligned")
    launch(backend, sound, "first")
    launch(backend, broken, "second")
    launch(backend, sound, "third")
    await backend.wait_stream(sound)
    with pytest.raises(DeviceError) as caught:
        await backend.wait_stream(broken)
    assert str(caught.value) == (
        "misaligned [call=launch, kernel=scan, node=second, stream=1, code=719]"
    )
    assert not isinstance(caught.value, DeviceLost)
    launch(backend, broken, "fourth")
    await backend.wait_stream(broken)


async def test_failure_skips_what_follows_until_told(backend: RecordingBackend) -> None:
    """Work behind a failure is skipped: an event there is passed, without a time."""
    start, end = (backend.create_event(timing=True) for _ in range(2))
    backend.record_event(start)
    backend.fail_execution()
    launch(backend)
    backend.record_event(end)
    assert backend.is_event_complete(end)
    with pytest.raises(InvalidEvent, match="has not been reached"):
        backend.elapsed_ns(start, end)
    await backend.wait_event(start)
    with pytest.raises(DeviceError):
        await backend.wait_event(end)
    launch(backend)
    await backend.wait_default_stream()


async def test_failure_travels_through_events(backend: RecordingBackend) -> None:
    """A stream that waits for failed work fails too, as a consequence with a cause."""
    first, second = backend.create_stream(), backend.create_stream()
    backend.fail_execution(message="boom")
    launch(backend, first)
    event = backend.create_event()
    backend.record_event(event, first)
    backend.stream_wait_event(second, event)
    launch(backend, second)
    with pytest.raises(DeviceError) as caught:
        await backend.wait_stream(second)
    assert caught.value.is_consequence
    assert isinstance(caught.value.__cause__, DeviceError)
    assert not caught.value.__cause__.is_consequence
    with pytest.raises(DeviceError) as origin:
        await backend.wait_stream(first)
    assert not origin.value.is_consequence


async def test_failures_of_several_streams_leave_together(
    backend: RecordingBackend,
) -> None:
    """Waiting for the device tells of every stream that failed."""
    streams = [backend.create_stream() for _ in range(2)]
    for stream in streams:
        backend.fail_execution()
        launch(backend, stream)
    with pytest.raises(ExceptionGroup) as caught:
        await backend.wait_device()
    assert [error.stream for error in caught.value.exceptions] == [1, 2]  # type: ignore[union-attr]
    for stream in streams:
        launch(backend, stream)
    await backend.wait_device()


async def test_sticky_failure_takes_the_device(backend: RecordingBackend) -> None:
    """After it every call fails as lost, and the first error is the cause."""
    backend.fail_execution(sticky=True, code=700, message="illegal address")
    launch(backend)
    assert not backend.is_healthy
    for _ in range(2):
        with pytest.raises(DeviceLost) as caught:
            backend.allocate_buffer(8)
        assert caught.value.code == 700
        assert isinstance(caught.value.__cause__, DeviceError)
        assert caught.value.__cause__.message == "illegal address"
    with pytest.raises(DeviceLost):
        await backend.wait_device()


async def test_lost_device_frees_everything(backend: RecordingBackend) -> None:
    """Losing the device ends what is held, and lets all that is left be destroyed."""
    backend.hold_all()
    buffer, kept = backend.allocate_buffer(8), backend.allocate_buffer(8)
    backend.write_buffer(buffer, bytes(8))
    backend.write_buffer(kept, bytes(8))
    assert not backend.destroy(buffer)
    backend.lose_device("gone")
    assert backend.destroyed_ids == [buffer.id]
    with pytest.raises(DeviceLost, match="cuda:0 is lost: gone"):
        await backend.wait_default_stream()
    assert backend.destroy(kept)
    backend.close()
    assert set(backend.live_objects().values()) == {0}
