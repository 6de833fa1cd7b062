"""Pipelines as values: what they refuse, and what they say about it."""

from __future__ import annotations

from collections.abc import Callable

import attrs
import pytest

from accy_async.artifact import (
    ArtifactFormat,
    DType,
    ElementCountArgument,
    Fixed,
    FixedLaunch,
    KernelCallArtifact,
    ScalarArgument,
)
from accy_async.errors import (
    InvalidArtifact,
    InvalidPipeline,
    InvalidType,
    InvalidValue,
    KernelEntryMissing,
    LaunchArgumentMismatch,
    UnsupportedOperation,
)
from accy_async.pipeline import (
    CeilDiv,
    Forward,
    Intermediate,
    KernelCallPipeline,
    KernelCallRegistry,
    Operand,
    PipelineIntermediate,
    PipelineStage,
    Result,
    RuntimeScalarBound,
    intermediate_byte_size,
)
from tests.harness.scan_chain import ENTRIES, PIPELINE, PTX, REGISTRY, SUMS

u32 = ScalarArgument.u32


def with_stage(number: int, **changes: object) -> KernelCallPipeline:
    stages = list(PIPELINE.stages)
    stages[number] = attrs.evolve(stages[number], **changes)  # type: ignore[arg-type]
    return attrs.evolve(PIPELINE, stages=stages)


WRONG: list[tuple[str, type[InvalidValue], str, Callable[[], object]]] = [
    (
        "operand_index",
        InvalidPipeline,
        "stages[0].buffers: got Operand(index=1), expected an index below "
        "operand_count=1",
        lambda: with_stage(0, buffers=(Result(0), Operand(1), Intermediate(0))),
    ),
    (
        "result_index",
        InvalidPipeline,
        "stages[2].buffers: got Result(index=1), expected an index below "
        "result_count=1",
        lambda: with_stage(2, buffers=(Result(1), Intermediate(1))),
    ),
    (
        "intermediate_index",
        InvalidPipeline,
        "stages[1].buffers: got Intermediate(index=2), expected an index below "
        "intermediates=2",
        lambda: with_stage(1, buffers=(Intermediate(2), Intermediate(0))),
    ),
    (
        "forwarded_scalar_index",
        InvalidPipeline,
        "stages[0].scalars: got Forward(argument_index=1), expected an argument "
        "index below runtime_scalar_argument_count=1",
        lambda: with_stage(0, scalars=(Forward(1),)),
    ),
    (
        "derived_scalar_index",
        InvalidPipeline,
        "stages[1].scalars: got CeilDiv(argument_index=7, divisor=64)",
        lambda: with_stage(1, scalars=(CeilDiv(argument_index=7, divisor=64),)),
    ),
    (
        "extent_index",
        InvalidPipeline,
        "intermediates[1].extent: got Forward(argument_index=3)",
        lambda: attrs.evolve(
            PIPELINE,
            intermediates=(
                SUMS,
                PipelineIntermediate(dtype=DType.F32, extent=Forward(3)),
            ),
        ),
    ),
    (
        "bound_index",
        InvalidPipeline,
        "runtime_scalar_bounds: got RuntimeScalarBound(argument_index=1, max_u32=5)",
        lambda: attrs.evolve(
            PIPELINE,
            runtime_scalar_bounds=(RuntimeScalarBound(argument_index=1, max_u32=5),),
        ),
    ),
    (
        "two_bounds_for_one_scalar",
        InvalidPipeline,
        "expected one bound for each scalar",
        lambda: attrs.evolve(
            PIPELINE,
            runtime_scalar_bounds=(
                RuntimeScalarBound(argument_index=0, max_u32=5),
                RuntimeScalarBound(argument_index=0, max_u32=6),
            ),
        ),
    ),
    (
        "empty_target",
        InvalidValue,
        "KernelCallPipeline.target: got ''",
        lambda: attrs.evolve(PIPELINE, target=""),
    ),
    (
        "negative_version",
        InvalidValue,
        "KernelCallPipeline.version: got -1",
        lambda: attrs.evolve(PIPELINE, version=-1),
    ),
    (
        "text_for_a_count",
        InvalidType,
        "KernelCallPipeline.operand_count: got '1'",
        lambda: attrs.evolve(PIPELINE, operand_count="1"),  # type: ignore[arg-type]
    ),
    (
        "stage_of_another_type",
        InvalidType,
        "KernelCallPipeline.stages",
        lambda: attrs.evolve(PIPELINE, stages=("block_scan",)),
    ),
    (
        "buffer_of_another_type",
        InvalidType,
        "PipelineStage.buffers",
        lambda: PipelineStage(target="t", version=1, buffers=(0,)),
    ),
    (
        "divisor_of_zero",
        InvalidValue,
        "CeilDiv.divisor: got 0",
        lambda: CeilDiv(argument_index=0, divisor=0),
    ),
    (
        "bound_beyond_u32",
        InvalidValue,
        "RuntimeScalarBound.max_u32: got 4294967296",
        lambda: RuntimeScalarBound(argument_index=0, max_u32=2**32),
    ),
]


