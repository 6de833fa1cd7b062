"""What was destroyed in the midst of its use, when the session is left."""

from __future__ import annotations

from typing import Any

import anyio
import anyio.lowlevel
import numpy as np
import pytest

from accy_async import open_session
from accy_async.artifact.geometry import FixedLaunch
from accy_async.backends import Backend, RecordingBackend
from accy_async.backends.handles import BufferHandle, ObjectKind, StreamHandle
from accy_async.backends.launch import LaunchRequest
from accy_async.backends.loading import load_entry
from accy_async.backends.resources import Resource
from accy_async.errors import DeviceError, GraceExpired, SessionClosed
from accy_async.session import Session
from tests.graphs.parts import KERNEL
from tests.harness.clocks import on_jumping_clocks

pytestmark = [pytest.mark.anyio, on_jumping_clocks]

NOTHING = dict.fromkeys([kind.value for kind in ObjectKind], 0)


class Refusing(RecordingBackend):
    """Refuses to free buffers."""

    def _free(self, resource: Resource) -> None:
        super()._free(resource)
        if resource.kind is ObjectKind.BUFFER:
            raise DeviceError("no", call="cuMemFreeAsync")


def busy(session: Session) -> tuple[StreamHandle, BufferHandle]:
    """A stream that stands still, and a buffer that it uses."""
    backend = session.backend
    stream, buffer = backend.create_stream(), backend.allocate_buffer(8)
    backend.hold(stream)  # type: ignore[attr-defined]
    backend.fill_buffer(buffer, b"\0", stream=stream)
    return stream, buffer


async def release_later(backend: RecordingBackend) -> None:
    """Let go on when the session waits, which it does by then."""
    for _ in range(20):
        await anyio.lowlevel.checkpoint()
    assert len(backend.reaper)
    backend.release_all()


@pytest.mark.parametrize("which", ["buffer", "stream", "both"])
@pytest.mark.parametrize("others", [0, 1])
async def test_what_was_destroyed_while_in_use_is_waited_for(
    which: str, others: int
) -> None:
    """Beside other sessions too. Nothing is pending after, and nobody complains."""
    backend = RecordingBackend()
    async with anyio.create_task_group() as group:
        async with beside(backend, others), open_session(backend) as session:
            stream, buffer = busy(session)
            if which != "stream":
                assert not session.backend.destroy(buffer)
            if which != "buffer":
                assert not session.backend.destroy(stream)
            group.start_soon(release_later, backend)
        assert session.live_objects() == NOTHING
    assert backend.live_objects() == NOTHING


class beside:  # noqa: N801 - reads as what it is
    """Other sessions on a backend, so many, for the time of a block."""

    def __init__(self, backend: Backend, count: int) -> None:
        self._opened = [open_session(backend) for _ in range(count)]

    async def __aenter__(self) -> None:
        for one in self._opened:
            await one.__aenter__()

    async def __aexit__(self, *ended: object) -> None:
        for one in reversed(self._opened):
            await one.__aexit__(*ended)  # type: ignore[arg-type]


async def test_it_is_named_where_it_does_not_end_in_time() -> None:
    """Destroyed before or by leaving: nobody had been told of either."""
    backend = RecordingBackend()
    with pytest.raises(GraceExpired) as caught:
        async with open_session(backend, grace=0.01) as session:
            stream, buffer = busy(session)
            session.backend.destroy(buffer)
    assert sorted(caught.value.objects) == [
        f"buffer {buffer.id} (8 bytes)",
        f"stream {stream.id}",
    ]
    backend.release_all()
    assert session.live_objects() == NOTHING


async def test_its_failure_is_told_on_leaving() -> None:
    """The stream was destroyed, so that nobody else can ask."""
    backend = RecordingBackend()
    async with anyio.create_task_group() as group:
        with pytest.raises(DeviceError, match="broken"):
            async with open_session(backend) as session:
                kernel = await load_entry(session.backend, KERNEL, None)
                stream = session.backend.create_stream()
                backend.hold(stream)
                backend.fail_execution(message="broken")
                session.backend.launch(
                    LaunchRequest(
                        artifact=kernel.artifact,
                        loaded=kernel.loaded,
                        geometry=FixedLaunch(grid=(1, 1, 1), threadgroup=(1, 1, 1)),
                        stream=stream,
                    )
                )
                session.backend.destroy(stream)
                group.start_soon(release_later, backend)


