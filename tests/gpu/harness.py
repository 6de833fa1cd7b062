"""Runs kernels of the kernel form on an NVIDIA GPU, on numpy arrays.

`compiled` and `GpuRunner` are used like those of tests.compiler.harness, so that
tests written for the CPU run here as they are.
"""

from __future__ import annotations

import functools
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import anyio

from accy_async.artifact.formats import ArtifactFormat
from accy_async.artifact.geometry import FixedLaunch
from accy_async.artifact.kernel import KernelArtifact
from accy_async.backends import BufferBinding, LaunchRequest, LoadedArtifact
from accy_async.backends.cuda import CudaBackend
from accy_async.compiler.emit import compile_ptx, emit_cuda
from accy_async.compiler.form import Kernel
from accy_async.compiler.nvrtc import compile_cuda
from accy_async.dtypes import ScalarArgument
from tests.compiler.harness import Array
from tests.gpu import native

__all__ = ["GpuRunner", "compiled", "run_once", "run_script", "shared_backend"]


@functools.cache
def shared_backend() -> CudaBackend:
    """One backend for all the tests that only run kernels."""
    native.host_words()
    return CudaBackend()


class GpuRunner:
    """Kernels on the GPU; `run` launches one over a grid.

    As PTX of LLVM's, or as CUDA C++ that NVRTC compiles.
    """

    def __init__(self, kernels: Sequence[Kernel], *, as_text: bool = False) -> None:
        self._as_text = as_text
        self._backend = shared_backend()
        self._kernels = {kernel.name: kernel for kernel in kernels}
        self._loaded: dict[str, tuple[KernelArtifact, LoadedArtifact]] = {}

    def close(self) -> None:
        for _, loaded in self._loaded.values():
            self._backend.destroy(loaded)

    def run(
        self,
        name: str,
        buffers: Sequence[Array],
        scalars: Sequence[object] = (),
        grid: tuple[int, int, int] | int = 1,
    ) -> int:
        """Launch, and write the arrays back; 0, as a kernel's status on the CPU."""
        backend, kernel = self._backend, self._kernels[name]
        artifact, loaded = self._load(name)
        grid = (grid, 1, 1) if isinstance(grid, int) else grid
        arrays = {array.ctypes.data: array for array in buffers}
        handles = {at: backend.allocate_buffer(a.nbytes) for at, a in arrays.items()}
        for at, array in arrays.items():
            backend.write_buffer(handles[at], array)
        request = LaunchRequest(
            artifact=artifact,
            loaded=loaded,
            buffers=tuple(
                BufferBinding(
                    handle=handles[array.ctypes.data], access=parameter.access
                )
                for parameter, array in zip(kernel.buffers, buffers, strict=True)
            ),
            scalars=tuple(
                ScalarArgument.of(parameter.dtype, value)
                for parameter, value in zip(kernel.scalars, scalars, strict=True)
            ),
            geometry=FixedLaunch(grid=grid, threadgroup=kernel.threadgroup),
        )
        backend.launch(request)
        for at, array in arrays.items():
            backend.read_buffer(handles[at], array)
        anyio.run(backend.wait_default_stream)
        for handle in handles.values():
            backend.destroy(handle)
        return 0

    def _load(self, name: str) -> tuple[KernelArtifact, LoadedArtifact]:
        if name not in self._loaded:
            artifact = self._artifact(self._kernels[name])
            self._loaded[name] = artifact, self._backend.load_artifact(artifact)
        return self._loaded[name]

    def _artifact(self, kernel: Kernel) -> KernelArtifact:
        argument_count = len(kernel.buffers) + len(kernel.scalars)
        if self._as_text:
            identity = self._backend.capabilities.identity
            binary = compile_cuda(
                emit_cuda([kernel]), kernel.name, architecture=identity.architecture
            )
            return binary.artifact(
                kernel.name,
                argument_count=argument_count,
                scalar_argument_count=len(kernel.scalars),
            )
        return KernelArtifact(
            kernel_name=kernel.name,
            format=ArtifactFormat.CUDA_PTX,
            argument_count=argument_count,
            scalar_argument_count=len(kernel.scalars),
            payload=compile_ptx([kernel]),
        )


@contextmanager
def compiled(*kernels: Kernel, **_: object) -> Iterator[GpuRunner]:
    """A runner; formats and levels, which are for CPUs, are ignored."""
    runner = GpuRunner(kernels)
    try:
        yield runner
    finally:
        runner.close()


def run_once(
    kernel: Kernel,
    buffers: Sequence[Array],
    scalars: Sequence[object] = (),
    grid: tuple[int, int, int] | int = 1,
) -> int:
    with compiled(kernel) as runner:
        return runner.run(kernel.name, buffers, scalars, grid)


def run_script(script: str, *, timeout_s: float = 60) -> str:
    """Run Python in a process of its own, whose context may be lost; its output."""
    ended = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout
