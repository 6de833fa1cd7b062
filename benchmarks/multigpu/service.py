"""A service whose requests any GPU can serve: two GPUs against one.

Small requests take the host longer to submit than a GPU to carry out, so that one GPU
does for them; large ones keep a GPU busy for some milliseconds each, and go to
whichever is least loaded.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import anyio
import attrs
import numpy as np

from accy_async import ArtifactFormat, DType, ScalarArgument, open_session
from accy_async.compiler.kernels.catalogue import library_registry
from accy_async.graph import LaunchGraphBuilder, LaunchGraphPlan
from accy_async.graph.options import LaunchOptions
from benchmarks.gpu.tables import Row, Target, show
from benchmarks.multigpu.parts import FORMAT, NAMES

ONE = "one GPU"


@attrs.frozen(kw_only=True)
class Load:
    """What is asked of the service.

    Attributes:
        name: in the table.
        runs: requests.
        callers: that ask at a time.
        given: elements that each brings, and takes back.
        length: elements that it works on.
        kernels: that work on them, one after the other.
        targets: of two GPUs against one.
    """

    name: str
    runs: int
    callers: int
    given: int
    length: int
    kernels: int
    targets: tuple[Target, ...] = ()


LARGE = Load(
    name="large",
    runs=256,
    callers=8,
    given=1 << 14,
    length=1 << 26,
    kernels=24,
    targets=(Target(ONE, 1.9),),
)
SMALL = Load(
    name="small", runs=1024, callers=32, given=1 << 14, length=1 << 14, kernels=8
)


async def measure(rounds: int) -> None:
    """Print a table for each load."""
    for load in (LARGE, SMALL):
        rows = []
        for title, devices, targets in (
            (ONE, NAMES[:1], ()),
            ("two GPUs", NAMES, load.targets),
        ):
            samples = await serve(load, devices, FORMAT, max(3, rounds // 5))
            rows.append(Row(title, samples, targets=targets))
        show(
            f"a service's {load.name} runs",
            rows,
            unit="runs/s",
            ratio_to=ONE,
            more_is_better=True,
        )


def request(load: Load, format: ArtifactFormat) -> LaunchGraphPlan:
    """What each caller runs; on no device by name, so that it is placed."""
    registry = library_registry(format, dtype=DType.F32)
    add, copy = (registry.get(f"accy.kernel.{n}", 1, format) for n in ("add", "copy"))
    b = LaunchGraphBuilder()
    given, out = (b.host(n, DType.F32, load.given) for n in ("given", "out"))
    small = b.scratch("small", DType.F32, load.given)
    x, y = (b.scratch(n, DType.F32, load.length) for n in "xy")
    b.copy_in(given, small)
    b.fill(x, 1.0)
    b.kernel(copy, [x.read_write, small.read], [ScalarArgument.u32(load.given)])
    for turn in range(load.kernels):
        source, target = (x, y) if turn % 2 == 0 else (y, x)
        b.kernel(
            add,
            [target.write, source.read, source.read],
            [ScalarArgument.u32(load.length)],
        )
    b.kernel(
        copy,
        [small.write, (y if load.kernels % 2 else x).read],
        [ScalarArgument.u32(load.given)],
    )
    b.copy_out(small, out)
    return b.build()


async def serve(
    load: Load, devices: Sequence[str], format: ArtifactFormat, rounds: int
) -> list[float]:
    """Requests a second, by so many callers at a time; one sample for each round.

    Raises:
        RuntimeError: a result is wrong.
    """
    plan = request(load, format)
    never = LaunchOptions(lowering="never")
    expected = np.float32(2.0**load.kernels)
    async with open_session(devices=devices) as session:

        async def caller(count: int) -> None:
            given = np.ones(load.given, np.float32)
            out = np.empty_like(given)
            for _ in range(count):
                await session.run(plan, {"given": given, "out": out}, never)
            if not (out == expected).all():
                raise RuntimeError(f"a request got {out[:4]}, expected {expected}")

        async def all_of(count: int) -> None:
            async with anyio.create_task_group() as group:
                for _ in range(load.callers):
                    group.start_soon(caller, count)

        await all_of(1)
        samples = []
        for _ in range(rounds):
            each = max(1, load.runs // load.callers)
            started = time.perf_counter()
            await all_of(each)
            samples.append(each * load.callers / (time.perf_counter() - started))
    return samples
