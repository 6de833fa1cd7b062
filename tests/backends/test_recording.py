"""The recording backend fails when told to, and remembers all that was asked of it."""

from __future__ import annotations

from typing import Any

import anyio
import numpy as np
import pytest
from anyio import wait_all_tasks_blocked

from accy_async.artifact import (
    ArtifactFormat,
    ArtifactRequest,
    BackendKind,
    FixedLaunch,
    KernelArtifact,
    ScalarArgument,
)
from accy_async.backends import (
    BufferBinding,
    BufferHandle,
    LaunchRequest,
    LoadedArtifact,
    StreamHandle,
)
from accy_async.backends.devicegraph import GraphRequest
from accy_async.backends.recording import CALL_KINDS, RecordingBackend, SyncScope
from accy_async.errors import (
    CapabilityMismatch,
    DeviceError,
    InvalidArtifact,
    InvalidBuffer,
    InvalidStream,
    InvalidValue,
    LaunchArgumentMismatch,
    OutOfMemory,
    RuntimeUnavailable,
    SessionClosed,
    UnsupportedOperation,
)
from tests.backends.loops import PATIENCE_S

pytestmark = pytest.mark.anyio
GEOMETRY = FixedLaunch(grid=(79, 1, 1), threadgroup=(64, 1, 1))
REQUEST = ArtifactRequest(
    kernel_name="scan",
    requested_format=ArtifactFormat.CUDA_PTX,
    argument_count=2,
    scalar_argument_count=1,
    payload="ptx",
)
ARTIFACT = KernelArtifact.from_request(REQUEST)
INVENTED = BufferHandle(id=1000, backend=BackendKind.CUDA, byte_size=64)


@pytest.fixture
def backend() -> RecordingBackend:
    return RecordingBackend()


def request(
    loaded: LoadedArtifact,
    buffer: BufferHandle = INVENTED,
    stream: StreamHandle | None = None,
    geometry: FixedLaunch = GEOMETRY,
) -> LaunchRequest:
    return LaunchRequest(
        artifact=ARTIFACT,
        loaded=loaded,
        geometry=geometry,
        buffers=(BufferBinding(handle=buffer),),
        scalars=(ScalarArgument.u32(5000),),
        stream=stream,
        diagnostic_id="node 7",
    )


async def call_everything(backend: RecordingBackend) -> None:
    """Every kind of call once, and destruction at the end."""
    artifact = backend.create_artifact(REQUEST)
    loaded = backend.load_artifact(artifact)
    buffer = backend.allocate_buffer(64)
    backend.write_buffer(buffer, bytes(64))
    backend.read_buffer(buffer, bytearray(64))
    backend.fill_buffer(buffer, b"\0\0")
    stream = backend.create_stream()
    event = backend.create_event()
    backend.record_event(event, stream)
    backend.stream_wait_event(stream, event)
    backend.launch(request(loaded, buffer, stream))
    backend.copy_buffer(buffer, backend.allocate_buffer(64))
    await backend.wait_stream(stream)
    await backend.wait_event(event)
    await backend.wait_default_stream()
    await backend.wait_buffer(buffer)
    await backend.wait_device()
    graph = backend.create_graph(GraphRequest(body=()))
    backend.update_graph(graph, GraphRequest(body=()))
    backend.launch_graph(graph)
    peer = RecordingBackend(index=1)
    backend.copy_to_peer(buffer, peer.allocate_buffer(64), peer)
    theirs = peer.create_event()
    peer.record_event(theirs)
    backend.wait_for_peer(stream, theirs, peer)
    backend.follow_stream(stream, None, peer)
    backend.destroy(buffer)


async def test_every_call_is_recorded_in_order(backend: RecordingBackend) -> None:
    """The log holds each call, with the id of the object that it was about."""
    seen: list[str] = []
    backend.on_call = lambda record: seen.append(str(record))
    await call_everything(backend)
    assert backend.call_log == seen
    assert seen == [
        "create_artifact",
        "load_artifact",
        "allocate_buffer",
        "write_buffer(2)",
        "read_buffer(2)",
        "fill_buffer(2)",
        "create_stream",
        "create_event",
        "record_event(4)",
        "stream_wait_event(4)",
        "launch(1)",
        "allocate_buffer",
        "copy_buffer(2)",
        "wait_stream(3)",
        "wait_event(4)",
        "wait_default_stream",
        "wait_buffer(2)",
        "wait_device",
        "create_graph",
        "update_graph(6)",
        "launch_graph(6)",
        "copy_to_peer(2)",
        "wait_for_peer(2)",
        "follow_stream",
        "destroy(2)",
    ]
    assert {call.kind for call in backend.calls} == set(CALL_KINDS)


