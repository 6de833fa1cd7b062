"""What an entry says of its buffers is held against what a graph gives it."""

from __future__ import annotations

import pytest

from accy_async.artifact import KernelCallArtifact, ScalarArgument
from accy_async.compiler.kernels.catalogue import library_entries
from accy_async.dtypes import DType
from accy_async.errors import GraphError, LaunchArgumentMismatch
from accy_async.graph import LaunchGraphBuilder
from accy_async.graph.options import LaunchOptions
from accy_async.session import open_session

N = 64


@pytest.fixture(scope="module")
def add() -> KernelCallArtifact:
    [entry] = library_entries(targets=["accy.kernel.add"])
    return entry


def test_count_beyond_a_slot_is_refused_when_the_graph_is_built(
    add: KernelCallArtifact,
) -> None:
    """A kernel that would run past a buffer's end never gets so far."""
    g = LaunchGraphBuilder()
    x, y = g.buffer("x", DType.F32, N), g.buffer("y", DType.F32, N)
    g.kernel(add, [y.write, x.read, x.read], [ScalarArgument.u32(N + 1)], name="k")
    with pytest.raises(
        GraphError, match=r"'k'.* buffer 0 has 256 bytes.* at least 260"
    ):
        g.build()


@pytest.mark.anyio
async def test_runtime_count_beyond_a_slot_fails_the_run_before_a_launch(
    add: KernelCallArtifact,
) -> None:
    """The same where the count comes with the run."""
    g = LaunchGraphBuilder()
    x, y = g.buffer("x", DType.F32, N), g.buffer("y", DType.F32, N)
    g.kernel(add, [y.write, x.read, x.read], [g.runtime_scalar()], name="k")
    plan = g.build()
    async with open_session("cpu") as session:
        arrays = {name: session.allocate(N, DType.F32) for name in "xy"}
        options = LaunchOptions(runtime_scalars=(ScalarArgument.u32(N + 1),))
        with pytest.raises(ExceptionGroup) as info:
            await session.run(plan, arrays, options)
        assert info.group_contains(LaunchArgumentMismatch, match="at least 260")
        fitting = LaunchOptions(runtime_scalars=(ScalarArgument.u32(N),))
        await session.run(plan, arrays, fitting)


@pytest.mark.anyio
async def test_runtime_scalar_of_another_dtype_is_refused_at_the_start(
    add: KernelCallArtifact,
) -> None:
    """A plan knows the dtypes of the scalars that its runs bring."""
    g = LaunchGraphBuilder()
    x, y = g.buffer("x", DType.F32, N), g.buffer("y", DType.F32, N)
    g.kernel(add, [y.write, x.read, x.read], [g.runtime_scalar()])
    plan = g.build()
    async with open_session("cpu") as session:
        arrays = {name: session.allocate(N, DType.F32) for name in "xy"}
        options = LaunchOptions(runtime_scalars=(ScalarArgument.f32(N),))
        with pytest.raises(
            LaunchArgumentMismatch, match=r"\[0\]: got f32.*expected u32"
        ):
            session.start(plan, arrays, options)


def test_slot_of_another_dtype_is_refused(add: KernelCallArtifact) -> None:
    """An i32 buffer is no f32 buffer, though it is as large."""
    g = LaunchGraphBuilder()
    x, y = g.buffer("x", DType.I32, N), g.buffer("y", DType.F32, N)
    g.kernel(add, [y.write, x.read, x.read], [ScalarArgument.u32(N)], name="k")
    with pytest.raises(GraphError, match=r"slot 'x' of i32, expected f32"):
        g.build()


def test_written_buffer_cannot_be_only_read(add: KernelCallArtifact) -> None:
    """A use says what the order of the graph follows from, so it must be true."""
    g = LaunchGraphBuilder()
    x, y = g.buffer("x", DType.F32, N), g.buffer("y", DType.F32, N)
    g.kernel(add, [y.read, x.read, x.read], [ScalarArgument.u32(N)], name="k")
    with pytest.raises(GraphError, match=r"slot 'y', only read; the kernel writes it"):
        g.build()


def test_buffer_without_a_use_is_used_as_the_kernel_says(
    add: KernelCallArtifact,
) -> None:
    """So two kernels that read one buffer are not put into an order."""
    g = LaunchGraphBuilder()
    x = g.buffer("x", DType.F32, N)
    for name in ("y", "z"):
        out = g.buffer(name, DType.F32, N)
        g.kernel(add, [out, x, x], [ScalarArgument.u32(N)], name=name)
    assert g.build().dependencies == ()
