"""C14: who broke a device that says only later that it is broken."""

from __future__ import annotations

import pickle

import anyio
import anyio.lowlevel
import pytest

from accy_async.backends import LaunchRequest, RecordingBackend, StreamHandle
from accy_async.backends.journal import JOURNAL_MASK, Journal, Label
from accy_async.errors import DeviceError, DeviceLost, Suspect
from accy_async.graph import LaunchGraphBuilder
from accy_async.session import open_session
from tests.graph.graphs import kernel_entry

pytestmark = pytest.mark.anyio

ENTRY = kernel_entry(0)


@pytest.fixture
def backend() -> RecordingBackend:
    return RecordingBackend()


def launch(
    backend: RecordingBackend, node: str | None, stream: StreamHandle | None = None
) -> None:
    artifact = backend.create_artifact(ENTRY.artifact_request(None))
    backend.launch(
        LaunchRequest(
            artifact=artifact,
            loaded=backend.load_artifact(artifact),
            geometry=ENTRY.launch.geometry(()),
            stream=stream,
            diagnostic_id=node,
        )
    )


async def loss(backend: RecordingBackend) -> DeviceLost:
    with pytest.raises(DeviceLost) as raised:
        await backend.wait_device()
    return raised.value


async def test_c14_the_launches_since_the_last_good_position_are_suspects(
    backend: RecordingBackend,
) -> None:
    """A breaks the device, B and the copy C are behind it, D was done before."""
    async with open_session(backend) as session:
        one, other = backend.create_stream(), backend.create_stream()
        buffer = backend.allocate_buffer(64)
        backend.hold_all()
        launch(backend, "before", one)
        launch(backend, "D", other)
        backend.step(one)
        backend.step(other)
        backend.fail_execution(1, silent=True)
        launch(backend, "A", one)
        launch(backend, "B", one)
        backend.read_buffer(buffer, bytearray(64), stream=one)
        backend.release_all()
        assert session.is_healthy  # nobody has asked the device

        with pytest.raises(DeviceLost) as raised:
            backend.read_buffer(buffer, bytearray(64), stream=other)
        error = raised.value
        assert [suspect.node for suspect in error.suspects] == ["A", "B"]
        assert error.suspects[0] == Suspect("A", ENTRY.entry_name, one.id)
        assert (error.node, error.kernel, error.code) == (None, None, 700)
        assert error.is_consequence  # the call that found out is innocent
        assert "one of these did it: A (kernel" in str(error)
        assert " or B (kernel" in str(error)
        assert "read_buffer: " in str(error)  # who found out
        assert not session.is_healthy

        launched = backend.launch_count
        with pytest.raises(DeviceLost) as again:
            launch(backend, "E", other)
        assert again.value.suspects == error.suspects
        assert again.value.__cause__ is error.__cause__
        assert isinstance(error.__cause__, DeviceError)
        assert backend.launch_count == launched
    assert not any(backend.live_objects().values())


async def test_c14_the_only_suspect_is_named(backend: RecordingBackend) -> None:
    stream = backend.create_stream()
    launch(backend, "fine", stream)
    backend.fail_execution(1, silent=True)
    launch(backend, "culprit", stream)
    error = await loss(backend)
    assert (error.node, error.kernel, error.stream) == (
        "culprit",
        ENTRY.entry_name,
        stream.id,
    )
    assert "did it" not in str(error)


async def test_launches_of_every_stream_are_suspects_each_named_once(
    backend: RecordingBackend,
) -> None:
    streams = [None, backend.create_stream(), backend.create_stream()]
    backend.hold_all()
    backend.fail_execution(9, silent=True)
    for stream in streams:
        for _ in range(2):
            launch(backend, "same", stream)
        launch(backend, None, stream)
    backend.destroy(streams[1])  # type: ignore[arg-type]
    backend.release_all()
    error = await loss(backend)
    where = [(suspect.node, suspect.stream) for suspect in error.suspects]
    assert where == [(None, streams[2].id)]  # type: ignore[union-attr]
    assert error.node is None
    assert error.kernel == ENTRY.entry_name

    other = RecordingBackend(is_holding=True)
    gone, left = other.create_stream(), other.create_stream()
    other.fail_execution(7, silent=True)
    for stream in (gone, left, gone, left, gone, left, None):
        launch(other, "same" if stream is gone else f"{len(other.launches)}", stream)
    other.destroy(gone)
    other.release(None)
    error = await loss(other)
    assert [(suspect.node, suspect.stream) for suspect in error.suspects] == [
        ("6", None),
        ("same", gone.id),
        ("1", left.id),
        ("3", left.id),
        ("5", left.id),
    ]
    assert "one of 5 launches did it: " in str(error)
    assert "debug=True" in str(error)


async def test_loss_without_a_launch_is_somebody_elses(
    backend: RecordingBackend,
) -> None:
    launch(backend, "fine")
    backend.lose_device("gone")
    error = await loss(backend)
    assert error.suspects == ()
    assert error.node is None
    assert "somebody else's" in str(error)


async def test_what_waits_when_the_device_breaks_is_told_at_the_next_look(
    backend: RecordingBackend,
) -> None:
    """A run waits in its streams, and asks nobody: a sweep finds out."""
    g = LaunchGraphBuilder()
    first = g.kernel(ENTRY, [], name="first")
    g.kernel(ENTRY, [], name="second", after=first)
    backend.fail_execution(1, silent=True)
    backend.hold_all()
    with pytest.raises(ExceptionGroup) as raised:
        async with open_session(backend) as session:
            run = session.start(g.build())
            while backend.launch_count < 2:
                await anyio.lowlevel.checkpoint()
            backend.release_all()
            with anyio.move_on_after(0.05):
                await run
            assert session.is_healthy
            backend.find_fault()
            with anyio.fail_after(10):
                await run
    [error] = raised.value.exceptions
    assert isinstance(error, DeviceLost)
    assert [suspect.node for suspect in error.suspects] == ["first", "second"]
    assert not any(backend.live_objects().values())


async def test_second_loss_changes_nothing(backend: RecordingBackend) -> None:
    backend.fail_execution(1, silent=True)
    launch(backend, "culprit")
    first = await loss(backend)
    backend.lose_device("and again")
    second = await loss(backend)
    assert second.__cause__ is first.__cause__
    assert second.node == "culprit"


def test_journal_keeps_the_last_entries_in_order() -> None:
    journal = Journal()
    assert list(journal.between(0, 0)) == []
    for position in range(1, 3001):
        journal.note(position, Label(str(position), "k"))
    kept = [label.node for label in journal.between(0, 3000)]
    assert kept == [str(p) for p in range(3000 - JOURNAL_MASK, 3001)]
    assert [label.node for label in journal.between(2998, 3000)] == ["2999", "3000"]
    assert list(journal.between(3000, 3000)) == []
    journal.note(3001, None)
    assert list(journal.between(3000, 3001)) == []
    graph = (Label("a", "k"), Label("b", "k"))
    journal.note(3002, graph)
    assert tuple(journal.between(3000, 3002)) == graph
    journal.clear()
    assert list(journal.between(0, 3002)) == []


def test_errors_with_suspects_are_pickled_and_copied() -> None:
    error = DeviceError("m", code=1, suspects=(Suspect("a", "k", 3),))
    assert error.copy().suspects == error.suspects
    assert pickle.loads(pickle.dumps(error)).suspects == error.suspects
    consequence = error.consequence()
    assert (consequence.is_consequence, consequence.__cause__) == (True, error)
    assert str(error.suspects[0]) == "a (kernel k on stream 3)"
    assert str(Suspect(None, "k", None)) == "kernel k on the default stream"
