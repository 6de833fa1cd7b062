"""Cancelling on the GPU: out within the grace, nothing leaked, the next run exact."""

from __future__ import annotations

import time

import anyio
import numpy as np
import pytest

from accy_async.artifact import ArtifactFormat
from accy_async.backends.array import DeviceArray
from accy_async.backends.cuda import CudaBackend
from accy_async.compiler.kernels import reference_scan, scan_pipeline
from accy_async.compiler.kernels.catalogue import library_registry
from accy_async.dtypes import DType, ScalarArgument
from accy_async.errors import GraceExpired
from accy_async.graph import LaunchGraphBuilder
from accy_async.graph.plan import LaunchGraphPlan
from accy_async.pipeline import PipelineLaunch, add_pipeline
from accy_async.session import open_session
from tests.gpu import native

pytestmark = [pytest.mark.gpu, pytest.mark.anyio]

LENGTH = 5000


def chain(kernels: int, nanoseconds: int) -> LaunchGraphPlan:
    """A scan between kernels that take their time, one after the other."""
    registry = library_registry("cuda_ptx")
    g = LaunchGraphBuilder()
    values, sums = (g.buffer(name, DType.F32, LENGTH) for name in ("values", "sums"))
    n, spin = ScalarArgument.u32(LENGTH), native.entry("spin")
    last = None
    for number in range(kernels):
        after = () if last is None else (last,)
        long = [ScalarArgument.u64(nanoseconds)]
        last = g.kernel(spin, [], long, after=after, name=f"spin{number}")
    add_pipeline(
        g, scan_pipeline(), registry, ArtifactFormat.CUDA_PTX, [values], [sums], [n]
    )
    g.copy_out(sums, g.host("answer", DType.F32, LENGTH))
    return g.build()


async def used_bytes(backend: CudaBackend) -> int:
    """What the pool says is in use, once frees on their way have arrived."""
    for _ in range(100):
        if not backend.memory_statistics()["used_bytes"]:
            break
        await anyio.sleep(0.01)
    return backend.memory_statistics()["used_bytes"]


async def test_cancelled_chain_is_left_within_grace_and_the_next_run_is_exact() -> None:
    native.host_words()
    plan = chain(10, 20_000_000)
    values = np.random.default_rng(3).normal(size=LENGTH).astype(np.float32)
    backend = CudaBackend()
    async with open_session(backend, grace=2.0) as session:

        async def run() -> np.ndarray:
            answer = np.zeros_like(values)
            with await session.upload(values) as source:
                bindings = {
                    "values": source,
                    "sums": session.allocate(LENGTH, DType.F32),
                    "answer": answer,
                }
                await session.run(plan, bindings)
            return answer

        first = await run()
        before = session.live_objects()
        started = time.monotonic()
        with anyio.move_on_after(0.05) as scope:
            await run()
        assert scope.cancelled_caught
        assert time.monotonic() - started < 2.5
        again = await run()
        np.testing.assert_array_equal(first, reference_scan(values))
        np.testing.assert_array_equal(again, first)
        assert session.live_objects()["streams"] == before["streams"]
    assert not any(session.live_objects().values())
    assert await used_bytes(backend) == 0
    backend.close()


async def _knock(words: np.ndarray) -> None:
    """Return once the gate's kernel has begun."""
    for _ in range(1000):
        if words[1]:
            return
        await anyio.sleep(0.01)
    pytest.fail("the kernel did not begin")


async def test_kernel_that_does_not_end_holds_the_exit_no_longer_than_grace() -> None:
    all_words, address = native.host_words()
    words, address = all_words[1000:1002], address + 4000
    words[:] = 0
    g = LaunchGraphBuilder()
    g.kernel(native.entry("gate"), [], [ScalarArgument.u64(address)])
    plan = g.build()
    backend = CudaBackend()
    started = [0.0]
    try:
        with pytest.raises(ExceptionGroup) as caught, anyio.CancelScope() as scope:
            async with open_session(backend, grace=0.5) as session:
                session.start(plan)
                await _knock(words)
                started[0] = time.monotonic()
                scope.cancel()
                await anyio.sleep(60)
        assert time.monotonic() - started[0] < 1.5
        assert caught.group_contains(GraceExpired)
        assert any(session.live_objects().values())
        assert backend.is_healthy
    finally:
        words[0] = 1
    with anyio.fail_after(10):
        await backend.wait_device()
    for _ in range(100):
        if not any(session.live_objects().values()):
            break
        await anyio.sleep(0.01)
    assert not any(session.live_objects().values())
    assert await used_bytes(backend) == 0
    backend.close()


async def test_cancelling_pipelines_at_any_time_leaks_no_memory() -> None:
    native.host_words()
    values = np.ones(1_000_000, np.float32)
    pipeline, registry = scan_pipeline(), library_registry("cuda_ptx")
    expected = reference_scan(values)
    backend = CudaBackend()
    async with (
        open_session(backend) as session,
        await session.load_pipeline(pipeline, registry) as pool,
    ):
        with await session.upload(values) as source:

            def launch(result: DeviceArray) -> PipelineLaunch:
                return PipelineLaunch(
                    pipeline=pipeline,
                    registry=registry,
                    format=pool.format,
                    operands=(source.binding("read_only"),),
                    results=(result.binding("write_only"),),
                    runtime_scalar_arguments=(ScalarArgument.u32(len(values)),),
                    artifacts=pool,
                )

            for number in range(40):
                with (
                    session.allocate(values.shape, DType.F32) as result,
                    anyio.move_on_after(number * 20e-6),
                ):
                    await session.launch_pipeline(launch(result))
            with session.allocate(values.shape, DType.F32) as result:
                await session.launch_pipeline(launch(result))
                scanned = await session.download(result)
    np.testing.assert_array_equal(scanned, expected)
    assert await used_bytes(backend) == 0
    backend.close()
