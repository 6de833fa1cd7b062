"""What tuning in the background costs a service, and what it brings.

A service calls a fragment whose kernel is launched badly by default: each of its blocks
makes a table before it works on its share of the elements, and there are far too many
blocks. Three tables:

* the service without tuning, while `session.tuning` runs beside it, and afterwards:
  calls a second, and the latency that 99 of 100 calls stay below;
* how much faster the kernel became, for how much device time and in how long;
* a number of other kernels tuned twice, independently: whether the two agree.

``python -m benchmarks.tuning_beside cuda`` does the same there.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import anyio
import numpy as np

from accy_async import Session, open_session, run
from accy_async.artifact import (
    ArtifactFormat,
    FixedLaunch,
    KernelCallArtifact,
    KernelCallRegistry,
    LaunchResourceCandidate,
    LaunchResourcePlan,
)
from accy_async.compiler.form import KernelBuilder, constant
from accy_async.compiler.kernels.payloads import code_level, kernel_payload
from accy_async.compiler.semantic import Builder, TensorType
from accy_async.dtypes import DType
from accy_async.fragment import FragmentCompilerOptions, LoadedFragment
from accy_async.tuning import (
    MeasureOptions,
    RaceRules,
    TuningBudget,
    TuningStore,
)
from benchmarks.agreement import Tally
from benchmarks.measuring import Figure, machine, show

if TYPE_CHECKING:
    from accy_async.fragment.tuning import KernelTuning
    from accy_async.session.tuner import Tuner
    from accy_async.tuning.pacing import SharedPace

__all__ = ["main"]

LANES = 64
LENGTH, PASSES = 1 << 17, 64
GPU_LENGTH, GPU_PASSES = 1 << 20, 1024
ROUNDS = 6
CLIENTS = 8
MOST_S = 15.0
THINK_S = 0.016
BUDGET = TuningBudget(share=0.05, total_s=2.0)
OPTIONS = MeasureOptions(rules=RaceRules(max_rounds=150))
BESIDE = MeasureOptions(rules=RaceRules(max_rounds=48, repeats=0))
POWERS = range(12, 19)
STEPS = (8, 24, 64)


ALONE, AGAIN = "without tuning", "the same once more"
BESIDE_IT, LATER = "while tuning runs", "afterwards"

Served = tuple[float, list[float]]
"""Seconds of a window, and the latency of each call in it."""


def size_of(session: Session) -> tuple[int, int]:
    """Elements and passes: on a GPU many blocks run at once, whatever each does."""
    is_gpu = ArtifactFormat.CPU_MACHINE_CODE not in session.capabilities.formats
    return (GPU_LENGTH, GPU_PASSES) if is_gpu else (LENGTH, PASSES)


async def load(
    session: Session,
    length: int | None = None,
    passes: int | None = None,
    tuning: TuningStore | None = None,
) -> LoadedFragment:
    """``y = x * table[i % 64]``, by a kernel for any number of blocks.

    As long, and with as many passes, as make it slow on the device, unless told so.
    Each block makes the table, so many multiplications for each entry, and then works
    on its share of the elements. Every power of two of them is a launch candidate; the
    first, 64 elements a block, is a bad one.
    """
    usual = size_of(session)
    length, passes = length or usual[0], passes or usual[1]
    formats = session.capabilities.formats
    format = session.backend.default_format
    if ArtifactFormat.CUDA_PTX in formats:
        format = ArtifactFormat.CUDA_PTX
    k = KernelBuilder(f"scaled_{length}_{passes}", threadgroup=(LANES, 1, 1))
    out = k.buffer("out", DType.F32, "write_only")
    x = k.buffer("x", DType.F32, "read_only")
    table = k.shared("table", DType.F32, LANES)
    lane = k.thread.cast(DType.U64)
    steps = constant(DType.U64, length // LANES) / k.grid_x.cast(DType.U64)
    share = k.let("share", steps)
    first = k.let("first", k.block_x.cast(DType.U64) * share)
    with k.region():
        entry = x[0] + k.thread.cast(DType.F32)
        for _ in range(passes):
            entry = k.let(None, entry * 0.75 + 0.25)
        table[lane] = entry
    with k.count("step", first, first + share) as step, k.region():
        i = step * LANES + lane
        out[i] = x[i] * table[lane]
    most = length // LANES
    counts = [most >> shift for shift in range(0, 10, 2) if most >> shift]
    launches = [
        FixedLaunch(grid=(count, 1, 1), threadgroup=(LANES, 1, 1)) for count in counts
    ]
    kernel, name = k.build(), f"bench.{k.name}"
    payload = await anyio.to_thread.run_sync(
        kernel_payload, kernel, format, code_level(format, None)
    )
    registered = KernelCallArtifact(
        target=name,
        version=1,
        format=format,
        entry_name=kernel.name,
        argument_count=2,
        payload=payload,
        launch=launches[0],
        launch_resources=LaunchResourcePlan(
            candidates=[LaunchResourceCandidate(geometry=one) for one in launches]
        ),
        required_dtypes={DType.F32},
    )
    builder = Builder("module")
    type = TensorType(DType.F32, (length,))
    f = builder.begin_function("service", [type])
    f.return_(f.kernel_call(f.parameters, [type], target=name))
    f.finish()
    options = FragmentCompilerOptions(
        artifact_format=format, kernel_call_registry=KernelCallRegistry([registered])
    )
    return await session.load_fragment(builder.finish(), options=options, tuning=tuning)


async def serve(
    session: Session, fragment: LoadedFragment, is_over: Callable[[], bool]
) -> Served:
    """Clients that call, think, and call again; seconds, and each call's latency.

    They think for random times, the same ones in each window. Calls then come as if by
    themselves; two clients of equal thoughts would end up in step, and their thoughts
    be lengthened by whatever wakes the event loop, whose timers go by milliseconds.
    """
    length, _ = size_of(session)
    array = await session.upload(np.linspace(0, 1, length, dtype=np.float32))
    await fragment(array)
    latencies: list[float] = []

    async def client(number: int) -> None:
        thought = random.Random(number)
        while not is_over():
            await anyio.sleep(thought.expovariate(1.0 / THINK_S))
            started = time.perf_counter()
            await fragment(array)
            latencies.append(time.perf_counter() - started)

    begun = time.perf_counter()
    async with anyio.create_task_group() as tasks:
        for number in range(CLIENTS):
            tasks.start_soon(client, number)
    return time.perf_counter() - begun, latencies


def after(seconds: float, tuner: Tuner | None = None) -> Callable[[], bool]:
    """Whether so many seconds are over from now, or a tuner has found something."""
    end = time.perf_counter() + seconds

    def is_over() -> bool:
        return time.perf_counter() >= end or (tuner is not None and bool(tuner.results))

    return is_over


async def service(device: str, rounds: int = ROUNDS, most_s: float = MOST_S) -> None:
    """The first two tables.

    Args:
        device: where.
        rounds: times that the kernel is tuned from nothing.
        most_s: seconds of tuning in a round.
    """
    windows: dict[str, list[Served]] = {}
    took: dict[str, list[float]] = {}
    met: list[float] = []
    speedups: list[float] = []
    async with open_session(device) as session:
        for _ in range(rounds):
            served, pace, results = await one_round(session, most_s)
            for phase, window in served.items():
                windows.setdefault(phase, []).append(window)
            took.setdefault("that tuning ran beside", []).append(served[BESIDE_IT][0])
            took.setdefault("of device time", []).append(pace.spent_s)
            calls = len(served[BESIDE_IT][1])
            met.append(100.0 * pace.calls_met / calls)
            for result in results:
                speedups.append(result.speedup)
                if result.why_not:
                    print(f"  used, not kept: {result.why_not}")
    what = f"{CLIENTS} clients on {device}"
    share = f"{100 * BUDGET.share:.0f} % of the time for samples"
    tables: dict[str, tuple[str, Callable[[Served], float]]] = {
        f"a service of {what}, {share}": ("calls/s", _rate),
        "the same, latency that half of the calls stay below": ("ms", _latency(0.5)),
        "the same, latency that 99 of 100 calls stay below": ("ms", _latency(0.99)),
        "the same, the greatest latency": ("ms", _latency(1.0)),
    }
    for title, (unit, measure) in tables.items():
        figures = [
            Figure(phase, tuple(measure(window) for window in found))
            for phase, found in windows.items()
        ]
        is_rate = unit == "calls/s"
        show(title, figures, unit=unit, baseline=ALONE, more_is_better=is_rate)
    pooled = {
        phase: np.quantile([one for _, calls in found for one in calls], 0.99)
        for phase, found in windows.items()
    }
    print("99 % of all rounds' calls together, against none:", end=" ")
    print(
        ", ".join(
            f"{phase} {value / pooled[ALONE]:.3f}" for phase, value in pooled.items()
        ),
        end="\n\n",
    )
    figures = [Figure(f"seconds {name}", tuple(s)) for name, s in took.items()]
    figures.append(Figure("of 100 calls those that met a sample", tuple(met)))
    if speedups:
        figures.append(Figure("the default's time over the winner's", tuple(speedups)))
    show(f"what tuning takes, of {BUDGET.total_s:g} s at most", figures, unit="")


def _rate(window: Served) -> float:
    seconds, latencies = window
    return len(latencies) / seconds


def _latency(share: float) -> Callable[[Served], float]:
    return lambda window: float(np.quantile(window[1], share)) * 1e3


async def one_round(
    session: Session, most_s: float
) -> tuple[dict[str, Served], SharedPace, tuple[KernelTuning, ...]]:
    """A window until the winner is there, one as long after it, two with the default.

    The same calls come in each. What the last two differ by is noise.
    """
    async with await load(session) as fragment:
        async with session.tuning(
            fragment, budget=BUDGET, store=None, options=BESIDE
        ) as tuner:
            # What is served until the winner is there, by the default.
            beside = await serve(session, fragment, after(most_s, tuner))
        later = await serve(session, fragment, after(beside[0]))
    async with await load(session) as fragment:
        alone = [await serve(session, fragment, after(beside[0])) for _ in range(2)]
    served = {ALONE: alone[0], AGAIN: alone[1], BESIDE_IT: beside, LATER: later}
    return served, tuner.pace, tuner.results


async def agreement(device: str) -> None:
    """The third table."""
    tally = Tally()
    begun = time.perf_counter()
    async with open_session(device) as session:
        for power in POWERS:
            for passes in STEPS:
                first, second = [
                    await tuned_alone(session, 1 << power, passes) for _ in range(2)
                ]
                tally.add(first, second)
    tally.show(f" on {device}")
    print(f"  {time.perf_counter() - begun:.0f} s; {machine()}\n")


async def tuned_alone(session: Session, length: int, passes: int) -> KernelTuning:
    """What tuning a kernel finds, with nothing known before."""
    fragment = await load(session, length, passes)
    inputs = [np.linspace(0, 1, length, dtype=np.float32)]
    everything = TuningBudget(share=1.0)
    async with (
        fragment,
        session.tuning(
            fragment, budget=everything, store=None, inputs=inputs, options=OPTIONS
        ) as tuner,
    ):
        await tuner.wait()
        (result,) = tuner.results
        return result


def main(device: str = "cpu") -> None:
    run(service, device)
    run(agreement, device)


if __name__ == "__main__":
    main(*sys.argv[1:2])
