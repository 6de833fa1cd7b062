"""Launchers: a kernel bound to its arguments and stream, on a backend that records."""

from __future__ import annotations

from typing import cast

import attrs
import pytest

from accy_async import DType, ScalarArgument
from accy_async.backends import (
    BufferBinding,
    BufferHandle,
    Launcher,
    LaunchRequest,
    RecordingBackend,
    StreamHandle,
)
from accy_async.errors import (
    InvalidBuffer,
    InvalidStream,
    InvalidType,
    LaunchArgumentMismatch,
    OutOfRange,
)
from tests.graph.graphs import kernel_entry

ENTRY = kernel_entry(2, runtime_scalar_argument_count=1)


@pytest.fixture
def backend() -> RecordingBackend:
    return RecordingBackend()


@pytest.fixture
def stream(backend: RecordingBackend) -> StreamHandle:
    return backend.create_stream()


@pytest.fixture
def buffers(backend: RecordingBackend) -> list[BufferHandle]:
    return [backend.allocate_buffer(8) for _ in range(3)]


def request_of(
    backend: RecordingBackend, buffers: list[BufferHandle], stream: StreamHandle | None
) -> LaunchRequest:
    artifact = backend.create_artifact(ENTRY.artifact_request(None))
    return LaunchRequest(
        artifact=artifact,
        loaded=backend.load_artifact(artifact),
        buffers=tuple(BufferBinding(handle=buffer) for buffer in buffers[:2]),
        scalars=(ScalarArgument.u32(1),),
        geometry=ENTRY.launch.geometry(()),
        stream=stream,
    )


@pytest.fixture
def launcher(
    backend: RecordingBackend, buffers: list[BufferHandle], stream: StreamHandle
) -> Launcher:
    return backend.bind_launch(request_of(backend, buffers, stream))


def test_each_launch_has_the_arguments_of_its_moment(
    backend: RecordingBackend, buffers: list[BufferHandle], launcher: Launcher
) -> None:
    submit = launcher.submit
    assert submit() == 1
    launcher.set_scalar(0, 7)
    launcher.set_buffer(1, BufferBinding(handle=buffers[2]))
    assert submit() == 2
    launcher.set_scalar(0, ScalarArgument.u32(8))
    assert submit() == 3
    assert [record.scalars for record in backend.launches] == [
        (ScalarArgument.u32(value),) for value in (1, 7, 8)
    ]
    first, second, third = (buffer.id for buffer in buffers)
    assert [record.buffer_ids for record in backend.launches] == [
        (first, second), (first, third), (first, third),
    ]  # fmt: skip
    assert [b.handle for b in launcher.request.buffers] == [buffers[0], buffers[2]]
    assert launcher.request.scalars == (ScalarArgument.u32(8),)


def test_what_a_launcher_does_not_take_changes_nothing(
    backend: RecordingBackend, buffers: list[BufferHandle], launcher: Launcher
) -> None:
    before = launcher.request
    binding = BufferBinding(handle=buffers[2])
    with pytest.raises(LaunchArgumentMismatch, match="1 scalar arguments, none of in"):
        launcher.set_scalar(1, 3)
    with pytest.raises(
        LaunchArgumentMismatch, match="'k' has 2 buffer arguments, none"
    ):
        launcher.set_buffer(-1, binding)
    with pytest.raises(LaunchArgumentMismatch, match="is of type u32, not f32"):
        launcher.set_scalar(0, ScalarArgument.f32(1))
    with pytest.raises(OutOfRange, match="u32"):
        launcher.set_scalar(0, -1)
    with pytest.raises(InvalidType, match="u32"):
        launcher.set_scalar(0, 1.5)
    with pytest.raises(InvalidType, match="a BufferBinding"):
        launcher.set_buffer(0, cast("BufferBinding", buffers[2]))
    backend.destroy(buffers[2])
    with pytest.raises(InvalidBuffer, match=f"buffer {buffers[2].id} was destroyed"):
        launcher.set_buffer(0, binding)
    assert launcher.request == before
    launcher.submit()
    assert backend.launches[0].scalars == (ScalarArgument.u32(1),)


def test_a_stream_that_is_not_alive_is_refused_at_once(
    backend: RecordingBackend, buffers: list[BufferHandle], stream: StreamHandle
) -> None:
    request = request_of(backend, buffers, stream)
    bound = backend.bind_launch(request)
    backend.destroy(stream)
    with pytest.raises(InvalidStream):
        backend.bind_launch(request)
    with pytest.raises(InvalidStream):
        bound.submit()


def test_a_grid_of_no_blocks_is_a_launch_of_nothing(
    backend: RecordingBackend, buffers: list[BufferHandle], stream: StreamHandle
) -> None:
    request = request_of(backend, buffers, stream)
    nothing = attrs.evolve(request.geometry, grid=(0, 1, 1))
    launcher = backend.bind_launch(attrs.evolve(request, geometry=nothing))
    assert launcher.submit() == 0
    launcher.set_scalar(0, 2)
    assert launcher.submit() == 0
    assert launcher.request.scalars[0].dtype is DType.U32
