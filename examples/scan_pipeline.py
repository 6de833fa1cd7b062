"""Scan an array on the best device here: upload, load, launch, download."""

import numpy as np

import accy_async
from accy_async import DType, ScalarArgument
from accy_async.compiler.kernels import reference_scan, scan_pipeline
from accy_async.compiler.kernels.catalogue import library_registry
from accy_async.pipeline import PipelineLaunch


async def main() -> None:
    values = np.random.default_rng(1).standard_normal(100_000, dtype=np.float32)
    pipeline = scan_pipeline(DType.F32)
    async with accy_async.open_session() as session:
        print(session)
        # Compiles the library for the device, once in a process.
        registry = library_registry(session.backend.default_format)
        source = await session.upload(values)
        result = session.allocate(values.shape, DType.F32)
        async with await session.load_pipeline(pipeline, registry) as pool:
            await session.launch_pipeline(
                PipelineLaunch(
                    pipeline=pipeline,
                    registry=registry,
                    format=session.backend.default_format,
                    operands=(source.binding("read_only"),),
                    results=(result.binding("write_only"),),
                    runtime_scalar_arguments=(ScalarArgument.u32(len(values)),),
                    artifacts=pool,  # scratch is the launch's own: it is awaited
                )
            )
        scanned = await session.download(result)

    assert np.array_equal(scanned, reference_scan(values))  # to the bit
    print(f"the sum of {len(values)} values is {scanned[-1]:.3f}")
    print(f"left over: {session.live_objects()}")


if __name__ == "__main__":
    accy_async.run(main)
