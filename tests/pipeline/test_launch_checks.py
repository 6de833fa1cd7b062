"""What a launch checks before the device is asked for anything."""

from __future__ import annotations

from collections.abc import Callable

import attrs
import pytest

from accy_async.artifact import (
    ArtifactFormat,
    ScalarArgument,
    ShapeBounds,
    ShapeDimension,
    ShapeProfile,
)
from accy_async.backends import BackendKind, RecordingBackend
from accy_async.errors import (
    AccyError,
    InvalidArtifact,
    InvalidType,
    KernelEntryMissing,
    LaunchArgumentMismatch,
)
from accy_async.pipeline import (
    KernelCallRegistry,
    PipelineLaunch,
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
    binding,
)
from tests.harness.steps import perform

pytestmark = pytest.mark.anyio

METAL_REGISTRY = KernelCallRegistry(
    [
        *ENTRIES,
        *(attrs.evolve(one, format=ArtifactFormat.METAL_MSL) for one in ENTRIES),
    ]
)


def bounded(entry_number: int, least: int, greatest: int) -> KernelCallRegistry:
    """The registry, with a shape profile for one kernel."""
    profile = ShapeProfile(
        name="lengths",
        dimensions=(
            ShapeDimension(
                name="n",
                runtime_scalar_argument_index=0,
                bounds=ShapeBounds(min=least, max=greatest),
            ),
        ),
    )
    entries = list(ENTRIES)
    entries[entry_number] = attrs.evolve(entries[entry_number], shape_profile=profile)
    return KernelCallRegistry(entries)


WRONG: list[tuple[str, type[AccyError], str, PipelineLaunch]] = [
    (
        "no_operand",
        LaunchArgumentMismatch,
        "takes 1 operands, 0 were given",
        attrs.evolve(LAUNCH, operands=()),
    ),
    (
        "two_results",
        LaunchArgumentMismatch,
        "takes 1 results, 2 were given",
        attrs.evolve(LAUNCH, results=(binding(1002), binding(1003))),
    ),
    (
        "operand_of_another_backend",
        LaunchArgumentMismatch,
        "operands[0]: buffer 1001 is of backend vulkan, this one is cuda:0",
        attrs.evolve(
            LAUNCH,
            operands=(
                attrs.evolve(
                    OPERANDS[0],
                    handle=attrs.evolve(OPERANDS[0].handle, backend=BackendKind.VULKAN),
                ),
            ),
        ),
    ),
    (
        "no_scalar",
        LaunchArgumentMismatch,
        "takes 1 runtime scalars, 0 were given",
        attrs.evolve(LAUNCH, runtime_scalar_arguments=()),
    ),
    (
        "scalar_of_another_dtype",
        LaunchArgumentMismatch,
        "runtime scalar 0 is u64(5000), expected a u32",
        attrs.evolve(LAUNCH, runtime_scalar_arguments=(ScalarArgument.u64(5000),)),
    ),
    (
        "scalar_above_its_bound",
        LaunchArgumentMismatch,
        "runtime scalar 0 is 5000, expected at most 4999",
        attrs.evolve(
            LAUNCH,
            pipeline=attrs.evolve(
                PIPELINE,
                runtime_scalar_bounds=(
                    RuntimeScalarBound(argument_index=0, max_u32=4999),
                ),
            ),
        ),
    ),
    (
        "no_kernel_for_a_stage",
        KernelEntryMissing,
        "stage 2 ('accy.kernel.test.add_base')",
        attrs.evolve(LAUNCH, registry=KernelCallRegistry(ENTRIES[:2])),
    ),
    (
        "no_kernel_in_the_format",
        KernelEntryMissing,
        "in format vulkan_spirv; the registry has version 1 (cuda_ptx)",
        attrs.evolve(LAUNCH, format=ArtifactFormat.VULKAN_SPIRV),
    ),
    (
        "kernel_with_other_arguments",
        InvalidArtifact,
        "the stage gives 2 buffers, its kernel takes 3",
        attrs.evolve(
            LAUNCH,
            registry=KernelCallRegistry(
                [*ENTRIES[:2], attrs.evolve(ENTRIES[2], argument_count=4)]
            ),
        ),
    ),
    (
        "length_outside_a_shape_profile",
        LaunchArgumentMismatch,
        "shape profile 'lengths', dimension 'n': got 5000",
        attrs.evolve(LAUNCH, registry=bounded(2, 1, 4096)),
    ),
    (
        "derived_length_outside_a_shape_profile",
        LaunchArgumentMismatch,
        "shape profile 'lengths', dimension 'n': got 79",
        attrs.evolve(LAUNCH, registry=bounded(1, 1, 64)),
    ),
]


@pytest.mark.parametrize(
    ("error", "message", "request_"),
    [pytest.param(*case[1:], id=case[0]) for case in WRONG],
)
async def test_what_does_not_fit_is_refused_before_anything_is_done(
    error: type[AccyError], message: str, request_: PipelineLaunch
) -> None:
    """The error names what is wrong; the device has not been asked for anything."""
    backend = RecordingBackend()
    with pytest.raises(error) as caught:
        await launch_pipeline(backend, request_)
    assert message in str(caught.value)
    assert backend.calls == []


