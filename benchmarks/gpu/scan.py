"""The library's scan of three stages over 2^28 f32, beside the device's copy.

Two rates for each: *useful* counts every value read once and every sum written once,
which is what a user gets; *moved* counts what our three passes really read and write:
an array in `tile_sums`, two in `tile_scan`, and the tiles' sums. A copy moves what is
useful. Times are the device's own, between two events.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np

import accy_async
from accy_async import DType, ScalarArgument
from accy_async.backends.cuda import CudaBackend
from accy_async.compiler.kernels import scan_pipeline
from accy_async.compiler.kernels.catalogue import library_registry
from accy_async.compiler.kernels.scan import SCAN_TILE
from accy_async.pipeline import (
    PipelineLaunch,
    allocate_pipeline_intermediates,
    submit_pipeline,
)
from benchmarks.gpu.tables import Row, Target, show

LENGTH = 1 << 28
ROUNDS = 9
_BYTES = 4 * LENGTH
USEFUL = 2 * _BYTES
MOVED = 3 * _BYTES + 4 * (_BYTES // SCAN_TILE)

Sample = Callable[[], Awaitable[float]]
"""Milliseconds on the device."""


async def _ours(stack: AsyncExitStack) -> tuple[dict[str, Sample], dict[str, Sample]]:
    """The copy and the scan; and the scan's stages one by one."""
    session = await stack.enter_async_context(accy_async.open_session(CudaBackend()))
    backend, n = session.backend, ScalarArgument.u32(LENGTH)
    pipeline = scan_pipeline(DType.F32)
    registry = library_registry(backend.default_format, dtype=DType.F32)
    source, result = (session.allocate(LENGTH, DType.F32) for _ in range(2))
    ones = np.ones(1, np.float32).tobytes()
    backend.fill_buffer(source.binding().handle, ones)
    pool = await stack.enter_async_context(
        await session.load_pipeline(pipeline, registry)
    )
    scratch = await stack.enter_async_context(
        await allocate_pipeline_intermediates(backend, pipeline, (n,))
    )
    stream = await stack.enter_async_context(session.stream())
    request = PipelineLaunch(
        pipeline=pipeline,
        registry=registry,
        format=pool.format,
        operands=(source.binding("read_only"),),
        results=(result.binding(),),
        runtime_scalar_arguments=(n,),
        artifacts=pool,
        intermediates=scratch,
        stream=stream,
    )
    start, end = (backend.create_event(timing=True) for _ in range(2))
    arrays = source, result  # freed with their last reference

    def timed(submit: Callable[[], object]) -> Sample:
        async def sample() -> float:
            backend.record_event(start, stream)
            submit()
            backend.record_event(end, stream)
            await backend.wait_event(end)
            return backend.elapsed_ns(start, end) / 1e6

        return sample

    submit_pipeline(backend, request)
    stages = {
        prepared.request.artifact.kernel_name: timed(
            partial(backend.submit_launch, prepared, stream)
        )
        for prepared in pool.launches[request]
    }
    whole = {
        "the device's copy": timed(
            lambda: backend.copy_buffer(
                arrays[0].binding().handle, arrays[1].binding().handle, stream=stream
            )
        ),
        "our scan, useful": timed(lambda: submit_pipeline(backend, request)),
    }
    return whole, stages


def _cupy() -> Sample:
    cupy: Any = import_module("cupy")
    values = cupy.ones(LENGTH, "f4")
    out = cupy.empty_like(values)
    start, end = cupy.cuda.Event(), cupy.cuda.Event()

    async def sample() -> float:
        start.record()
        cupy.cumsum(values, out=out)
        end.record()
        end.synchronize()
        return float(cupy.cuda.get_elapsed_time(start, end))

    return sample


def _torch() -> Sample:
    torch: Any = import_module("torch")
    values = torch.ones(LENGTH, device="cuda")
    out = torch.empty_like(values)
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    async def sample() -> float:
        start.record()
        torch.cumsum(values, 0, out=out)
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end))

    return sample


async def measure() -> tuple[list[Row], list[Row]]:
    """GB/s of all, and milliseconds of the scan's stages."""
    missing: dict[str, str] = {}
    async with AsyncExitStack() as stack:
        samples, stages = await _ours(stack)
        for name, make in (("CuPy cumsum", _cupy), ("PyTorch cumsum", _torch)):
            try:
                samples[name] = make()
            except ImportError:
                missing[name] = "not installed"
        times = await _in_rounds(samples | stages)
    taken = {name: [USEFUL / took / 1e6 for took in times[name]] for name in samples}
    rows = [Row(name, rates) for name, rates in taken.items()]
    rows += [Row(name, (), why) for name, why in missing.items()]
    moved = [rate * MOVED / USEFUL for rate in taken["our scan, useful"]]
    target = Target("the device's copy", 0.6)
    rows.append(Row("our scan, moved", moved, "", (target,)))
    return rows, [Row(name, times[name]) for name in stages]


async def _in_rounds(samples: dict[str, Sample]) -> dict[str, list[float]]:
    taken: dict[str, list[float]] = {name: [] for name in samples}
    for number in range(ROUNDS + 2):
        for name, sample in samples.items():
            took = await sample()
            if number > 1:
                taken[name].append(took)
    return taken


def main() -> None:
    rates, stages = accy_async.run(measure)
    show(
        f"The scan of {LENGTH} f32",
        rates,
        unit="GB/s",
        ratio_to="the device's copy",
        more_is_better=True,
    )
    show("Its stages", stages, unit="ms")


if __name__ == "__main__":
    main()
