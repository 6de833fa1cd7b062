"""Work on another library's arrays where they are: numpy's, or a GPU library's."""

from importlib import import_module
from importlib.util import find_spec
from typing import Any

import accy_async
from accy_async import DType, ScalarArgument
from accy_async.compiler.kernels import scan_pipeline
from accy_async.compiler.kernels.catalogue import library_registry
from accy_async.pipeline import PipelineLaunch

COUNT = 100_000


def choose() -> tuple[str, Any]:
    """A device, and a library whose arrays lie there."""
    states = {status.name: status for status in accy_async.backend_statuses()}
    if "cuda" in states and states["cuda"].is_available and find_spec("cupy"):
        return "cuda", import_module("cupy")
    return "cpu", import_module("numpy")


async def main() -> None:
    device, library = choose()
    pipeline = scan_pipeline(DType.F32)
    async with accy_async.open_session(device) as session:
        registry = library_registry(session.backend.default_format)
        # In: the scan reads and writes arrays that the library owns.
        values = library.ones(COUNT, dtype="float32")
        sums = library.zeros(COUNT, dtype="float32")
        given = session.adopt(values), session.adopt(sums)
        await session.launch_pipeline(
            PipelineLaunch(
                pipeline=pipeline,
                registry=registry,
                format=session.backend.default_format,
                operands=given[:1],
                results=given[1:],
                runtime_scalar_arguments=(ScalarArgument.u32(COUNT),),
            )
        )
        print(f"{library.__name__} on {device}: the last of {COUNT} is {sums[-1]:.0f}")
        # Out: the library uses memory that the session owns.
        ours = await session.upload(library.arange(4.0).tolist(), dtype=DType.F64)
        theirs = library.from_dlpack(ours)
        ours.free()  # the memory stays while the library has it
        theirs += 1
        held = session.backend.reaper.held()
    assert sums[-1] == COUNT
    print(f"after the session it has {theirs.tolist()}, and {len(held)} buffer is held")
    del theirs


if __name__ == "__main__":
    accy_async.run(main)
