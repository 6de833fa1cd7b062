"""Two independent chains of kernels, one on each GPU, against one chain on one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from accy_async import ArtifactFormat, DType, ScalarArgument, open_session
from accy_async.compiler.kernels.catalogue import library_registry
from accy_async.graph import LaunchGraphBuilder, LaunchGraphPlan
from accy_async.graph.options import LaunchOptions
from benchmarks.gpu.tables import Target, show
from benchmarks.multigpu.parts import FORMAT, NAMES, rows_of, seconds

KERNELS, LENGTH = 200, 1 << 24
ONE = "one chain on one GPU"
BOTH = "two chains on two GPUs"


async def measure(rounds: int) -> None:
    """Print a table of runs node by node, and one of prepared ones."""
    plans = {
        title: chains(devices, FORMAT, KERNELS, LENGTH)
        for title, devices in (
            (ONE, NAMES[:1]),
            ("two chains on one GPU", (NAMES[0], NAMES[0])),
            (BOTH, NAMES),
        )
    }
    async with open_session(devices=NAMES) as session:
        never = LaunchOptions(lowering="never")
        show_all(
            "node by node",
            await seconds(
                {
                    title: partial(session.run, plan, options=never)
                    for title, plan in plans.items()
                },
                rounds,
            ),
        )
        always = LaunchOptions(lowering="always")
        prepared = {
            title: await session.prepare(plan, options=always)
            for title, plan in plans.items()
        }
        works = {title: made.run for title, made in prepared.items()}
        show_all("prepared", await seconds(works, rounds))


def show_all(how: str, taken: Mapping[str, Sequence[float]]) -> None:
    """Print a table."""
    rows = rows_of(taken, targets={BOTH: (Target(ONE, 1.05),)})
    show(f"chains of {KERNELS} kernels, {how}", rows, unit="ms", ratio_to=ONE)


def chains(
    devices: Sequence[str], format: ArtifactFormat, kernels: int, length: int
) -> LaunchGraphPlan:
    """On each device a chain of additions that has nothing to do with the others."""
    add = library_registry(format, dtype=DType.F32).get("accy.kernel.add", 1, format)
    count = [ScalarArgument.u32(length)]
    b = LaunchGraphBuilder()
    for number, name in enumerate(devices):
        with b.on(name):
            x = b.scratch(f"x{number}", DType.F32, length)
            y = b.scratch(f"y{number}", DType.F32, length)
            b.fill(x, 1.0)
            for turn in range(kernels):
                source, target = (x, y) if turn % 2 == 0 else (y, x)
                b.kernel(add, [target.write, source.read, source.read], count)
    return b.build()
