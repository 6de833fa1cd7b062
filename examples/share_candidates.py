"""A fleet: two workers measure one list of candidates, each candidate once.

Sessions of this process; with ``--ray`` as an argument two processes of a Ray cluster,
which is started for it where there is none (pip install 'accy-async[ray]').
"""

import sys
from collections.abc import Callable

import accy_async
from accy_async import DType
from accy_async.artifact import FixedLaunch, KernelArtifact
from accy_async.compiler.emit import compile_cpu
from accy_async.compiler.form import Expression, KernelBuilder
from accy_async.fleet import (
    FleetBuffer,
    FleetCandidate,
    FleetWork,
    open_fleet,
    ray_workers,
)
from accy_async.tuning import CandidateStatus, MeasureOptions, RaceRules

LENGTH = 1 << 14
WAYS: dict[str, Callable[[Expression], Expression]] = {
    "v * 4": lambda v: v * 4.0,
    "v + v + v + v": lambda v: v + v + v + v,
    "v * 2 * 2": lambda v: v * 2.0 * 2.0,
    "v / 0.25": lambda v: v / 0.25,
    "v * 5": lambda v: v * 5.0,
}


def code(name: str, way: Callable[[Expression], Expression]) -> KernelArtifact:
    """A kernel that works on one element a block."""
    k = KernelBuilder(name, threadgroup=(1, 1, 1))
    out = k.buffer("out", DType.F32, "write_only")
    x = k.buffer("x", DType.F32, "read_only")
    with k.region():
        i = k.block_x.cast(DType.U64)
        out[i] = way(x[i])
    return KernelArtifact(
        kernel_name=name,
        format="cpu_machine_code",
        argument_count=2,
        scalar_argument_count=0,
        payload=compile_cpu([k.build()], format="cpu_machine_code"),
    )


async def main() -> None:
    work = FleetWork(
        candidates=tuple(
            FleetCandidate(
                name=name,
                artifact=code(f"way{number}", way),
                geometry=FixedLaunch(grid=(LENGTH, 1, 1), threadgroup=(1, 1, 1)),
            )
            for number, (name, way) in enumerate(WAYS.items())
        ),
        buffers=(
            FleetBuffer.zeros(DType.F32, LENGTH),
            FleetBuffer.random(DType.F32, LENGTH, seed=1),
        ),
        options=MeasureOptions(rules=RaceRules(min_rounds=8, max_rounds=16)),
    )
    on_ray = "--ray" in sys.argv[1:]
    workers = ray_workers(2, device="cpu") if on_ray else ["cpu:0", "cpu:1"]
    async with (
        open_fleet(workers) as fleet,
        fleet.measuring(work) as measuring,
    ):
        async for one in measuring:
            speedup = "" if one.speedup is None else f", {one.speedup:.2f} x"
            print(f"{one.worker}: {one.name} {one.status}{speedup}")
        (kind,) = measuring.outcome().kinds
    names = [one.name for one in kind.measurements]
    wrong = kind.measurement("v * 5").status
    print(f"use {kind.winner}: {kind.standing}")
    print(f"each candidate once: {names == list(WAYS)}")
    print(f"the wrong one is out: {wrong is CandidateStatus.WRONG_RESULT}")


if __name__ == "__main__":
    accy_async.run(main)
