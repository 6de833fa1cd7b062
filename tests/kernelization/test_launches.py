"""Geometry, tiles, counts and names, as tuning's keys and other programs see them."""

from __future__ import annotations

import numpy as np
import pytest

from accy_async.artifact.entry import ElementCountArgument
from accy_async.artifact.formats import ArtifactFormat
from accy_async.artifact.geometry import FixedLaunch
from accy_async.artifact.planned import CompileLaunch
from accy_async.artifact.resources import (
    LaunchResourceCandidate,
    LaunchResourceClass,
    LaunchResourcePlan,
)
from accy_async.artifact.tiles import LaunchReductionKind, LaunchTileKind
from accy_async.backends.capabilities import Capabilities, DeviceIdentity
from accy_async.compiler.form import KernelBuilder
from accy_async.compiler.kernelization import (
    BufferOrigin,
    KernelizedWork,
    KernelStep,
    MathTier,
    StepBuffer,
    TargetProfile,
    WorkItem,
    kernelize,
)
from accy_async.compiler.kernelization.schedules import (
    Threads2D,
    matrix_product_thread_candidates_for_extents,
    matrix_product_threads_for_extents,
)
from accy_async.dtypes import DType
from accy_async.errors import InvalidType, InvalidValue, UnsupportedOperation
from tests.kernelization.harness import (
    CPU,
    CUDA,
    METAL,
    VULKAN,
    Make,
    function,
    item,
    launch,
)

ADD: Make = lambda f, a, b: f.add(a, b)  # noqa: E731


def kernelized(
    kind: str, types: list[str], make: Make, target: TargetProfile
) -> KernelStep:
    work = kernelize(item(kind, function(types, make)), target)
    assert len(work.steps) == 1
    return work.step


@pytest.mark.parametrize(("target", "threads"), [(CUDA, 32), (VULKAN, 8), (METAL, 8)])
def test_addition_of_eight(target: TargetProfile, threads: int) -> None:
    step = kernelized("elementwise", ["f32[8]", "f32[8]"], ADD, target)
    assert step.launch == FixedLaunch(grid=(1, 1, 1), threadgroup=(threads, 1, 1))
    accesses = [buffer.access for buffer in step.kernel.buffers]
    assert accesses == ["write_only", *["read_only"] * 3]
    assert step.element_count_argument is ElementCountArgument.BUFFER_U32
    assert step.element_count == 8
    assert step.launch_resources.candidate_count > 1
    assert step.tile.kind is LaunchTileKind.ELEMENTWISE
    assert step.kernel.name == "accy_elementwise_add_0_v1"
    assert step.in_place == {0, 1}
    assert step.required_dtypes == {DType.F32, DType.U32}


def test_cpus_know_their_counts() -> None:
    """Buffers of counts would keep loops from having known lengths."""
    step = kernelized("elementwise", ["f32[8]", "f32[8]"], ADD, CPU)
    assert step.element_count_argument is ElementCountArgument.NONE
    assert len(step.kernel.buffers) == 3


def test_names_say_kind_operation_and_number() -> None:
    of = function(["f32[8]"] * 3, lambda f, a, b, c: f.mul(f.add(a, b), c))
    work = WorkItem(
        work_item_id=7, kind=CompileLaunch.ELEMENTWISE, function=of, op_count=2
    )
    made = kernelize(work, CUDA)
    assert made.step.kernel.name == "accy_elementwise_multiply_7_v1"
    assert (made.work_item_id, made.op_count) == (7, 2)
    assert made.compile_launch is CompileLaunch.ELEMENTWISE
    assert len(made.step.kernel.buffers) == 5


def test_matrix_product_on_cuda() -> None:
    step = kernelized(
        "dot_general", ["f32[16,16]"] * 2, lambda f, a, b: f.matmul(a, b), CUDA
    )
    assert step.launch == FixedLaunch(grid=(1, 1, 1), threadgroup=(16, 16, 1))
    assert step.element_count_argument is ElementCountArgument.NONE
    assert len(step.kernel.buffers) == 3
    tile = step.tile
    assert tile.kind is LaunchTileKind.DOT_GENERAL
    assert (tile.m, tile.n, tile.k, tile.batch) == (16, 16, 16, 1)
    assert (tile.input_dtype, tile.output_dtype) == (DType.F32, DType.F32)
    assert (tile.input_tile_bytes, tile.output_tile_bytes) == (2048, 1024)
    assert tile.scratch_memory_bytes == 0
    assert step.launch_resources.candidate_count == 4
    assert step.launch_resources.resource_class is LaunchResourceClass.MATRIX_PRODUCT


