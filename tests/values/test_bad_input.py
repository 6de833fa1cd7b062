"""Every wrong field of every value class is refused by name, before anything else."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable

import attrs
import numpy as np
import pytest

from accy_async.artifact import (
    DerivedLaunch,
    DType,
    Fixed,
    FixedLaunch,
    KernelCallRegistry,
    LaunchResourceCandidate,
    RuntimeCeilDiv,
    ShapeDimension,
    ShapeProfile,
)
from accy_async.errors import (
    AccyError,
    InvalidPipeline,
    InvalidType,
    InvalidValue,
)
from accy_async.pipeline import (
    Forward,
    Intermediate,
    Operand,
    PipelineIntermediate,
    PipelineStage,
    Result,
    RuntimeScalarBound,
)
from tests.values.samples import ENTRY, PIPELINE, PLAN, PROFILE, SAMPLES
from tests.values.wrong import WRONG

ROOMS = (
    "accy_async.artifact",
    "accy_async.artifact.native.signature",
    "accy_async.backends",
    "accy_async.dtypes",
    "accy_async.pipeline",
    "accy_async.pipeline.model",
)
# What is told of calls that were checked already; callers make none of them.
RECORDS = {"CallRecord", "LaunchRecord", "PruneReport", "StoreEntry"}


def exported_classes() -> dict[str, type[attrs.AttrsInstance]]:
    return {
        value.__name__: value
        for room in ROOMS
        for name in importlib.import_module(room).__all__
        if isinstance(value := getattr(importlib.import_module(room), name), type)
        and attrs.has(value)
        and value.__name__ not in RECORDS
    }


def shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:197]}..."


def make(field: str, value: object) -> object:
    """The sample of a class, anew, with another value in one field."""
    class_name, name = field.split(".")
    cls = exported_classes()[class_name]
    return build(SAMPLES[cls], **{name: value})


def build(sample: attrs.AttrsInstance, **changes: object) -> object:
    fields = {f.name: getattr(sample, f.name) for f in attrs.fields(type(sample))}
    maker: Callable[..., object] = type(sample)
    return maker(**{**fields, **changes})


def is_within(value: object, whole: object) -> bool:
    """True where it is the value given, or a member of it."""
    if isinstance(whole, np.ndarray):
        members: Iterable[object] = whole.flat
    else:
        members = whole if isinstance(whole, Iterable) else ()
    return shown(value) in {shown(whole), *map(shown, members)}


TAKES_ANYTHING = {"BufferBinding.owner", "PlannedSlot.data"}
"""Fields for which no value is wrong, or that their own tests show."""


def test_every_field_of_every_class_has_wrong_values() -> None:
    """A class or field that is added without rows here fails."""
    classes = exported_classes()
    fields = {
        f"{name}.{field.name}"
        for name, cls in classes.items()
        for field in attrs.fields(cls)
        if f"{name}.{field.name}" not in TAKES_ANYTHING
    }
    assert set(SAMPLES) == set(classes.values())
    assert set(WRONG) == fields
    assert min(len(values) for values in WRONG.values()) >= 4


@pytest.mark.parametrize("sample", SAMPLES.values(), ids=lambda s: type(s).__name__)
def test_sample_is_valid(sample: attrs.AttrsInstance) -> None:
    """Each sample passes as it is, so that only the field changed is at fault."""
    assert type(build(sample)) is type(sample)


@pytest.mark.parametrize("field", WRONG)
def test_wrong_value_is_refused_by_name(field: str) -> None:
    """The error names field, value (or the member at fault) and expectation."""
    # A scalar's value is named by the dtype it was meant for.
    named = "ScalarArgument.u32" if field == "ScalarArgument.value" else field
    for value in WRONG[field]:
        with pytest.raises(AccyError) as caught:
            make(field, value)
        error = caught.value
        assert isinstance(error, InvalidValue), value
        assert error.field == named or error.field.startswith(f"{named}["), value
        assert is_within(error.value, value), value
        assert error.expected
        assert str(error) == (
            f"{error.field}: got {shown(error.value)}, expected {error.expected}"
        )


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("Fixed.value", "1"),
        ("FixedLaunch.grid", 1),
        ("BufferHandle.backend", 1),
        ("PipelineStage.target", None),
        ("Capabilities.timing_resolution_ns", "1"),
        ("ArtifactRequest.payload", 5),
        ("EventHandle.has_timing", 1),
    ],
)
def test_wrong_type_is_a_type_error(field: str, value: object) -> None:
    """A value of another type is a TypeError, and a ValueError all the same."""
    with pytest.raises(InvalidType) as caught:
        make(field, value)
    assert isinstance(caught.value, TypeError)
    assert isinstance(caught.value, ValueError)


class _Unprintable:
    def __repr__(self) -> str:
        raise ZeroDivisionError


def test_value_without_a_repr_is_refused_by_name() -> None:
    """A value that cannot be shown does not hide the field it was given to."""
    with pytest.raises(InvalidType, match="whose repr raises ZeroDivisionError"):
        make("Fixed.value", _Unprintable())


def stage(**arguments: tuple[object, ...]) -> dict[str, object]:
    maker: Callable[..., PipelineStage] = PipelineStage
    return {"stages": (maker(target="t", version=1, **arguments),)}


_STAGE = "KernelCallPipeline.stages[0]"
CONTRADICTIONS: tuple[tuple[str, attrs.AttrsInstance, dict[str, object]], ...] = (
    ("KernelCallArtifact.launch", ENTRY, {
        "launch": DerivedLaunch(
            grid=(Fixed(1), RuntimeCeilDiv(argument_index=1, divisor=2), Fixed(1)),
            threadgroup=(1, 1, 1),
        )
    }),
    ("KernelCallArtifact.launch", ENTRY, {
        "runtime_scalar_argument_count": 0,
        "runtime_scalar_defaults": (),
    }),
    ("KernelCallArtifact.runtime_scalar_defaults", ENTRY, {
        "runtime_scalar_argument_count": 2
    }),
    ("KernelCallArtifact.shape_profile", ENTRY, {
        "shape_profile": ShapeProfile(
            name="p",
            dimensions=(ShapeDimension(name="n", runtime_scalar_argument_index=1),),
        )
    }),
    ("ShapeProfile.dimensions", PROFILE, {
        "dimensions": (ShapeDimension(name="n"), ShapeDimension(name="n"))
    }),
    ("LaunchResourcePlan.candidates", PLAN, {
        "candidates": tuple(
            LaunchResourceCandidate(
                geometry=FixedLaunch(grid=(1, 1, 1), threadgroup=(threads, 1, 1))
            )
            for threads in (64, 128)
        )
    }),
    (f"{_STAGE}.buffers", PIPELINE, stage(buffers=(Operand(1),))),
    (f"{_STAGE}.buffers", PIPELINE, stage(buffers=(Result(1),))),
    (f"{_STAGE}.buffers", PIPELINE, stage(buffers=(Intermediate(1),))),
    (f"{_STAGE}.scalars", PIPELINE, stage(scalars=(Forward(1),))),
    ("KernelCallPipeline.intermediates[1].extent", PIPELINE, {
        "intermediates": (
            *PIPELINE.intermediates,
            PipelineIntermediate(dtype=DType.F32, extent=Forward(1)),
        )
    }),
    ("KernelCallPipeline.runtime_scalar_bounds", PIPELINE, {
        "runtime_scalar_bounds": (RuntimeScalarBound(argument_index=1, max_u32=1),)
    }),
    ("KernelCallPipeline.runtime_scalar_bounds", PIPELINE, {
        "runtime_scalar_bounds": PIPELINE.runtime_scalar_bounds * 2
    }),
)  # fmt: skip


@pytest.mark.parametrize(("field", "sample", "changes"), CONTRADICTIONS)
def test_contradiction_is_refused_by_name(
    field: str, sample: attrs.AttrsInstance, changes: dict[str, object]
) -> None:
    """Fields that are right alone and wrong together name one of them."""
    with pytest.raises(InvalidValue) as caught:
        build(sample, **changes)
    assert caught.value.field == field
    assert isinstance(caught.value, InvalidPipeline) == field.startswith("KernelCallP")
    assert str(caught.value).startswith(f"{field}: got ")
    assert f"expected {caught.value.expected}" in str(caught.value)


@pytest.mark.parametrize("entries", [None, 5, "text", {}, (None,), (ENTRY, 1)])
def test_registry_refuses_what_is_no_entry(entries: object) -> None:
    """A registry names the member that is no entry."""
    with pytest.raises(InvalidType, match=r"KernelCallRegistry\.entries"):
        KernelCallRegistry(entries)  # type: ignore[arg-type]
