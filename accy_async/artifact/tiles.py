"""Tiles: what one block of a kernel works on, as tuning's keys tell it."""

from __future__ import annotations

from enum import Enum

import attrs

from accy_async.dtypes import DType
from accy_async.values import enum, instances, integer, member_of, optional

__all__ = ["LaunchReduction", "LaunchReductionKind", "LaunchTile", "LaunchTileKind"]

_U64 = integer(0, 2**64 - 1)


class LaunchTileKind(str, Enum):
    """What a tile's numbers mean."""

    NONE = "none"
    ELEMENTWISE = "elementwise"
    REDUCTION = "reduction"
    DOT_GENERAL = "dot_general"
    SCAN = "scan"
    ROW = "row"

    def __str__(self) -> str:
        return self.value


class LaunchReductionKind(str, Enum):
    """How a reduction combines."""

    SUM = "sum"
    PRODUCT = "product"
    MIN = "min"
    MAX = "max"
    MEAN = "mean"

    def __str__(self) -> str:
        return self.value


def _tile_kind(value: LaunchTileKind | str) -> LaunchTileKind:
    return member_of(LaunchTileKind, value)


def _reduction_kind(value: LaunchReductionKind | str) -> LaunchReductionKind:
    return member_of(LaunchReductionKind, value)


@attrs.frozen(kw_only=True)
class LaunchReduction:
    """What is reduced.

    Attributes:
        kind: how elements are combined.
        rank: the operand's rank.
        axis: the first axis reduced.
        extent: elements that go into each result.
    """

    kind: LaunchReductionKind = attrs.field(
        converter=_reduction_kind, validator=enum(LaunchReductionKind)
    )
    rank: int = attrs.field(validator=integer())
    axis: int = attrs.field(validator=integer())
    extent: int = attrs.field(validator=_U64)


@attrs.frozen(kw_only=True)
class LaunchTile:
    """The part of the work that one block takes.

    Attributes:
        kind: what the numbers below mean.
        m: rows of a product's tile; results of a reduction's block.
        n: columns of a product's tile; elements that go into each result.
        k: a product's depth at a time; 0 where there is none.
        batch: batch entries, at least 1.
        input_dtype: the operands' element type, None where they differ.
        output_dtype: the results' element type.
        input_tile_bytes: bytes read for one tile.
        output_tile_bytes: bytes written for one tile.
        scratch_memory_bytes: device memory that a block needs beside them.
        reduction: what is reduced, None where nothing is.
    """

    kind: LaunchTileKind = attrs.field(
        default=LaunchTileKind.NONE,
        converter=_tile_kind,
        validator=enum(LaunchTileKind),
    )
    m: int = attrs.field(default=0, validator=integer())
    n: int = attrs.field(default=0, validator=integer())
    k: int = attrs.field(default=0, validator=integer())
    batch: int = attrs.field(default=1, validator=integer(1))
    input_dtype: DType | None = attrs.field(
        default=None, validator=optional(instances(DType))
    )
    output_dtype: DType | None = attrs.field(
        default=None, validator=optional(instances(DType))
    )
    input_tile_bytes: int = attrs.field(default=0, validator=_U64)
    output_tile_bytes: int = attrs.field(default=0, validator=_U64)
    scratch_memory_bytes: int = attrs.field(default=0, validator=_U64)
    reduction: LaunchReduction | None = attrs.field(
        default=None, validator=optional(instances(LaunchReduction))
    )
