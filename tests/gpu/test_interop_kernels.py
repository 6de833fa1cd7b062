"""Kernels that CuPy, Numba and Triton compiled, in graphs of ours."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import accy_async
from accy_async import DType, KernelCallRegistry, ScalarArgument, Session
from accy_async.artifact.geometry import FixedLaunch, RuntimeCeilDiv
from accy_async.backends.array import DeviceArray
from accy_async.graph import LaunchGraphBuilder
from accy_async.interop import cupy_kernel, numba_kernel

pytestmark = [pytest.mark.gpu, pytest.mark.anyio]


async def _add(session: Session, entry: Any, n: int) -> None:
    """Run ``out = x + y`` over n floats, as a graph."""
    x, y = np.arange(n, dtype=np.float32), np.full(n, 0.5, np.float32)
    builder = LaunchGraphBuilder()
    a, b, out = (builder.buffer(name, DType.F32, n) for name in ("x", "y", "out"))
    builder.kernel(entry, [a.read, b.read, out.write], [ScalarArgument.u32(n)])
    arrays: dict[str, DeviceArray] = {
        "x": await session.upload(x),
        "y": await session.upload(y),
        "out": session.allocate(n, DType.F32),
    }
    await session.run(builder.build(), arrays)
    assert np.array_equal(await session.download(arrays["out"]), x + y)
    assert KernelCallRegistry([entry]).find(entry.target, 1, entry.format) is entry


async def test_cupys_kernels(cupy: Any) -> None:
    kernel = cupy.RawKernel(
        'extern "C" __global__ void add(const float* x, const float* y, float* out, '
        "unsigned n) { unsigned i = blockIdx.x * blockDim.x + threadIdx.x; "
        "if (i < n) out[i] = x[i] + y[i]; }",
        "add",
    )
    geometry = FixedLaunch(grid=(8, 1, 1), threadgroup=(128, 1, 1))
    entry = cupy_kernel(kernel, buffers=3, scalars=1, launch=geometry)
    async with accy_async.open_session("cuda") as session:
        await _add(session, entry, 1000)


async def test_numbas_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    # Names that Numba's CUDA target asks numpy for, which has dropped them by 2.5.
    monkeypatch.setattr(np, "row_stack", np.vstack, raising=False)
    monkeypatch.setattr(np, "in1d", np.isin, raising=False)
    monkeypatch.setattr(np, "trapz", getattr(np, "trapezoid", None), raising=False)
    cuda = pytest.importorskip("numba.cuda")
    types = pytest.importorskip("numba").types
    pointer = types.CPointer(types.float32)

    @cuda.jit(types.void(pointer, pointer, pointer, types.uint32))
    def add(x: Any, y: Any, out: Any, n: Any) -> None:
        i = cuda.grid(1)
        if i < n:
            out[i] = x[i] + y[i]

    geometry = FixedLaunch(grid=(8, 1, 1), threadgroup=(128, 1, 1))
    entry = numba_kernel(add, launch=geometry)
    async with accy_async.open_session("cuda") as session:
        await _add(session, entry, 1000)


async def test_tritons_kernels(torch: Any) -> None:
    pytest.importorskip("triton")
    from examples import from_triton

    entry = from_triton.compile_add()
    assert isinstance(entry.launch.grid[0], RuntimeCeilDiv)
    async with accy_async.open_session("cuda") as session:
        await _add(session, entry, 1000)
