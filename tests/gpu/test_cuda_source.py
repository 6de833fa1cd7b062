"""CUDA C++ compiled for the device at hand, run in graphs, found on disk again."""

from __future__ import annotations

from pathlib import Path

import anyio
import numpy as np
import pytest

from accy_async.artifact import ArtifactStore, FixedLaunch
from accy_async.artifact.store import CACHE_FOLDER_VARIABLE
from accy_async.dtypes import DType, ScalarArgument
from accy_async.errors import CompilationError
from accy_async.graph import LaunchGraphBuilder
from accy_async.session import open_session

pytestmark = [pytest.mark.gpu, pytest.mark.anyio]

SOURCE = """
template <class T> __global__ void scale(T* x, T by) {
    x[blockIdx.x * blockDim.x + threadIdx.x] *= by;
}
"""
LAUNCH = FixedLaunch(grid=(4, 1, 1), threadgroup=(64, 1, 1))


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ArtifactStore:
    """The user's cache, empty."""
    monkeypatch.setenv(CACHE_FOLDER_VARIABLE, str(tmp_path))
    return ArtifactStore(tmp_path)


async def test_templates_run_in_a_graph_and_are_found_again() -> None:
    async with open_session("cuda") as session:
        names = ["scale<float>", "scale<unsigned>"]
        binary = await session.compile_cuda(SOURCE, names)
        again = await session.compile_cuda(SOURCE, names)
        assert (binary.is_from_cache, again.is_from_cache) == (False, True)
        for dtype, name, scalar in (
            (DType.F32, names[0], ScalarArgument.f32(2.5)),
            (DType.U32, names[1], ScalarArgument.u32(3)),
        ):
            call = again.kernel_call(
                name,
                target="test.scale",
                argument_count=2,
                runtime_scalar_argument_count=1,
                launch=LAUNCH,
            )
            g = LaunchGraphBuilder()
            x = g.buffer("x", dtype, 256)
            g.kernel(call, [x.read_write], [scalar])
            values = np.arange(256).astype(dtype.numpy)
            array = await session.upload(values)
            await session.run(g.build(), {"x": array})
            expected = values * dtype.numpy.type(scalar.value)
            np.testing.assert_array_equal(await session.download(array), expected)


async def test_what_only_this_architecture_has_is_compiled_and_loads() -> None:
    async with open_session("cuda") as session:
        architecture = session.capabilities.identity.architecture + "a"
        binary = await session.compile_cuda(
            SOURCE, "scale<double>", architecture=architecture
        )
        artifact = binary.artifact(
            "scale<double>", argument_count=2, scalar_argument_count=1
        )
        session.backend.destroy(session.backend.load_artifact(artifact))


async def test_loop_goes_on_while_it_compiles() -> None:
    many = "\n".join(
        f'extern "C" __global__ void k{i}(float* x) {{ for (int j = 0; j < 99; j++)'
        f" x[j] = sinf(x[j]) * powf(x[j + 1], {i}.5f); }}"
        for i in range(20)
    )
    beats = 0

    async def beat() -> None:
        nonlocal beats
        while True:
            await anyio.sleep(0.001)
            beats += 1

    async with open_session("cuda") as session, anyio.create_task_group() as group:
        group.start_soon(beat)
        await session.compile_cuda(many, "k3")
        group.cancel_scope.cancel()
    assert beats > 10


async def test_error_leaves_the_session_as_it_was() -> None:
    async with open_session("cuda") as session:
        with pytest.raises(CompilationError) as raised:
            await session.compile_cuda("\n\nvoid oops() { return 1; }", "f")
        assert raised.value.line == 3
        assert session.is_healthy
        assert not any(session.live_objects().values())