async def test_calls_are_counted(backend: RecordingBackend) -> None:
    """Counts, ids and sizes are there to be asserted on."""
    await call_everything(backend)
    assert (backend.create_count, backend.load_count, backend.launch_count) == (1, 1, 1)
    assert (backend.write_count, backend.read_count, backend.sync_count) == (1, 1, 5)
    assert (backend.buffer_allocate_count, backend.destroy_count) == (2, 1)
    assert (backend.copy_count, backend.fill_count) == (1, 1)
    assert (backend.allocated_buffer_ids, backend.destroyed_ids) == ([2, 5], [2])
    assert backend.allocated_buffer_byte_sizes == [64, 64]
    assert backend.last_destroyed_id == 2
    assert backend.last_sync_scope is SyncScope.DEVICE
    assert backend.last_sync_stream is None
    [launch] = backend.launches
    assert (launch.kernel_name, launch.grid, launch.loaded_id) == (
        "scan",
        (79, 1, 1),
        1,
    )
    assert (launch.buffer_ids, launch.scalars) == ((2,), (ScalarArgument.u32(5000),))
    assert (launch.diagnostic_id, launch.threadgroup) == ("node 7", (64, 1, 1))


async def test_records_can_be_left_out() -> None:
    """Without records the counts go on, and nothing grows."""
    backend = RecordingBackend(keeps_records=False)
    await call_everything(backend)
    assert not backend.calls
    assert not backend.launches
    assert (backend.launch_count, backend.sync_count) == (1, 5)


@pytest.mark.parametrize("kind", CALL_KINDS)
async def test_any_call_can_be_told_to_fail(
    backend: RecordingBackend, kind: str
) -> None:
    """The call told to fail raises its usual error, once, and is recorded."""
    usual = {"load_artifact": RuntimeUnavailable, "allocate_buffer": OutOfMemory}
    backend.fail(kind)
    with pytest.raises(usual.get(kind, DeviceError), match=f"^{kind}: told to fail"):
        await call_everything(backend)
    assert backend.calls[-1].kind == kind
    await call_everything(backend)


async def test_nth_call_fails(backend: RecordingBackend) -> None:
    """Calls of the kind before and after the nth succeed."""
    backend.fail("allocate_buffer", 3, OutOfMemory("third"))
    outcomes: list[int | str] = []
    for _ in range(4):
        try:
            outcomes.append(backend.allocate_buffer(8).id)
        except OutOfMemory as error:
            outcomes.append(str(error))
    assert outcomes == [1, 2, "third", 3]
    assert backend.buffer_allocate_count == 3


@pytest.mark.parametrize("nth", range(1, 17))
async def test_nth_call_of_any_kind_fails(backend: RecordingBackend, nth: int) -> None:
    """``*`` counts calls of every kind; the one it hits raises its usual error."""
    await call_everything(counted := RecordingBackend())
    kind = counted.calls[nth - 1].kind
    backend.fail(nth=nth)
    with pytest.raises(Exception, match=f"^{kind}: told to fail"):
        await call_everything(backend)
    assert len(backend.calls) == nth


@pytest.mark.parametrize(
    ("kind", "nth", "message"),
    [
        ("launch!", 1, r"RecordingBackend\.fail\.kind: got 'launch!', expected one of"),
        ("launch", 0, r"RecordingBackend\.fail\.nth: got 0, expected 1 or more"),
    ],
)
def test_impossible_failures_are_refused(
    backend: RecordingBackend, kind: str, nth: int, message: str
) -> None:
    """A failure that would never come is a mistake in the test that asks for it."""
    with pytest.raises(InvalidValue, match=message):
        backend.fail(kind, nth)


def test_failed_destruction_frees_all_the_same(backend: RecordingBackend) -> None:
    """A driver's refusal to free leaves nothing behind that could be freed later."""
    buffer = backend.allocate_buffer(8)
    backend.fail("destroy")
    with pytest.raises(DeviceError):
        backend.destroy(buffer)
    assert backend.destroyed_ids == [buffer.id]
    assert not backend.is_alive(buffer)


def test_loads_and_allocations_fail_after_so_many() -> None:
    """The seed's counters: all further calls fail once so many have succeeded."""
    backend = RecordingBackend(
        fail_load_after_count=2, fail_buffer_allocate_after_count=1
    )
    for _ in range(2):
        backend.load_artifact(ARTIFACT)
    backend.allocate_buffer(8)
    for _ in range(2):
        with pytest.raises(RuntimeUnavailable):
            backend.load_artifact(ARTIFACT)
        with pytest.raises(OutOfMemory) as caught:
            backend.allocate_buffer(8)
    assert caught.value.requested_bytes == 8
    assert (backend.load_count, backend.buffer_allocate_count) == (2, 1)


def test_memory_has_a_limit() -> None:
    """What is freed can be had again; what is still in use cannot."""
    backend = RecordingBackend(memory_limit_bytes=100)
    first = backend.allocate_buffer(60)
    backend.allocate_buffer(40)
    with pytest.raises(OutOfMemory, match="1 bytes asked for, 100 of 100 in use"):
        backend.allocate_buffer(1)
    backend.hold()
    backend.write_buffer(first, bytes(60))
    backend.destroy(first)
    with pytest.raises(OutOfMemory):
        backend.allocate_buffer(60)
    backend.release()
    backend.allocate_buffer(60)


