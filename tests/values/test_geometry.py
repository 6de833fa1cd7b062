"""Launch geometry, fixed and derived from runtime scalars."""

from __future__ import annotations

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from accy_async.artifact import (
    DerivedLaunch,
    Fixed,
    FixedLaunch,
    RuntimeCeilDiv,
    ScalarArgument,
)
from accy_async.artifact.geometry import ceil_div, u32_argument
from accy_async.errors import InvalidValue, LaunchArgumentMismatch

U32 = st.integers(0, 2**32 - 1)
POSITIVE = st.integers(1, 2**32 - 1)


@given(U32, POSITIVE)
def test_ceil_div_is_exact(value: int, divisor: int) -> None:
    """The quotient is the least count of blocks that covers the value."""
    blocks = ceil_div(value, divisor)
    assert blocks * divisor >= value > (blocks - 1) * divisor


def test_derived_launch_of_the_seed() -> None:
    """5000 elements in blocks of 64 take 79 blocks."""
    launch = DerivedLaunch(
        grid=(RuntimeCeilDiv(argument_index=0, divisor=64), Fixed(1), Fixed(1)),
        threadgroup=(64, 1, 1),
        dynamic_shared_memory_bytes=256,
    )
    assert launch.geometry([ScalarArgument.u32(5000)]) == FixedLaunch(
        grid=(79, 1, 1), threadgroup=(64, 1, 1), dynamic_shared_memory_bytes=256
    )


@given(st.lists(U32, min_size=1, max_size=4), st.data())
def test_derived_grid_follows_its_scalars(
    values: list[int], data: st.DataObject
) -> None:
    """Each extent is its own constant, or the ceiling of its own scalar."""
    extent = st.one_of(
        st.builds(Fixed, U32),
        st.builds(
            RuntimeCeilDiv,
            argument_index=st.integers(0, len(values) - 1),
            divisor=POSITIVE,
        ),
    )
    grid = data.draw(st.tuples(extent, extent, extent))
    launch = DerivedLaunch(grid=grid, threadgroup=(8, 4, 2))
    scalars = [ScalarArgument.u32(value) for value in values]
    got = launch.geometry(scalars)
    assert got.grid == tuple(
        part.value
        if isinstance(part, Fixed)
        else -(-values[part.argument_index] // part.divisor)
        for part in grid
    )
    assert got.threadgroup == launch.threadgroup
    assert got.threads_per_block == 64
    assert launch.argument_indices == tuple(
        part.argument_index for part in grid if isinstance(part, RuntimeCeilDiv)
    )


def test_fixed_launch_depends_on_no_scalar() -> None:
    """A fixed launch is its own geometry, whatever the scalars are."""
    launch = FixedLaunch(grid=(2, 3, 4), threadgroup=(8, 1, 1))
    assert launch.geometry([]) is launch
    assert launch.geometry([ScalarArgument.f32(1.5)]) is launch
    assert (launch.block_count, launch.threads_per_block) == (24, 8)


def test_grid_without_blocks_is_no_work() -> None:
    """A grid may be empty, a threadgroup may not."""
    assert FixedLaunch(grid=(0, 5, 5), threadgroup=(1, 1, 1)).block_count == 0
    derived = RuntimeCeilDiv(argument_index=0, divisor=64)
    assert derived.resolve([ScalarArgument.u32(0)]) == 0


def test_lists_are_taken_as_tuples() -> None:
    """A grid given as a list equals, and hashes as, the one given as a tuple."""
    made = FixedLaunch(grid=[1, 2, 3], threadgroup=[4, 1, 1])
    assert made == FixedLaunch(grid=(1, 2, 3), threadgroup=(4, 1, 1))
    assert hash(made) == hash(FixedLaunch(grid=(1, 2, 3), threadgroup=(4, 1, 1)))


def test_missing_scalar_is_named() -> None:
    """A geometry whose scalar is missing says which one, and how many came."""
    extent = RuntimeCeilDiv(argument_index=2, divisor=64)
    with pytest.raises(LaunchArgumentMismatch) as caught:
        extent.resolve([ScalarArgument.u32(1)])
    assert str(caught.value) == (
        "launch geometry: runtime scalar 2 is missing, 1 were given"
    )


@pytest.mark.parametrize(
    "scalar", [ScalarArgument.i32(1), ScalarArgument.u64(1), ScalarArgument.f32(1.0)]
)
def test_scalar_of_another_dtype_is_named(scalar: ScalarArgument) -> None:
    """Sizes are u32: another dtype is refused, never converted."""
    with pytest.raises(LaunchArgumentMismatch) as caught:
        u32_argument([scalar], 0, "here")
    assert str(caught.value) == f"here: runtime scalar 0 is {scalar!r}, expected a u32"


def test_derived_launch_hands_its_cluster_and_cooperation_on() -> None:
    launch = DerivedLaunch(
        grid=(RuntimeCeilDiv(argument_index=0, divisor=64), Fixed(2), Fixed(1)),
        threadgroup=(64, 1, 1),
        cluster=[4, 1, 1],
        cooperative=True,
    )
    assert launch.geometry([ScalarArgument.u32(500)]) == FixedLaunch(
        grid=(8, 2, 1), threadgroup=(64, 1, 1), cluster=(4, 1, 1), cooperative=True
    )
    with pytest.raises(InvalidValue, match=r"FixedLaunch.cluster.*\(9, 2, 1\)"):
        launch.geometry([ScalarArgument.u32(513)])


def test_blocks_per_cluster() -> None:
    plain = FixedLaunch(grid=(8, 4, 2), threadgroup=(1, 1, 1))
    assert plain.blocks_per_cluster == 1
    assert attrs.evolve(plain, cluster=(4, 2, 2)).blocks_per_cluster == 16
    assert attrs.evolve(plain, grid=(0, 4, 2), cluster=(4, 2, 2)).block_count == 0
