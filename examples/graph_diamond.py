"""A diamond over four streams, awaited node by node, with a picture of what ran.

Give it a folder to keep ``diamond.json`` (for ui.perfetto.dev) and ``diamond.svg``.
"""

import sys
import tempfile
from pathlib import Path

import anyio.to_thread
import numpy as np

import accy_async
from accy_async import DerivedLaunch, DType, Fixed, KernelCallArtifact, RuntimeCeilDiv
from accy_async import ScalarArgument as Scalar
from accy_async.compiler.emit import compile_cpu
from accy_async.compiler.form import KernelBuilder, constant
from accy_async.graph import LaunchGraphBuilder, LaunchGraphPlan
from accy_async.observe import SpanRecorder, draw_trace, save_trace, validate_trace

COUNT, YEARS = 1 << 20, 24
RATES = (2.8, 3.2, 3.5, 3.9)  # settles, takes two turns, takes four, never repeats


def entry(k: KernelBuilder) -> KernelCallArtifact:
    """A kernel over ``n`` elements, ``n`` its first scalar, as a graph takes it."""
    kernel = k.build()
    grid = (RuntimeCeilDiv(argument_index=0, divisor=256), Fixed(1), Fixed(1))
    return KernelCallArtifact(
        target=f"example.{kernel.name}",
        version=1,
        format="cpu_machine_code",
        entry_name=kernel.name,
        argument_count=len(kernel.buffers) + len(kernel.scalars),
        runtime_scalar_argument_count=len(kernel.scalars),
        payload=compile_cpu([kernel], format="cpu_machine_code"),
        launch=DerivedLaunch(grid=grid, threadgroup=kernel.threadgroup),
    )


def grow() -> KernelCallArtifact:
    """Populations after some years of the logistic map."""
    k = KernelBuilder("grow", threadgroup=(256, 1, 1))
    out = k.buffer("out", DType.F32, "write_only")
    x = k.buffer("x", DType.F32, "read_only")
    n, rate = k.scalar("n", DType.U32), k.scalar("rate", DType.F32)
    first = k.let("first", k.block_x.cast(DType.U64) * 256)
    with k.region(limit=n.cast(DType.I64) - first.cast(DType.I64)):
        p = k.variable("p", x[first + k.thread.cast(DType.U64)])
        with k.count("year", constant(DType.U32, 0), constant(DType.U32, YEARS)):
            p.set(rate * p.value * (1.0 - p.value))
        out[first + k.thread.cast(DType.U64)] = p.value
    return entry(k)


def mean() -> KernelCallArtifact:
    """The mean of four arrays."""
    k = KernelBuilder("mean", threadgroup=(256, 1, 1))
    out = k.buffer("out", DType.F32, "write_only")
    a, b, c, d = (k.buffer(name, DType.F32, "read_only") for name in "abcd")
    n = k.scalar("n", DType.U32)
    first = k.let("first", k.block_x.cast(DType.U64) * 256)
    with k.region(limit=n.cast(DType.I64) - first.cast(DType.I64)):
        i = first + k.thread.cast(DType.U64)
        out[i] = ((a[i] + b[i]) + (c[i] + d[i])) * 0.25
    return entry(k)


def diamond() -> LaunchGraphPlan:
    """One copy in, four branches, one join, one copy out; edges follow from data."""
    g, growing, n = LaunchGraphBuilder(), grow(), Scalar.u32(COUNT)
    start, answer = (g.host(name, DType.F32, COUNT) for name in ("start", "answer"))
    x, y = (g.scratch(name, DType.F32, COUNT) for name in "xy")
    g.copy_in(start, x, name="split")
    branches = [g.scratch(f"branch {rate}", DType.F32, COUNT) for rate in RATES]
    for rate, branch in zip(RATES, branches, strict=True):
        scalars = (n, Scalar.f32(rate))
        g.kernel(growing, [branch.write, x.read], scalars, name=f"grow {rate}")
    g.kernel(mean(), [y.write, *(b.read for b in branches)], [n], name="join")
    g.copy_out(y, answer, name="answer")
    return g.build()


def expected(start: np.ndarray) -> np.ndarray:
    ends = [start] * len(RATES)
    for _ in range(YEARS):
        ends = [np.float32(r) * p * (1 - p) for r, p in zip(RATES, ends, strict=True)]
    return ((ends[0] + ends[1]) + (ends[2] + ends[3])) * np.float32(0.25)


async def main(folder: Path) -> None:
    plan = await anyio.to_thread.run_sync(diamond)  # compiling takes a while
    start = np.linspace(0.1, 0.9, COUNT, dtype=np.float32)
    answer = np.empty_like(start)
    recorder = SpanRecorder()
    async with accy_async.open_session("cpu", observer=recorder) as session:
        run = session.start(plan, {"start": start, "answer": answer})
        for node in plan.nodes:
            await run[node.name]
            print(f"{node.name}: {run[node.name].state}")
        statistics = await run
    trace = recorder.trace()
    save_trace(trace, folder / "diamond.json")
    (folder / "diamond.svg").write_text(draw_trace(trace), encoding="utf-8")
    assert np.array_equal(answer, expected(start))  # to the bit
    assert validate_trace((folder / "diamond.json").read_bytes()) == []
    print(f"{len(trace.spans)} nodes on {statistics.streams} streams, right")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        kept = Path(sys.argv[1])
        kept.mkdir(parents=True, exist_ok=True)
        accy_async.run(main, kept)
    else:
        with tempfile.TemporaryDirectory() as temporary:
            accy_async.run(main, Path(temporary))