def test_unknown_handles_are_trusted_in_launches(backend: RecordingBackend) -> None:
    """A test may invent operands; those destroyed or of another backend are refused."""
    loaded = backend.load_artifact(ARTIFACT)
    backend.launch(request(LoadedArtifact(id=999, backend=BackendKind.CUDA)))
    gone = backend.allocate_buffer(8)
    backend.destroy(gone)
    with pytest.raises(InvalidBuffer, match="buffer 2 was destroyed"):
        backend.launch(request(loaded, gone))
    foreign = BufferHandle(id=1000, backend=BackendKind.CPU, byte_size=8)
    with pytest.raises(InvalidBuffer, match="is of backend cpu, this one is cuda"):
        backend.launch(request(loaded, foreign))
    backend.destroy(loaded)
    with pytest.raises(InvalidArtifact, match="artifact 1 was destroyed"):
        backend.launch(request(loaded))
    with pytest.raises(InvalidStream, match="never given out"):
        backend.launch(request(loaded=LoadedArtifact(id=99, backend="cuda"),
                               stream=StreamHandle(id=77, backend="cuda")))  # fmt: skip
    assert backend.launch_count == 1


def test_launch_is_checked_before_anything_is_submitted(
    backend: RecordingBackend,
) -> None:
    """Wrong counts and geometry are refused; an empty grid submits nothing."""
    loaded = backend.load_artifact(ARTIFACT)
    with pytest.raises(
        LaunchArgumentMismatch, match="takes 1 scalars, the launch gives 0"
    ):
        backend.launch(
            LaunchRequest(
                artifact=ARTIFACT,
                loaded=loaded,
                geometry=GEOMETRY,
                buffers=(BufferBinding(handle=INVENTED),),
            )
        )
    large = FixedLaunch(grid=(1, 1, 1), threadgroup=(2048, 1, 1))
    with pytest.raises(CapabilityMismatch):
        backend.launch(request(loaded, geometry=large))
    backend.launch(
        request(loaded, geometry=FixedLaunch(grid=(0, 1, 1), threadgroup=(1, 1, 1)))
    )
    assert backend.launch_count == 0
    assert backend.is_stream_idle()


def test_format_must_be_its_own(backend: RecordingBackend) -> None:
    """It loads the one format it was made for."""
    cubin = ArtifactRequest(
        kernel_name="k", requested_format="cuda_cubin", argument_count=0, payload=b"x"
    )
    with pytest.raises(UnsupportedOperation):
        backend.create_artifact(cubin)
    assert RecordingBackend("cpu").default_format is ArtifactFormat.CPU_MACHINE_CODE
    assert RecordingBackend(format="cuda_cubin").create_artifact(cubin).payload == b"x"


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"kind": "opencl"}, "RecordingBackend.kind"),
        ({"format": "ptx"}, "RecordingBackend.format"),
    ],
)
def test_wrong_kind_and_format_are_refused(arguments: Any, field: str) -> None:
    """What it is made of is checked like any value."""
    with pytest.raises(InvalidValue) as caught:
        RecordingBackend(**arguments)
    assert caught.value.field == field


def test_reads_give_zeros(backend: RecordingBackend) -> None:
    """A read fills the host memory asked for, and no more."""
    buffer = backend.allocate_buffer(64)
    out = np.full(16, 7, np.uint8)
    backend.read_buffer(buffer, out, byte_size=12)
    assert out.tolist() == [0] * 12 + [7] * 4


async def test_closing_twice_is_closing_once(backend: RecordingBackend) -> None:
    """Closing destroys what is left, newest first; then every call is refused."""
    for _ in range(3):
        backend.allocate_buffer(8)
    backend.close()
    backend.close()
    assert backend.destroyed_ids == [3, 2, 1]
    assert not backend.is_healthy
    with pytest.raises(SessionClosed, match="allocate_buffer: the backend is closed"):
        backend.allocate_buffer(8)
    with pytest.raises(SessionClosed):
        await backend.wait_device()


async def test_on_call_may_interrupt(backend: RecordingBackend) -> None:
    """What the hook raises ends the call before it has any effect."""

    def stop(_: object) -> None:
        raise KeyboardInterrupt

    backend.on_call = stop
    with pytest.raises(KeyboardInterrupt):
        backend.allocate_buffer(8)
    assert backend.live_objects()["buffers"] == 0
    with pytest.raises(KeyboardInterrupt):
        await backend.wait_device()


async def test_wait_on_a_held_stream_ends_with_its_release(
    backend: RecordingBackend,
) -> None:
    """A held stream's work completes when it is let go, and its wait with it."""
    backend.hold()
    backend.write_buffer(backend.allocate_buffer(8), bytes(8))
    with anyio.fail_after(PATIENCE_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(backend.wait_default_stream)
            await wait_all_tasks_blocked()
            assert not backend.is_stream_idle()
            backend.release()
    assert backend.is_stream_idle()
