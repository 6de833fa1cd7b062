"""Write a kernel, compile it for this processor, launch it, and await its end."""

import anyio.to_thread
import numpy as np

import accy_async
from accy_async import DerivedLaunch, DType, Fixed, KernelCallArtifact
from accy_async import RuntimeCeilDiv as CeilDiv
from accy_async import ScalarArgument as Scalar
from accy_async.backends import LaunchRequest
from accy_async.compiler.emit import compile_cpu
from accy_async.compiler.form import KernelBuilder, maximum

BLOCK = 256


def relu_of_axpy() -> KernelCallArtifact:
    """``out[i] = max(a * x[i] + y[i], 0)``: ``(out, x, y; n: u32, a: f32)``."""
    k = KernelBuilder("relu_of_axpy", threadgroup=(BLOCK, 1, 1))
    out = k.buffer("out", DType.F32, "write_only")
    x, y = (k.buffer(name, DType.F32, "read_only") for name in "xy")
    n, a = k.scalar("n", DType.U32), k.scalar("a", DType.F32)
    first = k.let("first", k.block_x.cast(DType.U64) * BLOCK)
    with k.region(limit=n.cast(DType.I64) - first.cast(DType.I64)):
        i = first + k.thread.cast(DType.U64)
        out[i] = maximum(a * x[i] + y[i], 0.0)
    grid = (CeilDiv(argument_index=0, divisor=BLOCK), Fixed(1), Fixed(1))
    return KernelCallArtifact(
        target="example.relu_of_axpy",
        version=1,
        format="cpu_machine_code",
        entry_name="relu_of_axpy",
        argument_count=5,
        runtime_scalar_argument_count=2,
        payload=compile_cpu([k.build()], format="cpu_machine_code"),
        launch=DerivedLaunch(grid=grid, threadgroup=(BLOCK, 1, 1)),
        required_dtypes={DType.F32},
    )


async def main() -> None:
    x, y = np.linspace(-1, 1, 1000, dtype=np.float32), np.full(1000, 0.5, np.float32)
    entry = await anyio.to_thread.run_sync(relu_of_axpy)  # compiling takes a while
    scalars = (Scalar.u32(len(x)), Scalar.f32(2.0))
    async with accy_async.open_session("cpu") as session:
        device = session.backend
        arrays = [session.allocate(1000, DType.F32)]
        arrays += [await session.upload(array) for array in (x, y)]
        artifact = device.create_artifact(entry.artifact_request())
        launcher = device.bind_launch(
            LaunchRequest(
                artifact=artifact,
                loaded=device.load_artifact(artifact),
                buffers=tuple(array.binding() for array in arrays),
                scalars=scalars,
                geometry=entry.launch.geometry(scalars),
            )
        )
        await launcher.run()  # as often as you like; submit() does not wait
        out = await session.download(arrays[0])
    assert np.array_equal(out, np.maximum(np.float32(2.0) * x + y, 0))
    print(f"relu(2 x + y) for {len(x)} values: right; the last is {out[-1]}")


if __name__ == "__main__":
    accy_async.run(main)
