"""Grids are covered once, urgent work goes first, streams really run at once."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
import pytest

from accy_async.backends import StreamHandle
from accy_async.backends.cpu.pool import CHUNK_NS, Job, Pace, Scratch, WorkerPool
from accy_async.dtypes import ScalarArgument
from accy_async.errors import CapabilityMismatch
from tests.conformance.devices import CpuDevice

pytestmark = pytest.mark.anyio

AWKWARD = [
    (1, 1, 1),
    (2, 1, 1),
    (7, 5, 3),
    (1, 1, 1023),
    (1, 4097, 1),
    (3, 1, 2 * 65537),
    ((1 << 20) + 7, 1, 1),
    (1 << 11, 1 << 10, 3),
]


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("grid", AWKWARD)
async def test_every_block_runs_exactly_once(
    grid: tuple[int, int, int], workers: int
) -> None:
    device = CpuDevice(workers=workers)
    blocks = grid[0] * grid[1] * grid[2]
    try:
        buffer = device.write([0] * blocks)
        for times in (1, 2, 3):
            device.backend.launch(device.request("count", [buffer], grid=grid))
            out = np.empty(blocks, np.uint32)
            device.backend.read_buffer(buffer, out)
            await device.backend.wait_default_stream()
            assert (out == times).all()
    finally:
        device.close()


def test_more_blocks_than_can_be_counted_are_refused(cpu: CpuDevice) -> None:
    grid = (2**32 - 1, 2**32 - 1, 2)
    buffer = cpu.backend.allocate_buffer(4)
    with pytest.raises(CapabilityMismatch, match="blocks, the device takes"):
        cpu.backend.launch(cpu.request("count", [buffer], grid=grid))


@pytest.mark.parametrize("size", [0, 1, 64, 4097])
async def test_dynamic_shared_memory_is_private_to_a_block_at_work(
    cpu: CpuDevice, size: int
) -> None:
    blocks = 3000
    buffer = cpu.backend.allocate_buffer(4 * blocks)
    streams = [cpu.backend.create_stream() for _ in range(3)]
    buffers = [buffer, *(cpu.backend.allocate_buffer(4 * blocks) for _ in range(2))]
    for stream, target in zip(streams, buffers, strict=True):
        cpu.backend.launch(
            cpu.request(
                "shared",
                [target],
                grid=(blocks, 1, 1),
                stream=stream,
                shared_bytes=size,
            )
        )
    for stream, target in zip(streams, buffers, strict=True):
        assert await cpu.read(target, stream) == [size] * blocks


def when_posted(
    monkeypatch: pytest.MonkeyPatch, pool: WorkerPool, count: int
) -> threading.Event:
    """Set once so many jobs were posted to the pool."""
    push: Callable[[Job], None] = pool._push
    posted: set[int] = set()
    is_posted = threading.Event()

    def note(job: Job) -> None:
        push(job)
        posted.add(id(job))
        if len(posted) == count:
            is_posted.set()

    monkeypatch.setattr(pool, "_push", note)
    return is_posted


async def test_urgent_streams_go_first(
    one_worker: CpuDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the only worker taken, what waits is run by urgency, not by arrival."""
    backend = one_worker.backend
    blocker = backend.create_stream()
    log, gate = one_worker.write([0] * 16, blocker), one_worker.write([0, 0], blocker)
    await backend.wait_stream(blocker)
    pool = backend._pool  # type: ignore[attr-defined]
    is_blocked = when_posted(monkeypatch, pool, 1)
    # Two blocks: one alone would not take a worker.
    backend.launch(
        one_worker.request(
            "gate", [gate], [ScalarArgument.u64(0)], grid=(2, 1, 1), stream=blocker
        )
    )
    assert is_blocked.wait(30)
    are_waiting = when_posted(monkeypatch, pool, 3)
    streams = [backend.create_stream(priority=priority) for priority in (2, 0, -2)]
    for stream in streams:
        tag = [ScalarArgument.u32(stream.priority + 10)]
        backend.launch(
            one_worker.request("log", [log], tag, grid=(3, 1, 1), stream=stream)
        )
    assert are_waiting.wait(30)
    one_worker.words(gate)[1] = 1
    await backend.wait_device()
    assert (await one_worker.read(log))[:10] == [9, *[8] * 3, *[10] * 3, *[12] * 3]


