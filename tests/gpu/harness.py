"""Runs kernels of the kernel form on an NVIDIA GPU, on numpy arrays."""

from __future__ import annotations

import functools
import subprocess
import sys
from collections.abc import Sequence

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
from tests.compiler.harness import Array, Grid, KernelRunner
from tests.gpu import native

__all__ = ["GpuRunner", "run_script", "shared_backend"]


@functools.cache
def shared_backend() -> CudaBackend:
    """One backend for all the tests that only run kernels."""
    native.host_words()
    return CudaBackend()


class GpuRunner(KernelRunner):
    """Kernels on the GPU: PTX of LLVM's, or CUDA C++ that NVRTC compiles."""

    def __init__(self, kernels: Sequence[Kernel], *, as_text: bool = False) -> None:
        super().__init__(kernels)
        self._as_text = as_text
        self._backend = shared_backend()
        self._loaded: dict[str, tuple[KernelArtifact, LoadedArtifact]] = {}

    def close(self) -> None:
        for _, loaded in self._loaded.values():
            self._backend.destroy(loaded)

    def _launch(
        self,
        kernel: Kernel,
        buffers: Sequence[Array],
        scalars: Sequence[ScalarArgument],
        grid: Grid,
    ) -> int:
        """0, as a kernel's status on the CPU: what fails here is an error."""
        backend = self._backend
        artifact, loaded = self._load(kernel.name)
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
            scalars=tuple(scalars),
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
            artifact = self._artifact(self.kernels[name])
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
