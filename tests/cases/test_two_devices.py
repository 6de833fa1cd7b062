"""Two devices in one process: handles of one are refused on the other, and named."""

from __future__ import annotations

from collections.abc import Callable

import attrs
import numpy as np
import pytest

from accy_async import DType, open_session
from accy_async.artifact.geometry import FixedLaunch
from accy_async.backends import (
    BufferBinding,
    BufferHandle,
    LaunchRequest,
    RecordingBackend,
)
from accy_async.backends.loading import load_entry
from accy_async.errors import (
    AccyError,
    InvalidArtifact,
    InvalidBuffer,
    InvalidEvent,
    InvalidStream,
    LaunchArgumentMismatch,
)
from accy_async.graph.builder import LaunchGraphBuilder
from accy_async.graph.options import LaunchOptions
from accy_async.graph.plan import LaunchGraphPlan
from accy_async.pipeline import launch_pipeline, load_pipeline_artifacts
from accy_async.session import Session
from tests.graphs.parts import KERNEL, diamond
from tests.harness.scan_chain import LAUNCH, PIPELINE, PTX, REGISTRY

pytestmark = pytest.mark.anyio

GEOMETRY = FixedLaunch(grid=(1, 1, 1), threadgroup=(1, 1, 1))
BOTH = r"is of backend cuda:1 \(recording \(cuda\)\), this one is cuda:0 \(recording"


def devices() -> tuple[RecordingBackend, RecordingBackend]:
    """Two of one kind, whose ids agree."""
    return RecordingBackend(), RecordingBackend(index=1)


def test_backends_name_their_device() -> None:
    """Stable, and without what differs from one opening to the next."""
    first, second = devices()
    assert (first.device, second.device) == ("cuda:0", "cuda:1")
    assert second.capabilities.identity.device == "cuda:1"
    assert RecordingBackend("cpu").device == "cpu:0"


async def test_every_call_refuses_the_others_handles() -> None:
    """Nothing is submitted, and the object of the same id is not touched."""
    first, second = devices()
    loaded = []
    for backend in (first, second):
        kernel = await load_entry(backend, KERNEL, None)
        handles = (
            backend.allocate_buffer(16),
            backend.allocate_buffer(16),
            backend.create_stream(),
            backend.create_event(),
        )
        backend.record_event(handles[3])
        loaded.append((kernel, handles))
    (mine, (buffer, target, stream, event)), (foreign, theirs) = loaded
    request = LaunchRequest(
        artifact=mine.artifact, loaded=mine.loaded, geometry=GEOMETRY
    )
    assert (buffer, target, stream, event) == theirs
    assert mine.loaded == foreign.loaded
    calls: list[tuple[type[AccyError], Callable[[], object]]] = [
        (InvalidBuffer, lambda: first.write_buffer(theirs[0], b"\0")),
        (InvalidBuffer, lambda: first.read_buffer(theirs[0], bytearray(4))),
        (InvalidBuffer, lambda: first.copy_buffer(theirs[0], target)),
        (InvalidBuffer, lambda: first.copy_buffer(buffer, theirs[1])),
        (InvalidBuffer, lambda: first.fill_buffer(theirs[0], b"\0")),
        (InvalidStream, lambda: first.fill_buffer(buffer, b"\0", stream=theirs[2])),
        (InvalidStream, lambda: first.is_stream_idle(theirs[2])),
        (InvalidStream, lambda: first.record_event(event, theirs[2])),
        (InvalidEvent, lambda: first.record_event(theirs[3], stream)),
        (InvalidEvent, lambda: first.stream_wait_event(stream, theirs[3])),
        (InvalidStream, lambda: first.stream_wait_event(theirs[2], event)),
        (InvalidEvent, lambda: first.is_event_complete(theirs[3])),
        (
            InvalidArtifact,
            lambda: first.launch(attrs.evolve(request, loaded=foreign.loaded)),
        ),
        (
            InvalidStream,
            lambda: first.launch(attrs.evolve(request, stream=theirs[2])),
        ),
        *((InvalidBuffer, lambda h=h: first.destroy(h)) for h in theirs[:2]),
        (InvalidStream, lambda: first.destroy(theirs[2])),
        (InvalidEvent, lambda: first.destroy(theirs[3])),
    ]
    submitted = first.mark().position, first.mark(stream).position
    for error, call in calls:
        with pytest.raises(error, match=BOTH):
            call()
    with pytest.raises(InvalidBuffer, match=BOTH):
        await first.wait_buffer(theirs[0])
    with pytest.raises(InvalidStream, match=BOTH):
        await first.wait_stream(theirs[2])
    with pytest.raises(InvalidEvent, match=BOTH):
        await first.wait_event(theirs[3])
    assert (first.mark().position, first.mark(stream).position) == submitted
    assert not any(first.is_alive(handle) for handle in theirs)
    assert all(first.is_alive(h) for h in (buffer, target, stream, event))


def test_an_invented_handle_of_another_device_is_not_trusted() -> None:
    """Launches take handles that nobody gave out, but none that another one did."""
    first, second = devices()
    far = [second.allocate_buffer(4) for _ in range(5)][-1]
    assert (
        first._find_for_launch(BufferHandle(id=5, backend="cuda", byte_size=4)) is None
    )
    with pytest.raises(InvalidBuffer, match=BOTH):
        first._find_for_launch(far)


def test_bindings_of_two_devices_are_two_buffers() -> None:
    """Also where ids agree; one made by hand may be either."""
    first, second = (BufferBinding(handle=d.allocate_buffer(4)) for d in devices())
    by_hand = BufferBinding(handle=BufferHandle(id=1, backend="cuda", byte_size=4))
    assert not first.is_same_buffer(second)
    assert first.is_same_buffer(attrs.evolve(first, access="read_only"))
    assert by_hand.is_same_buffer(first)
    assert second.is_same_buffer(by_hand)


def plan() -> LaunchGraphPlan:
    """One slot, one named event, one copy."""
    b = LaunchGraphBuilder()
    b.external_event("go")
    b.copy(b.buffer("x", DType.U32, 4), b.scratch("s", DType.U32, 4), wait="go")
    return b.build()


async def test_runs_refuse_the_others_handles_before_they_start() -> None:
    """Slots, named events, the stream and events of the options."""
    first, second = devices()
    async with open_session(first) as session, open_session(second) as other:
        mine, theirs = ({"x": s.allocate(4, DType.U32)} for s in (session, other))
        event, foreign = (s.backend.create_event() for s in (session, other))
        stream = other.backend.create_stream()
        calls = len(first.calls)
        for bindings, where in (
            ({**theirs, "go": event}, r"bindings\['x'\]: the buffer"),
            ({**mine, "go": foreign}, "external event 'go'"),
        ):
            with pytest.raises(LaunchArgumentMismatch, match=f"{where} {BOTH}"):
                session.start(plan(), bindings)
        for name, options in (
            ("stream", LaunchOptions(stream=stream)),
            ("signal_event", LaunchOptions(signal_event=foreign)),
            ("wait_events", LaunchOptions(wait_events=(event, foreign))),
        ):
            with pytest.raises(LaunchArgumentMismatch, match=f"{name}: it {BOTH}"):
                session.start(diamond(), options=options)
        assert len(first.calls) == calls


async def test_pipelines_refuse_the_others_handles_before_they_begin() -> None:
    """Operands, scratch, streams; a pool names both devices as well."""
    first, second = devices()
    buffer = BufferBinding(handle=second.allocate_buffer(20000))
    for launch, where in (
        (attrs.evolve(LAUNCH, operands=(buffer,)), r"operands\[0\]: buffer 1"),
        (attrs.evolve(LAUNCH, results=(buffer,)), r"results\[0\]: buffer 1"),
        (
            attrs.evolve(LAUNCH, intermediates=(buffer, buffer)),
            r"intermediates\[0\]: buffer 1",
        ),
        (attrs.evolve(LAUNCH, stream=second.create_stream()), "stream 2"),
    ):
        with pytest.raises(LaunchArgumentMismatch, match=f"{where} {BOTH}"):
            await launch_pipeline(first, launch)
    pool = await load_pipeline_artifacts(second, PIPELINE, REGISTRY, PTX)
    with pytest.raises(LaunchArgumentMismatch, match=r"of cuda:1; .* on cuda:0"):
        await launch_pipeline(first, attrs.evolve(LAUNCH, artifacts=pool))
    assert first.calls == []
    await pool.aclose()


@pytest.mark.parametrize("call", ["write", "download"])
async def test_arrays_of_another_session_are_refused(call: str) -> None:
    """By the session that is asked, before any copy."""
    first, second = devices()
    async with open_session(first) as session, open_session(second) as other:
        mine, theirs = (s.allocate((4,), DType.F32) for s in (session, other))
        with pytest.raises(InvalidBuffer, match=BOTH):
            await use(session, call, theirs)
        assert first.write_count + first.read_count == 0
        await use(session, call, mine)


async def use(session: Session, call: str, array: object) -> None:
    """The call, with the array."""
    if call == "write":
        await session.write(array, np.zeros(4, np.float32))  # type: ignore[arg-type]
    else:
        await session.download(array)  # type: ignore[arg-type]
