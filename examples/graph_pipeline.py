"""A pipeline inside a graph: how far a boat has come, from its accelerations.

Speeds are the running sums of the accelerations, places those of the speeds: the
library's scan, twice, each behind a kernel that scales and corrects.
"""

import anyio.to_thread
import numpy as np

import accy_async
from accy_async import ArtifactFormat, DType, ScalarArgument
from accy_async.compiler.kernels import reference_scan, scan_pipeline
from accy_async.compiler.kernels.catalogue import cpu_registry
from accy_async.graph import LaunchGraphBuilder, LaunchGraphPlan
from accy_async.pipeline import add_pipeline

COUNT, STEP_S = 100_000, 0.01
INPUTS = ("measured", "bias", "current")


def reckoning() -> LaunchGraphPlan:
    registry, form = cpu_registry(), ArtifactFormat.CPU_MACHINE_CODE
    scan, axpy = scan_pipeline(DType.F32), registry.get("accy.kernel.axpy", 1, form)
    g = LaunchGraphBuilder()
    measured, bias, current = (g.buffer(name, DType.F32, COUNT) for name in INPUTS)
    moves, sums = (g.scratch(name, DType.F32, COUNT) for name in ("moves", "sums"))
    n, step = ScalarArgument.u32(COUNT), ScalarArgument.f32(STEP_S)
    # out = step * x + y, then a scan: its stages become nodes, its scratch slots.
    g.kernel(axpy, [moves.write, measured.read, bias.read], [n, step], name="correct")
    add_pipeline(g, scan, registry, form, [moves], [sums], [n], name="speeds")
    g.kernel(axpy, [moves.write, sums.read, current.read], [n, step], name="move")
    add_pipeline(g, scan, registry, form, [moves], [sums], [n], name="places")
    g.copy_out(sums, g.host("answer", DType.F32, COUNT), name="answer")
    return g.build()


async def main() -> None:
    plan = await anyio.to_thread.run_sync(reckoning)
    at = np.arange(COUNT, dtype=np.float32) * np.float32(STEP_S)
    values = [np.sin(at), np.full_like(at, 1e-6), np.full_like(at, 2e-3)]
    answer = np.empty_like(at)
    async with accy_async.open_session("cpu") as session:
        arrays = [await session.upload(array) for array in values]
        bindings = dict(zip(INPUTS, arrays, strict=True)) | {"answer": answer}
        run = session.start(plan, bindings)
        async for node in run:
            print(f"{node.name}: {node.state}")
        await run
    measured, bias, current = values
    speeds = reference_scan(np.float32(STEP_S) * measured + bias)
    places = reference_scan(np.float32(STEP_S) * speeds + current)
    assert np.array_equal(answer, places)  # to the bit
    print(f"after {at[-1]:.0f} s it has come {answer[-1]:.1f} m, right to the bit")


if __name__ == "__main__":
    accy_async.run(main)
