"""The fragment seed's tests of preparation alone, by its names and with its figures.

What the seed does after preparing (loading, binding, launching) is tested with
fragments. Only public names are used, as another program would use them.
"""

# ruff: noqa: E501 - the names of the tests are the seed's

from __future__ import annotations

import attrs
import pytest

from accy_async.artifact import (
    ArtifactFormat,
    ArtifactPlan,
    DerivedLaunch,
    ElementCountArgument,
    Fixed,
    FixedLaunch,
    KernelCallArtifact,
    KernelCallRegistry,
    KernelSource,
    LaunchReductionKind,
    LaunchTileKind,
    RuntimeCeilDiv,
    ScalarArgument,
    ShapeBounds,
    ShapeDimension,
    ShapeProfile,
    SlotRole,
)
from accy_async.backends import BackendKind, RecordingBackend
from accy_async.compiler.kernelization.schedules import (
    MatrixProductSchedule,
    Threads2D,
    matrix_product_thread_candidates_for_extents,
    matrix_product_threads_for_extents,
)
from accy_async.compiler.kernels import (
    MatrixProduct,
    MatrixProductRequest,
    create_owned_kernel_call_artifact_registry,
    matrix_product_family_target,
    select_owned,
)
from accy_async.compiler.preparation import (
    FragmentCompilerOptions,
    FragmentInstrumentation,
    FragmentPhase,
    PreparedJob,
    Recipe,
    TargetProfile,
    compile_plan,
    decode_recipe,
    encode_recipe,
    matrix_product_problem,
    matrix_product_tuning_key,
    prepare,
)
from accy_async.compiler.preparation.target import TARGET_PASSES
from accy_async.compiler.semantic import (
    Builder,
    DotGeneral,
    FunctionBuilder,
    KernelCall,
    Module,
    TensorType,
    Value,
)
from accy_async.dtypes import DType
from accy_async.errors import CapabilityMismatch, InvalidArtifact, PassFailed
from accy_async.tuning.records import (
    FamilyTuningRecord,
    ScheduleFamily,
    ScheduleTuningKey,
    ScheduleTuningProblem,
    ScheduleTuningRecord,
    encode_family_tuning_artifact,
    encode_schedule_tuning_artifact,
)

CUDA = RecordingBackend(kind=BackendKind.CUDA, format=ArtifactFormat.CUDA_PTX)
VULKAN = RecordingBackend(kind=BackendKind.VULKAN, format=ArtifactFormat.VULKAN_SPIRV)
PROFILE = TargetProfile.of(CUDA.capabilities)
PROBE = MatrixProduct(m=5, n=7, k=3)
LHS, RHS = TensorType(DType.F32, (5, 3)), TensorType(DType.F32, (3, 7))
PRODUCT = DotGeneral(DType.F32, DType.F32, (1,), (0,))


def begin(name: str, *types: str) -> tuple[Builder, FunctionBuilder]:
    builder = Builder("module")
    return builder, builder.begin_function(name, [TensorType.parse(t) for t in types])


def end(builder: Builder, f: FunctionBuilder, *results: Value) -> Module:
    f.return_(results)
    f.finish()
    return builder.finish()


def add_module(name: str, dtype: str = "f32") -> Module:
    builder, f = begin(name, f"{dtype}[8]", f"{dtype}[8]")
    return end(builder, f, f.add(*f.parameters))


def product_module(name: str, dtype: str = "f32") -> Module:
    builder, f = begin(name, f"{dtype}[16,16]", f"{dtype}[16,16]")
    return end(builder, f, f.matmul(*f.parameters))


def reduction_module(name: str, dtype: str = "f32") -> Module:
    builder, f = begin(name, f"{dtype}[256]")
    return end(builder, f, f.reduce(f.parameters[0], "sum", [0]))


def einsum_module(name: str) -> Module:
    builder, f = begin(name, "f32[5,3]", "f32[3,7]")
    return end(builder, f, f.einsum(list(f.parameters), "mk,kn->mn"))


