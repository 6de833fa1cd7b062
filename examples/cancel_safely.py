"""Give up waiting for a launch: nothing leaks, and the session goes on."""

import anyio
import numpy as np

import accy_async
from accy_async import DType, ScalarArgument
from accy_async.compiler.kernels import scan_pipeline
from accy_async.compiler.kernels.catalogue import library_registry
from accy_async.pipeline import PipelineLaunch


async def main() -> None:
    values = np.ones(20_000_000, np.float32)
    pipeline = scan_pipeline(DType.F32)
    async with accy_async.open_session(grace=5.0) as session:
        registry = library_registry(session.backend.default_format)
        source = await session.upload(values)
        result = session.allocate(values.shape, DType.F32)
        async with await session.load_pipeline(pipeline, registry) as pool:
            launch = PipelineLaunch(
                pipeline=pipeline,
                registry=registry,
                format=pool.format,
                operands=(source.binding("read_only"),),
                results=(result.binding("write_only"),),
                runtime_scalar_arguments=(ScalarArgument.u32(len(values)),),
                artifacts=pool,
            )
            before = session.live_objects()
            with anyio.move_on_after(0.002) as scope:  # far too short
                await session.launch_pipeline(launch)
            # What was submitted has been awaited (for the grace at most), and the
            # launch's own scratch is gone. Without the grace a kernel that never
            # ends would hang us here.
            print(f"given up: {scope.cancelled_caught}")
            print(f"nothing is left of it: {session.live_objects() == before}")

            await session.launch_pipeline(launch)  # the session still serves
            scanned = await session.download(result)
    print(f"the same launch, not given up: {scanned[999_999]:.0f}")
    assert not any(session.live_objects().values())


if __name__ == "__main__":
    accy_async.run(main)
