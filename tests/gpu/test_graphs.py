"""Random launch graphs on the GPU leave what their models in numpy leave."""

from __future__ import annotations

import anyio
import pytest

from accy_async.artifact import ArtifactFormat
from accy_async.session import open_session
from tests.graphs.programs import Kernels, Program, library_kernels
from tests.graphs.starting import start_program

pytestmark = pytest.mark.gpu


def cuda_kernels() -> Kernels:
    return library_kernels(ArtifactFormat.CUDA_PTX)


@pytest.mark.parametrize("loop", ["asyncio", "trio"])
@pytest.mark.parametrize("seed", range(6))
def test_results_are_the_models(loop: str, seed: int) -> None:
    lengths = [5, 20, 40, 80, 150, 300]
    programs = [
        Program(100 * seed + length, length, cuda_kernels()) for length in lengths
    ]
    expected = [program.expected() for program in programs]

    async def main() -> None:
        async with open_session("cuda") as session:
            runs = [start_program(session, program) for program in programs]
            with anyio.fail_after(60):
                for run in runs:
                    await run
        assert not any(session.live_objects().values())

    anyio.run(main, backend=loop)
    for program, values in zip(programs, expected, strict=True):
        program.check(values)