def plan_of(
    module: Module, backend: RecordingBackend = CUDA, **options: object
) -> ArtifactPlan:
    """Prepared and compiled for a recording backend, without a cache."""
    chosen = attrs.evolve(FragmentCompilerOptions(), **options)  # type: ignore[arg-type]
    job = prepare(module, TargetProfile.of(backend.capabilities), chosen)
    return compile_plan(job, create_artifact=backend.create_artifact, cache=False)


def test_choir_executable_artifact_planning_accepts_cuda_u32_kernels() -> None:
    """An addition of u32 is planned, and the backend asked once, for what it needs."""
    backend = RecordingBackend(kind=BackendKind.CUDA, format=ArtifactFormat.CUDA_PTX)
    plan = plan_of(add_module("choir_cuda_executable_add_u32", "u32"), backend)
    assert plan.kernel_count == 1
    assert DType.U32 in plan.kernel(0).required_dtypes
    assert backend.create_count == 1


def test_choir_executable_plan_creates_cuda_plans_from_i32_reductions() -> None:
    """A sum of i32 is planned."""
    plan = plan_of(reduction_module("choir_cuda_executable_reduce_i32", "i32"))
    assert plan.kernel_count == 1
    assert DType.I32 in plan.kernel(0).required_dtypes


def test_choir_executable_plan_rejects_cuda_f16_dot_general_until_choir_lowering_supports_it() -> (
    None
):
    """A product of f16 operands is refused on CUDA, naming what to do instead."""
    module = product_module("choir_cuda_executable_dot_general_f16", "f16")
    with pytest.raises(CapabilityMismatch, match=r"dot_general in cuda_ptx .* f16"):
        prepare(module, PROFILE)


def test_choir_executable_plan_launches_cuda_choir_dot_general_without_static_shape_scalars() -> (
    None
):
    """The product's plan has the seed's tile, threads and candidates; no scalars."""
    kernel = plan_of(product_module("choir_cuda_executable_dot_general")).kernel(0)
    tile = kernel.tile
    assert tile.kind is LaunchTileKind.DOT_GENERAL
    assert (tile.m, tile.n, tile.k, tile.batch) == (16, 16, 16, 1)
    assert (tile.input_dtype, tile.output_dtype) == (DType.F32, DType.F32)
    assert (tile.input_tile_bytes, tile.output_tile_bytes) == (2048, 1024)
    assert tile.scratch_memory_bytes == 0
    assert kernel.launch_resources.candidate_count == 4
    assert kernel.launch_resources.fingerprint != 0
    assert kernel.output_layout_fingerprint != 0
    assert kernel.input_layout_fingerprint != 0
    geometry = kernel.launch_resources.geometry
    assert (geometry.grid, geometry.threadgroup) == ((1, 1, 1), (16, 16, 1))
    assert kernel.buffer_argument_count == 3
    assert kernel.scalar_argument_count == 0
    assert len(kernel.input_slot_ids) == 2


def test_choir_executable_plan_launches_vulkan_dot_general_without_element_count_bindings() -> (
    None
):
    """On Vulkan blocks of 8 by 8 threads, four for 16 by 16; three buffers."""
    plan = plan_of(product_module("choir_vulkan_executable_dot_general"), VULKAN)
    kernel = plan.kernel(0)
    assert kernel.artifact.payload
    assert kernel.artifact.argument_count == 3
    assert kernel.element_count_argument is ElementCountArgument.NONE
    geometry = kernel.launch_resources.geometry
    assert (geometry.grid, geometry.threadgroup) == ((2, 2, 1), (8, 8, 1))


