"""How other libraries launch a kernel of three arguments that does nothing.

Each peer gives what makes one launch, and what waits for all of them.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import attrs
import numpy as np

from benchmarks.gpu.kernels import PTX
from benchmarks.measuring import per_call

__all__ = ["PEERS", "Peer", "bursts_of"]

NAMES_GONE = {"row_stack": "vstack", "in1d": "isin", "trapz": "trapezoid"}
"""Names that Numba's CUDA target asks numpy for, gone by 2.5, and today's."""

BURST = 200
"""Launches of a burst: few enough that the device's queue never holds up the host."""


@attrs.frozen
class Peer:
    """One way to launch.

    Attributes:
        launch: makes one launch.
        wait: returns when all of them are done.
        burst: microseconds a launch in a row of so many; None to time `launch`.
    """

    launch: Callable[[], object]
    wait: Callable[[], object]
    burst: Callable[[int], float] | None = None


def bursts_of(peer: Peer) -> Callable[[], float]:
    """Microseconds of the host for a launch, in a burst with the device idle."""

    def sample() -> float:
        peer.wait()
        if peer.burst is not None:
            took = peer.burst(BURST)
        else:
            took = per_call(peer.launch, BURST)
        peer.wait()
        return took

    return sample


_SOURCE = r"""
#include <time.h>
typedef int (*launch_t)(void*, unsigned, unsigned, unsigned, unsigned, unsigned,
                        unsigned, unsigned, void*, void**, void**);
typedef int (*launch_ex_t)(const void*, void*, void**, void**);
static double now() {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e6 + t.tv_nsec * 1e-3;
}
extern "C" double burst(launch_t launch, void* kernel, void* stream, void** arguments,
                        int count) {
    double start = now();
    for (int i = 0; i < count; i++)
        if (launch(kernel, 1, 1, 1, 32, 1, 1, 0, stream, arguments, 0)) return -1;
    return (now() - start) / count;
}
extern "C" double burst_ex(launch_ex_t launch, const void* config, void* kernel,
                           void** arguments, int count) {
    double start = now();
    for (int i = 0; i < count; i++)
        if (launch(config, kernel, arguments, 0)) return -1;
    return (now() - start) / count;
}
"""


class _Driver:
    """The noop kernel through ``cuda.bindings``, in the device's primary context."""

    def __init__(self) -> None:
        from cuda.bindings import driver

        self.driver: Any = driver
        self._call(driver.cuInit(0))
        device = self._call(driver.cuDeviceGet(0))
        self._call(driver.cuCtxSetCurrent(self._call(
            driver.cuDevicePrimaryCtxRetain(device)
        )))  # fmt: skip
        module = self._call(driver.cuModuleLoadData(PTX.encode() + b"\0"))
        self.kernel = self._call(driver.cuModuleGetFunction(module, b"noop"))
        self.stream = self._call(driver.cuStreamCreate(1))
        self.memory = int(self._call(driver.cuMemAlloc(256)))
        self._values = (ctypes.c_uint64 * 3)(self.memory, self.memory, 1)
        first = ctypes.addressof(self._values)
        self._pointers = (ctypes.c_void_p * 3)(*[first + 8 * i for i in range(3)])
        self.packed = ctypes.addressof(self._pointers)

    def wait(self) -> None:
        self._call(self.driver.cuStreamSynchronize(self.stream))

    @staticmethod
    def _call(answer: Any) -> Any:  # noqa: ANN401
        assert answer[0] == 0, answer
        return answer[1] if len(answer) > 1 else None


def _compiled() -> ctypes.CDLL:
    """The C++ loops, compiled here."""
    compiler = shutil.which("nvcc") or shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        raise ImportError("no C++ compiler")
    folder = Path(tempfile.mkdtemp(prefix="accy-bench-"))
    source, library = folder / "launch.cpp", folder / "launch.so"
    source.write_text(_SOURCE)
    pic = ("-Xcompiler", "-fPIC") if compiler.endswith("nvcc") else ("-fPIC",)
    subprocess.run(
        [compiler, "-O2", "-shared", *pic, "-o", str(library), str(source)],
        check=True,
        capture_output=True,
    )
    loaded = ctypes.CDLL(str(library))
    loaded.burst.restype = loaded.burst_ex.restype = ctypes.c_double
    return loaded


def cplusplus() -> Peer:
    raw, loops = _Driver(), _compiled()
    cuda = ctypes.CDLL("libcuda.so.1")
    pointers = [ctypes.c_void_p(p) for p in (int(raw.kernel), int(raw.stream))]
    packed = ctypes.c_void_p(raw.packed)

    def burst(count: int) -> float:
        took: float = loops.burst(cuda.cuLaunchKernel, *pointers, packed, count)
        assert took >= 0
        return took

    return Peer(lambda: burst(1), raw.wait, burst)


def cplusplus_ex() -> Peer:
    raw, loops = _Driver(), _compiled()
    cuda = ctypes.CDLL("libcuda.so.1")
    config = (ctypes.c_uint32 * 16)(1, 1, 1, 32, 1, 1, 0)
    ctypes.c_uint64.from_buffer(config, 32).value = int(raw.stream)
    kernel, packed = ctypes.c_void_p(int(raw.kernel)), ctypes.c_void_p(raw.packed)

    def burst(count: int) -> float:
        took: float = loops.burst_ex(
            cuda.cuLaunchKernelEx, config, kernel, packed, count
        )
        assert took >= 0
        return took

    return Peer(lambda: burst(1), raw.wait, burst)


