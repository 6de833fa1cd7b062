"""What `fragment_calls` measures beside: numpy and Numba, PyTorch, CuPy, Triton, NVRTC.

None of them has to be installed: what cannot be made is told in its row.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Awaitable, Callable
from functools import partial
from importlib import import_module
from typing import Any, Protocol

import attrs
import numpy as np

from accy_async.dtypes import DType
from benchmarks.fragment_cases import Case
from benchmarks.numba_loops import loops

__all__ = ["Peer", "Sample", "compile_peers", "peers_of", "tiny_peers"]

Sample = Callable[[], Awaitable[float]]
"""Takes a figure of one invocation, or of one call of many."""

_TORCH_DTYPES = {DType.F32: "float32", DType.F16: "float16", DType.BF16: "bfloat16"}


class Peer(Protocol):
    """Another library."""

    name: str

    def samples(self, case: Case) -> dict[str, Sample]:
        """What takes milliseconds of one invocation, by the name of its row."""


def peers_of(kind: str) -> list[Peer]:
    """The libraries for a kind of device."""
    if kind == "cpu":
        return [_Numpy(), _Numba()]
    return [_Torch(), _CompiledTorch(), _Cupy()]


def _on_the_host(call: Callable[[], object]) -> Sample:
    async def sample() -> float:
        started = time.perf_counter()
        call()
        return (time.perf_counter() - started) * 1e3

    return sample


class _Numpy:
    name = "numpy"

    def samples(self, case: Case) -> dict[str, Sample]:
        function, arrays = case.make(np), case.arguments()
        return {self.name: _on_the_host(lambda: function(*arrays))}


class _Numba:
    """The loops that one would write, on one thread."""

    name = "Numba, one thread"

    def samples(self, case: Case) -> dict[str, Sample]:
        if not case.numba:
            raise ImportError("nobody would write it as loops")
        made, arrays = loops(case.numba), case.arguments()
        if not made:
            raise ImportError("Numba is not installed")
        names = {"numba": self.name, "numba fast": f"{self.name}, fastmath"}
        found = {}
        for kind, function in made.items():
            function(*arrays)
            found[names[kind]] = _on_the_host(lambda f=function: f(*arrays))  # type: ignore[misc]
        return found


class _Torch:
    name = "PyTorch"

    def samples(self, case: Case) -> dict[str, Sample]:
        torch: Any = import_module("torch")
        dtype = getattr(torch, _TORCH_DTYPES[case.dtype])
        given = case.arguments()
        arrays = [torch.from_numpy(a.view(np.int16)).view(dtype) for a in given] if (
            case.dtype is DType.BF16
        ) else [torch.from_numpy(a) for a in given]  # fmt: skip
        arrays = [array.cuda() for array in arrays]
        function = self.made(torch, case.make(torch))
        function(*arrays)
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

        async def sample() -> float:
            start.record()
            function(*arrays)
            end.record()
            end.synchronize()
            return float(start.elapsed_time(end))

        return {self.name: sample}

    def made(self, torch: Any, function: Callable[..., Any]) -> Callable[..., Any]:  # noqa: ANN401
        """How the function is called."""
        del torch
        return function


class _CompiledTorch(_Torch):
    name = "torch.compile"

    def made(self, torch: Any, function: Callable[..., Any]) -> Callable[..., Any]:  # noqa: ANN401
        compiled: Callable[..., Any] = torch.compile(function)
        return compiled


class _Cupy:
    name = "CuPy"

    def samples(self, case: Case) -> dict[str, Sample]:
        if case.dtype is DType.BF16:
            raise TypeError("CuPy has no bf16")
        cupy: Any = import_module("cupy")
        arrays = [cupy.asarray(array) for array in case.arguments()]
        function = case.make(cupy)
        function(*arrays)
        start, end = cupy.cuda.Event(), cupy.cuda.Event()

        async def sample() -> float:
            start.record()
            function(*arrays)
            end.record()
            end.synchronize()
            return float(cupy.cuda.get_elapsed_time(start, end))

        return {self.name: sample}


# ------------------------------------------------------------ from source


@attrs.frozen
class _Compiling:
    """How long a library takes from a source that it has not seen to a kernel."""

    name: str
    took: Callable[[int], float]
    note: str = ""


def compile_peers(kind: str) -> list[_Compiling]:
    """The libraries that compile for a kind of device."""
    if kind == "cpu":
        return [_Compiling("Numba, njit", _numba_source)]
    return [
        _Compiling("NVRTC, by cuda.core", _nvrtc_source),
        _Compiling("Triton", _triton_source),
        _Compiling("torch.compile", _torch_source, "the first call included"),
        _Compiling("CuPy ElementwiseKernel", _cupy_source, "cache in a new folder"),
    ]


def _timed(made: Callable[[], object]) -> float:
    started = time.perf_counter()
    made()
    return (time.perf_counter() - started) * 1e3


def _numba_source(number: int) -> float:
    numba: Any = import_module("numba")
    scale = np.float32(number)

    def function(x: Any) -> Any:  # noqa: ANN401
        out = np.empty_like(x)
        for i in range(x.size):
            out[i] = np.sqrt(np.abs(x[i] * scale)) + 1
        return out

    compiled = numba.njit(function)
    return _timed(lambda: compiled.compile((numba.float32[::1],)))


_CUDA = """
extern "C" __global__ void k(float *out, const float *x, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = sqrtf(fabsf(x[i] * %d.0f)) + 1.0f;
}"""


def _nvrtc_source(number: int) -> float:
    core: Any = import_module("cuda.core")
    device = core.Device()
    device.set_current()
    major, minor = device.compute_capability
    options = core.ProgramOptions(arch=f"sm_{major}{minor}")

    def made() -> object:
        program = core.Program(_CUDA % number, "c++", options)
        return program.compile("cubin").get_kernel("k").attributes.max_threads_per_block

    return _timed(made)


def _triton_source(number: int) -> float:
    os.environ["TRITON_CACHE_DIR"] = tempfile.mkdtemp(prefix="triton-")
    torch: Any = import_module("torch")
    from benchmarks.gpu.triton_kernel import scaled

    x = torch.ones(4096, device="cuda")
    out = torch.empty_like(x)

    def made() -> object:
        scaled[(4,)](out, x, 4096, SCALE=number, BLOCK=1024)
        return torch.cuda.synchronize()

    return _timed(made)


def _torch_source(number: int) -> float:
    torch: Any = import_module("torch")
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp(prefix="inductor-")
    torch._dynamo.reset()  # noqa: SLF001 - as its own documentation does
    x = torch.ones(4096, device="cuda")
    function = torch.compile(lambda x: torch.sqrt(torch.abs(x * number)) + 1)

    def made() -> object:
        function(x)
        return torch.cuda.synchronize()

    return _timed(made)


def _cupy_source(number: int) -> float:
    os.environ["CUPY_CACHE_DIR"] = tempfile.mkdtemp(prefix="cupy-")
    cupy: Any = import_module("cupy")
    x = cupy.ones(4096, "f4")
    kernel = cupy.ElementwiseKernel(
        "float32 x", "float32 y", f"y = sqrtf(fabsf(x * {number}.0f)) + 1", f"k{number}"
    )

    def made() -> object:
        kernel(x)
        return cupy.cuda.Device().synchronize()

    return _timed(made)


# ------------------------------------------------------------ tiny calls


@attrs.frozen
class _Tiny:
    """``x * 2 + 1`` of a handful of elements."""

    name: str
    sample: Callable[[], Sample]


def tiny_peers(kind: str, extent: int, calls: int) -> list[_Tiny]:
    """Microseconds of a call, until its result is known to be there."""

    def of(made: Callable[[int], Callable[[], object]]) -> Callable[[], Sample]:
        return lambda: _repeated(made(extent), calls)

    if kind == "cpu":
        return [_Tiny("numpy", of(_tiny_numpy)), _Tiny("Numba", of(_tiny_numba))]
    compiled = partial(_tiny_torch, is_compiled=True)
    submitted = partial(_tiny_torch, is_awaited=False)
    return [
        _Tiny("PyTorch, two operations, synchronize", of(_tiny_torch)),
        _Tiny("torch.compile, synchronize", of(compiled)),
        _Tiny("PyTorch, two operations, not awaited", of(submitted)),
        _Tiny("CuPy, two operations, synchronize", of(_tiny_cupy)),
    ]


def _repeated(call: Callable[[], object], calls: int) -> Sample:
    async def sample() -> float:
        started = time.perf_counter()
        for _ in range(calls):
            call()
        return (time.perf_counter() - started) / calls * 1e6

    return sample


def _tiny_numpy(extent: int) -> Callable[[], object]:
    x = np.ones(extent, np.float32)
    return lambda: x * 2 + 1


def _tiny_numba(extent: int) -> Callable[[], object]:
    function = import_module("numba").njit(lambda x: x * 2 + 1)
    x = np.ones(extent, np.float32)
    function(x)
    return lambda: function(x)


def _tiny_torch(
    extent: int, *, is_compiled: bool = False, is_awaited: bool = True
) -> Callable[[], object]:
    torch: Any = import_module("torch")
    x = torch.ones(extent, device="cuda")

    def plain(x: Any) -> Any:  # noqa: ANN401
        return x * 2 + 1

    function = torch.compile(plain) if is_compiled else plain
    function(x)

    def call() -> None:
        function(x)
        if is_awaited:
            torch.cuda.synchronize()

    return call


def _tiny_cupy(extent: int) -> Callable[[], object]:
    cupy: Any = import_module("cupy")
    x = cupy.ones(extent, "f4")

    def call() -> None:
        x * 2 + 1
        cupy.cuda.get_current_stream().synchronize()

    return call
