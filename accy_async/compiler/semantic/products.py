"""Products of tensors: contractions in general, and einsum."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import attrs

from accy_async.compiler.semantic.einsum import EinsumSpec
from accy_async.compiler.semantic.op import Op, distinct_axes, written
from accy_async.compiler.semantic.reductions import check_accumulator
from accy_async.compiler.semantic.types import TensorType
from accy_async.dtypes import DType
from accy_async.values import enum, instances, to_tuple, tuple_of

__all__ = ["DotGeneral", "Einsum"]

_INTEGERS = tuple_of(int, expected="a tuple of integers")


def _axes() -> tuple[int, ...]:
    field: tuple[int, ...] = attrs.field(
        converter=to_tuple, validator=_INTEGERS, default=()
    )
    return field


def _product_dtypes(op: Op, types: Sequence[TensorType], accumulate: DType) -> None:
    dtype = types[0].dtype
    if any(type.dtype is not dtype for type in types):
        listed = ", ".join(map(str, types))
        raise op.refusal(f"operand dtypes differ: {listed}")
    op.require_dtype(accepts=dtype is not DType.BOOL, type=types[0])
    check_accumulator(op, dtype, accumulate)


@attrs.frozen
class DotGeneral(Op):
    """Products of two tensors summed over the contracting axes.

    The result's axes are the batch axes, then the left operand's others, then the
    right's. Sums are kept in ``accumulate`` and given in ``result``, which is the
    operands' dtype or ``accumulate``.
    """

    arity: ClassVar[int | None] = 2
    accumulate: DType = attrs.field(validator=enum(DType))
    result: DType = attrs.field(validator=enum(DType))
    lhs_contracting: tuple[int, ...] = _axes()
    rhs_contracting: tuple[int, ...] = _axes()
    lhs_batch: tuple[int, ...] = _axes()
    rhs_batch: tuple[int, ...] = _axes()

    @property
    def opcode(self) -> str:
        return "dot_general"

    def attributes(self) -> str:
        parts = [
            f"contracting={written(self.lhs_contracting)}x"
            f"{written(self.rhs_contracting)}"
        ]
        if self.lhs_batch:
            parts.append(f"batch={written(self.lhs_batch)}x{written(self.rhs_batch)}")
        return " ".join([*parts, f"accumulate={self.accumulate}"])

    def free_axes(
        self, lhs: TensorType, rhs: TensorType
    ) -> tuple[tuple[int, ...], ...]:
        """The axes of each operand that are neither batch nor contracting."""
        return (
            _others(lhs, (*self.lhs_batch, *self.lhs_contracting)),
            _others(rhs, (*self.rhs_batch, *self.rhs_contracting)),
        )

    def infer(self, operands: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        lhs, rhs = operands
        _product_dtypes(self, operands, self.accumulate)
        if self.result not in (lhs.dtype, self.accumulate):
            raise self.refusal(
                f"the result is {self.result}, expected the operands' {lhs.dtype} or "
                f"the accumulator's {self.accumulate}"
            )
        distinct_axes(self, (*self.lhs_batch, *self.lhs_contracting), lhs, "lhs")
        distinct_axes(self, (*self.rhs_batch, *self.rhs_contracting), rhs, "rhs")
        for what, left, right in (
            ("batch", self.lhs_batch, self.rhs_batch),
            ("contracting", self.lhs_contracting, self.rhs_contracting),
        ):
            if len(left) != len(right):
                raise self.refusal(
                    f"{what} axes differ in number: lhs {lhs} {written(left)}, "
                    f"rhs {rhs} {written(right)}"
                )
            for a, b in zip(left, right, strict=True):
                if lhs.shape[a] != rhs.shape[b]:
                    raise self.refusal(
                        f"{what} extents differ: lhs {lhs} axis {a} ({lhs.shape[a]}), "
                        f"rhs {rhs} axis {b} ({rhs.shape[b]})"
                    )
        lhs_free, rhs_free = self.free_axes(lhs, rhs)
        shape = [lhs.shape[axis] for axis in (*self.lhs_batch, *lhs_free)]
        shape += [rhs.shape[axis] for axis in rhs_free]
        return (TensorType(self.result, shape),)


def _others(type: TensorType, axes: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(axis for axis in range(type.rank) if axis not in axes)


@attrs.frozen
class Einsum(Op):
    """Products of any number of tensors by a specification; see `EinsumSpec`.

    Sums are kept in ``accumulate``; a product that another follows is rounded to
    the result's dtype, which is the operands' or ``accumulate``.
    """

    arity: ClassVar[int | None] = None
    spec: EinsumSpec = attrs.field(validator=instances(EinsumSpec))
    accumulate: DType = attrs.field(validator=enum(DType))
    result: DType = attrs.field(validator=enum(DType))

    @property
    def opcode(self) -> str:
        return "einsum"

    def attributes(self) -> str:
        return f'"{self.spec}" accumulate={self.accumulate}'

    def infer(self, operands: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        extents = self.spec.extents([type.shape for type in operands])
        _product_dtypes(self, operands, self.accumulate)
        if self.result not in (operands[0].dtype, self.accumulate):
            raise self.refusal(
                f"the result is {self.result}, expected the operands' "
                f"{operands[0].dtype} or the accumulator's {self.accumulate}"
            )
        shape = [extents[letter] for letter in self.spec.result]
        return (TensorType(self.result, shape),)
