"""Nothing ends a stream's thread, and the system may refuse to start one."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from accy_async.backends.cpu import CpuBackend
from accy_async.backends.cpu.pool import Job, Pace, Scratch, WorkerPool
from accy_async.backends.resources import Resource
from accy_async.errors import DeviceError
from accy_async.session import open_session
from tests.conformance.devices import CpuDevice

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    """One will do: threads know no loop."""
    return "asyncio"


class Stubborn:
    """A guard that breaks where it is told to."""

    def __init__(self, at: str) -> None:
        self.at = at

    def _may(self, step: str) -> None:
        if step == self.at:
            raise SystemExit(f"broken at {step}")

    def blocks(self) -> bool:
        self._may("blocks")
        return False

    def ended(self) -> None:
        self._may("ended")

    def failed(self, error: DeviceError) -> None:
        self._may("failed")
        raise error


def refuse_threads(patch: pytest.MonkeyPatch) -> None:
    """Have the system start no thread any more."""

    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    patch.setattr(threading.Thread, "start", start)


async def test_the_owner_is_told_of_whatever_freeing_raised_on_a_streams_thread(
    cpu: CpuDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is no interrupt there, and the stream goes on."""
    backend = cpu.backend
    free = backend._table._free

    def broken(resource: Resource) -> None:
        free(resource)
        raise SystemExit("unmapped twice")

    with pytest.raises(DeviceError, match="SystemExit: unmapped twice") as caught:
        async with open_session(backend) as session:
            stream = session.backend.create_stream()
            buffer = session.backend.allocate_buffer(16)
            release = cpu.hold(stream)
            session.backend.write_buffer(buffer, b"1234", stream=stream)
            with monkeypatch.context() as patch:
                patch.setattr(backend._table, "_free", broken)
                session.backend.destroy(buffer)
                release()
                while backend.reaper.held():
                    await backend.wait_stream(stream)
                await backend.wait_stream(stream)
            cpu.mix(cpu.write([1], stream), 2, stream)
            await backend.wait_stream(stream)
    assert "destroyed while in use" in caught.value.__notes__[0]
    assert isinstance(caught.value.__cause__, SystemExit)
    assert not any(session.live_objects().values())


async def test_a_sweep_that_fails_itself_ends_no_stream(
    cpu: CpuDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is no owner to name: closing tells of it."""
    backend = cpu.backend
    table, main = backend._table, threading.current_thread()
    sweep = table.sweep
    swept = []

    def broken() -> int:
        if threading.current_thread() is main:
            return sweep()
        swept.append(threading.current_thread())
        raise MemoryError("no list")

    monkeypatch.setattr(table, "sweep", broken)
    buffer = cpu.write([1])
    assert await cpu.read(buffer) == [1]
    assert swept  # behind the write, before the read
    assert await cpu.read(buffer) == [1]
    with pytest.raises(ExceptionGroup) as caught:
        backend.close()
    assert isinstance(caught.value.exceptions[0], MemoryError)


@pytest.mark.parametrize("at", ["blocks", "ended"])
async def test_a_guard_that_breaks_fails_its_operation(cpu: CpuDevice, at: str) -> None:
    backend = cpu.backend
    buffer = cpu.write([3])
    await backend.wait_default_stream()
    backend.write_buffer(buffer, b"\7\0\0\0", guard=Stubborn(at))
    with pytest.raises(DeviceError, match=f"broken at {at}"):
        await backend.wait_default_stream()
    assert await cpu.read(buffer) == [3 if at == "blocks" else 7]


async def test_a_stream_without_a_thread_refuses_and_goes_on_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    backend = CpuBackend()
    stream = backend.create_stream()
    buffer, out = backend.allocate_buffer(4), bytearray(4)
    with monkeypatch.context() as patch:
        refuse_threads(patch)
        with pytest.raises(DeviceError, match="can't start new thread"):
            backend.write_buffer(buffer, b"lost", stream=stream)
        await backend.wait_stream(stream)  # as if it had not been submitted
    backend.write_buffer(buffer, b"kept", stream=stream)
    backend.read_buffer(buffer, out, stream=stream)
    await backend.wait_stream(stream)
    assert bytes(out) == b"kept"
    backend.close()


async def test_kernels_are_split_over_the_workers_that_can_be_had(
    cpu: CpuDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None here: the streams' own threads run everything."""
    backend, blocks = cpu.backend, 200
    streams = [backend.create_stream(priority=priority) for priority in (0, -1)]
    buffers = [cpu.write([0] * blocks, stream) for stream in streams]
    for stream in streams:
        await backend.wait_stream(stream)
    with monkeypatch.context() as patch:
        refuse_threads(patch)
        for stream, buffer in zip(streams, buffers, strict=True):
            grid = (blocks, 1, 1)
            backend.launch(cpu.request("count", [buffer], grid=grid, stream=stream))
        for stream in streams:
            await backend.wait_stream(stream)
    assert isinstance(backend, CpuBackend)
    assert not backend._pool.has_threads
    for stream, buffer in zip(streams, buffers, strict=True):
        assert await cpu.read(buffer, stream) == [1] * blocks


class Calls(Job):
    """A job of two blocks, each a call."""

    def __init__(self, priority: int, call: Callable[[], object]) -> None:
        super().__init__(2, priority, Pace())
        self._call = call

    def call(self, begin: int, end: int, scratch: Scratch) -> int:
        self._call()
        return 0


def test_who_finds_no_worker_for_a_more_urgent_job_does_it_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pool, ran = WorkerPool(1), []
    may_post, is_posted = threading.Event(), threading.Event()
    urgent = Calls(-1, lambda: ran.append("urgent"))

    def wait_posted() -> None:
        is_posted.set()
        Calls.wait(urgent)

    monkeypatch.setattr(urgent, "wait", wait_posted)

    def post() -> None:
        may_post.wait()
        pool.run(urgent, Scratch())

    def call_in_urgent() -> None:
        ran.append("other")
        may_post.set()
        is_posted.wait()

    other = threading.Thread(target=post, daemon=True)
    other.start()
    refuse_threads(monkeypatch)
    pool.run(Calls(0, call_in_urgent), Scratch())
    other.join()
    assert ran == ["other", "urgent", "urgent", "other"]
