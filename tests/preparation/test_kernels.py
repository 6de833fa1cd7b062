"""The kernel and target phases: steps, shared kernels, calls, and what devices take."""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np
import pytest

from accy_async.artifact.entry import KernelCallRegistry
from accy_async.artifact.formats import ArtifactFormat
from accy_async.artifact.geometry import FixedLaunch
from accy_async.artifact.planned import KernelSource
from accy_async.artifact.requirements import DeviceFeatures
from accy_async.artifact.resources import LaunchResourceCandidate, LaunchResourcePlan
from accy_async.artifact.shapes import ShapeBounds, ShapeDimension, ShapeProfile
from accy_async.artifact.slots import SlotRole
from accy_async.compiler.form import ProductTile
from accy_async.compiler.kernelization.dot_units import unit_tiles
from accy_async.compiler.kernelization.schedules import (
    GatherSchedule,
    GeneratedRowPipelineSchedule,
    GeneratedScanSchedule,
    MatrixProductSchedule,
    RowSparseCrossEntropySchedule,
    ScatterAddSchedule,
    ScatterSchedule,
)
from accy_async.compiler.preparation import (
    PreparedJob,
    TargetProfile,
    compile_plan,
    matrix_product_problem,
    row_pipeline_problem,
    scan_problem,
)
from accy_async.compiler.preparation.schedules import schedule_of
from accy_async.compiler.semantic import DotGeneral, Scan, TensorType
from accy_async.dtypes import DType, ScalarArgument
from accy_async.errors import (
    BackendUnavailable,
    CapabilityMismatch,
    InvalidArtifact,
    PassFailed,
)
from accy_async.tuning.records import (
    ScheduleFamily,
    ScheduleTuningKey,
    ScheduleTuningProblem,
    ScheduleTuningRecord,
    encode_schedule_tuning_artifact,
)
from tests.preparation.calls import registry
from tests.preparation.harness import (
    CPU,
    CUDA,
    METAL,
    VULKAN,
    module_of,
    prepared,
    runs_like_the_reference,
)


def doubled(f: Any, x: Any) -> Any:
    return f.kernel_call([x], [x.type], target="test.double")


def threads(job: PreparedJob, index: int = 0) -> int:
    x, y, z = job.generated_kernel_summary(index).threadgroup
    return x * y * z


def test_a_long_sum_is_two_launches_with_scratch_between_them() -> None:
    def program(f: Any, x: Any) -> Any:
        return f.reduce(x, "sum", [0])

    module = module_of("i64[1000000]", program)
    plan = runs_like_the_reference(module)
    first, second = plan.kernels
    assert first.work_item_id == second.work_item_id == 0
    (between,) = first.output_slot_ids
    assert plan.slots[between].role is SlotRole.SCRATCH
    assert between in second.input_slot_ids


