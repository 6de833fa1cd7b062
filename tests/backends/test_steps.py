"""Many launches in one go do what the calls for them would, or leave them to those."""

from __future__ import annotations

import attrs
import pytest

from accy_async.backends import BufferBinding, LaunchRequest, RecordingBackend
from accy_async.backends.contract.steps import LaunchStep
from accy_async.backends.handles import EventHandle, StreamHandle
from accy_async.backends.launch import PreparedLaunch
from accy_async.errors import DeviceError
from tests.graph.graphs import kernel_entry


class _Guard:
    def __init__(self) -> None:
        self.heard: list[str] = []

    def blocks(self) -> bool:
        self.heard.append("blocks")
        return False

    def ended(self) -> None:
        self.heard.append("ended")

    def failed(self, error: BaseException) -> None:
        self.heard.append(f"failed: {error}")


@attrs.frozen
class _World:
    backend: RecordingBackend
    launch: PreparedLaunch
    one: StreamHandle
    two: StreamHandle
    event: EventHandle


@pytest.fixture
def world() -> _World:
    backend = RecordingBackend(keeps_records=False)
    entry = kernel_entry(1)
    artifact = backend.create_artifact(entry.artifact_request(None))
    launch = backend.prepare_launch(
        LaunchRequest(
            artifact=artifact,
            loaded=backend.load_artifact(artifact),
            buffers=(BufferBinding(handle=backend.allocate_buffer(64)),),
            geometry=entry.launch.geometry(()),
        )
    )
    one, two = backend.create_stream(), backend.create_stream()
    return _World(backend, launch, one, two, backend.create_event())


def test_steps_wait_launch_and_record(world: _World) -> None:
    """The second stream's launch completes only behind the event of the first's."""
    backend, guard, positions = world.backend, _Guard(), list[int]()
    backend.hold(world.one)
    steps: list[LaunchStep] = [
        (world.one, (), world.launch, guard, world.event),
        (world.two, (world.event,), world.launch, guard, None),
    ]
    backend.submit_steps(steps, positions)
    assert positions == [1, 2]
    assert backend.launch_count == 2
    assert not backend.is_stream_idle(world.two)
    backend.release(world.one)
    assert backend.is_stream_idle(world.two)
    assert guard.heard == ["blocks", "ended"] * 2


@pytest.mark.parametrize("what", ["buffer", "stream", "event", "unrecorded", "closed"])
def test_a_step_that_would_be_refused_has_no_effect(world: _World, what: str) -> None:
    """It ends the going; the calls for it say why."""
    backend, positions = world.backend, list[int]()
    if what == "buffer":
        backend.destroy(world.launch.request.buffers[0].handle)
    elif what == "stream":
        backend.destroy(world.one)
    elif what == "event":
        backend.destroy(world.event)
    elif what == "closed":
        backend.close()
    waits = (world.event,) if what == "unrecorded" else ()
    after = world.event if what == "event" else None
    backend.submit_steps([(world.one, waits, world.launch, _Guard(), after)], positions)
    assert positions == []
    assert backend.launch_count == 0


def test_what_somebody_looks_at_is_left_to_the_calls(world: _World) -> None:
    """An injected failure hits the call that it was meant for."""
    backend, positions = world.backend, list[int]()
    backend.fail("launch")
    steps: list[LaunchStep] = [(world.one, (), world.launch, _Guard(), None)]
    backend.submit_steps(steps, positions)
    assert positions == []
    with pytest.raises(DeviceError):
        backend.submit_launch(world.launch, world.one)
    backend.submit_steps(steps, positions)
    assert positions == [1]
