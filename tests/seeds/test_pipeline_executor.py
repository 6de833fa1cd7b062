"""The pipeline executor's seed tests, one for one and with the seed's figures.

The chain is the seed's three-stage scan of 5000 elements in blocks of 64: 79
block sums, which a second kernel scans and a third adds back. Only public names
are used, as another program would use them.
"""

# ruff: noqa: E501 - the names of the tests are the seed's

from __future__ import annotations

import attrs
import pytest

from accy_async.artifact import ArtifactFormat, ScalarArgument
from accy_async.backends import BackendKind, BufferBinding, RecordingBackend
from accy_async.errors import (
    InvalidArtifact,
    LaunchArgumentMismatch,
    OutOfMemory,
    RuntimeUnavailable,
)
from accy_async.pipeline import (
    KernelCallPipeline,
    KernelCallRegistry,
    PipelineArtifactPool,
    RuntimeScalarBound,
    allocate_pipeline_intermediates,
    launch_pipeline,
    load_pipeline_artifacts,
)
from tests.harness.scan_chain import (
    ARGS,
    ENTRIES,
    LAUNCH,
    OPERANDS,
    PIPELINE,
    PTX,
    REGISTRY,
    RESULTS,
    binding,
)

pytestmark = pytest.mark.anyio


def recording(
    *,
    fail_load_after_count: int | None = None,
    fail_buffer_allocate_after_count: int | None = None,
) -> RecordingBackend:
    return RecordingBackend(
        kind=BackendKind.CUDA,
        format=PTX,
        fail_load_after_count=fail_load_after_count,
        fail_buffer_allocate_after_count=fail_buffer_allocate_after_count,
    )


async def load_pool(backend: RecordingBackend) -> PipelineArtifactPool:
    return await load_pipeline_artifacts(backend, PIPELINE, REGISTRY, PTX)


async def test_pipeline_executor_derives_intermediates_scalars_and_geometry_per_stage() -> (
    None
):
    """Scratch, scalars and grids follow from the length; all is freed afterwards."""
    state = recording()

    await launch_pipeline(state, LAUNCH)

    assert state.buffer_allocate_count == 2
    assert state.allocated_buffer_byte_sizes == [79 * 4, 79 * 4]

    assert state.launch_count == 3
    assert [launch.grid for launch in state.launches] == [
        (79, 1, 1),
        (1, 1, 1),
        (79, 1, 1),
    ]
    assert [launch.scalars for launch in state.launches] == [
        (ScalarArgument.u32(5000),),
        (ScalarArgument.u32(79),),
        (ScalarArgument.u32(5000),),
    ]

    assert len(state.launches[-1].buffer_ids) == 2
    assert state.launches[-1].buffer_ids[0] == 1002
    assert state.load_count == 3
    assert state.destroy_count == 5
    assert set(state.allocated_buffer_ids) <= set(state.destroyed_ids)


async def test_pipeline_executor_rejects_binding_count_mismatches() -> None:
    """A missing operand or runtime scalar is refused before any launch."""
    state = recording()

    with pytest.raises(LaunchArgumentMismatch):
        await launch_pipeline(state, attrs.evolve(LAUNCH, operands=()))
    with pytest.raises(LaunchArgumentMismatch):
        await launch_pipeline(state, attrs.evolve(LAUNCH, runtime_scalar_arguments=()))
    assert state.launch_count == 0


async def test_pipeline_executor_rejects_runtime_scalar_bounds_before_allocation() -> (
    None
):
    """A scalar above its bound allocates nothing, in a launch or alone."""
    state = recording()
    bounded = attrs.evolve(
        PIPELINE,
        runtime_scalar_bounds=(RuntimeScalarBound(argument_index=0, max_u32=5000),),
    )
    args = (ScalarArgument.u32(5001),)

    with pytest.raises(LaunchArgumentMismatch):
        await launch_pipeline(
            state,
            attrs.evolve(LAUNCH, pipeline=bounded, runtime_scalar_arguments=args),
        )
    assert state.buffer_allocate_count == 0
    assert state.launch_count == 0

    with pytest.raises(LaunchArgumentMismatch):
        await allocate_pipeline_intermediates(state, bounded, args)
    assert state.buffer_allocate_count == 0


async def test_pipeline_executor_refuses_unresolvable_stages_before_any_launch() -> (
    None
):
    """A chain with a stage that the registry lacks does nothing at all."""
    state = recording()

    with pytest.raises(InvalidArtifact):
        await launch_pipeline(
            state, attrs.evolve(LAUNCH, registry=KernelCallRegistry(ENTRIES[:1]))
        )
    assert state.launch_count == 0
    assert state.destroy_count == 0


async def test_pipeline_executor_releases_intermediates_after_partial_allocation_failure() -> (
    None
):
    """When the second scratch buffer cannot be had, the first is given back."""
    state = recording(fail_buffer_allocate_after_count=1)

    with pytest.raises(OutOfMemory):
        await launch_pipeline(state, LAUNCH)
    assert state.buffer_allocate_count == 1
    assert state.destroy_count == 1
    assert state.allocated_buffer_ids[0] in state.destroyed_ids


