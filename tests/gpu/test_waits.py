"""Thousands of waits on few threads, and several loops on one device."""

from __future__ import annotations

import threading

import anyio
import anyio.lowlevel
import numpy as np
import pytest

from accy_async.backends import BufferHandle, EventHandle, StreamHandle
from tests.conformance.devices import CudaDevice

pytestmark = pytest.mark.gpu


@pytest.mark.anyio
async def test_a_thousand_waits_take_one_thread() -> None:
    device = CudaDevice()
    backend = device.backend
    before = threading.active_count()
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
            await anyio.sleep(0.05)
            assert threading.active_count() - before <= 2
            assert not ended
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