def test_matrix_product_on_vulkan() -> None:
    step = kernelized(
        "dot_general", ["f32[16,16]"] * 2, lambda f, a, b: f.matmul(a, b), VULKAN
    )
    assert step.launch == FixedLaunch(grid=(2, 2, 1), threadgroup=(8, 8, 1))
    assert len(step.kernel.buffers) == 3


@pytest.mark.parametrize(
    ("target", "threads", "bytes_in", "bytes_out"),
    [(CUDA, 32, 32768, 128), (VULKAN, 64, 65536, 256)],
)
def test_reduction_of_256(
    target: TargetProfile, threads: int, bytes_in: int, bytes_out: int
) -> None:
    step = kernelized(
        "reduction", ["f32[256]"], lambda f, a: f.reduce(a, "sum", [0]), target
    )
    assert step.launch == FixedLaunch(grid=(1, 1, 1), threadgroup=(threads, 1, 1))
    assert len(step.kernel.buffers) == 3
    assert step.element_count_argument is ElementCountArgument.BUFFER_U32
    assert step.element_count == 256
    tile = step.tile
    assert tile.kind is LaunchTileKind.REDUCTION
    assert (tile.m, tile.n, tile.k, tile.batch) == (threads, 256, 0, 1)
    assert (tile.input_tile_bytes, tile.output_tile_bytes) == (bytes_in, bytes_out)
    assert tile.reduction is not None
    assert tile.reduction.kind is LaunchReductionKind.SUM
    assert (tile.reduction.rank, tile.reduction.axis) == (1, 0)
    assert tile.reduction.extent == 256
    assert step.kernel.name == "accy_reduction_sum_0_v1"


@pytest.mark.parametrize("kind", ["f32", "i32", "f16", "bool"])
def test_required_dtypes_name_what_is_kept(kind: str) -> None:
    how = "maximum" if kind == "bool" else "sum"
    step = kernelized(
        "reduction", [f"{kind}[300]"], lambda f, a: f.reduce(a, how, [0]), CUDA
    )
    assert DType(kind) in step.required_dtypes
    assert (DType.F32 in step.required_dtypes) is (kind in ("f32", "f16"))


def test_a_given_count_bounds_what_is_written() -> None:
    step = kernelized("elementwise", ["f32[300]", "f32[300]"], ADD, CUDA)
    ones = np.ones(300, np.float32)
    out = np.zeros(300, np.float32)
    buffers = {"result": [out], "operand": [ones, ones], "scratch": []}
    object.__setattr__(step, "element_count", 130)
    launch(step, buffers, 0)
    np.testing.assert_array_equal(out, [2.0] * 130 + [0.0] * 170)


def test_nothing_to_do_is_no_block() -> None:
    for kind, types, make in (
        ("elementwise", ["f32[0]", "f32[0]"], ADD),
        ("reduction", ["f32[0,5]"], lambda f, a: f.reduce(a, "sum", [1])),
        ("dot_general", ["f32[0,5]", "f32[5,3]"], lambda f, a, b: f.matmul(a, b)),
        ("scan", ["f32[0]"], lambda f, a: f.scan(a, "sum", 0)),
    ):
        for target in (CPU, CUDA, VULKAN):
            step = kernelized(kind, types, make, target)
            assert step.launch.block_count == 0
            assert step.launch_resources.candidate_count == 1


@pytest.mark.parametrize("target", [CPU, CUDA, VULKAN], ids=lambda t: t.format)
def test_arrays_beyond_32_bits_have_wider_numbers(target: TargetProfile) -> None:
    """Not run: 8 GiB. The code is made, and counts in 64 bits."""
    size = 2**33 + 5
    step = kernelized("elementwise", [f"u8[{size}]"] * 2, ADD, target)
    assert step.element_count == size
    assert step.element_count_argument is ElementCountArgument.NONE
    assert "U64" in repr(step.kernel.body)
    covered = step.launch.block_count * step.launch.threads_per_block
    loops = "grid_x" in repr(step.kernel.body).lower()
    assert covered >= size or loops or target is not CPU