POOLS: list[tuple[str, str, Callable[[PipelineLaunch], PipelineLaunch]]] = [
    (
        "fewer_stages",
        "artifact pool: stages 3, the launch needs 2",
        lambda r: attrs.evolve(
            r, pipeline=attrs.evolve(PIPELINE, stages=PIPELINE.stages[:2])
        ),
    ),
    (
        "version",
        "artifact pool: version 1, the launch needs 9",
        lambda r: attrs.evolve(r, pipeline=attrs.evolve(PIPELINE, version=9)),
    ),
    (
        "format",
        "artifact pool: format cuda_ptx, the launch needs metal_msl",
        lambda r: attrs.evolve(
            r, registry=METAL_REGISTRY, format=ArtifactFormat.METAL_MSL
        ),
    ),
    (
        "target",
        "artifact pool: target accy.kernel.test.device_scan, the launch needs other",
        lambda r: attrs.evolve(r, pipeline=attrs.evolve(PIPELINE, target="other")),
    ),
]


@pytest.mark.parametrize(
    ("message", "change"), [pytest.param(*case[1:], id=case[0]) for case in POOLS]
)
async def test_a_pool_of_something_else_is_refused(
    message: str, change: Callable[[PipelineLaunch], PipelineLaunch]
) -> None:
    """Stage count, version, format and target of a pool are those of the launch."""
    backend = RecordingBackend()
    async with await load_pipeline_artifacts(backend, PIPELINE, REGISTRY, PTX) as pool:
        before = list(backend.calls)
        with pytest.raises(LaunchArgumentMismatch) as caught:
            await launch_pipeline(backend, change(attrs.evolve(LAUNCH, artifacts=pool)))
        assert str(caught.value) == message
        assert backend.calls == before


async def test_a_closed_pool_is_refused() -> None:
    """A pool is of no use once it is closed."""
    backend = RecordingBackend()
    async with await load_pipeline_artifacts(backend, PIPELINE, REGISTRY, PTX) as pool:
        pass
    before = list(backend.calls)
    with pytest.raises(LaunchArgumentMismatch, match="it is closed"):
        await launch_pipeline(backend, attrs.evolve(LAUNCH, artifacts=pool))
    assert backend.calls == before


async def test_closed_scratch_is_refused() -> None:
    """So is scratch, with own kernels or with a pool's, before any is loaded."""
    backend = RecordingBackend()
    scratch = await allocate_pipeline_intermediates(backend, PIPELINE, ARGS)
    await scratch.aclose()
    before = list(backend.calls)
    with pytest.raises(LaunchArgumentMismatch, match="intermediates: closed"):
        await launch_pipeline(backend, attrs.evolve(LAUNCH, intermediates=scratch))
    assert backend.calls == before


async def test_a_pool_of_another_backend_is_refused() -> None:
    """Two devices of one kind share no kernels."""
    backend, other = RecordingBackend(), RecordingBackend()
    async with await load_pipeline_artifacts(other, PIPELINE, REGISTRY, PTX) as pool:
        with pytest.raises(LaunchArgumentMismatch, match="on another backend"):
            await launch_pipeline(backend, attrs.evolve(LAUNCH, artifacts=pool))
    assert backend.calls == []


async def test_an_equal_pipeline_may_use_the_pool() -> None:
    """The pool is matched by what it was loaded for, not by identity."""
    backend = RecordingBackend()
    async with await load_pipeline_artifacts(backend, PIPELINE, REGISTRY, PTX) as pool:
        twin = attrs.evolve(
            LAUNCH,
            pipeline=attrs.evolve(PIPELINE),
            registry=KernelCallRegistry(ENTRIES),
            artifacts=pool,
        )
        await launch_pipeline(backend, twin)
    assert backend.launch_count == 3


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("pipeline", "scan"),
        ("registry", ENTRIES),
        ("operands", (1001,)),
        ("results", 5),
        ("runtime_scalar_arguments", (5000,)),
        ("artifacts", ()),
        ("stream", 3),
        ("diagnostic_id", 7),
    ],
)
def test_a_launch_of_wrong_types_cannot_be_written_down(
    field: str, value: object
) -> None:
    """Each field refuses what it cannot hold, naming itself."""
    with pytest.raises(InvalidType, match=rf"PipelineLaunch\.{field}"):
        attrs.evolve(LAUNCH, **{field: value})  # type: ignore[arg-type]


async def test_a_pool_closed_before_the_launch_gets_its_turn_is_refused() -> None:
    """Between the check and the first stage nobody else gets a turn."""
    backend = RecordingBackend()
    pool = await load_pipeline_artifacts(backend, PIPELINE, REGISTRY, PTX)
    scratch = await allocate_pipeline_intermediates(backend, PIPELINE, ARGS)
    request = attrs.evolve(LAUNCH, artifacts=pool, intermediates=scratch)
    refused = []

    async def launch() -> None:
        try:
            await launch_pipeline(backend, request)
        except LaunchArgumentMismatch as error:
            refused.append(str(error))

    def close() -> None:
        pool.close()
        scratch.close()

    outcome = await perform(backend, launch, on_suspend=close)
    assert outcome.is_success
    assert refused == ["artifact pool of 'accy.kernel.test.device_scan': it is closed"]
    assert backend.launch_count == 0
    assert not any(backend.live_objects().values())
