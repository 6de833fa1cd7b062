"""Thousands of waits on few threads, and several loops on one device."""

from __future__ import annotations

import threading

import anyio
import anyio.lowlevel
import numpy as np
import pytest

from accy_async.backends import BufferHandle, EventHandle, StreamHandle
from accy_async.backends.cuda.nativescanner import NativeScanner
from tests.conformance.devices import CudaDevice
from tests.gpu.harness import run_script

pytestmark = pytest.mark.gpu


@pytest.mark.anyio
async def test_a_thousand_waits_take_one_thread() -> None:
    """Beside the hub's, and that on which trio sleeps as a guest of the test runner."""
    device = CudaDevice()
    backend = device.backend
    before = set(threading.enumerate())
    streams = [backend.create_stream() for _ in range(8)]
    releases = [device.hold(stream) for stream in streams]
    events: list[EventHandle] = []
    for number in range(1000):
        event = backend.create_event()
        backend.record_event(event, streams[number % 8])
        events.append(event)
    ended: list[int] = []

    async def run(number: int) -> None:
        await backend.wait_event(events[number])
        ended.append(number)

    with anyio.fail_after(30):
        async with anyio.create_task_group() as group:
            for number in range(1000):
                group.start_soon(run, number)
            try:
                await anyio.sleep(0.05)
                fresh = {thread.name for thread in set(threading.enumerate()) - before}
                fresh = {name for name in fresh if not name.startswith("Trio thread")}
                assert fresh == {"accy_async cuda scanner", "accy_async cuda hub"}
                assert device.cuda._hub.scanner.__class__ is NativeScanner
                assert not ended
            finally:
                for release in releases:
                    release()
    assert sorted(ended) == list(range(1000))
    device.close()


def test_four_loops_in_four_threads_share_a_device() -> None:
    device = CudaDevice()
    backend = device.backend
    results: dict[int, bool] = {}

    async def work(number: int) -> None:
        stream = backend.create_stream()
        buffer = device.write([number], stream)
        expected = number
        for tag in range(200):
            device.mix(buffer, tag, stream)
            expected = (expected * 31 + tag) % 2**32
            if tag % 20 == 0:
                await backend.wait_stream(stream)
        results[number] = await device.read(buffer, stream) == [expected]

    async def main(first: int) -> None:
        async with anyio.create_task_group() as group:
            for number in range(4):
                group.start_soon(work, first + number)

    threads = [
        threading.Thread(
            target=lambda i=i: anyio.run(
                main, 4 * i, backend=("asyncio", "trio")[i % 2]
            )
        )
        for i in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
        assert not thread.is_alive()
    assert results == dict.fromkeys(range(16), True)
    device.close()


@pytest.mark.anyio
async def test_copies_on_many_streams_at_once_are_faithful() -> None:
    device = CudaDevice()
    backend = device.backend
    random = np.random.default_rng(9)
    given = [random.integers(0, 2**32, 300_007, np.uint32) for _ in range(8)]
    got = [np.zeros_like(array) for array in given]

    async def work(number: int) -> None:
        stream: StreamHandle = backend.create_stream()
        buffer: BufferHandle = backend.allocate_buffer(given[number].nbytes)
        for _ in range(5):
            backend.write_buffer(buffer, given[number], stream=stream)
            backend.read_buffer(buffer, got[number], stream=stream)
            await backend.wait_stream(stream)

    async with anyio.create_task_group() as group:
        for number in range(8):
            group.start_soon(work, number)
    for array, copy in zip(given, got, strict=True):
        np.testing.assert_array_equal(array, copy)
    device.close()


@pytest.mark.anyio
@pytest.mark.parametrize("turns", [0, 1, 2, 3, 200])
async def test_wait_cancelled_at_each_await(turns: int) -> None:
    """The work goes on, and can be waited for again; nothing stays armed."""
    device = CudaDevice()
    backend = device.backend
    stream = backend.create_stream()
    release = device.hold(stream)
    with anyio.fail_after(30):
        async with anyio.create_task_group() as group:
            group.start_soon(backend.wait_stream, stream)
            for _ in range(turns):
                await anyio.lowlevel.checkpoint()
            group.cancel_scope.cancel()
        assert not device.cuda._hub._own
        release()
        await backend.wait_stream(stream)
    assert backend.is_stream_idle(stream)
    device.close()


@pytest.mark.anyio
async def test_sleeping_waits_are_woken_each_time() -> None:
    """Kernels of some milliseconds, one after the other, each awaited."""
    device = CudaDevice()
    backend = device.backend
    stream = backend.create_stream()
    with anyio.fail_after(30):
        for number in range(20):
            release = device.hold(stream)
            async with anyio.create_task_group() as group:
                group.start_soon(backend.wait_stream, stream)
                await anyio.sleep(0.001 * (number % 5))
                release()
            device._free.insert(0, 0)
            device._words[0] = 0
    device.close()


def test_loop_that_ended_in_a_wait_is_forgotten() -> None:
    device = CudaDevice()
    backend = device.backend
    stream = backend.create_stream()
    release = device.hold(stream)

    async def leave() -> None:
        with anyio.move_on_after(0.01):
            await backend.wait_stream(stream)

    async def stay() -> None:
        with anyio.fail_after(30):
            async with anyio.create_task_group() as group:
                group.start_soon(backend.wait_stream, stream)
                await anyio.sleep(0.01)
                release()

    for loop in ("trio", "asyncio", "trio"):
        anyio.run(leave, backend=loop)
    anyio.run(stay, backend="trio")
    device.close()


@pytest.mark.parametrize("loop", ["asyncio", "trio"])
def test_interpreter_that_exits_during_a_wait_ends_cleanly(loop: str) -> None:
    """The backend was never closed, its threads are at work, a loop is gone."""
    out = run_script(
        f"""
import anyio, threading
from accy_async.backends import LaunchRequest
from tests.conformance.devices import CudaDevice
device = CudaDevice()
stream = device.backend.create_stream()
release = device.hold(stream)
async def main():
    with anyio.move_on_after(0.02):
        await device.backend.wait_stream(stream)
anyio.run(main, backend="{loop}")
release()
print(sum(t.name.startswith("accy_async cuda") for t in threading.enumerate()))
"""
    )
    assert out == "2\n"
