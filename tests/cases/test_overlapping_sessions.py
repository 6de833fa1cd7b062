"""Sessions that overlap on one backend: each has its own, in whatever order they go."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import anyio
import anyio.lowlevel
import anyio.to_thread
import numpy as np
import pytest

from accy_async import DType, open_session
from accy_async.artifact.geometry import FixedLaunch
from accy_async.backends import RecordingBackend
from accy_async.backends.base import Backend
from accy_async.backends.cpu import CpuBackend
from accy_async.backends.handles import BufferHandle, ObjectKind
from accy_async.backends.launch import LaunchRequest
from accy_async.backends.loading import load_entry
from accy_async.backends.recording.records import CallRecord
from accy_async.errors import DeviceError, GraceExpired, SessionClosed
from accy_async.pipeline import (
    allocate_pipeline_intermediates,
    load_pipeline_artifacts,
)
from accy_async.session import Session
from tests.graphs.parts import KERNEL, chains, diamond
from tests.harness.scan_chain import ARGS, PIPELINE, PTX, REGISTRY

pytestmark = pytest.mark.anyio

KINDS = tuple(kind.value for kind in ObjectKind)
NOTHING = dict.fromkeys(KINDS, 0)
ORDERS = pytest.mark.parametrize("order", ["first", "last"])


class Visit:
    """A session in a task of its own, which leaves when it is told to."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.leave = anyio.Event()
        self.is_over = anyio.Event()

    async def end(self) -> None:
        """Leave it, and return when that is done."""
        self.leave.set()
        await self.is_over.wait()


@asynccontextmanager
async def visits(
    *openers: Callable[[], AbstractAsyncContextManager[Session]],
) -> AsyncIterator[list[Visit]]:
    """Sessions that are opened in this order, each in a task of its own."""
    made: list[Visit] = []

    async def visit(opener: Callable[[], AbstractAsyncContextManager[Session]]) -> None:
        async with opener() as session:
            mine = Visit(session)
            made.append(mine)
            opened.set()
            await mine.leave.wait()
        mine.is_over.set()

    async with anyio.create_task_group() as group:
        for opener in openers:
            opened = anyio.Event()
            group.start_soon(visit, opener)
            await opened.wait()
        yield made
        for one in made:
            one.leave.set()


async def make_of_each_kind(session: Session) -> dict[str, int]:
    """Objects of every kind, some through the session, some on its backend."""
    session.allocate((4,), DType.F32)
    backend = session.backend
    backend.allocate_buffer(16)
    backend.create_event()
    backend.create_stream()
    await session.load_pipeline(PIPELINE, REGISTRY, PTX)
    await load_pipeline_artifacts(backend, PIPELINE, REGISTRY, PTX)
    await allocate_pipeline_intermediates(backend, PIPELINE, ARGS)
    await session.run(diamond())
    return session.live_objects()


@ORDERS
async def test_a_session_that_leaves_destroys_its_own_and_no_more(order: str) -> None:
    """Made by turns, so that neither has a range of ids to itself."""
    backend = RecordingBackend()
    opener = lambda: open_session(backend)  # noqa: E731
    async with visits(opener, opener) as both:
        leaver, stayer = both if order == "first" else reversed(both)
        for one in (leaver, stayer, leaver, stayer):
            count = await make_of_each_kind(one.session)
        assert all(n for kind, n in count.items() if kind != "graphs")
        before = stayer.session.live_objects()
        assert backend.live_objects() == {
            kind: before[kind] + leaver.session.live_objects()[kind] for kind in KINDS
        }
        array = await stayer.session.upload(np.ones(4, np.float32))
        await leaver.end()
        assert leaver.session.live_objects() == NOTHING
        assert stayer.session.live_objects()["buffers"] == before["buffers"] + 1
        assert backend.live_objects() == stayer.session.live_objects()
        assert (await stayer.session.download(array)).shape == (4,)
        await stayer.session.run(diamond())
        await stayer.end()
        assert stayer.session.live_objects() == backend.live_objects() == NOTHING
    assert backend.is_healthy


async def test_sessions_nest_on_one_backend() -> None:
    """A session may be opened on another's backend; the outer one has its own."""
    async with open_session("recording") as outer:
        kept = outer.allocate((4,), DType.F32)
        async with open_session(outer.backend, grace=0.5) as inner:
            mine = outer.backend.allocate_buffer(8)
            held = inner.allocate((4,), DType.F32)
            assert inner.live_objects() == {**NOTHING, "buffers": 1}
            assert outer.live_objects() == {**NOTHING, "buffers": 2}
        assert outer.backend.is_alive(kept.handle)
        assert not outer.backend.is_alive(held.handle)
        assert outer.backend.is_alive(mine)
        assert outer.is_healthy
    assert not outer.is_healthy


