"""Launch a kernel that Numba compiled, on Numba's arrays, in a graph."""

import sys

import numpy as np

import accy_async
from accy_async import DType, ScalarArgument
from accy_async.artifact import FixedLaunch
from accy_async.errors import BackendUnavailable
from accy_async.graph import LaunchGraphBuilder
from accy_async.interop import numba_kernel

try:
    from numba import cuda, types
except ImportError:
    print("Numba is not installed here: nothing to show")
    sys.exit(0)

COUNT = 1 << 20


def compile_axpy() -> accy_async.KernelCallArtifact:
    """``y += a * x``, over pointers: Numba passes an array as many values."""
    pointer = types.CPointer(types.float32)

    @cuda.jit(types.void(pointer, pointer, types.uint32, types.float32))
    def axpy(x, y, n, a):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202
        i = cuda.grid(1)
        if i < n:
            y[i] += a * x[i]

    geometry = FixedLaunch(grid=(COUNT // 256, 1, 1), threadgroup=(256, 1, 1))
    return numba_kernel(axpy, launch=geometry)


async def main() -> None:
    async with accy_async.open_session("cuda") as session:
        entry = compile_axpy()
        g = LaunchGraphBuilder()
        x, y = (g.buffer(name, DType.F32, COUNT) for name in "xy")
        scalars = (ScalarArgument.u32(COUNT), ScalarArgument.f32(5.0))
        g.kernel(entry, [x.read, y.read_write], scalars)
        ones = cuda.to_device(np.ones(COUNT, np.float32))
        sums = cuda.to_device(np.zeros(COUNT, np.float32))
        await session.run(g.build(), {"x": ones, "y": sums})
        found = sums.copy_to_host()
    assert (found == 5).all()
    print(f"{entry.format} of {entry.target!r}: 5 x is {found[0]:.0f} x")


if __name__ == "__main__":
    try:
        accy_async.run(main)
    except BackendUnavailable as error:
        print(error)