@pytest.mark.parametrize(
    ("error", "message", "make"),
    [pytest.param(*case[1:], id=case[0]) for case in WRONG],
)
def test_a_pipeline_refuses_what_contradicts_it(
    error: type[InvalidValue], message: str, make: Callable[[], object]
) -> None:
    """A wrong field raises at construction, naming field, value and expectation."""
    with pytest.raises(error) as caught:
        make()
    assert message in str(caught.value)
    assert type(caught.value) is error
    if error is InvalidPipeline:
        assert isinstance(caught.value, InvalidArtifact)


def test_a_missing_entry_says_what_there_is() -> None:
    """It is InvalidArtifact and UnsupportedOperation both, and names the stage."""
    with pytest.raises(KernelEntryMissing) as caught:
        PIPELINE.validate(KernelCallRegistry(ENTRIES[:1]), PTX)
    assert isinstance(caught.value, InvalidArtifact)
    assert isinstance(caught.value, UnsupportedOperation)
    assert str(caught.value) == (
        "pipeline 'accy.kernel.test.device_scan', stage 1 "
        "('accy.kernel.test.sums_scan'): no kernel 'accy.kernel.test.sums_scan' "
        "version 1 in format cuda_ptx; the registry has nothing of that name"
    )


def test_a_missing_format_or_version_says_what_is_near() -> None:
    """The registry's other versions and formats of the kernel are in the message."""
    with pytest.raises(KernelEntryMissing, match=r"has version 1 \(cuda_ptx\)"):
        PIPELINE.validate(REGISTRY, ArtifactFormat.CUDA_CUBIN)
    with pytest.raises(KernelEntryMissing, match=r"version 2 in .* has version 1"):
        with_stage(0, version=2).validate(REGISTRY, PTX)


def replaced(number: int, **changes: object) -> KernelCallRegistry:
    entries: list[KernelCallArtifact] = list(ENTRIES)
    entries[number] = attrs.evolve(entries[number], **changes)  # type: ignore[arg-type]
    return KernelCallRegistry(entries)


@pytest.mark.parametrize(
    ("registry", "message"),
    [
        pytest.param(
            replaced(0, argument_count=5),
            "stage 0 ('accy.kernel.test.block_scan'): the stage gives 3 buffers, its "
            "kernel takes 4",
            id="buffers",
        ),
        pytest.param(
            replaced(
                1,
                runtime_scalar_argument_count=2,
                argument_count=4,
            ),
            "stage 1 ('accy.kernel.test.sums_scan'): the stage gives 1 scalars, its "
            "kernel takes 2",
            id="scalars",
        ),
        pytest.param(
            replaced(
                2,
                element_count_argument=ElementCountArgument.SCALAR_U32,
                argument_count=4,
            ),
            "stage 2 ('accy.kernel.test.add_base'): its kernel takes an element count "
            "(scalar_u32), which a pipeline does not pass",
            id="element_count",
        ),
    ],
)
def test_an_entry_that_takes_other_arguments_is_refused(
    registry: KernelCallRegistry, message: str
) -> None:
    """The whole chain is checked against its registry, stage by stage."""
    with pytest.raises(InvalidArtifact) as caught:
        PIPELINE.validate(registry, PTX)
    assert message in str(caught.value)


