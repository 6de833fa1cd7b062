"""Scan and add on the CPU backend against numpy, on the same ten million values.

Rates count each value read once and each result written once. Each sample is four
launches and one wait, beside four calls of numpy; the first rows of each table show
one launch and one wait, which is what handing over and waking cost on top.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack

import attrs
import numpy as np

from accy_async import ArtifactFormat, DeviceArray, DType, ScalarArgument, open_session
from accy_async.artifact.native.host import core_count
from accy_async.backends import LaunchRequest
from accy_async.backends.cpu import CpuBackend
from accy_async.compiler.kernels import scan_pipeline
from accy_async.compiler.kernels.catalogue import cpu_registry
from accy_async.pipeline import (
    PipelineLaunch,
    allocate_pipeline_intermediates,
    submit_pipeline,
)
from benchmarks.measuring import Figure, show

LENGTH = 10_000_000
BATCH = 4
_TARGETS = (
    "accy.kernel.add",
    "accy.kernel.scan.tile_sums",
    "accy.kernel.scan.sums_scan",
    "accy.kernel.scan.tile_scan",
)

Work = Callable[[int], Awaitable[object]]


@attrs.frozen
class _Device:
    add: Work
    scan: Work
    arrays: tuple[DeviceArray, ...]  # an array is freed with its last reference


async def _open(
    stack: AsyncExitStack, workers: int, values: np.ndarray, others: np.ndarray
) -> _Device:
    session = await stack.enter_async_context(open_session(CpuBackend(workers=workers)))
    backend, length = session.backend, ScalarArgument.u32(len(values))
    registry = cpu_registry(targets=_TARGETS)
    source = await session.upload(values)
    other = await session.upload(others)
    result = await session.upload(np.zeros_like(values))

    entry = registry.get("accy.kernel.add", 1, ArtifactFormat.CPU_MACHINE_CODE)
    artifact = backend.create_artifact(entry.artifact_request(None))
    add = LaunchRequest(
        artifact=artifact,
        loaded=backend.load_artifact(artifact),
        buffers=(result.binding(), source.binding(), other.binding()),
        scalars=(length,),
        geometry=entry.launch.geometry((length,)),
    )
    pipeline = scan_pipeline(DType.F32)
    pool = await session.load_pipeline(pipeline, registry)
    scratch = await allocate_pipeline_intermediates(backend, pipeline, (length,))
    scan = PipelineLaunch(
        pipeline=pipeline,
        registry=registry,
        format=ArtifactFormat.CPU_MACHINE_CODE,
        operands=(source.binding("read_only"),),
        results=(result.binding(),),
        runtime_scalar_arguments=(length,),
        artifacts=pool,
        intermediates=scratch,
    )

    async def run_add(times: int) -> None:
        for _ in range(times):
            backend.launch(add)
        await backend.wait_default_stream()

    async def run_scan(times: int) -> None:
        for _ in range(times):
            submit_pipeline(backend, scan)
        await backend.wait_default_stream()

    return _Device(run_add, run_scan, (source, other, result))


async def _measure(rounds: int) -> None:
    random = np.random.default_rng(1)
    values = random.standard_normal(LENGTH, dtype=np.float32)
    others = random.standard_normal(LENGTH, dtype=np.float32)
    out = np.zeros_like(values)
    cores = core_count()

    async def numpy_add(times: int) -> None:
        for _ in range(times):
            np.add(values, others, out=out)

    async def numpy_scan(times: int) -> None:
        for _ in range(times):
            np.cumsum(values, out=out)

    async with AsyncExitStack() as stack:
        one = await _open(stack, 1, values, others)
        all_ = await _open(stack, cores, values, others)
        for title, moved, numpy, ours in (
            ("add", 3, numpy_add, (one.add, all_.add)),
            ("cumsum", 2, numpy_scan, (one.scan, all_.scan)),
        ):
            works: dict[str, tuple[Work, int]] = {
                f"numpy.{title}": (numpy, BATCH),
                "1 worker, waiting for each": (ours[0], 1),
                f"{cores} workers, waiting for each": (ours[1], 1),
                f"1 worker, waiting for {BATCH}": (ours[0], BATCH),
                f"{cores} workers, waiting for {BATCH}": (ours[1], BATCH),
            }
            figures = await _in_rounds(works, rounds, moved * values.nbytes)
            show(
                f"{title} of {LENGTH:,} f32",
                figures,
                unit="GB/s",
                more_is_better=True,
            )


async def _in_rounds(
    works: dict[str, tuple[Work, int]], rounds: int, moved: int
) -> list[Figure]:
    taken: dict[str, list[float]] = {name: [] for name in works}
    for number in range(rounds + 3):
        for name, (work, times) in works.items():
            started = time.perf_counter()
            await work(times)
            took = (time.perf_counter() - started) / times
            if number >= 3:  # a kernel's pace is learned in its first runs
                taken[name].append(moved / took / 1e9)
    return [Figure(name, tuple(samples)) for name, samples in taken.items()]


def main(rounds: int = 21) -> None:
    asyncio.run(_measure(rounds))


if __name__ == "__main__":
    main()