def test_grids_stay_within_the_device() -> None:
    identity = DeviceIdentity(backend=VULKAN.backend, name="small")
    capabilities = Capabilities(
        identity=identity,
        formats=frozenset({ArtifactFormat.VULKAN_SPIRV}),
        max_grid=(7, 5, 3),
    )
    small = TargetProfile(capabilities=capabilities, format=ArtifactFormat.VULKAN_SPIRV)
    cases: list[tuple[str, list[str], Make]] = [
        ("elementwise", ["f32[5000]", "f32[5000]"], ADD),
        ("reduction", ["f32[900,40]"], lambda f, a: f.reduce(a, "sum", [1])),
        ("row_pipeline", ["f32[90,40]"], lambda f, a: f.softmax(a)),
        ("scan", ["f32[900,40]"], lambda f, a: f.scan(a, "sum", 1)),
        (
            "dot_general",
            ["f32[9,100,8]", "f32[9,8,90]"],
            lambda f, a, b: f.dot_general(a, b, [2], [1], [0], [0]),
        ),
    ]
    for kind, types, make in cases:
        of = function(types, make)
        for step in kernelize(item(kind, of), small).steps:
            for candidate in step.launch_resources.candidates:
                grid = candidate.geometry.grid
                assert all(g <= m for g, m in zip(grid, (7, 5, 3), strict=True))


def test_thread_blocks_follow_the_shape() -> None:
    square = matrix_product_thread_candidates_for_extents(512, 512)
    assert square[0] == Threads2D(16, 16)
    assert matrix_product_threads_for_extents(8, 512).x == 32
    assert matrix_product_threads_for_extents(512, 8).y == 32
    assert len(matrix_product_thread_candidates_for_extents(5, 7)) == 2
    for m, n in ((1, 1), (0, 0), (1, 10**6)):
        assert matrix_product_thread_candidates_for_extents(m, n)


def test_profiles_are_checked() -> None:
    with pytest.raises(UnsupportedOperation, match="does not load cuda_ptx"):
        TargetProfile(capabilities=CPU.capabilities, format=ArtifactFormat.CUDA_PTX)
    assert CPU.math_tier is MathTier.EXACT
    with pytest.raises(InvalidValue, match="math_tier"):
        TargetProfile(
            capabilities=CPU.capabilities,
            format=CPU.format,
            math_tier="quick",
        )


def test_kinds_without_generated_kernels_are_refused() -> None:
    of = function(["f32[8]", "f32[8]"], ADD)
    for kind in (CompileLaunch.KERNEL_CALL, CompileLaunch.AUTHORED):
        with pytest.raises(UnsupportedOperation, match=str(kind)):
            kernelize(item(str(kind), of), CPU)


def test_steps_and_work_are_checked() -> None:
    k = KernelBuilder("k", (4, 1, 1))
    out = k.buffer("out", DType.F32, "write_only")
    with k.region():
        out[k.thread] = 1.0
    kernel = k.build()
    resources = LaunchResourcePlan(
        candidates=(
            LaunchResourceCandidate(
                geometry=FixedLaunch(grid=(1, 1, 1), threadgroup=(4, 1, 1))
            ),
        )
    )
    one = StepBuffer(origin=BufferOrigin.SCRATCH, index=0)

    def step(count: int, plan: LaunchResourcePlan = resources) -> KernelStep:
        return KernelStep(
            kernel=kernel,
            arguments=(one,) * count,
            element_count=4,
            launch_resources=plan,
        )

    with pytest.raises(InvalidValue, match="2 buffers"):
        step(2)
    other = LaunchResourcePlan(
        candidates=(
            LaunchResourceCandidate(
                geometry=FixedLaunch(grid=(1, 1, 1), threadgroup=(8, 1, 1))
            ),
        )
    )
    with pytest.raises(InvalidValue, match="threadgroup"):
        step(1, other)
    with pytest.raises(InvalidValue, match="scratch below 0"):
        KernelizedWork(
            work_item_id=0,
            compile_launch=CompileLaunch.ELEMENTWISE,
            op_count=1,
            steps=(step(1),),
        )
    with pytest.raises(InvalidValue, match="at least one step"):
        KernelizedWork(
            work_item_id=0,
            compile_launch=CompileLaunch.ELEMENTWISE,
            op_count=1,
            steps=(),
        )
    with pytest.raises(InvalidType):
        WorkItem(work_item_id=0, kind="elementwise", function=None)  # type: ignore[arg-type]