async def in_a_block(session: Session) -> None:
    """Leave a stream's block in whose midst it stands still, by an error."""
    async with session.stream() as stream:
        session.backend.hold(stream)  # type: ignore[attr-defined]
        buffer = session.backend.allocate_buffer(8)
        session.backend.fill_buffer(buffer, b"\0", stream=stream)
        raise ValueError("out")


async def test_one_exit_takes_the_grace_once(
    anyio_backend_name: str,
) -> None:
    """The block has waited for it in vain, and said so: the session does not again.

    It names the buffer, of which nobody was told.
    """
    backend, grace_s = RecordingBackend(), 0.1
    began = anyio.current_time()
    with pytest.raises(ExceptionGroup) as caught:
        async with open_session(backend, grace=grace_s) as session:
            await in_a_block(session)
    if anyio_backend_name == "trio":
        assert anyio.current_time() - began == pytest.approx(grace_s)
    leaving, by_session = caught.value.exceptions
    assert isinstance(leaving, ExceptionGroup)
    told = [leaving.subgroup(GraceExpired), by_session]
    assert "stream 1" in str(told[0].exceptions[0])  # type: ignore[union-attr]
    assert isinstance(by_session, GraceExpired)
    assert by_session.objects == ("buffer 2 (8 bytes)",)
    backend.release_all()
    assert session.live_objects() == NOTHING


async def test_what_had_a_shorter_grace_has_the_rest_of_the_sessions() -> None:
    """A cleanup within gave it less time: it may well end within the session's."""
    backend = RecordingBackend()
    async with anyio.create_task_group() as group:
        async with open_session(backend, grace=20.0) as session:
            stream, _ = busy(session)
            session.backend.destroy(stream)
            name = f"stream {stream.id}"
            session.backend.reaper.give_up((name,), 0.5)
            group.start_soon(release_later, backend)
        assert session.live_objects() == NOTHING


@pytest.mark.parametrize("others", [0, 1])
async def test_a_late_free_that_is_refused_is_told_on_leaving(others: int) -> None:
    """Whoever found the buffer idle was not asked to free it, and hears nothing."""
    backend = Refusing()
    async with beside(backend, others):
        with pytest.raises(DeviceError) as caught:
            async with open_session(backend) as session:
                stream, buffer = busy(session)
                session.backend.destroy(buffer)
                backend.release(stream)
                await session.backend.wait_stream(stream)
                assert session.live_objects()["buffers"] == 0
        assert caught.value.call == "cuMemFreeAsync"
        assert "destroyed while in use" in caught.value.__notes__[0]
    backend.close()  # it was told


@pytest.mark.parametrize("leave", [False, True])
async def test_of_nobodys_the_backend_tells_when_it_is_closed(leave: bool) -> None:
    """And of a session's that was left before the device came so far, the next."""
    backend = Refusing()

    def use(owned: Backend) -> None:
        buffer = owned.allocate_buffer(8)
        backend.hold(None)
        owned.fill_buffer(buffer, b"\0")
        owned.destroy(buffer)

    if leave:
        with pytest.raises(GraceExpired):
            async with open_session(backend, grace=0.01) as session:
                use(session.backend)
    else:
        use(backend)
    backend.release_all()
    assert backend.live_objects() == NOTHING
    if leave:
        with pytest.raises(DeviceError, match="no"):
            async with open_session(backend):
                pass
        backend.close()
        return
    async with open_session(backend):
        pass
    with pytest.raises(ExceptionGroup) as caught:
        backend.close()
    (error,) = caught.value.exceptions
    assert isinstance(error, DeviceError)
    assert error.call == "cuMemFreeAsync"


async def test_what_is_refused_after_closing_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Nobody is left who could be told."""
    backend = Refusing()
    buffer = backend.allocate_buffer(8)
    backend.hold(None)
    backend.fill_buffer(buffer, b"\0")
    backend.close()
    backend.release_all()
    assert backend.live_objects() == NOTHING
    (record,) = caplog.records
    assert "freeing buffer 1 (8 bytes), which was destroyed while in use" in (
        record.getMessage()
    )


async def test_an_upload_that_the_session_leaves_behind_says_so() -> None:
    """Its array was made, and taken by the end of the session before it was filled."""

    class Left(RecordingBackend):
        """Leaves its sessions between an allocation and a write."""

        def write_buffer(self, *arguments: Any, **options: Any) -> int:
            session._state = "draining"
            for owner in set(self._owners):
                self.close_owner(owner)
            return super().write_buffer(*arguments, **options)

    async with open_session(Left()) as session:
        with pytest.raises(SessionClosed, match="upload"):
            await session.upload(np.zeros(4, np.float32))
    assert session.live_objects() == NOTHING