async def test_urgent_work_waits_for_one_chunk_of_a_long_kernel(
    one_worker: CpuDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = one_worker.backend
    low, urgent = (backend.create_stream(priority=p) for p in (2, -2))
    blocks = 5000
    log = one_worker.write([0] * (blocks + 10), low)
    gate = one_worker.write([0, 0], low)
    await backend.wait_stream(low)
    pool = backend._pool  # type: ignore[attr-defined]
    scalars = [ScalarArgument.u32(1), ScalarArgument.u64(1)]
    backend.launch(
        one_worker.request(
            "log_and_gate", [log, gate], scalars, grid=(blocks, 1, 1), stream=low
        )
    )
    side = backend.create_stream()
    while (await one_worker.read(gate, side))[0] == 0:
        continue  # the long kernel has not come to its gate
    is_posted = when_posted(monkeypatch, pool, 1)
    backend.launch(
        one_worker.request(
            "log", [log], [ScalarArgument.u32(2)], grid=(4, 1, 1), stream=urgent
        )
    )
    assert is_posted.wait(30)
    one_worker.words(gate)[1] = 1
    await backend.wait_device()
    order = (await one_worker.read(log))[1 : blocks + 5]
    assert sorted(order) == [1] * blocks + [2] * 4
    at = order.index(2)
    assert order[at : at + 4] == [2] * 4
    # The first block was a chunk of its own, the second one of 16 at most.
    assert at <= 17


async def test_streams_are_inside_kernels_at_once(cpu: CpuDevice) -> None:
    """Two kernels that each wait for the other end only if both run."""
    words = cpu.write([0, 0])
    await cpu.backend.wait_default_stream()
    for me in range(2):
        cpu.backend.launch(
            cpu.request(
                "meet",
                [words],
                [ScalarArgument.u64(me)],
                stream=cpu.backend.create_stream(),
            )
        )
    await cpu.backend.wait_device()


async def test_python_runs_while_a_kernel_does(cpu: CpuDevice) -> None:
    """Without the interpreter lock released nobody would ever open the gate."""
    release = cpu.hold()
    for stream in (cpu.backend.create_stream() for _ in range(2)):
        assert await cpu.read(cpu.write([1], stream), stream) == [1]
    assert not cpu.backend.is_stream_idle()
    release()
    await cpu.backend.wait_default_stream()


async def test_many_streams_share_the_workers(cpu: CpuDevice) -> None:
    backend = cpu.backend
    blocks = 4000
    work: list[tuple[StreamHandle, object]] = []
    for priority in range(-2, 3):
        for _ in range(3):
            stream = backend.create_stream(priority=priority)
            buffer = cpu.write([0] * blocks, stream)
            for _ in range(20):
                backend.launch(
                    cpu.request("count", [buffer], grid=(blocks, 1, 1), stream=stream)
                )
            out = np.empty(blocks, np.uint32)
            backend.read_buffer(buffer, out, stream=stream)
            work.append((stream, out))
    await backend.wait_device()
    assert all((np.asarray(out) == 20).all() for _, out in work)


class _Blocks(Job):
    """Notes its chunks; the pace is told, not measured."""

    def __init__(self, blocks: int, pace: Pace, priority: int = 0) -> None:
        super().__init__(blocks, priority, pace)
        self.chunks: list[tuple[int, int]] = []

    def call(self, begin: int, end: int, scratch: Scratch) -> int:
        self.chunks.append((begin, end))
        return 0


def test_chunks_grow_with_what_is_known() -> None:
    pace = Pace()
    assert pace.chunk(10**9, 2) == 1
    assert not pace.is_short(1)
    pace.learn(1, 100_000)
    assert pace.chunk(10**9, 2) <= 16
    for _ in range(20):
        pace.learn(1000, 1_000_000)
    # A block costs about a microsecond now.
    assert CHUNK_NS / 1100 < pace.chunk(10**9, 2) <= CHUNK_NS / 900
    assert pace.chunk(1, 2) <= CHUNK_NS / 900
    assert pace.is_short(10)
    assert not pace.is_short(1000)
    assert not pace.is_short(10**9)


def test_chunks_cover_a_job_in_order() -> None:
    job = _Blocks(12_345, Pace())
    pool = WorkerPool(1)
    pool.run(job, Scratch())
    pool.close()
    assert job.chunks[0] == (0, 1)
    ends = [0, *(end for _, end in job.chunks)]
    assert [begin for begin, _ in job.chunks] == ends[:-1]
    assert ends[-1] == 12_345


def test_closed_pool_still_runs_what_comes_late() -> None:
    pool = WorkerPool(2)
    pool.close()
    jobs = [_Blocks(50, Pace()) for _ in range(4)]
    threads = [threading.Thread(target=pool.run, args=(job, Scratch())) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
        assert not thread.is_alive()
    assert all(job.chunks for job in jobs)