async def test_pipeline_executor_releases_loaded_artifacts_after_staged_load_failure() -> (
    None
):
    """When the second kernel does not load, the first and the scratch are freed."""
    state = recording(fail_load_after_count=1)

    with pytest.raises(RuntimeUnavailable):
        await launch_pipeline(state, LAUNCH)
    assert state.buffer_allocate_count == 2
    assert state.load_count == 1
    assert state.launch_count == 1
    assert state.destroy_count == 3
    assert set(state.allocated_buffer_ids) <= set(state.destroyed_ids)


async def test_pipeline_executor_reuses_provided_intermediates_without_allocating() -> (
    None
):
    """Launches with the caller's scratch allocate nothing, however many there are."""
    state = recording()

    async with await allocate_pipeline_intermediates(state, PIPELINE, ARGS) as provided:
        assert state.buffer_allocate_count == 2
        request = attrs.evolve(LAUNCH, intermediates=provided)

        await launch_pipeline(state, request)
        assert state.buffer_allocate_count == 2
        assert state.launch_count == 3

        await launch_pipeline(state, request)
        assert state.buffer_allocate_count == 2
        assert state.launch_count == 6


@pytest.mark.parametrize(
    "provided",
    [
        pytest.param((binding(2001),), id="miscounted"),
        pytest.param(
            (binding(2001), attrs.evolve(binding(2002), byte_size=4)), id="undersized"
        ),
        pytest.param((binding(2001), binding(2001)), id="duplicate"),
        pytest.param((OPERANDS[0], binding(2002)), id="operand_alias"),
        pytest.param((binding(2001), RESULTS[0]), id="result_alias"),
    ],
)
async def test_pipeline_executor_rejects_undersized_or_miscounted_provided_intermediates(
    provided: tuple[BufferBinding, ...],
) -> None:
    """Scratch that does not fit, or overlaps another buffer, is never launched on."""
    state = recording()

    with pytest.raises(LaunchArgumentMismatch):
        await launch_pipeline(state, attrs.evolve(LAUNCH, intermediates=provided))
    assert state.launch_count == 0


async def test_pipeline_executor_launches_from_a_loaded_artifact_pool_without_driver_round_trips() -> (
    None
):
    """Three launches from one pool and one scratch make and load nothing more."""
    state = recording()

    async with await load_pool(state) as pool:
        assert state.create_count == 3
        assert state.load_count == 3

        async with await allocate_pipeline_intermediates(
            state, PIPELINE, ARGS
        ) as provided:
            request = attrs.evolve(LAUNCH, intermediates=provided, artifacts=pool)
            for _ in range(3):
                await launch_pipeline(state, request)
            assert state.create_count == 3
            assert state.load_count == 3
            assert state.launch_count == 9
            assert state.sync_count == 0


async def test_pipeline_artifact_pool_deinit_destroys_loaded_artifacts() -> None:
    """Closing a pool destroys its three kernels, in the order of the stages."""
    state = recording()

    pool = await load_pool(state)
    assert state.load_count == 3
    assert state.destroy_count == 0

    await pool.aclose()
    assert state.destroy_count == 3
    assert state.destroyed_ids[-1] == 3


async def test_pipeline_stage_artifacts_carry_their_entrys_scalar_count() -> None:
    """Each loaded kernel knows how many scalars and buffers its entry takes."""
    state = recording()

    async with await load_pool(state) as pool:
        for pool_entry, stage in zip(pool.entries, PIPELINE.stages, strict=True):
            found = REGISTRY.find(stage.target, stage.version, PTX)
            assert found is not None
            artifact = pool_entry.artifact
            assert artifact.scalar_argument_count == found.runtime_scalar_argument_count
            assert (
                artifact.buffer_argument_count
                == found.argument_count - found.runtime_scalar_argument_count
            )


async def test_pipeline_artifact_pool_cleans_loaded_artifacts_after_staged_load_failure() -> (
    None
):
    """A pool whose second kernel does not load gives back its first."""
    state = recording(fail_load_after_count=1)

    with pytest.raises(RuntimeUnavailable):
        await load_pool(state)
    assert state.load_count == 1
    assert state.destroy_count == 1
    assert state.destroyed_ids[-1] == 1


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(
            attrs.evolve(PIPELINE, target="accy.kernel.test.other_pipeline"),
            id="renamed",
        ),
        pytest.param(attrs.evolve(PIPELINE, version=9), id="reversioned"),
    ],
)
async def test_pipeline_executor_rejects_mismatched_artifact_pools_before_any_launch(
    other: KernelCallPipeline,
) -> None:
    """A pool serves only the chain, by name and version, that it was loaded for."""
    state = recording()

    async with await load_pool(state) as pool:
        with pytest.raises(LaunchArgumentMismatch):
            await launch_pipeline(
                state, attrs.evolve(LAUNCH, pipeline=other, artifacts=pool)
            )
        assert state.launch_count == 0


async def test_pipeline_executor_rejects_artifact_pool_format_mismatches_before_any_launch() -> (
    None
):
    """A pool of one format does not serve a launch in another."""
    state = recording()
    metal = KernelCallRegistry(
        [attrs.evolve(one, format=ArtifactFormat.METAL_MSL) for one in ENTRIES]
    )

    async with await load_pool(state) as pool:
        with pytest.raises(LaunchArgumentMismatch):
            await launch_pipeline(
                state,
                attrs.evolve(
                    LAUNCH,
                    registry=metal,
                    format=ArtifactFormat.METAL_MSL,
                    artifacts=pool,
                ),
            )
        assert state.buffer_allocate_count == 0
        assert state.launch_count == 0
