"""Cancelling in the middle of device work: how soon the caller is out.

First a chain of kernels of 200 ms together, cancelled a quarter in, and the same chain
again, whose count has to be exact. Then one kernel that goes on for longer than the
grace: nothing of ours can stop it, and the exit must not wait for it. It spins for
30 s, or until a word in the host's memory says that it may end: that is said only when
the session was left, after a look at whether the kernel is still spinning. So the exit
is the one beside a kernel of 30 s, and the benchmark does not take as long.

A process that ends while a kernel spins is another matter, which the driver decides.
How long its end takes is measured beside a kernel of 4 s that nobody ends.
"""

from __future__ import annotations

import ctypes
import subprocess
import sys
import time
from collections.abc import Callable

import anyio
import numpy as np

import accy_async
from accy_async import DType, ScalarArgument, open_session
from accy_async.backends.cuda import CudaBackend
from accy_async.backends.cuda.driver import check, load_driver
from accy_async.errors import GraceExpired
from accy_async.graph import LaunchGraphBuilder, LaunchGraphPlan
from benchmarks.gpu.kernels import entry
from benchmarks.gpu.tables import Row, Target, show

KERNELS = 200
SPIN_NS = 1_000_000
ROUNDS = 5
LONG_S, GRACE_S = 30.0, 1.0
UNENDED_S = 4.0


def chain(kernels: int, spin_ns: int) -> LaunchGraphPlan:
    """Kernels that spin, and after each another that counts."""
    graph = LaunchGraphBuilder()
    words = graph.scratch("words", DType.U32, 1)
    graph.fill(words, 0)
    spin, count = entry("spin"), entry("count")
    last = None
    for _ in range(kernels):
        after = () if last is None else (last,)
        spun = graph.kernel(spin, [], [ScalarArgument.u64(spin_ns)], after=after)
        last = graph.kernel(count, [words.read_write], after=(spun,))
    graph.copy_out(words, graph.host("out", DType.U32, 1))
    return graph.build()


async def measure() -> list[Row]:
    """Milliseconds."""
    plan, out = chain(KERNELS, SPIN_NS), np.zeros(1, np.uint32)
    whole, left, again = list[float](), list[float](), list[float]()
    exact = 0
    async with open_session("cuda") as session:
        for number in range(ROUNDS + 1):
            started = time.perf_counter()
            await session.run(plan, {"out": out})
            took = (time.perf_counter() - started) * 1e3
            with anyio.CancelScope() as scope:
                async with anyio.create_task_group() as group:
                    asked = _Cancelled()
                    group.start_soon(asked.cancel_later, scope, took / 4e3)
                    await session.run(plan, {"out": out})
            out_ms = (time.perf_counter() - asked.at) * 1e3
            out[0] = 0
            started = time.perf_counter()
            await session.run(plan, {"out": out})
            again_ms = (time.perf_counter() - started) * 1e3
            exact += int(out[0]) == KERNELS
            if number:
                whole.append(took)
                left.append(out_ms)
                again.append(again_ms)
        grace = session.grace_s
    assert exact == ROUNDS + 1, f"{exact} of {ROUNDS + 1} runs were exact"
    return [
        Row("the whole chain", whole),
        Row("grace", [grace * 1e3]),
        Row("from the cancellation to the caller", left, "", (Target("grace", 1.0),)),
        Row("the identical run afterwards", again, "every count exact"),
    ]


class _Cancelled:
    """Cancels a scope, and knows when."""

    at = 0.0

    async def cancel_later(self, scope: anyio.CancelScope, seconds: float) -> None:
        await anyio.sleep(seconds)
        self.at = time.perf_counter()
        scope.cancel()


def _host_words(count: int) -> tuple[np.ndarray, int]:
    """Words in the host's memory, and where kernels see them; for good."""
    driver = load_driver()
    answer = driver.cuMemHostAlloc(4 * count, 1 | 2)  # portable and mapped
    address = int(check(driver, answer, "cuMemHostAlloc"))
    words = np.ctypeslib.as_array((ctypes.c_uint32 * count).from_address(address))
    words[:] = 0
    return words, address


async def _until(is_so: Callable[[], bool]) -> None:
    """Return when it is so, which it soon is."""
    for _ in range(20_000):
        if is_so():
            return
        await anyio.sleep(0.0005)
    raise RuntimeError("the kernel did not begin, or not end")


async def leave_a_long_kernel(kernel_s: float, is_ended: bool) -> None:
    """Leave a session in whose midst a kernel spins, and print how that went.

    Args:
        kernel_s: how long the kernel spins, unless it is ended.
        is_ended: whether it is, once the session was left.
    """
    backend = CudaBackend()
    words, address = _host_words(3)  # in the context of the backend
    graph = LaunchGraphBuilder()
    scalars = [ScalarArgument.u64(address), ScalarArgument.u64(int(kernel_s * 1e9))]
    graph.kernel(entry("hold"), [], scalars)
    plan = graph.build()
    cancelled = _Cancelled()
    said = "no error"
    try:
        with anyio.CancelScope() as scope:
            async with open_session(backend, grace=GRACE_S) as session:
                session.start(plan)
                await _until(lambda: bool(words[1]))
                await cancelled.cancel_later(scope, 0.0)
                await anyio.sleep_forever()
    except* GraceExpired:
        said = "GraceExpired"
    out_ms = (time.perf_counter() - cancelled.at) * 1e3
    spins = "still spinning" if not words[2] else "over"
    freed_ms = 0.0
    if is_ended:
        words[0] = 1
        began = time.perf_counter()
        await backend.wait_device()
        await _until(lambda: not any(backend.live_objects().values()))
        freed_ms = (time.perf_counter() - began) * 1e3
        backend.close()
    print(f"{out_ms} {freed_ms} {said}, the kernel is {spins}", flush=True)


def _in_a_process(kernel_s: float, *, is_ended: bool) -> tuple[list[str], float]:
    """Do that in a process of its own; what it printed, and how long its end took.

    Raises:
        RuntimeError: it failed; with the end of what it said.
    """
    call = "import accy_async, functools; from benchmarks.gpu import cancel; "
    call += f"accy_async.run(functools.partial(cancel.leave_a_long_kernel, {kernel_s}, "
    call += f"{is_ended}))"
    with subprocess.Popen(
        [sys.executable, "-c", call],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        line = child.stdout.readline()
        printed = time.perf_counter()
        code = child.wait()
        took_ms = (time.perf_counter() - printed) * 1e3
        if code or not line:
            raise RuntimeError(f"{code}: {child.stderr.read().strip()[-200:]}")
    return line.strip().split(" ", 2), took_ms


def main() -> None:
    show(
        f"Cancelling a chain of {KERNELS} kernels of {SPIN_NS / 1e6:g} ms",
        accy_async.run(measure),
        unit="ms",
    )
    (out_ms, freed_ms, said), ended_ms = _in_a_process(LONG_S, is_ended=True)
    rows = [
        Row("grace", [GRACE_S * 1e3]),
        Row("the kernel, unless it is ended", [LONG_S * 1e3]),
        Row("leaving the session", [float(out_ms)], said, (Target("grace", 1.1),)),
        Row("from its end to nothing left", [float(freed_ms)]),
        Row("the end of the process then", [ended_ms]),
    ]
    _, held_ms = _in_a_process(UNENDED_S, is_ended=False)
    note = f"beside a kernel of {UNENDED_S:g} s"
    rows.append(Row("the end of a process in whose midst one spins", [held_ms], note))
    show(f"Leaving while a kernel spins for {LONG_S:g} s", rows, unit="ms")


if __name__ == "__main__":
    main()