@pytest.mark.parametrize("profile", [CPU, CUDA, VULKAN, METAL])
def test_more_elements_than_32_bits_count_are_summed(profile: TargetProfile) -> None:
    """The second launch reads the parts' sums, as its tile says."""
    job = prepared("f32[5000000000]", lambda f, x: f.reduce(x, "sum", [0]), profile)
    parts, last = (kernel.prepared.step for kernel in job.target.kernels)
    assert parts is not None
    assert last is not None
    blocks = last.tile.n
    assert 1 < blocks < 2**16
    assert parts.tile.n == -(-5_000_000_000 // blocks)
    assert job.generated_kernel_summary(0).element_count == 5_000_000_000


def test_scratch_between_steps_is_used_again_by_a_work_item_that_comes_later() -> None:
    def program(f: Any, x: Any) -> Any:
        total = f.reduce(x, "sum", [0])
        # No launch of rows: what follows needs all of the sum first.
        rolled = f.reverse(f.sub(x, f.broadcast(total, x.shape)), [0])
        return f.reduce(rolled, "maximum", [0])

    plan = runs_like_the_reference(module_of("i64[1000000]", program))
    scratch = [s for s in plan.slots if s.role is SlotRole.SCRATCH]
    steps = [k for k in plan.kernels if "_parts" in k.entry_name]
    assert len(steps) == 2
    assert steps[0].output_slot_ids == steps[1].output_slot_ids
    assert len(scratch) <= 3


def test_launches_that_compute_the_same_share_a_kernel() -> None:
    def program(f: Any, x: Any, a: Any, b: Any) -> Any:
        return f.matmul(f.matmul(f.matmul(x, a), b), a)

    job = prepared("f32[4,4] f32[4,4] f32[4,4]", program)
    codes = [kernel.code for kernel in job.target.kernels]
    assert len(codes) == 3
    assert codes[0] is codes[1] is codes[2]
    assert [k.prepared.work_item_id for k in job.target.kernels] == [0, 1, 2]


def test_summaries_say_what_was_generated() -> None:
    job = prepared("f32[256]", lambda f, x: f.reduce(x, "sum", [0]), CUDA)
    summary = job.generated_kernel_summary(0)
    assert summary.entry_name == "accy_reduction_sum_0_v1"
    assert (summary.argument_count, summary.element_count) == (3, 256)
    assert summary.required_dtypes >= {DType.F32}
    for index in (-1, 1):
        with pytest.raises(InvalidArtifact, match=f"generated kernel {index}"):
            job.generated_kernel_summary(index)


# Schedules


def test_explicit_schedules_are_used() -> None:
    def softmax(f: Any, x: Any) -> Any:
        return f.softmax(x)

    def scan(f: Any, x: Any) -> Any:
        return f.scan(x, "sum", 1)

    def gather(f: Any, x: Any) -> Any:
        return f.gather(x, f.constant(np.zeros((64, 2), np.int32)), 0)

    for make, options, expected in (
        (
            softmax,
            {
                "generated_row_pipeline_schedule": GeneratedRowPipelineSchedule(
                    threads=128
                )
            },
            128,
        ),
        (
            scan,
            {"generated_scan_schedule": GeneratedScanSchedule(threads=512)},
            512,
        ),
        (gather, {"gather_schedule": GatherSchedule(threads=64)}, 64),
    ):
        job = prepared("f32[64,1024]", make, CUDA, **options)
        assert threads(job) == expected, make


def test_a_tile_is_asked_for_those_products_that_tensor_cores_compute() -> None:
    format = ArtifactFormat.CUDA_CUBIN
    capabilities = attrs.evolve(
        CUDA.capabilities,
        formats=frozenset({format}),
        features=DeviceFeatures(tensor_cores=True, async_copy=True),
        max_shared_memory_bytes=100 << 10,
    )
    units = TargetProfile(capabilities=capabilities, format=format)
    tile = ProductTile(m=64, n=64, depth=32, warps_m=2, warps_n=2, stages=2)
    schedule = MatrixProductSchedule(tile=tile)
    for dtype, group, shared in (("f16", 128, tile.shared_bytes), ("f32", 256, 0)):
        job = prepared(
            f"{dtype}[200,64] {dtype}[64,200]",
            lambda f, x, y: f.matmul(x, y),
            units,
            matrix_product_schedule=schedule,
        )
        launch = job.target.kernels[0].launch_resources.geometry
        assert launch.threads_per_block == group
        assert launch.dynamic_shared_memory_bytes == shared
    function = module_of(
        "f16[200,64] f16[64,200]", lambda f, x, y: f.matmul(x, y)
    ).entry
    tiles = unit_tiles(function, units)
    op = function.operations[0].op
    assert isinstance(op, DotGeneral)
    types = [value.type for value in function.parameters]
    problem = matrix_product_problem(units, op, types[0], types[1], tiles)
    assert [schedule_of(problem.family, c) for c in problem.candidates] == [
        MatrixProductSchedule(tile=one) for one in tiles
    ]


def test_schedules_of_scatters_and_losses_are_used() -> None:
    def setting(f: Any, x: Any, i: Any, u: Any) -> Any:
        return f.scatter(x, i, u)

    def adding(f: Any, x: Any, i: Any, u: Any) -> Any:
        return f.scatter_add(x, i, u)

    types = "f32[64,64] i32[8] f32[8,64]"
    options = {
        "scatter_schedule": ScatterSchedule(threads=32),
        "scatter_add_schedule": ScatterAddSchedule(threads=64),
    }
    assert threads(prepared(types, setting, CUDA, **options)) == 32
    assert threads(prepared(types, adding, CUDA, **options)) == 64
    loss = prepared(
        "f32[64,1000] i32[64]",
        lambda f, x, y: f.row_sparse_cross_entropy(x, y),
        CUDA,
        row_sparse_cross_entropy_schedule=RowSparseCrossEntropySchedule(threads=64),
    )
    assert threads(loss) == 64


def record(problem: ScheduleTuningProblem, choice: tuple[int, ...]) -> bytes:
    return encode_schedule_tuning_artifact(
        problem.family,
        [
            ScheduleTuningRecord(
                key=ScheduleTuningKey.of(CUDA.capabilities.fingerprint, problem),
                choice=choice,
                winner_median_ns=5,
            )
        ],
    )


def test_measured_schedules_are_used_for_just_what_was_measured() -> None:
    def scan(f: Any, x: Any) -> Any:
        return f.scan(x, "sum", 1)

    op = Scan("sum", 1, DType.F32)
    problem = scan_problem(CUDA, op, TensorType(DType.F32, (4, 5000)))
    artifact = record(problem, problem.candidates[1])
    option = {"generated_scan_schedule_tuning_artifact": artifact}
    wanted = problem.candidates[1][0]
    assert threads(prepared("f32[4,5000]", scan, CUDA, **option)) == wanted
    untuned = problem.candidates[0][0]
    assert untuned != wanted
    assert threads(prepared("f32[4,5000]", scan, CUDA)) == untuned
    other = prepared("f32[4,4999]", scan, CUDA, **option)
    assert threads(other) == threads(prepared("f32[4,4999]", scan, CUDA))


def test_measured_schedules_of_row_pipelines_are_used() -> None:
    def softmax(f: Any, x: Any) -> Any:
        return f.softmax(x)

    function = module_of("f32[64,1024]", softmax).entry
    problem = row_pipeline_problem(CUDA, function)
    assert problem.extents == (64, 1024)
    choice = problem.candidates[-1]
    option = {
        "generated_row_pipeline_schedule_tuning_artifact": record(problem, choice)
    }
    assert threads(prepared("f32[64,1024]", softmax, CUDA, **option)) == choice[0]


def test_a_measured_winner_that_is_no_choice_fails_in_its_pass() -> None:
    op = Scan("sum", 1, DType.F32)
    problem = scan_problem(CUDA, op, TensorType(DType.F32, (4, 5000)))
    with pytest.raises(PassFailed, match=r"\(7, 0\) is none") as caught:
        prepared(
            "f32[4,5000]",
            lambda f, x: f.scan(x, "sum", 1),
            CUDA,
            generated_scan_schedule_tuning_artifact=record(problem, (7, 0)),
        )
    assert (caught.value.pipeline, caught.value.pass_name) == (
        "kernel",
        "kernelization",
    )
    assert caught.value.target_op == "scan"
    assert problem.family is ScheduleFamily.SCAN


# Kernel calls


def changed(**changes: Any) -> KernelCallRegistry:
    """The test kernels, the doubling one changed."""
    double, other = registry()
    return KernelCallRegistry([attrs.evolve(double, **changes), other])


def test_the_entrys_own_defaults_go_first() -> None:
    job = prepared(
        "f32[8]",
        doubled,
        kernel_call_registry=changed(runtime_scalar_defaults=(ScalarArgument.u32(4),)),
    )
    (kernel,) = job.target.kernels
    assert kernel.prepared.runtime_scalar_defaults == (ScalarArgument.u32(4),)
    assert kernel.prepared.source is KernelSource.KERNEL_CALL


def test_a_size_that_the_kernel_does_not_serve_is_refused() -> None:
    profile = ShapeProfile(
        name="rows",
        dimensions=(
            ShapeDimension(
                name="n",
                runtime_scalar_argument_index=0,
                bounds=ShapeBounds(min=16, max=64, multiple_of=16),
            ),
        ),
    )
    with pytest.raises(CapabilityMismatch, match="n from 16 to 64 in multiples of 16"):
        prepared("f32[8]", doubled, kernel_call_registry=changed(shape_profile=profile))


def test_scalars_that_are_no_sizes_have_no_defaults() -> None:
    job = prepared(
        "f32[8]",
        doubled,
        kernel_call_registry=changed(
            launch=FixedLaunch(grid=(1, 1, 1), threadgroup=(8, 1, 1)),
            shape_profile=None,
        ),
    )
    assert job.target.kernels[0].prepared.runtime_scalar_defaults == ()


def test_what_a_called_kernel_requires_the_device_must_have() -> None:
    with pytest.raises(CapabilityMismatch, match="tensor_cores"):
        prepared(
            "f32[8]",
            doubled,
            kernel_call_registry=changed(
                required_features=DeviceFeatures(tensor_cores=True)
            ),
        )


def test_geometries_beyond_the_device_are_left_out_but_not_the_one_used_untuned() -> (
    None
):
    def resources(*grids: int) -> LaunchResourcePlan:
        return LaunchResourcePlan(
            candidates=[
                LaunchResourceCandidate(
                    geometry=FixedLaunch(grid=(1, grid, 1), threadgroup=(8, 1, 1))
                )
                for grid in grids
            ]
        )

    job = prepared(
        "f32[8]",
        doubled,
        kernel_call_registry=changed(launch_resources=resources(1, 10**6, 2)),
    )
    assert job.target.kernels[0].launch_resources == resources(1, 2)
    with pytest.raises(CapabilityMismatch, match="grid y is 1000000"):
        prepared(
            "f32[8]",
            doubled,
            kernel_call_registry=changed(launch_resources=resources(10**6, 1)),
        )


# Devices


def with_capabilities(profile: TargetProfile, **changes: Any) -> TargetProfile:
    return attrs.evolve(
        profile, capabilities=attrs.evolve(profile.capabilities, **changes)
    )


def test_shared_memory_beyond_the_device_is_refused() -> None:
    small = with_capabilities(CUDA, max_shared_memory_bytes=100)
    with pytest.raises(CapabilityMismatch, match="shared memory, the device has 100"):
        prepared("f32[64,64] f32[64,64]", lambda f, x, y: f.matmul(x, y), small)


def test_blocks_beyond_the_device_are_refused() -> None:
    small = with_capabilities(CUDA, max_threads_per_block=16)
    with pytest.raises(CapabilityMismatch, match="threadgroup"):
        prepared("f32[4096]", lambda f, x: f.neg(x), small)


@pytest.mark.parametrize(
    ("profile", "dtype", "is_refused"),
    [(CUDA, "f16", True), (CUDA, "bf16", False), (VULKAN, "f16", False)],
)
def test_products_of_f16_are_refused_on_cuda_only(
    profile: TargetProfile, dtype: str, *, is_refused: bool
) -> None:
    def product(f: Any, x: Any) -> Any:
        return f.matmul(x, x)

    if is_refused:
        with pytest.raises(CapabilityMismatch, match="convert them to f32"):
            prepared(f"{dtype}[8,8]", product, profile)
    else:
        assert prepared(f"{dtype}[8,8]", product, profile).kernel_count == 1


def test_a_product_of_f16_is_taken_on_cuda_through_cuda_cpp() -> None:
    """NVRTC needs no device: the whole way but for the launch."""
    identity = attrs.evolve(CUDA.capabilities.identity, architecture="sm_90")
    cubins = frozenset({ArtifactFormat.CUDA_CUBIN})
    profile = TargetProfile.of(
        attrs.evolve(CUDA.capabilities, identity=identity, formats=cubins)
    )
    job = prepared("f16[8,8]", lambda f, x: f.matmul(x, x), profile)
    try:
        plan = compile_plan(job, cache=False)
    except BackendUnavailable as error:
        pytest.skip(str(error))
    (kernel,) = plan.kernels
    assert kernel.artifact.format is ArtifactFormat.CUDA_CUBIN
    payload = kernel.artifact.payload
    assert isinstance(payload, bytes)
    assert payload[:4] == b"\x7fELF"


def test_a_product_of_f16_in_f32_is_taken_on_cuda() -> None:
    def product(f: Any, x: Any) -> Any:
        wide = f.convert(x, "f32")
        return f.convert(f.matmul(wide, wide), "f16")

    job = prepared("f16[8,8]", product, CUDA)
    assert all(k.code is not None for k in job.target.kernels)


def test_a_profile_takes_the_devices_format() -> None:
    assert TargetProfile.of(CUDA.capabilities).format is ArtifactFormat.CUDA_PTX
    both = attrs.evolve(
        CPU.capabilities,
        formats=frozenset({ArtifactFormat.CPU_OBJECT, ArtifactFormat.CPU_MACHINE_CODE}),
    )
    assert TargetProfile.of(both).format is ArtifactFormat.CPU_MACHINE_CODE
    assert TargetProfile.of(both, "cpu_object").format is ArtifactFormat.CPU_OBJECT
    assert TargetProfile.of(METAL.capabilities).format is ArtifactFormat.METAL_MSL