@ORDERS
async def test_each_session_has_its_own_grace(order: str) -> None:
    """It is nobody else's, and nothing of it stays on the caller's backend."""
    backend = RecordingBackend(grace_s=3.0)
    async with visits(
        lambda: open_session(backend, grace=1.0),
        lambda: open_session(backend, grace=2.0),
    ) as both:
        graces = [one.session.backend.grace_s for one in both]
        assert (backend.grace_s, graces) == (3.0, [1.0, 2.0])
        leaver, stayer = both if order == "first" else reversed(both)
        grace_s = stayer.session.backend.grace_s
        await leaver.end()
        assert stayer.session.backend.grace_s == grace_s
    assert backend.grace_s == 3.0


async def test_the_grace_of_a_session_bounds_waits_on_its_backend() -> None:
    """Also those that name no grace, and another's is not used for them."""
    backend = RecordingBackend(is_holding=True)
    async with open_session(backend, grace=0.01) as session:
        session.backend.fill_buffer(session.backend.allocate_buffer(4), b"\0")
        late = await session.backend.settle(session.backend.wait_device)
        assert "within 0.01 s" in str(late)
        backend.release_all()


async def test_what_is_made_on_the_callers_backend_goes_with_the_last() -> None:
    """Nothing says whose it is: no session destroys it while another is open."""
    backend = RecordingBackend()
    before = backend.allocate_buffer(4)
    opener = lambda: open_session(backend)  # noqa: E731
    async with visits(opener, opener) as (first, last):
        between = backend.allocate_buffer(4)
        assert first.session.live_objects()["buffers"] == 1
        assert last.session.live_objects()["buffers"] == 1
        await first.end()
        assert first.session.live_objects() == NOTHING
        assert backend.is_alive(between)
        await last.end()
        assert not backend.is_alive(between)
    assert backend.is_alive(before)
    assert backend.is_alive(backend.allocate_buffer(4))
    async with open_session(backend):
        pass
    assert backend.live_objects()["buffers"] == 2


async def test_work_of_another_session_is_not_waited_for() -> None:
    """One that leaves waits for its own work, however long the other's takes."""
    backend = RecordingBackend()
    opener = lambda: open_session(backend, grace=30.0)  # noqa: E731
    async with visits(opener, opener) as (leaver, stayer):
        mine, theirs = (one.session.backend for one in (leaver, stayer))
        stream, buffer = theirs.create_stream(), theirs.allocate_buffer(4)
        backend.hold(stream)
        theirs.fill_buffer(buffer, b"\0", stream=stream)
        mine.fill_buffer(mine.allocate_buffer(4), b"\0", stream=mine.create_stream())
        with anyio.fail_after(20):
            await leaver.end()
        assert not backend.is_stream_idle(stream)
        backend.release(stream)


async def test_a_failure_is_told_by_the_session_whose_work_failed() -> None:
    """The other one ends well, though it leaves first and asks about its own."""
    backend = RecordingBackend()

    async def failing(first: Session) -> None:
        async with open_session(backend) as session:
            kernel = await load_entry(session.backend, KERNEL, None)
            request = LaunchRequest(
                artifact=kernel.artifact,
                loaded=kernel.loaded,
                geometry=FixedLaunch(grid=(1, 1, 1), threadgroup=(1, 1, 1)),
                stream=session.backend.create_stream(),
            )
            backend.fail_execution(message="broken")
            session.backend.launch(request)
            async with open_session(backend) as other:
                await other.upload(np.ones(4, np.float32))
            assert other.live_objects() == NOTHING
            assert first.is_healthy

    async with open_session(backend) as first:
        with pytest.raises(DeviceError, match="broken"):
            await failing(first)


async def test_grace_expired_names_a_sessions_own_objects() -> None:
    """What another one has in use is none of its business."""
    backend = RecordingBackend()
    async with open_session(backend) as other:
        busy = other.backend.create_stream()
        backend.hold(busy)
        other.backend.fill_buffer(other.backend.allocate_buffer(4), b"\0", stream=busy)
        with pytest.raises(GraceExpired) as caught:
            async with open_session(backend, grace=0.01) as session:
                stream = session.backend.create_stream()
                backend.hold(stream)
                buffer = session.backend.allocate_buffer(8)
                session.backend.fill_buffer(buffer, b"\0", stream=stream)
        assert sorted(caught.value.objects) == sorted(
            [f"buffer {buffer.id} (8 bytes)", f"stream {stream.id}"]
        )
        assert session.live_objects() == {**NOTHING, "buffers": 1, "streams": 1}
        assert other.statistics().held_by_reaper == ()
        backend.release_all()
        assert session.live_objects() == NOTHING


