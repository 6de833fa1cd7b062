"""Shape profiles: which runtime scalars are sizes, and which sizes are served."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accy_async.artifact import (
    ScalarArgument,
    ShapeBounds,
    ShapeDimension,
    ShapeProfile,
)
from accy_async.errors import LaunchArgumentMismatch

BOUNDS = ShapeBounds(min=64, max=4096, multiple_of=64)
PROFILE = ShapeProfile(
    name="matrix",
    dimensions=[
        ShapeDimension(name="rows", runtime_scalar_argument_index=1, bounds=BOUNDS),
        ShapeDimension(name="batch"),
    ],
)


@given(st.integers(0, 5000), st.integers(0, 5000), st.integers(1, 70), st.data())
def test_bounds_admit_what_they_say(
    low: int, span: int, multiple: int, data: st.DataObject
) -> None:
    """Both ends are allowed, and only multiples."""
    bounds = ShapeBounds(min=low, max=low + span, multiple_of=multiple)
    value = data.draw(st.integers(0, 12_000))
    assert bounds.admits(value) == (
        value in range(low, low + span + 1) and not value % multiple
    )


def test_bounds_admit_everything_at_first() -> None:
    """A dimension without bounds of its own takes any size."""
    assert all(ShapeBounds().admits(value) for value in (0, 1, 2**32 - 1))


@pytest.mark.parametrize("value", [64, 128, 4096])
def test_profile_takes_sizes_within_bounds(value: int) -> None:
    """Sizes within the bounds pass, whatever other scalars there are."""
    PROFILE.check([ScalarArgument.f32(1.5), ScalarArgument.u32(value)])


@pytest.mark.parametrize("value", [0, 63, 65, 4160])
def test_profile_refuses_sizes_out_of_bounds(value: int) -> None:
    """The error names profile, dimension, size and bounds."""
    with pytest.raises(LaunchArgumentMismatch) as caught:
        PROFILE.check([ScalarArgument.u32(64), ScalarArgument.u32(value)])
    assert str(caught.value) == (
        f"shape profile 'matrix', dimension 'rows': got {value}, expected "
        "ShapeBounds(min=64, max=4096, multiple_of=64)"
    )


def test_profile_refuses_missing_and_other_scalars() -> None:
    """A size that is not there, or no u32, is named with its dimension."""
    where = "shape profile 'matrix', dimension 'rows'"
    with pytest.raises(
        LaunchArgumentMismatch, match=f"^{where}: runtime scalar 1 is mis"
    ):
        PROFILE.check([ScalarArgument.u32(64)])
    with pytest.raises(LaunchArgumentMismatch, match=f"^{where}: .* is i32.*a u32$"):
        PROFILE.check([ScalarArgument.u32(64), ScalarArgument.i32(64)])


def test_dimension_without_a_scalar_is_not_checked() -> None:
    """A dimension that no scalar carries asks nothing of a launch."""
    ShapeProfile(name="p", dimensions=(ShapeDimension(name="n", bounds=BOUNDS),)).check(
        []
    )
