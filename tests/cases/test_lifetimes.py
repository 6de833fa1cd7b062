"""C01, C03, C25, C40: nothing is freed too early, too late, or never."""

from __future__ import annotations

import functools
import gc
import threading

import anyio
import anyio.lowlevel
import attrs
import numpy as np
import pytest

from accy_async.artifact import DType, Fixed
from accy_async.backends import BufferBinding, RecordingBackend
from accy_async.backends.array import DeviceArray
from accy_async.backends.cpu import CpuBackend
from accy_async.errors import DeviceError, OutOfMemory
from accy_async.pipeline import (
    PipelineIntermediate,
    allocate_pipeline_intermediates,
    launch_pipeline,
    load_pipeline_artifacts,
)
from tests.harness.blocking import BlockingBackend, join_loads
from tests.harness.scan_chain import ARGS, LAUNCH, PIPELINE, PTX, REGISTRY
from tests.harness.steps import cancel_scope, perform

pytestmark = pytest.mark.anyio

GIB = 1 << 30


async def test_c01_a_buffer_is_freed_behind_its_last_use_on_another_stream() -> None:
    """C01: a buffer that stream B still reads is not free for stream A.

    Only when B has passed its last use is the memory given back; until then an
    allocation that would need it fails rather than taking it.
    """
    backend = RecordingBackend(memory_limit_bytes=4096)
    a, b = backend.create_stream(), backend.create_stream()
    buffer = backend.allocate_buffer(4096)
    backend.write_buffer(buffer, bytes(4096), stream=a)
    backend.hold(b)
    out = bytearray(4096)
    backend.read_buffer(buffer, out, stream=b)

    assert backend.destroy(buffer) is False
    assert backend.destroyed_ids == []
    with pytest.raises(OutOfMemory):
        backend.allocate_buffer(4096)

    backend.step(b)
    assert backend.destroyed_ids == [buffer.id]
    second = backend.allocate_buffer(4096)
    assert second.id != buffer.id


async def test_c01_many_streams_hold_one_buffer_until_the_last_has_passed() -> None:
    """C01: the free waits for every stream that touched the buffer, in any order."""
    for last in range(4):
        backend = RecordingBackend()
        streams = [backend.create_stream() for _ in range(4)]
        buffer = backend.allocate_buffer(64)
        for stream in streams:
            backend.hold(stream)
            backend.read_buffer(buffer, bytearray(64), stream=stream)
        backend.destroy(buffer)
        for number in [n for n in range(4) if n != last]:
            backend.release(streams[number])
            assert backend.destroyed_ids == []
        backend.release(streams[last])
        assert backend.destroyed_ids == [buffer.id]


async def test_c01_a_dropped_buffer_is_not_overwritten_on_the_cpu() -> None:
    """C01: B's copy reads what was there, though A allocates and writes meanwhile."""
    count = 1 << 16
    backend = CpuBackend(workers=2)
    try:
        a, b = backend.create_stream(), backend.create_stream()
        sevens = np.full(count, 7.0, np.float32)
        others = np.full(count, -1.0, np.float32)
        for _ in range(100):
            out = np.zeros(count, np.float32)
            delay = np.zeros(count, np.float32)
            first = backend.allocate_buffer(sevens.nbytes)
            backend.write_buffer(first, sevens, stream=a)
            await backend.wait_stream(a)
            for _ in range(3):
                backend.read_buffer(first, delay, stream=b)
            backend.read_buffer(first, out, stream=b)
            backend.destroy(first)
            second = backend.allocate_buffer(sevens.nbytes)
            backend.write_buffer(second, others, stream=a)
            await backend.wait_device()
            assert (out == 7.0).all()
            backend.destroy(second)
    finally:
        backend.close()
    assert not any(backend.live_objects().values())


async def test_c03_a_cancelled_pipeline_waits_then_destroys_in_reverse() -> None:
    """C03: wait for the stream, scratch 2, scratch 1, then the kernels, once each."""
    backend = RecordingBackend(is_holding=True)
    stream = backend.create_stream()
    request = attrs.evolve(LAUNCH, stream=stream)
    act = functools.partial(launch_pipeline, backend, request)

    outcome = await perform(backend, act, {2: cancel_scope})

    assert outcome.was_cancelled
    # Ids: the stream 1, scratch 2 and 3, kernels 4 to 6.
    assert backend.call_log[-8:] == [
        "launch(6)",
        "wait_stream(1)",
        "wait_stream(1)",
        "destroy(3)",
        "destroy(2)",
        "destroy(4)",
        "destroy(5)",
        "destroy(6)",
    ]
    assert backend.destroyed_ids == [3, 2, 4, 5, 6]


async def test_c03_a_stage_after_the_cancellation_is_never_launched() -> None:
    """C03: cancelled while stage 3 is prepared, stages 1 and 2 are awaited only."""
    backend = BlockingBackend()
    act = functools.partial(launch_pipeline, backend, LAUNCH)
    outcome = await perform(
        backend, act, {4: cancel_scope}, on_suspend=backend.let_one_through
    )
    assert outcome.was_cancelled
    assert backend.launch_count == 2
    log = backend.call_log
    assert log[log.index("wait_device") :][:5] == [
        "wait_device",
        "destroy(2)",
        "destroy(1)",
        "destroy(3)",
        "destroy(4)",
    ]
    join_loads(backend)
    assert not any(backend.live_objects().values())
    await launch_pipeline(backend, LAUNCH)
    assert backend.launch_count == 5


