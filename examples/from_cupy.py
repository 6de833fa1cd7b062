"""Launch a kernel that CuPy compiled, on CuPy's arrays, in a graph."""

import sys

import accy_async
from accy_async import DType, ScalarArgument
from accy_async.artifact import FixedLaunch
from accy_async.errors import BackendUnavailable
from accy_async.graph import LaunchGraphBuilder
from accy_async.interop import cupy_kernel

try:
    import cupy
except ImportError:
    print("CuPy is not installed here: nothing to show")
    sys.exit(0)

SOURCE = """
extern "C" __global__ void axpy(const float* x, float* y, unsigned n, float a) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] += a * x[i];
}
"""
COUNT = 1 << 20


async def main() -> None:
    async with accy_async.open_session("cuda") as session:
        kernel = cupy.RawKernel(SOURCE, "axpy")
        geometry = FixedLaunch(grid=(COUNT // 256, 1, 1), threadgroup=(256, 1, 1))
        entry = cupy_kernel(kernel, buffers=2, scalars=2, launch=geometry)
        g = LaunchGraphBuilder()
        x, y = (g.buffer(name, DType.F32, COUNT) for name in "xy")
        for factor in (2.0, 3.0):
            scalars = (ScalarArgument.u32(COUNT), ScalarArgument.f32(factor))
            g.kernel(entry, [x.read, y.read_write], scalars)
        ones, sums = cupy.ones(COUNT, cupy.float32), cupy.zeros(COUNT, cupy.float32)
        await session.run(g.build(), {"x": ones, "y": sums})
    assert bool((sums == 5).all())
    print(f"{entry.format} of {entry.entry_name!r}: 2 x + 3 x is {sums[0]:.0f} x")


if __name__ == "__main__":
    try:
        accy_async.run(main)
    except BackendUnavailable as error:
        print(error)
