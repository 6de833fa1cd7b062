"""The same programs on every device here, their results held against each other.

A launch graph that scans, scales and reads back; and a function of arrays, compiled
for each device. Kernels round every operation by itself, in a stated order, so the
scan has the same bits on each device. The mix may differ by 2 units in the last place,
for devices that flush subnormal numbers or round a conversion another way; the
function's exponentials and sums by 2e-6 of the value, as each device has its own.

What is not here is named, and why.
"""

from typing import Any

import numpy as np

import accy_async
from accy_async import DType, ScalarArgument
from accy_async.backends.catalogue import backend_statuses, open_backend
from accy_async.compiler.kernels import scan_pipeline
from accy_async.compiler.kernels.catalogue import library_registry
from accy_async.graph import LaunchGraphBuilder
from accy_async.pipeline import add_pipeline

LENGTH = 100_000
Array = Any  # numpy's, or what is traced in its place


def softmax(x: Array) -> Array:
    """Rows that sum up to 1."""
    powers = np.exp(x - np.max(x, axis=-1, keepdims=True))
    return powers / np.sum(powers, axis=-1, keepdims=True)


async def run_on(name: str, values: np.ndarray) -> dict[str, np.ndarray]:
    """The scan of the values, twice the values plus their scan, and the softmax."""
    backend = open_backend(name)
    async with accy_async.open_session(backend) as session:
        format = backend.default_format
        registry = library_registry(format)  # compiles it for the device
        axpy = registry.find("accy.kernel.axpy", 1, format)
        n = ScalarArgument.u32(LENGTH)
        g = LaunchGraphBuilder()
        given, scanned, mixed = (
            g.buffer(slot, DType.F32, LENGTH) for slot in ("given", "scanned", "mixed")
        )
        g.copy_in(g.host("values", DType.F32, LENGTH), given)
        add_pipeline(g, scan_pipeline(), registry, format, [given], [scanned], [n])
        g.kernel(axpy, [mixed, given, scanned], [n, ScalarArgument.f32(2.0)])
        for slot, buffer in (("scan", scanned), ("mix", mixed)):
            g.copy_out(buffer, g.host(slot, DType.F32, LENGTH))
        results = {slot: np.empty(LENGTH, np.float32) for slot in ("scan", "mix")}
        buffers = {
            slot: session.allocate((LENGTH,), DType.F32)
            for slot in ("given", "scanned", "mixed")
        }
        plan, how = g.build(), []
        for _ in range(2):  # node by node, then as the device has it recorded
            done = await session.run(plan, {"values": values, **buffers, **results})
            how.append("as one" if done.is_lowered else "node by node")
        async with await session.load_fragment(softmax) as fragment:
            results["softmax"] = await fragment(values.reshape(100, -1))
        identity = session.capabilities.identity
        print(
            f"{identity.device}: {identity.name}; the graph ran {', then '.join(how)}"
        )
    backend.close()
    return results


async def main() -> None:
    values = np.random.default_rng(1).standard_normal(LENGTH, dtype=np.float32)
    expected = await run_on("cpu", values)
    shares = softmax(values.reshape(100, -1).astype(np.float64))
    assert np.allclose(expected["softmax"], shares, rtol=2e-6, atol=0)
    for status in backend_statuses():
        if status.name == "cpu":
            continue
        if not status.is_available:
            print(f"{status.name}: not here: {status.reason}")
            continue
        found = await run_on(status.name, values)
        assert np.array_equal(found["scan"], expected["scan"])
        off = np.abs(found["mix"] - expected["mix"])
        assert (off <= 2 * np.spacing(np.abs(expected["mix"]))).all()
        assert np.allclose(found["softmax"], shares, rtol=2e-6, atol=0)
    print("the same programs: within their bounds everywhere")


if __name__ == "__main__":
    accy_async.run(main)
