"""Launch geometry: fixed, or derived from a launch's runtime scalars.

A grid counts blocks and a threadgroup counts threads in a block, each in x, y
and z. A grid with a zero is a launch of no work: it completes at once and runs
nothing. A threadgroup has at least one thread.

Blocks may be bound to each other, where the device can do it: a *cluster* is a box of
blocks that run at the same time and close together, so that they may reach each
other's shared memory; in a *cooperative* launch all blocks of the grid run at the same
time, so that they may wait for each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

import attrs

from accy_async.artifact.fingerprint import ADDED
from accy_async.dtypes import DType, ScalarArgument
from accy_async.errors import InvalidType, InvalidValue, LaunchArgumentMismatch
from accy_async.values import (
    U32_MAX,
    field_name,
    instances,
    integer,
    integers,
    optional,
    to_tuple,
    tuple_of,
)

if TYPE_CHECKING:
    from typing import Any

    from attrs import Attribute

__all__ = [
    "DerivedLaunch",
    "Dim3",
    "Fixed",
    "FixedLaunch",
    "GridExtent",
    "KernelCallLaunch",
    "RuntimeCeilDiv",
    "ceil_div",
    "launch_validator",
    "u32_argument",
]

Dim3 = tuple[int, int, int]
_GRID = integers(0, U32_MAX, length=3)
_THREADGROUP = integers(1, U32_MAX, length=3)
_CLUSTER = optional(integers(1, U32_MAX, length=3))
_FLAG = instances(bool)


def dim3(value: Sequence[int]) -> Dim3:
    """Converter: a list as a tuple; anything else unchanged."""
    return cast("Dim3", to_tuple(value))


def optional_dim3(value: Sequence[int] | None) -> Dim3 | None:
    """Converter: as `dim3`; None stays."""
    return None if value is None else dim3(value)


def ceil_div(value: int, divisor: int) -> int:
    """``value / divisor`` rounded up, for ``value >= 0`` and ``divisor > 0``."""
    return -(-value // divisor)


def u32_argument(scalars: Sequence[ScalarArgument], index: int, what: str) -> int:
    """The value of the u32 runtime scalar at ``index``.

    Raises:
        LaunchArgumentMismatch: there is no such scalar, or it is no u32.
    """
    if index >= len(scalars):
        raise LaunchArgumentMismatch(
            f"{what}: runtime scalar {index} is missing, {len(scalars)} were given"
        )
    scalar = scalars[index]
    if scalar.dtype is not DType.U32:
        raise LaunchArgumentMismatch(
            f"{what}: runtime scalar {index} is {scalar!r}, expected a u32"
        )
    return int(scalar.value)


@attrs.frozen
class Fixed:
    """A grid extent known beforehand, in blocks."""

    value: int = attrs.field(validator=integer())

    def resolve(self, scalars: Sequence[ScalarArgument]) -> int:
        """The extent, whatever the scalars are."""
        del scalars
        return self.value


@attrs.frozen
class RuntimeCeilDiv:
    """A grid extent of ``ceil(scalar / divisor)`` blocks, from a u32 scalar."""

    argument_index: int = attrs.field(kw_only=True, validator=integer())
    divisor: int = attrs.field(kw_only=True, validator=integer(1))

    def resolve(self, scalars: Sequence[ScalarArgument]) -> int:
        """The extent for these launch scalars.

        Raises:
            LaunchArgumentMismatch: the scalar is missing or no u32.
        """
        value = u32_argument(scalars, self.argument_index, "launch geometry")
        return ceil_div(value, self.divisor)


GridExtent = Fixed | RuntimeCeilDiv


def _grid(value: Sequence[GridExtent]) -> tuple[GridExtent, GridExtent, GridExtent]:
    return cast("tuple[GridExtent, GridExtent, GridExtent]", to_tuple(value))


@attrs.frozen(kw_only=True)
class FixedLaunch:
    """A launch geometry in full: blocks, threads per block, shared memory.

    Attributes:
        grid: blocks in x, y, z; 0 anywhere means no work.
        threadgroup: threads of a block in x, y, z; at least 1 each.
        dynamic_shared_memory_bytes: block-shared memory beyond the static.
        cluster: blocks of a cluster in x, y, z, each a divisor of the grid's extent;
            None for a launch without clusters.
        cooperative: True where the blocks wait for each other, so that all have to
            run at the same time.
    """

    grid: Dim3 = attrs.field(converter=dim3, validator=_GRID)
    threadgroup: Dim3 = attrs.field(converter=dim3, validator=_THREADGROUP)
    dynamic_shared_memory_bytes: int = attrs.field(default=0, validator=integer())
    cluster: Dim3 | None = attrs.field(
        default=None, converter=optional_dim3, validator=_CLUSTER, metadata=ADDED
    )
    cooperative: bool = attrs.field(default=False, validator=_FLAG, metadata=ADDED)

    def __attrs_post_init__(self) -> None:
        cluster = self.cluster
        if cluster and any(n % c for n, c in zip(self.grid, cluster, strict=True)):
            raise InvalidValue(
                "FixedLaunch.cluster", cluster, f"divisors of the grid's {self.grid}"
            )

    def geometry(self, scalars: Sequence[ScalarArgument]) -> FixedLaunch:
        """Itself: a fixed launch depends on no scalar."""
        del scalars
        return self

    @property
    def block_count(self) -> int:
        """Blocks in the grid."""
        return self.grid[0] * self.grid[1] * self.grid[2]

    @property
    def threads_per_block(self) -> int:
        """Threads in a block."""
        return self.threadgroup[0] * self.threadgroup[1] * self.threadgroup[2]

    @property
    def blocks_per_cluster(self) -> int:
        """Blocks in a cluster; 1 without clusters."""
        x, y, z = self.cluster or (1, 1, 1)
        return x * y * z


@attrs.frozen(kw_only=True)
class DerivedLaunch:
    """A launch geometry whose grid follows from the launch's scalars.

    Attributes:
        grid: what gives the blocks in x, y, z.
        threadgroup, dynamic_shared_memory_bytes, cluster, cooperative: as those of
            `FixedLaunch`.
    """

    grid: tuple[GridExtent, GridExtent, GridExtent] = attrs.field(
        converter=_grid,
        validator=tuple_of(
            Fixed, RuntimeCeilDiv, length=3, expected="three of Fixed or RuntimeCeilDiv"
        ),
    )
    threadgroup: Dim3 = attrs.field(converter=dim3, validator=_THREADGROUP)
    dynamic_shared_memory_bytes: int = attrs.field(default=0, validator=integer())
    cluster: Dim3 | None = attrs.field(
        default=None, converter=optional_dim3, validator=_CLUSTER, metadata=ADDED
    )
    cooperative: bool = attrs.field(default=False, validator=_FLAG, metadata=ADDED)

    def geometry(self, scalars: Sequence[ScalarArgument]) -> FixedLaunch:
        """The geometry for these launch scalars.

        Raises:
            LaunchArgumentMismatch: a scalar that the grid needs is missing or
                no u32.
            InvalidValue: the grid is no multiple of the cluster.
        """
        x, y, z = self.grid
        return FixedLaunch(
            grid=(x.resolve(scalars), y.resolve(scalars), z.resolve(scalars)),
            threadgroup=self.threadgroup,
            dynamic_shared_memory_bytes=self.dynamic_shared_memory_bytes,
            cluster=self.cluster,
            cooperative=self.cooperative,
        )

    @property
    def argument_indices(self) -> tuple[int, ...]:
        """The indices of the scalars the grid is derived from."""
        return tuple(
            extent.argument_index
            for extent in self.grid
            if isinstance(extent, RuntimeCeilDiv)
        )


KernelCallLaunch = FixedLaunch | DerivedLaunch


def launch_validator(
    instance: object, attribute: Attribute[Any], value: object
) -> None:
    """An attrs validator for a fixed or derived launch geometry."""
    if not isinstance(value, (FixedLaunch, DerivedLaunch)):
        raise InvalidType(
            field_name(instance, attribute), value, "a FixedLaunch or DerivedLaunch"
        )