async def test_work_submitted_while_a_session_leaves_gets_the_grace() -> None:
    """Another thread submits after the wait: that is waited for, not given up."""
    backend = RecordingBackend()

    class Late(RecordingBackend):
        """Submits, as another thread would, when the wait has ended."""

        async def wait_for_owner(self, owner: object, deadline: float) -> None:
            await super().wait_for_owner(owner, deadline)  # type: ignore[arg-type]
            self.hold(None)
            self.fill_buffer(buffer, b"\0")
            group.start_soon(release_soon, self)

    async def release_soon(device: RecordingBackend) -> None:
        while not device.reaper:
            await anyio.lowlevel.checkpoint()
        device.release_all()

    backend = Late()
    async with anyio.create_task_group() as group, open_session(backend) as session:
        buffer = session.backend.allocate_buffer(8)
    assert session.live_objects() == NOTHING


@pytest.mark.parametrize("make", [RecordingBackend, CpuBackend])
async def test_what_is_made_too_late_is_refused(make: Callable[[], Backend]) -> None:
    """A session that was left owns nothing more; the caller's backend goes on."""
    backend = make()
    async with open_session(backend) as session:
        pass
    for call in (
        lambda: session.backend.allocate_buffer(4),
        session.backend.create_stream,
        session.backend.create_event,
    ):
        with pytest.raises(SessionClosed, match="the session was left"):
            call()
    assert backend.live_objects() == NOTHING
    backend.destroy(backend.allocate_buffer(4))
    backend.close()


async def test_what_another_thread_makes_while_it_is_left_is_destroyed() -> None:
    """The session left between the making of the buffer and its handing over."""
    made, left = threading.Event(), threading.Event()

    class Slow(RecordingBackend):
        """Holds a new buffer back until the session is left."""

        def allocate_buffer(
            self, byte_size: int, *, alignment: int = 256
        ) -> BufferHandle:
            handle = super().allocate_buffer(byte_size, alignment=alignment)
            made.set()
            left.wait(20)
            return handle

    backend = Slow()
    caught: list[BaseException] = []

    def allocate() -> None:
        try:
            session.backend.allocate_buffer(4)
        except SessionClosed as error:
            caught.append(error)

    async with anyio.create_task_group() as group, open_session(backend):
        async with open_session(backend) as session:
            group.start_soon(anyio.to_thread.run_sync, allocate)
            await anyio.to_thread.run_sync(made.wait)
        left.set()
    assert "the session was left; buffer 1 was destroyed" in str(caught[0])
    assert backend.live_objects() == NOTHING


@ORDERS
async def test_sessions_of_many_tasks_and_threads_do_not_meet(order: str) -> None:
    """Many at once on one real device, each left with nothing of its own alive."""
    backend = CpuBackend(workers=2)
    shape = (64,)

    def from_thread(session: Session) -> None:
        for _ in range(8):
            session.allocate(shape, DType.F32)

    async def visit(number: int) -> None:
        async with open_session(backend) as session:
            array = await session.upload(np.full(shape, number, np.float32))
            await anyio.to_thread.run_sync(from_thread, session)
            held = [session.backend.allocate_buffer(4) for _ in range(8)]
            assert session.live_objects()["buffers"] == 9
            await anyio.sleep(0.002 * (number % 3 if order == "first" else 1))
            assert (await session.download(array) == number).all()
            assert all(map(session.backend.is_alive, held))
        assert session.live_objects() == NOTHING

    async with anyio.create_task_group() as group:
        for number in range(12):
            group.start_soon(visit, number)
    assert backend.live_objects() == NOTHING
    backend.close()


async def test_a_sessions_backend_stands_for_the_callers() -> None:
    """It is one, equals it, and what is set on it is set on the other."""
    backend = RecordingBackend()
    async with open_session(backend) as session, open_session(backend) as other:
        view = session.backend
        assert isinstance(view, Backend)
        assert isinstance(view, RecordingBackend)
        assert not isinstance(view, CpuBackend)
        assert view == backend
        assert backend == view
        assert view == other.backend
        assert view != RecordingBackend()
        assert len({view, backend, other.backend}) == 1
        assert view.base is backend is backend.base
        assert repr(view) == repr(backend)
        calls: list[CallRecord] = []
        view.on_call = calls.append
        backend.create_event()
        assert [call.kind for call in calls] == ["create_event"]
        with pytest.raises(AttributeError, match="nonsense"):
            _ = view.nonsense  # type: ignore[attr-defined]


async def test_pools_of_one_session_serve_another() -> None:
    """They are of one backend: a run of many nodes, and a pool, are of both."""
    backend = RecordingBackend()
    async with open_session(backend) as first, open_session(backend) as second:
        array = first.allocate((4,), DType.F32)
        assert second.backend.is_alive(array.handle)
        await second.write(array, np.ones(4, np.float32))
        await second.run(chains(2, 3))
        assert first.live_objects() == {**NOTHING, "buffers": 1}
