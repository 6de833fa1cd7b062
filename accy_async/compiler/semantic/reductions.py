"""Reductions along axes, and cumulative scans."""

from __future__ import annotations

import attrs

from accy_async.compiler.semantic.kinds import (
    ReductionKind,
    ScanKind,
    reduction_kind,
    scan_kind,
)
from accy_async.compiler.semantic.op import Op, axis_of, distinct_axes
from accy_async.compiler.semantic.types import TensorType
from accy_async.dtypes import DType
from accy_async.values import enum, instances, integer, to_tuple, tuple_of

__all__ = ["Reduce", "Scan", "check_accumulator"]


def check_accumulator(op: Op, dtype: DType, accumulate: DType) -> None:
    """Refuse to keep sums of a dtype in one of another kind, or a narrower one."""
    kind = (dtype.is_float, dtype.is_integer, dtype.is_signed)
    other = (accumulate.is_float, accumulate.is_integer, accumulate.is_signed)
    if kind != other or accumulate.bits < dtype.bits:
        raise op.refusal(f"{dtype} is not accumulated in {accumulate}")
    if accumulate.bits == dtype.bits and accumulate is not dtype:
        raise op.refusal(f"{dtype} is not accumulated in {accumulate}")


def _sorted(value: object) -> object:
    axes = to_tuple(value)  # type: ignore[arg-type]
    try:
        return tuple(sorted(axes))
    except TypeError:
        return axes


@attrs.frozen
class Reduce(Op):
    """Combines all elements along the axes; in no particular order.

    The result has the operand's dtype; partial results are kept in
    ``accumulate`` and rounded once. With ``keepdims`` the axes stay, of extent 1.
    """

    kind: ReductionKind = attrs.field(
        converter=reduction_kind, validator=enum(ReductionKind)
    )
    axes: tuple[int, ...] = attrs.field(
        converter=_sorted, validator=tuple_of(int, expected="a tuple of integers")
    )
    accumulate: DType = attrs.field(validator=enum(DType))
    keepdims: bool = attrs.field(default=False, validator=instances(bool))

    @property
    def opcode(self) -> str:
        return "reduce"

    def attributes(self) -> str:
        return " ".join([self.kind.value, *super().attributes().split(" ")[1:]])

    def infer(self, operands: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        (type,) = operands
        if not self.kind.takes(type.dtype):
            raise self.refusal(f"{self.kind} is not defined on {type.dtype}: {type}")
        distinct_axes(self, self.axes, type)
        check_accumulator(self, type.dtype, self.accumulate)
        empty = [axis for axis in self.axes if type.shape[axis] == 0]
        if empty and not self.kind.takes_nothing:
            raise self.refusal(
                f"{self.kind} of no elements: operand {type} axis {empty[0]} (0)"
            )
        kept = [
            1 if axis in self.axes else extent
            for axis, extent in enumerate(type.shape)
            if self.keepdims or axis not in self.axes
        ]
        return (type.with_shape(kept),)


@attrs.frozen
class Scan(Op):
    """Along one axis, each element combined with all before it.

    ``exclusive`` leaves the element itself out, and begins with the identity: 0,
    1, or the largest or smallest value (infinity for floats). ``reverse`` goes
    from the last index to the first.
    """

    kind: ScanKind = attrs.field(converter=scan_kind, validator=enum(ScanKind))
    axis: int = attrs.field(validator=integer())
    accumulate: DType = attrs.field(validator=enum(DType))
    exclusive: bool = attrs.field(default=False, validator=instances(bool))
    reverse: bool = attrs.field(default=False, validator=instances(bool))

    @property
    def opcode(self) -> str:
        return "scan"

    def attributes(self) -> str:
        return " ".join([self.kind.value, *super().attributes().split(" ")[1:]])

    def infer(self, operands: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        (type,) = operands
        if not self.kind.takes(type.dtype):
            raise self.refusal(f"{self.kind} is not defined on {type.dtype}: {type}")
        axis_of(self, self.axis, type)
        check_accumulator(self, type.dtype, self.accumulate)
        return operands
