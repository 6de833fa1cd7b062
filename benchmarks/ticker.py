"""What a busy device does to a program that wants to do something every millisecond.

A task sleeps until the next full millisecond, again and again, for a second; its
lateness is measured while nothing else happens, while a stream is held up, and
while kernels run on every core.
"""

from __future__ import annotations

import anyio
import numpy as np

import accy_async
from accy_async import BackendKind, DType, ScalarArgument
from accy_async.backends import RecordingBackend
from accy_async.compiler.kernels import scan_pipeline
from accy_async.compiler.kernels.catalogue import cpu_registry
from accy_async.pipeline import (
    PipelineLaunch,
    allocate_pipeline_intermediates,
    launch_pipeline,
)
from benchmarks.measuring import Figure, show

SECONDS = 1.0
PERIOD = 0.001


async def _tick(late_us: list[float]) -> None:
    due = anyio.current_time()
    end = due + SECONDS
    while due < end:
        due += PERIOD
        await anyio.sleep_until(due)
        late_us.append((anyio.current_time() - due) * 1e6)


async def _idle() -> list[float]:
    late: list[float] = []
    await _tick(late)
    return late


async def _held() -> list[float]:
    """A task waits for a stream that is held back all the while."""
    late: list[float] = []
    backend = RecordingBackend(BackendKind.CPU)
    async with accy_async.open_session(backend) as session, session.stream() as stream:
        backend.hold(stream)
        buffer = backend.allocate_buffer(64)
        backend.write_buffer(buffer, bytes(64), stream=stream)
        async with anyio.create_task_group() as group:
            group.start_soon(backend.wait_stream, stream)
            await _tick(late)
            backend.release(stream)
    return late


async def _busy() -> list[float]:
    """Scans of ten million values run one after the other."""
    late: list[float] = []
    pipeline = scan_pipeline(DType.F32)
    registry = cpu_registry(targets=[stage.target for stage in pipeline.stages])
    values = np.ones(10_000_000, np.float32)
    scalars = (ScalarArgument.u32(len(values)),)
    async with accy_async.open_session("cpu") as session, session.stream() as stream:
        source = await session.upload(values)
        result = session.allocate(len(values), DType.F32)
        pool = await session.load_pipeline(pipeline, registry)
        scratch = await allocate_pipeline_intermediates(
            session.backend, pipeline, scalars
        )
        request = PipelineLaunch(
            pipeline=pipeline,
            registry=registry,
            format=session.backend.default_format,
            operands=(source.binding("read_only"),),
            results=(result.binding(),),
            runtime_scalar_arguments=scalars,
            artifacts=pool,
            intermediates=scratch,
            stream=stream,
        )

        async def launch() -> None:
            while True:
                await launch_pipeline(session.backend, request)
                await session.backend.wait_stream(stream)

        async with anyio.create_task_group() as group:
            group.start_soon(launch)
            await _tick(late)
            group.cancel_scope.cancel()
    return late


def _figure(name: str, late: list[float]) -> Figure:
    missed = sum(value > PERIOD * 1e6 for value in late)
    return Figure(f"{name}; {missed} of {len(late)} late by a period", tuple(late))


def main() -> None:
    for loop in ("asyncio", "trio"):
        figures: list[Figure] = []
        for name, work in (
            ("idle", _idle),
            ("stream held", _held),
            ("kernels on all cores", _busy),
        ):
            figures.append(_figure(name, accy_async.run(work, loop=loop)))
        show(f"Lateness of a ticker of 1 ms on {loop}", figures, unit="us")


if __name__ == "__main__":
    main()
