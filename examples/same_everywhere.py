"""The same program on every device here: a graph that scans, scales and reads back.

Kernels round every operation by itself, in a stated order, so the scan has the same
bits on each device. The mix may differ by 2 units in the last place, for devices that
flush subnormal numbers or round a conversion another way.
"""

import numpy as np

import accy_async
from accy_async import DType, ScalarArgument
from accy_async.backends.catalogue import backend_statuses, open_backend
from accy_async.compiler.kernels import scan_pipeline
from accy_async.compiler.kernels.catalogue import library_registry
from accy_async.graph import LaunchGraphBuilder
from accy_async.pipeline import add_pipeline

LENGTH = 100_000


async def run_on(name: str, values: np.ndarray) -> dict[str, np.ndarray]:
    """The scan of the values, and twice the values plus their scan."""
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
        await session.run(g.build(), {"values": values, **buffers, **results})
        print(session.capabilities.identity.device, session.capabilities.identity.name)
    backend.close()
    return results


async def main() -> None:
    values = np.random.default_rng(1).standard_normal(LENGTH, dtype=np.float32)
    expected = await run_on("cpu", values)
    for status in backend_statuses():
        if status.name == "cpu" or not status.is_available:
            continue
        found = await run_on(status.name, values)
        assert np.array_equal(found["scan"], expected["scan"])
        off = np.abs(found["mix"] - expected["mix"])
        assert (off <= 2 * np.spacing(np.abs(expected["mix"]))).all()
    print("the same program: within its bounds everywhere")


if __name__ == "__main__":
    accy_async.run(main)