def bindings_packed() -> Peer:
    raw = _Driver()
    launch, kernel, stream, packed = (
        raw.driver.cuLaunchKernel, raw.kernel, raw.stream, raw.packed,
    )  # fmt: skip
    return Peer(
        lambda: launch(kernel, 1, 1, 1, 32, 1, 1, 0, stream, packed, 0), raw.wait
    )


def bindings_config() -> Peer:
    raw = _Driver()
    config = raw.driver.CUlaunchConfig()
    config.gridDimX = config.gridDimY = config.gridDimZ = 1
    config.blockDimX, config.blockDimY, config.blockDimZ = 32, 1, 1
    config.hStream = raw.stream
    launch, kernel, packed = raw.driver.cuLaunchKernelEx, raw.kernel, raw.packed
    return Peer(lambda: launch(config, kernel, packed, 0), raw.wait)


def bindings_tuples() -> Peer:
    raw = _Driver()
    launch, kernel, stream = raw.driver.cuLaunchKernel, raw.kernel, raw.stream
    values = (raw.memory, raw.memory, 1)
    kinds = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint32)
    return Peer(
        lambda: launch(
            kernel, 1, 1, 1, 32, 1, 1, 0, stream, (values, kinds), 0
        ),
        raw.wait,
    )  # fmt: skip


def cuda_core() -> Peer:
    core: Any = import_module("cuda.core")
    if not hasattr(core, "launch"):
        core = import_module("cuda.core.experimental")
    raw = _Driver()
    device = core.Device(0)
    device.set_current()
    stream = device.create_stream()
    kernel = core.ObjectCode.from_ptx(PTX.encode()).get_kernel("noop")
    config = core.LaunchConfig(grid=1, block=32)
    launch, memory, one = core.launch, raw.memory, np.uint32(1)
    return Peer(
        lambda: launch(stream, config, kernel, memory, memory, one), stream.sync
    )


def cupy_raw_kernel() -> Peer:
    cupy: Any = import_module("cupy")
    kernel = cupy.RawKernel(
        'extern "C" __global__ void noop(float* a, float* b, unsigned n) {}', "noop"
    )
    a, b, one = cupy.zeros(32, "f4"), cupy.zeros(32, "f4"), np.uint32(1)
    stream = cupy.cuda.Stream(non_blocking=True)
    arguments = (a, b, one)

    def burst(count: int) -> float:
        with stream:
            return per_call(lambda: kernel((1,), (32,), arguments), count)

    return Peer(lambda: burst(1), stream.synchronize, burst)


def pytorch() -> Peer:
    torch: Any = import_module("torch")
    a, b = torch.zeros(32, device="cuda"), torch.zeros(32, device="cuda")
    stream, add = torch.cuda.Stream(), torch.add

    def burst(count: int) -> float:
        with torch.cuda.stream(stream), torch.inference_mode():
            return per_call(lambda: add(a, a, out=b), count)

    return Peer(lambda: burst(1), stream.synchronize, burst)


def numba_cuda() -> Peer:
    for name, now in NAMES_GONE.items():
        if not hasattr(np, name):
            setattr(np, name, getattr(np, now))
    cuda: Any = import_module("numba.cuda")
    a, b = cuda.device_array(32, "f4"), cuda.device_array(32, "f4")
    stream, one = cuda.stream(), np.uint32(1)

    @cuda.jit  # type: ignore[untyped-decorator]
    def noop(a: Any, b: Any, n: Any) -> None:  # noqa: ANN401
        pass

    configured = noop[1, 32, stream]
    return Peer(lambda: configured(a, b, one), stream.synchronize)


def triton() -> Peer:
    torch: Any = import_module("torch")
    module: Any = import_module("triton")
    a, b = torch.zeros(32, device="cuda"), torch.zeros(32, device="cuda")

    @module.jit  # type: ignore[untyped-decorator]
    def noop(a, b, n):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
        pass

    launch = noop[(1,)]
    return Peer(lambda: launch(a, b, 1), torch.cuda.synchronize)


def warp() -> Peer:
    wp: Any = import_module("warp")
    wp.config.quiet = True

    def noop(a: wp.array(dtype=float), b: wp.array(dtype=float), n: wp.uint32):  # type: ignore[no-untyped-def, valid-type]  # noqa: ANN202
        pass

    kernel = wp.Kernel(noop)
    a, b = wp.zeros(32, device="cuda"), wp.zeros(32, device="cuda")
    stream = wp.Stream("cuda")
    return Peer(
        lambda: wp.launch(kernel, 32, (a, b, 1), stream=stream, device="cuda"),
        lambda: wp.synchronize_stream(stream),
    )


PEERS: dict[str, Callable[[], Peer]] = {
    "C++ cuLaunchKernel": cplusplus,
    "C++ cuLaunchKernelEx": cplusplus_ex,
    "cuda.bindings, packed": bindings_packed,
    "cuda.bindings, packed config": bindings_config,
    "cuda.bindings, tuples": bindings_tuples,
    "cuda.core.launch": cuda_core,
    "CuPy RawKernel": cupy_raw_kernel,
    "PyTorch add of 32": pytorch,
    "Numba-CUDA": numba_cuda,
    "Triton": triton,
    "Warp": warp,
}
