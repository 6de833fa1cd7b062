"""A list of kernels that do the same in many ways, on the processor."""

from __future__ import annotations

from accy_async.artifact import FixedLaunch, KernelArtifact
from accy_async.compiler.emit import compile_cpu
from accy_async.compiler.form import KernelBuilder
from accy_async.dtypes import DType
from accy_async.fleet import FleetBuffer, FleetCandidate, FleetWork
from accy_async.tuning import MeasureOptions, RaceRules

__all__ = ["work_of"]

COUNT = 1 << 12


def scaled(by: float) -> KernelArtifact:
    """``out = x * by / by``, so that there are many ways to the same."""
    k = KernelBuilder("scaled", threadgroup=(1, 1, 1))
    out = k.buffer("out", DType.F32, "write_only")
    x = k.buffer("x", DType.F32, "read_only")
    with k.region():
        i = k.block_x.cast(DType.U64)
        out[i] = x[i] * by * (1.0 / by)
    return KernelArtifact(
        kernel_name="scaled",
        format="cpu_machine_code",
        argument_count=2,
        scalar_argument_count=0,
        payload=compile_cpu([k.build()], format="cpu_machine_code"),
    )


def work_of(count: int, rounds: int) -> FleetWork:
    """So many candidates, each measured in so many rounds."""
    return FleetWork(
        candidates=tuple(
            FleetCandidate(
                name=str(power),
                artifact=scaled(2.0**power),
                geometry=FixedLaunch(grid=(COUNT, 1, 1), threadgroup=(1, 1, 1)),
            )
            for power in range(count)
        ),
        buffers=(
            FleetBuffer.zeros(DType.F32, COUNT),
            FleetBuffer.random(DType.F32, COUNT),
        ),
        options=MeasureOptions(
            rules=RaceRules(min_rounds=rounds, max_rounds=rounds, repeats=0)
        ),
    )