@pytest.mark.parametrize(
    ("backend", "threads", "input_bytes", "output_bytes"),
    [(CUDA, 32, 32768, 128), (VULKAN, 64, 65536, 256)],
)
def test_choir_executable_plan_launches_cuda_reduction_with_static_input_count(
    backend: RecordingBackend, threads: int, input_bytes: int, output_bytes: int
) -> None:
    """And "... launches Vulkan reduction with device count binding": tile and launch."""
    plan = plan_of(reduction_module("choir_executable_reduce"), backend)
    kernel = plan.kernel(0)
    tile, reduction = kernel.tile, kernel.tile.reduction
    assert tile.kind is LaunchTileKind.REDUCTION
    assert (tile.m, tile.n, tile.k, tile.batch) == (threads, 256, 0, 1)
    assert (tile.input_dtype, tile.output_dtype) == (DType.F32, DType.F32)
    assert (tile.input_tile_bytes, tile.output_tile_bytes) == (
        input_bytes,
        output_bytes,
    )
    assert tile.scratch_memory_bytes == 0
    assert reduction is not None
    assert reduction.kind is LaunchReductionKind.SUM
    assert (reduction.rank, reduction.axis, reduction.extent) == (1, 0, 256)
    assert kernel.element_count_argument is ElementCountArgument.BUFFER_U32
    assert kernel.buffer_argument_count == 3
    geometry = kernel.launch_resources.geometry
    assert (geometry.grid, geometry.threadgroup) == ((1, 1, 1), (threads, 1, 1))
    assert len(kernel.input_slot_ids) == 1


def test_choir_executable_fragment_prepareinvocationbindings_skips_reduction_init_constants() -> (
    None
):
    """The start of a reduction is a constant slot that no buffer is made for."""
    plan = plan_of(reduction_module("choir_loaded_fragment_prepared_reduction"))
    constants = [slot for slot in plan.slots if slot.role is SlotRole.CONSTANT]
    assert [slot.is_bound for slot in constants] == [False]
    assert sum(slot.is_bound for slot in plan.slots) == 2


def scale_registry(**changes: object) -> KernelCallRegistry:
    entry = KernelCallArtifact(
        target="accy.custom.scale",
        version=1,
        format=ArtifactFormat.CUDA_PTX,
        entry_name="accy_custom_scale",
        argument_count=4,
        required_dtypes=frozenset({DType.F32}),
        payload=".visible .entry accy_custom_scale() { ret; }",
        launch=DerivedLaunch(
            grid=(RuntimeCeilDiv(argument_index=0, divisor=4), Fixed(1), Fixed(1)),
            threadgroup=(4, 1, 1),
        ),
        runtime_scalar_argument_count=1,
        shape_family_fingerprint=0xFEED,
        shape_profile=ShapeProfile(
            name="rows",
            fingerprint=0xFEED,
            dimensions=(
                ShapeDimension(
                    name="n",
                    runtime_scalar_argument_index=0,
                    bounds=ShapeBounds(max=4096),
                ),
            ),
        ),
    )
    return KernelCallRegistry([attrs.evolve(entry, **changes)])  # type: ignore[arg-type]


def scale_module(name: str) -> Module:
    builder, f = begin(name, "f32[8]", "f32[8]")
    (called,) = f.kernel_call(
        f.parameters, [TensorType(DType.F32, (8,))], target="accy.custom.scale"
    )
    return end(builder, f, called)


def test_choir_executable_fragment_lets_launch_scalars_override_the_kernel_call_count_default() -> (
    None
):
    """The count of elements is the default of the one scalar that is a size."""
    plan = plan_of(
        scale_module("choir_cuda_executable_kernel_call_count_override"),
        kernel_call_registry=scale_registry(),
    )
    kernel = plan.kernel(0)
    assert kernel.source is KernelSource.KERNEL_CALL
    assert kernel.runtime_scalar_argument_count == 1
    assert kernel.runtime_scalar_defaults == (ScalarArgument.u32(8),)
    assert kernel.element_count_argument is ElementCountArgument.NONE
    assert isinstance(kernel.launch, DerivedLaunch)
    assert kernel.launch.geometry((ScalarArgument.u32(13),)).grid == (4, 1, 1)
    assert kernel.launch_resources.geometry.grid == (2, 1, 1)


