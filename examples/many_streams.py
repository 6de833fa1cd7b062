"""Many launches in flight: one pool, several streams, one task for each."""

import anyio
import numpy as np

import accy_async
from accy_async import DType, ScalarArgument, Session
from accy_async.artifact import KernelCallRegistry
from accy_async.compiler.kernels import reference_scan, scan_pipeline
from accy_async.compiler.kernels.catalogue import library_registry
from accy_async.pipeline import (
    PipelineArtifactPool,
    PipelineLaunch,
    allocate_pipeline_intermediates,
)

PIPELINE = scan_pipeline(DType.I32)


async def scan_on_a_stream(
    session: Session,
    pool: PipelineArtifactPool,
    registry: KernelCallRegistry,
    number: int,
) -> None:
    values = np.arange(number, number + 50_000, dtype=np.int32)
    length = (ScalarArgument.u32(len(values)),)
    async with session.stream() as stream:  # waits for a free one; leaving awaits it
        source = await session.upload(values, stream=stream)
        result = session.allocate(values.shape, DType.I32)
        scratch = await allocate_pipeline_intermediates(
            session.backend, PIPELINE, length
        )
        async with scratch:
            launch = PipelineLaunch(
                pipeline=PIPELINE,
                registry=registry,
                format=pool.format,
                operands=(source.binding("read_only"),),
                results=(result.binding("write_only"),),
                runtime_scalar_arguments=length,
                artifacts=pool,
                intermediates=scratch,
                stream=stream,
            )
            for _ in range(4):  # with pool and scratch given, nothing is awaited
                await session.launch_pipeline(launch)
            scanned = await session.download(result, stream=stream)
    assert np.array_equal(scanned, reference_scan(values))
    print(f"task {number}: right, on stream {stream.id}")


async def main() -> None:
    async with accy_async.open_session(max_streams=3) as session:
        registry = library_registry(session.backend.default_format, dtype=DType.I32)
        async with (
            await session.load_pipeline(PIPELINE, registry) as pool,
            anyio.create_task_group() as group,
        ):
            for number in range(8):
                group.start_soon(scan_on_a_stream, session, pool, registry, number)
        print(session.statistics())


if __name__ == "__main__":
    accy_async.run(main, loop="trio")