BOUNDED = attrs.evolve(
    PIPELINE,
    runtime_scalar_bounds=(RuntimeScalarBound(argument_index=0, max_u32=5000),),
)


@pytest.mark.parametrize(
    ("scalars", "message"),
    [
        pytest.param((), "takes 1 runtime scalars, 0 were given", id="none"),
        pytest.param((u32(1), u32(2)), "1 runtime scalars, 2 were given", id="two"),
        pytest.param(
            (ScalarArgument.i32(5),), "scalar 0 is i32(5), expected a u32", id="dtype"
        ),
        pytest.param(
            (ScalarArgument.f32(5.0),), "scalar 0 is f32(5.0), expected", id="float"
        ),
        pytest.param((5000,), "scalar 0 is 5000, expected a ScalarArgument", id="int"),
        pytest.param(
            (u32(5001),), "scalar 0 is 5001, expected at most 5000", id="bound"
        ),
    ],
)
def test_runtime_scalars_that_do_not_fit_are_refused(
    scalars: tuple[ScalarArgument, ...], message: str
) -> None:
    """Number, dtype and bounds are checked; the message names what was given."""
    with pytest.raises(LaunchArgumentMismatch) as caught:
        BOUNDED.validate_runtime_scalar_arguments(scalars)
    assert message in str(caught.value)


@pytest.mark.parametrize("value", [0, 1, 4999, 5000])
def test_runtime_scalars_up_to_the_bound_are_taken(value: int) -> None:
    """A bound is the greatest value that is allowed."""
    BOUNDED.validate_runtime_scalar_arguments((u32(value),))


def test_the_size_of_an_intermediate() -> None:
    """It is the derived element count times the size of an element."""
    assert intermediate_byte_size(SUMS, (u32(5000),)) == 79 * 4
    assert intermediate_byte_size(SUMS, (u32(1),)) == 4
    assert intermediate_byte_size(SUMS, (u32(2**32 - 1),)) == 2**26 * 4
    doubles = PipelineIntermediate(dtype=DType.F64, extent=Fixed(3))
    assert intermediate_byte_size(doubles, ()) == 24
    halves = PipelineIntermediate(dtype=DType.F16, extent=Forward(0))
    assert intermediate_byte_size(halves, (u32(7),)) == 14


def test_an_intermediate_of_no_elements_is_refused() -> None:
    """Zero elements are no scratch buffer: InvalidArtifact."""
    with pytest.raises(InvalidArtifact, match="no elements, expected at least 1"):
        intermediate_byte_size(SUMS, (u32(0),))


def test_an_intermediate_needs_its_scalar() -> None:
    """A missing scalar, or one that is no u32, is a LaunchArgumentMismatch."""
    with pytest.raises(LaunchArgumentMismatch, match="scalar 0 is missing"):
        intermediate_byte_size(SUMS, ())
    with pytest.raises(LaunchArgumentMismatch, match="expected a u32"):
        intermediate_byte_size(SUMS, (ScalarArgument.u64(5000),))


def test_fingerprints_tell_pipelines_apart() -> None:
    """Equal chains share a fingerprint, and any change of a field changes it."""
    assert attrs.evolve(PIPELINE).fingerprint == PIPELINE.fingerprint
    others = [
        attrs.evolve(PIPELINE, target="other"),
        attrs.evolve(PIPELINE, version=2),
        attrs.evolve(PIPELINE, stages=PIPELINE.stages[:2]),
        with_stage(0, buffers=(Operand(0), Result(0), Intermediate(0))),
        BOUNDED,
    ]
    assert len({PIPELINE.fingerprint, *(one.fingerprint for one in others)}) == 6


def test_a_fixed_launch_depends_on_no_scalar() -> None:
    """A fixed geometry is itself for all scalars."""
    fixed = FixedLaunch(grid=(2, 1, 1), threadgroup=(64, 1, 1))
    assert fixed.geometry(()) is fixed