def test_choir_executable_fragment_launches_registered_kernel_call_with_full_launch_geometry() -> (
    None
):
    """Geometry, element count and static arguments are the entry's."""
    plan = plan_of(
        scale_module("choir_cuda_executable_kernel_call_geometry"),
        kernel_call_registry=scale_registry(
            argument_count=5,
            launch=FixedLaunch(
                grid=(2, 3, 1),
                threadgroup=(8, 2, 1),
                dynamic_shared_memory_bytes=2048,
            ),
            runtime_scalar_argument_count=0,
            shape_profile=None,
            element_count_argument="scalar_u32",
            static_arguments=(ScalarArgument.u32(7),),
        ),
    )
    kernel = plan.kernel(0)
    geometry = kernel.launch_resources.geometry
    assert (geometry.grid, geometry.threadgroup) == ((2, 3, 1), (8, 2, 1))
    assert geometry.dynamic_shared_memory_bytes == 2048
    assert kernel.element_count == 8
    assert kernel.element_count_argument is ElementCountArgument.SCALAR_U32
    assert kernel.static_arguments == (ScalarArgument.u32(7),)


def test_choir_executable_fragment_launches_aliased_kernel_call_outputs_read_write() -> (
    None
):
    """A result that takes its operand's memory over shares its slot, read and written."""
    builder, f = begin("choir_cuda_executable_kernel_call_alias_access", "f32[8]")
    (called,) = f.kernel_call(
        f.parameters,
        [TensorType(DType.F32, (8,))],
        target="accy.custom.scale",
        operand_effects=["read_write"],
        result_aliases=[0],
    )
    plan = plan_of(
        end(builder, f, called),
        kernel_call_registry=scale_registry(
            argument_count=2,
            launch=FixedLaunch(grid=(1, 1, 1), threadgroup=(8, 1, 1)),
            runtime_scalar_argument_count=0,
            shape_profile=None,
        ),
    )
    assert plan.kernel_count == 1
    result, operand = plan.kernel(0).arguments
    assert result.slot_id == operand.slot_id == plan.input_slot_ids[0]
    assert (result.access, operand.access) == ("read_write", "read_only")


def test_choir_executable_fragment_from_semantic_module_uses_target_product() -> None:
    """The six phases are told in order, then making code and putting it together."""
    seen: list[FragmentPhase] = []
    plan_of(
        add_module("choir_executable_from_semantic_add"),
        instrumentation=FragmentInstrumentation(
            observe=lambda phase, _: seen.append(phase)
        ),
    )
    assert seen == [
        FragmentPhase.RUN_CONTRACT_PIPELINE,
        FragmentPhase.RUN_TENSOR_PIPELINE,
        FragmentPhase.RUN_DISPATCH_PIPELINE,
        FragmentPhase.RUN_MEMORY_PIPELINE,
        FragmentPhase.RUN_KERNEL_PIPELINE,
        FragmentPhase.RUN_TARGET_PIPELINE,
        FragmentPhase.PLAN_CREATE_BACKEND_ARTIFACTS,
        FragmentPhase.COMPILE_FRAGMENT,
    ]


def test_choir_executable_fragment_compiles_a_prepared_job_without_rerunning_preparation() -> (
    None
):
    """A job keeps all that preparing found; compiling tells of two phases only."""
    job = prepare(add_module("choir_executable_from_prepared_add"), PROFILE)
    seen: list[FragmentPhase] = []
    told = FragmentInstrumentation(observe=lambda phase, _: seen.append(phase))
    plan = compile_plan(job, cache=False, instrumentation=told)
    assert plan.kernel_count == 1
    assert job.run.target.pass_runs == len(TARGET_PASSES)
    assert job.generated_kernel_count == 1
    # The seed's is accy_choir_elementwise_add_0_v4: the scheme is the same, the
    # compiler's name and the version of its kernels are not.
    assert job.generated_kernel_summary(0).entry_name == "accy_elementwise_add_0_v1"
    assert plan.kernel(0).entry_name == "accy_elementwise_add_0_v1"
    assert seen == [
        FragmentPhase.PLAN_CREATE_BACKEND_ARTIFACTS,
        FragmentPhase.COMPILE_FRAGMENT,
    ]


