"""A kernel whose work can be set to the percent, and a neighbour that launches it.

The same CUDA C++ goes to every way of measuring: each thread multiplies and adds
``STEPS`` times, and comes to the same numbers for any number of steps.

``python -m benchmarks.gpu.busywork`` is the neighbour: a process that is busy on the
device in bursts, until its standard input ends.
"""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from accy_async import FixedLaunch, ScalarArgument
from accy_async.backends import BufferBinding, LaunchRequest
from accy_async.backends.base import Backend
from accy_async.backends.cuda import CudaBackend
from accy_async.compiler.nvrtc import compile_cuda

__all__ = ["LENGTH", "SOURCE", "THREADS", "Busywork", "neighbour"]

LENGTH, THREADS = 1 << 19, 256

SOURCE = """
#ifndef THREADS
#define THREADS block_size_x
#endif
extern "C" __global__ void work(float* out, const float* x, int n) {
    int i = blockIdx.x * THREADS + threadIdx.x;
    if (i < n) {
        float v = x[i];
        #pragma unroll 10
        for (int step = 0; step < STEPS; ++step) v = v * 0.75f + 0.25f;
        out[i] = v;
    }
}
"""
"""Some 50 us on an H200, of 3000 steps."""

CALM_S, BUSY_S, KERNEL_S = 0.02, 0.01, 5e-5
"""Means of the neighbour's pauses and bursts, and what a kernel of it takes, about."""


class Busywork:
    """The kernel on a backend, for several numbers of steps.

    Args:
        backend: where.
    """

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.out = backend.allocate_buffer(4 * LENGTH)
        self.x = backend.allocate_buffer(4 * LENGTH)
        backend.fill_buffer(self.x, b"\0")
        self._architecture = backend.capabilities.identity.architecture

    def request(self, steps: int) -> LaunchRequest:
        """A launch of so many steps."""
        binary = compile_cuda(
            SOURCE,
            "work",
            architecture=self._architecture,
            options=(f"-DSTEPS={steps}", f"-DTHREADS={THREADS}"),
            cache=False,
        )
        artifact = binary.artifact("work", argument_count=3, scalar_argument_count=1)
        return LaunchRequest(
            artifact=artifact,
            loaded=self.backend.load_artifact(artifact),
            geometry=FixedLaunch(
                grid=(LENGTH // THREADS, 1, 1), threadgroup=(THREADS, 1, 1)
            ),
            buffers=(
                BufferBinding(handle=self.out, access="write_only"),
                BufferBinding(handle=self.x, access="read_only"),
            ),
            scalars=(ScalarArgument.i32(LENGTH),),
        )


@contextmanager
def neighbour() -> Iterator[None]:
    """Another process beside, that loads the device in bursts."""
    command = [sys.executable, "-m", "benchmarks.gpu.busywork"]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        assert process.stdout.readline().strip() == "ready"
        yield
    finally:
        process.stdin.close()
        process.wait()


def main() -> None:
    """Be the neighbour."""
    import threading

    backend = CudaBackend()
    work = Busywork(backend)
    stream = backend.create_stream()
    prepared = backend.prepare_launch(work.request(3000))
    over = threading.Event()

    def listen() -> None:
        sys.stdin.read()
        over.set()

    threading.Thread(target=listen, daemon=True).start()
    drawn = random.Random(1)
    print("ready", flush=True)
    while not over.wait(drawn.expovariate(1.0 / CALM_S)):
        for _ in range(1 + int(drawn.expovariate(KERNEL_S / BUSY_S))):
            backend.submit_launch(prepared, stream)
        while not backend.is_stream_idle(stream):
            time.sleep(2e-4)
    backend.close()


if __name__ == "__main__":
    main()
