"""The driver without the package around it: what every way of waiting stands on."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs

from accy_async.artifact.formats import ArtifactFormat
from accy_async.artifact.kernel import KernelArtifact
from accy_async.backends.cuda.driver import check, load_driver

__all__ = ["PTX", "Bare", "Cpp", "artifact", "cpp_program", "run_cpp"]

PTX = """
.version 7.0
.target sm_80
.address_size 64

.visible .entry empty()
{
    ret;
}

.visible .entry spin(.param .u64 nanoseconds)
{
    .reg .b64 %rd<5>; .reg .pred %p<2>;
    ld.param.u64 %rd1, [nanoseconds];
    mov.u64 %rd2, %globaltimer;
look:
    mov.u64 %rd3, %globaltimer;
    sub.u64 %rd4, %rd3, %rd2;
    setp.lt.u64 %p1, %rd4, %rd1;
    @%p1 bra look;
    ret;
}
"""

_CPP = r"""
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <sys/prctl.h>
#include <vector>
__global__ void empty() {}
__global__ void spin(unsigned long long nanoseconds, volatile int *done, int round) {
    unsigned long long begun, now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(begun));
    do asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    while (now - begun < nanoseconds);
    *done = round;
    __threadfence_system();
}
static double us(clockid_t clock) {
    timespec now;
    clock_gettime(clock, &now);
    return now.tv_sec * 1e6 + now.tv_nsec / 1e3;
}
// Launch 10 ms, sleep until shortly before they are over, and look for the rest: how
// much of a core that takes. When to wake up is learned: in time every other time.
static void sleeping(cudaStream_t stream) {
    prctl(PR_SET_TIMERSLACK, 1);
    int *done;
    cudaHostAlloc(&done, sizeof *done, cudaHostAllocMapped);
    *done = 0;
    double length = 10000, lead = 150, busy = 0, begun = 0;
    for (int i = 1; i <= 70; ++i) {
        if (i == 11) busy = us(CLOCK_PROCESS_CPUTIME_ID), begun = us(CLOCK_MONOTONIC);
        double start = us(CLOCK_MONOTONIC), up = start + length - lead;
        spin<<<1, 1, 0, stream>>>(10000000, done, i);
        timespec until = {time_t(up / 1e6), long((up - time_t(up / 1e6) * 1e6) * 1e3)};
        clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, nullptr);
        volatile int *word = done;
        bool is_late = *word >= i;
        while (*word < i) {}
        lead += is_late ? 2 : -2;
        if (!is_late) length += (us(CLOCK_MONOTONIC) - start - length) / 4;
    }
    busy = us(CLOCK_PROCESS_CPUTIME_ID) - busy;
    std::printf("%f\n", 100 * busy / (us(CLOCK_MONOTONIC) - begun));
}
int main(int count, char **) {
    cudaStream_t stream;
    cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    if (count > 1) {
        sleeping(stream);
        return cudaGetLastError();
    }
    std::vector<double> took;
    for (int i = 0; i < 6000; ++i) {
        auto begun = std::chrono::steady_clock::now();
        empty<<<1, 1, 0, stream>>>();
        cudaStreamSynchronize(stream);
        auto ended = std::chrono::steady_clock::now();
        std::chrono::duration<double, std::micro> us = ended - begun;
        if (i >= 1000) took.push_back(us.count());
    }
    std::sort(took.begin(), took.end());
    std::printf("%f %f\n", took[took.size() / 2], took[took.size() * 99 / 100]);
    return cudaGetLastError();
}
"""


def artifact(name: str) -> KernelArtifact:
    """``empty``, or ``spin``, which takes so many nanoseconds."""
    scalars = int(name == "spin")
    return KernelArtifact(
        kernel_name=name,
        format=ArtifactFormat.CUDA_PTX,
        argument_count=scalars,
        scalar_argument_count=scalars,
        payload=PTX,
    )


@attrs.frozen
class Cpp:
    """What the fastest program does, compiled."""

    _program: Path

    def launch_and_synchronise(self) -> tuple[float, float]:
        """What an empty kernel takes it, us: p50, p99."""
        middle, late = self._run()
        return middle, late

    def sleep(self) -> float:
        """What part of a core it takes while a kernel of 10 ms runs, percent.

        It sleeps until shortly before the end, and then looks for it.
        """
        (busy,) = self._run("asleep")
        return busy

    def _run(self, *arguments: str) -> list[float]:
        command = [str(self._program), *arguments]
        ran = subprocess.run(command, check=True, capture_output=True, text=True)
        return [float(word) for word in ran.stdout.split()]


@contextmanager
def cpp_program() -> Iterator[Cpp | None]:
    """C++, where there is nvcc; else None."""
    if shutil.which("nvcc") is None:
        yield None
        return
    with tempfile.TemporaryDirectory() as folder:
        source, program = Path(folder) / "empty.cu", Path(folder) / "empty"
        source.write_text(_CPP, encoding="utf-8")
        build = ["nvcc", "-O3", "-arch=native", "-o", str(program), str(source)]
        subprocess.run(build, check=True, capture_output=True)
        yield Cpp(program)


def run_cpp() -> tuple[float, float] | None:
    """C++'s launch and synchronise, once."""
    with cpp_program() as cpp:
        return None if cpp is None else cpp.launch_and_synchronise()


class Bare:
    """One stream, two kernels, and a word that the stream writes."""

    def __init__(self) -> None:
        self.driver: Any = load_driver()
        driver = self.driver
        device = self.check(driver.cuDeviceGet(0), "cuDeviceGet")
        answer = driver.cuDevicePrimaryCtxRetain(device)
        context = self.check(answer, "cuDevicePrimaryCtxRetain")
        self.check(driver.cuCtxSetCurrent(context), "cuCtxSetCurrent")
        self.context = context
        answer = driver.cuModuleLoadData(PTX.encode() + b"\0")
        module = self.check(answer, "cuModuleLoadData")
        self.empty = self.check(driver.cuModuleGetFunction(module, b"empty"), "get")
        self.spin = self.check(driver.cuModuleGetFunction(module, b"spin"), "get")
        self.stream = self.check(driver.cuStreamCreate(1), "cuStreamCreate")
        self.address = int(self.check(driver.cuMemHostAlloc(4096, 3), "cuMemHostAlloc"))
        self.word = ctypes.c_uint64.from_address(self.address)
        self.word.value = 0
        self.count = 0
        self._nanoseconds = ctypes.c_uint64(0)
        self._pointers = (ctypes.c_void_p * 1)(ctypes.addressof(self._nanoseconds))

    def check(self, answer: Any, call: str) -> Any:  # noqa: ANN401 - bindings
        return check(self.driver, answer, call)

    def launch(self, nanoseconds: int = 0) -> None:
        """Submit a kernel that takes so long."""
        function, pointer = self.empty, 0
        if nanoseconds:
            self._nanoseconds.value = nanoseconds
            function, pointer = self.spin, ctypes.addressof(self._pointers)
        answer = self.driver.cuLaunchKernel(
            function, 1, 1, 1, 1, 1, 1, 0, self.stream, pointer, 0
        )
        self.check(answer, "cuLaunchKernel")

    def flag(self) -> int:
        """Have the stream write the next number into the word; returns it."""
        self.count += 1
        answer = self.driver.cuStreamWriteValue64(
            self.stream, self.address, self.count, 0
        )
        self.check(answer, "cuStreamWriteValue64")
        return self.count