# Tuning of matrix products


def called_target(job: PreparedJob) -> str:
    """The kernel that the prepared program calls."""
    calls = [e.op for e in job.function.operations if isinstance(e.op, KernelCall)]
    assert len(calls) == 1
    return calls[0].target


def heuristic_threads() -> Threads2D:
    return matrix_product_threads_for_extents(PROBE.m, PROBE.n)


def other_threads() -> Threads2D:
    """Candidate threads that the heuristic does not choose."""
    candidates = matrix_product_thread_candidates_for_extents(PROBE.m, PROBE.n)
    return next(threads for threads in candidates if threads != heuristic_threads())


def target_with(threads: Threads2D) -> str:
    return matrix_product_family_target(attrs.evolve(PROBE, threads=threads))


def registry() -> KernelCallRegistry:
    """The family's kernels for the problem, with either choice of threads."""
    descriptors = []
    for threads in (heuristic_threads(), other_threads()):
        descriptor = select_owned(
            MatrixProductRequest(
                dtype=DType.F32,
                lhs_indices="mk",
                rhs_indices="kn",
                output_indices="mn",
                lhs_dims=(5, 3),
                rhs_dims=(3, 7),
                output_dims=(5, 7),
                schedule=MatrixProductSchedule(thread_blocks=threads),
            )
        )
        assert descriptor is not None
        descriptors.append(descriptor)
    return create_owned_kernel_call_artifact_registry(PROFILE, descriptors)


REGISTRY = registry()


def problem(k: int = 3) -> ScheduleTuningProblem:
    lhs, rhs = TensorType(DType.F32, (5, k)), TensorType(DType.F32, (k, 7))
    return matrix_product_problem(PROFILE, PRODUCT, lhs, rhs)


def schedule_record(threads: Threads2D) -> ScheduleTuningRecord:
    return ScheduleTuningRecord(
        key=ScheduleTuningKey.of(PROFILE.capabilities.fingerprint, problem()),
        choice=(threads.x, threads.y),
        winner_median_ns=800,
        runner_up_median_ns=1200,
        sample_count=30,
    )


def schedule_artifact(*records: ScheduleTuningRecord) -> bytes:
    return encode_schedule_tuning_artifact(ScheduleFamily.MATRIX_PRODUCT, records)


def prepared(name: str, **options: object) -> PreparedJob:
    chosen = attrs.evolve(FragmentCompilerOptions(), **options)  # type: ignore[arg-type]
    return prepare(einsum_module(name), PROFILE, chosen)


def test_choir_executable_fragment_consults_an_embedded_family_tuning_artifact() -> (
    None
):
    """The kernel that was measured as the fastest of the family is called."""
    winner = target_with(other_threads())
    record = FamilyTuningRecord(
        key=matrix_product_tuning_key(PROFILE, PROBE),
        target=winner,
        winner_median_ns=800,
        runner_up_median_ns=1200,
        sample_count=30,
    )
    job = prepared(
        "family_tuning_blob_prepare",
        kernel_call_registry=REGISTRY,
        family_tuning_artifact=encode_family_tuning_artifact([record]),
    )
    assert called_target(job) == winner
    untuned = prepared("family_untuned", kernel_call_registry=REGISTRY)
    assert called_target(untuned) == target_with(heuristic_threads())


def test_choir_executable_fragment_consumes_matrix_product_schedule_tuning_artifacts() -> (
    None
):
    """The kernel of the schedule that was measured as the fastest is called."""
    job = prepared(
        "matrix_product_schedule_tuning_blob_prepare",
        kernel_call_registry=REGISTRY,
        matrix_product_schedule_tuning_artifact=schedule_artifact(
            schedule_record(other_threads())
        ),
    )
    assert called_target(job) == target_with(other_threads())