LARGE = attrs.evolve(
    PIPELINE,
    intermediates=(
        PipelineIntermediate(dtype=DType.F32, extent=Fixed(GIB // 4)),
        PipelineIntermediate(dtype=DType.F32, extent=Fixed(64)),
    ),
)


async def test_c25_a_kept_exception_keeps_no_device_memory() -> None:
    """C25: a failed launch's scratch is gone while its exception is still held."""
    backend = RecordingBackend(memory_limit_bytes=3 * GIB // 2)
    request = attrs.evolve(LAUNCH, pipeline=LARGE)
    kept = []
    for _ in range(3):
        backend.fail_execution(2)
        try:
            await launch_pipeline(backend, request)
        except DeviceError as error:
            kept.append(error)
    assert len(kept) == 3
    await launch_pipeline(backend, request)
    assert backend.allocated_buffer_byte_sizes.count(GIB) == 4


async def test_c25_what_waits_to_be_freed_is_freed_before_memory_runs_out() -> None:
    """C25: retired buffers that have become idle make room for a new one."""
    backend = RecordingBackend(memory_limit_bytes=3 * GIB // 2)
    async with await allocate_pipeline_intermediates(backend, LARGE, ARGS):
        with pytest.raises(OutOfMemory) as caught:
            await allocate_pipeline_intermediates(backend, LARGE, ARGS)
        assert caught.value.requested_bytes == GIB
        assert f"{GIB + 256} of {3 * GIB // 2} in use" in str(caught.value)
    async with await allocate_pipeline_intermediates(backend, LARGE, ARGS):
        pass
    assert not any(backend.live_objects().values())


async def test_c25_reference_cycles_are_collected_when_memory_runs_short() -> None:
    """C25: 20 self-referencing holders of 100 MiB fit under a limit of 1.5 GiB."""
    backend = RecordingBackend(memory_limit_bytes=3 * GIB // 2)

    class Holder:
        def __init__(self) -> None:
            self.me = self
            self.array = DeviceArray.allocate(backend, (25 << 20,), DType.F32)

    gc.disable()
    try:
        for _ in range(20):
            Holder()
    finally:
        gc.enable()
    gc.collect()
    assert backend.buffer_allocate_count == 20
    assert not any(backend.live_objects().values())


@pytest.mark.parametrize("loop", ["asyncio", "trio"])
def test_c40_a_load_that_ends_after_its_loop_is_undone_quietly(
    loop: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C40: the loop is closed when the load ends; it is freed, nobody complains."""
    complaints: list[object] = []
    monkeypatch.setattr(threading, "excepthook", complaints.append)
    backend = BlockingBackend()

    async def begin_and_give_up() -> None:
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(
                    load_pipeline_artifacts, backend, PIPELINE, REGISTRY, PTX
                )
                while not backend.threads:
                    await anyio.lowlevel.checkpoint()
                scope.cancel()

    anyio.run(begin_and_give_up, backend=loop)
    assert backend.load_count == 0
    join_loads(backend)
    assert backend.load_count == 1
    assert backend.destroyed_ids == [1]
    assert complaints == []

    async def launch() -> None:
        await launch_pipeline(backend, LAUNCH)

    anyio.run(launch, backend=loop)
    assert not any(backend.live_objects().values())


@pytest.mark.parametrize("loop", ["asyncio", "trio"])
def test_c40_device_work_that_ends_after_its_loop_frees_what_it_used(
    loop: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C40: a launch left to the reaper is cleaned up with no loop there at all."""
    complaints: list[object] = []
    monkeypatch.setattr(threading, "excepthook", complaints.append)
    backend = RecordingBackend(is_holding=True)

    async def launch_and_give_up() -> None:
        with anyio.CancelScope() as scope:
            backend.on_call = lambda call: (
                scope.cancel() if call.kind == "wait_device" else None
            )
            await launch_pipeline(backend, LAUNCH, grace_s=0.0)

    with pytest.raises(ExceptionGroup):
        anyio.run(launch_and_give_up, backend=loop)
    backend.on_call = None
    assert len(backend.reaper) == 5

    releasing = threading.Thread(target=backend.release_all)
    releasing.start()
    releasing.join()
    assert complaints == []
    assert sorted(backend.destroyed_ids) == [1, 2, 3, 4, 5]
    assert not any(backend.live_objects().values())


async def test_c01_bindings_say_what_a_launch_touches() -> None:
    """C01: operands and results count as used, with nothing for callers to declare."""
    backend = RecordingBackend()
    operand, result = (backend.allocate_buffer(20000) for _ in range(2))
    pool = await load_pipeline_artifacts(backend, PIPELINE, REGISTRY, PTX)
    scratch = await allocate_pipeline_intermediates(backend, PIPELINE, ARGS)
    backend.hold()
    await launch_pipeline(
        backend,
        attrs.evolve(
            LAUNCH,
            operands=(BufferBinding(handle=operand),),
            results=(BufferBinding(handle=result),),
            artifacts=pool,
            intermediates=scratch,
        ),
    )
    assert backend.destroy(operand) is False
    assert backend.destroy(result) is False
    backend.step(count=1)
    assert backend.destroyed_ids == [operand.id]
    backend.release()
    assert backend.destroyed_ids == [operand.id, result.id]
