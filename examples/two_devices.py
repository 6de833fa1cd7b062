"""Two devices in one session: half of the work on each, the halves put together.

Two GPUs where there are as many, else two backends on the processor.
"""

import numpy as np

import accy_async
from accy_async import DType, MultiSession, ScalarArgument
from accy_async.artifact import KernelCallArtifact
from accy_async.backends.catalogue import gpu_names
from accy_async.compiler.kernels.catalogue import library_registry
from accy_async.errors import BackendUnavailable
from accy_async.graph import LaunchGraphBuilder, LaunchGraphPlan

LENGTH = 100_000
HALF = LENGTH // 2


def devices() -> list[str]:
    """Two GPUs, or the processor twice."""
    try:
        found = gpu_names()
    except BackendUnavailable:
        found = ()
    return list(found[:2]) if len(found) > 1 else ["cpu:0", "cpu:1"]


def doubled_on_both(names: list[str], add: KernelCallArtifact) -> LaunchGraphPlan:
    """``x + x``, the second half of it on the second device."""
    g = LaunchGraphBuilder()
    inputs = [g.host(f"in{i}", DType.F32, HALF) for i in range(2)]
    outputs = [g.host(f"out{i}", DType.F32, HALF) for i in range(2)]
    halves = []
    for number, name in enumerate(names):
        with g.on(name):
            x = g.scratch(f"x{number}", DType.F32, HALF)
            y = g.scratch(f"y{number}", DType.F32, HALF)
        g.copy_in(inputs[number], x)
        g.kernel(add, [y.write, x.read, x.read], [ScalarArgument.u32(HALF)])
        halves.append(y)
    joined = g.scratch("joined", DType.F32, HALF, device=names[0])
    g.copy(halves[1], joined)  # from the second device to the first
    g.copy_out(halves[0], outputs[0])
    g.copy_out(joined, outputs[1])
    return g.build()


def kernel(session: MultiSession) -> KernelCallArtifact:
    """Addition, for the kind of devices that the session has."""
    format = session.on(0).backend.default_format
    registry = library_registry(format, dtype=DType.F32)
    return registry.get("accy.kernel.add", 1, format)


async def main() -> None:
    names = devices()
    async with accy_async.open_session(devices=names) as session:
        plan = doubled_on_both(names, kernel(session))
        values = np.arange(LENGTH, dtype=np.float32)
        out = np.zeros_like(values)
        await session.run(
            plan,
            {
                "in0": values[:HALF],
                "in1": values[HALF:],
                "out0": out[:HALF],
                "out1": out[HALF:],
            },
        )
        right = np.array_equal(out, values + values)
        print(f"{LENGTH} values on two devices: {'right' if right else 'wrong'}")
        for line in session.explain(plan).splitlines():
            if line.startswith(("device", "copies")):
                print(line)
    left = sum(session.live_objects().values())
    print(f"left on both: {left} objects")


if __name__ == "__main__":
    accy_async.run(main)