def test_choir_executable_fragment_prefers_explicit_matrix_product_schedule_over_tuning_artifact() -> (
    None
):
    """What the caller asks for goes before what was measured."""
    job = prepared(
        "matrix_product_schedule_tuning_explicit_prepare",
        kernel_call_registry=REGISTRY,
        matrix_product_schedule=MatrixProductSchedule(
            thread_blocks=heuristic_threads()
        ),
        matrix_product_schedule_tuning_artifact=schedule_artifact(
            schedule_record(other_threads())
        ),
    )
    assert called_target(job) == target_with(heuristic_threads())


def test_choir_executable_fragment_rejects_malformed_matrix_product_schedule_tuning_artifacts() -> (
    None
):
    """Bytes that are none are refused at once, a winner that is none in its pass."""
    with pytest.raises(InvalidArtifact):
        prepared(
            "matrix_product_schedule_tuning_blob_invalid",
            matrix_product_schedule_tuning_artifact=b"\1\2\3",
        )
    with pytest.raises(PassFailed) as caught:
        prepared(
            "matrix_product_schedule_tuning_blob_bad_selection",
            kernel_call_registry=REGISTRY,
            matrix_product_schedule_tuning_artifact=schedule_artifact(
                schedule_record(Threads2D(99, 9))
            ),
        )
    failure = caught.value
    assert failure.pipeline == "tensor"
    assert failure.kind == "pass"
    assert failure.pass_name == "einsum_lowering"
    assert failure.target_op == "einsum"
    assert failure.worker_count > 0
    assert isinstance(failure.__cause__, InvalidArtifact)


def test_choir_executable_fragment_rejects_malformed_family_tuning_artifacts() -> None:
    """Bytes that are none are refused."""
    with pytest.raises(InvalidArtifact):
        prepared("family_tuning_blob_invalid", family_tuning_artifact=b"\1\2\3")


def recipe_of(artifact: bytes) -> bytes:
    options = FragmentCompilerOptions(matrix_product_schedule_tuning_artifact=artifact)
    return encode_recipe(Recipe.of(einsum_module("recipe"), PROFILE, options))


def test_matrix_product_schedule_recipe_restores_the_artifact_reader_after_plan_destruction() -> (
    None
):
    """A decoded recipe finds what the artifact held, and no more."""
    winner = other_threads()
    recipe = decode_recipe(recipe_of(schedule_artifact(schedule_record(winner))))
    reader = recipe.reader(ScheduleFamily.MATRIX_PRODUCT)
    assert reader.resolve(problem()) == (winner.x, winner.y)
    assert reader.resolve(problem(k=4)) is None


def test_matrix_product_schedule_recipe_normalizes_artifact_duplicates_through_the_cache() -> (
    None
):
    """Order and slower duplicates in an artifact change nothing in the recipe."""
    winner = other_threads()
    fast = schedule_record(winner)
    slow = attrs.evolve(
        schedule_record(heuristic_threads()),
        winner_median_ns=fast.winner_median_ns + 1,
    )
    recipes = {
        recipe_of(schedule_artifact(*records))
        for records in ((fast, slow), (slow, fast), (fast, fast), (fast,))
    }
    assert len(recipes) == 1
    reader = decode_recipe(recipes.pop()).reader(ScheduleFamily.MATRIX_PRODUCT)
    assert len(reader.records) == 1
    assert reader.resolve(problem()) == (winner.x, winner.y)


def test_matrix_product_schedule_snapshot_releases_every_failed_acquisition() -> None:
    """A damaged artifact at any place leaves nothing behind: a good one works after it.

    The seed lets every allocation fail; what can fail here is every byte.
    """
    artifact = schedule_artifact(schedule_record(other_threads()))
    for place in range(0, len(artifact), 7):
        damaged = (
            artifact[:place] + bytes([artifact[place] ^ 1]) + artifact[place + 1 :]
        )
        with pytest.raises(InvalidArtifact):
            recipe_of(damaged)
    assert decode_recipe(recipe_of(artifact)).records
