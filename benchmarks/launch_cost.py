"""What a launch costs its caller: host time, on the recording and CPU backends.

The peers give the scale: a plain ctypes call, a call of a numpy ufunc, and the
cheapest way to hand work to another thread.
"""

from __future__ import annotations

import asyncio
import ctypes
import queue
from collections.abc import Callable
from contextlib import AsyncExitStack

import numpy as np

import accy_async
from accy_async import ArtifactFormat, BackendKind, DType, ScalarArgument
from accy_async.artifact import FixedLaunch
from accy_async.backends import LaunchRequest, RecordingBackend
from accy_async.compiler.kernels import scan_pipeline
from accy_async.compiler.kernels.catalogue import cpu_registry
from accy_async.pipeline import (
    PipelineLaunch,
    allocate_pipeline_intermediates,
    submit_pipeline,
)
from benchmarks.measuring import Figure, in_rounds, per_call, show

LENGTH = 256
CALLS = 200


async def measure(backend: str, rounds: int) -> list[Figure]:
    """One backend's figures, in microseconds."""
    device = (
        RecordingBackend(BackendKind.CPU, keeps_records=False)
        if backend == "recording"
        else backend
    )
    pipeline = scan_pipeline(DType.F32)
    registry = cpu_registry(targets=[stage.target for stage in pipeline.stages])
    scalars = (ScalarArgument.u32(LENGTH),)
    async with accy_async.open_session(device) as session, AsyncExitStack() as stack:
        source = session.allocate(LENGTH, DType.F32)
        result = session.allocate(LENGTH, DType.F32)
        pool = await stack.enter_async_context(
            await session.load_pipeline(pipeline, registry)
        )
        scratch = await stack.enter_async_context(
            await allocate_pipeline_intermediates(session.backend, pipeline, scalars)
        )
        stream = await stack.enter_async_context(session.stream())
        request = PipelineLaunch(
            pipeline=pipeline,
            registry=registry,
            format=ArtifactFormat.CPU_MACHINE_CODE,
            operands=(source.binding("read_only"),),
            results=(result.binding("read_write"),),
            runtime_scalar_arguments=scalars,
            artifacts=pool,
            intermediates=scratch,
            stream=stream,
        )
        entry = pool.entries[2]

        def make() -> LaunchRequest:
            return LaunchRequest(
                artifact=entry.artifact,
                loaded=entry.loaded,
                buffers=(
                    result.binding("read_write"),
                    source.binding("read_only"),
                    scratch[1],
                ),
                scalars=scalars,
                geometry=FixedLaunch(grid=(1, 1, 1), threadgroup=(256, 1, 1)),
                stream=stream,
            )

        ready = make()
        prepared = session.backend.prepare_launch(ready)

        async def idle(call: Callable[[], object], parts: int) -> float:
            """Submit in bursts, timing only that, and let the stream catch up."""
            took = per_call(call, CALLS)
            await session.backend.wait_stream(stream)
            return took / parts

        kinds: dict[str, tuple[Callable[[], object], int]] = {
            f"{backend}: backend.submit_launch": (
                lambda: session.backend.submit_launch(prepared, stream),
                1,
            ),
            f"{backend}: backend.launch, request kept": (
                lambda: session.backend.launch(ready),
                1,
            ),
            f"{backend}: backend.launch, request made": (
                lambda: session.backend.launch(make()),
                1,
            ),
            f"{backend}: submit_pipeline, a stage": (
                lambda: submit_pipeline(session.backend, request),
                3,
            ),
        }
        taken: dict[str, list[float]] = {name: [] for name in kinds}
        for number in range(rounds + 1):
            for name, (call, parts) in kinds.items():
                value = await idle(call, parts)
                if number:
                    taken[name].append(value)
    return [Figure(name, tuple(samples)) for name, samples in taken.items()]


def peers(rounds: int) -> list[Figure]:
    """What else a caller could do."""
    absolute = ctypes.CDLL(None).abs
    small = np.ones(LENGTH, np.float32)
    out = np.empty_like(small)
    handed: queue.SimpleQueue[int] = queue.SimpleQueue()
    return in_rounds(
        {
            "ctypes call of abs": lambda: per_call(lambda: absolute(-1), CALLS),
            f"numpy.add of {LENGTH} f32": lambda: per_call(
                lambda: np.add(small, small, out=out), CALLS
            ),
            "SimpleQueue.put": lambda: per_call(lambda: handed.put(1), CALLS),
        },
        rounds,
    )


def main(rounds: int = 15) -> None:
    figures = peers(rounds)
    for backend in ("recording", "cpu"):
        figures += asyncio.run(measure(backend, rounds))
    show(
        "Host cost of one kernel launch",
        figures,
        unit="us",
        baseline=f"numpy.add of {LENGTH} f32",
    )


if __name__ == "__main__":
    main()
