"""Cancelling in the middle of device work: how soon the caller is out.

First a chain of kernels of 200 ms together, cancelled a quarter in, and the same chain
again, whose count has to be exact. Then one kernel that goes on for longer than the
grace: nothing can stop it, and the exit must not wait for it. That one spins for 8 s
beside a grace of 1 s, and has a process of its own, whose end the driver holds up
until the kernel is done; a kernel of 30 s beside the usual grace of 5 s is the same,
and would take the benchmark half a minute.
"""

from __future__ import annotations

import subprocess
import sys
import time

import anyio
import numpy as np

import accy_async
from accy_async import DType, ScalarArgument, open_session
from accy_async.backends.cuda import CudaBackend
from accy_async.errors import GraceExpired
from accy_async.graph import LaunchGraphBuilder, LaunchGraphPlan
from benchmarks.gpu.kernels import entry
from benchmarks.gpu.tables import Row, Target, show

KERNELS = 200
SPIN_NS = 1_000_000
ROUNDS = 5
LONG_S, GRACE_S = 8.0, 1.0


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


async def leave_a_long_kernel() -> None:
    """Print how long leaving took, and what the exit said."""
    plan = chain(1, int(LONG_S * 1e9))
    out = np.zeros(1, np.uint32)
    cancelled = _Cancelled()
    said = "no error"
    try:
        with anyio.CancelScope() as scope:
            async with open_session(CudaBackend(), grace=GRACE_S) as session:
                session.start(plan, {"out": out})
                await cancelled.cancel_later(scope, 0.2)
                await anyio.sleep_forever()
    except* GraceExpired:
        said = "GraceExpired"
    print((time.perf_counter() - cancelled.at) * 1e3, said, flush=True)


def main() -> None:
    show(
        f"Cancelling a chain of {KERNELS} kernels of {SPIN_NS / 1e6:g} ms",
        accy_async.run(measure),
        unit="ms",
    )
    call = "import accy_async; from benchmarks.gpu import cancel; "
    call += "accy_async.run(cancel.leave_a_long_kernel)"
    ended = subprocess.run(
        [sys.executable, "-c", call], capture_output=True, text=True, check=False
    )
    took, _, said = ended.stdout.strip().partition(" ")
    rows = [Row("grace", [GRACE_S * 1e3]), Row("the kernel", [LONG_S * 1e3])]
    if ended.returncode or not took:
        rows.append(Row("leaving the session", (), ended.stderr.strip()[-60:]))
    else:
        target = Target("grace", 1.1)
        rows.append(Row("leaving the session", [float(took)], said, (target,)))
    show(f"Leaving while a kernel spins for {LONG_S:g} s", rows, unit="ms")


if __name__ == "__main__":
    main()
