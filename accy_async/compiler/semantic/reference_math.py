"""The reference's rules for what computes elements."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

import attrs
import numpy as np

from accy_async.compiler.semantic.elementwise import Binary, Compare, Convert, Unary
from accy_async.compiler.semantic.kinds import (
    BinaryKind,
    ReductionKind,
    ScanKind,
    UnaryKind,
)
from accy_async.compiler.semantic.numbers import Array
from accy_async.compiler.semantic.op import Op
from accy_async.compiler.semantic.products import DotGeneral, Einsum
from accy_async.compiler.semantic.program import Operation
from accy_async.compiler.semantic.reductions import Reduce, Scan
from accy_async.compiler.semantic.reference_numbers import Arithmetic
from accy_async.compiler.semantic.rows import RowSparseCrossEntropy, Softmax
from accy_async.dtypes import DType

__all__ = ["MATH", "Case", "Rule", "scan_identity"]

_O = TypeVar("_O", bound=Op)


@attrs.frozen
class Case(Generic[_O]):
    """One operation to evaluate: what it does, on which arrays, and how."""

    arithmetic: Arithmetic
    op: _O
    entry: Operation
    operands: list[Array]

    @property
    def dtype(self) -> DType:
        """The result's."""
        return self.entry.result.dtype

    @property
    def working(self) -> np.dtype[Any]:
        """What the result is computed in, before it is rounded."""
        return self.arithmetic.working(self.dtype)


# Any: a rule is only ever given the op it stands beside in the table.
Rule = Callable[[Case[Any]], Array]

_UNARY: Mapping[UnaryKind, Callable[[Array], Array]] = {
    UnaryKind.NEGATE: np.negative,
    UnaryKind.ABSOLUTE: np.absolute,
    UnaryKind.NOT: np.invert,
    UnaryKind.EXP: np.exp,
    UnaryKind.LOG: np.log,
    UnaryKind.SQRT: np.sqrt,
    UnaryKind.TANH: np.tanh,
    UnaryKind.FLOOR: np.floor,
    UnaryKind.CEILING: np.ceil,
    UnaryKind.TRUNCATE: np.trunc,
    UnaryKind.ROUND_EVEN: np.rint,
}
_COMPARE = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}


def _unary(case: Case[Unary]) -> Array:
    (x,) = case.operands
    return _UNARY[case.op.kind](x.astype(case.working))


def _binary(case: Case[Binary]) -> Array:
    working = case.working
    lhs, rhs = (operand.astype(working) for operand in case.operands)
    return _BINARY[case.op.kind](lhs, rhs)


def _divide(lhs: Array, rhs: Array) -> Array:
    if lhs.dtype.kind == "f":
        return np.divide(lhs, rhs)
    safe = np.where(rhs == 0, rhs.dtype.type(1), rhs)
    floor = np.floor_divide(lhs, safe)
    # Toward zero: numpy's is one too low where the signs differ and it is inexact.
    inexact = (lhs != floor * safe) & ((lhs < 0) != (safe < 0))
    return np.asarray(
        np.where(rhs == 0, rhs.dtype.type(0), floor + inexact.astype(lhs.dtype))
    )


def _remainder(lhs: Array, rhs: Array) -> Array:
    rest: Array = lhs - _divide(lhs, rhs) * rhs
    return np.where(rhs == 0, rhs.dtype.type(0), rest)


def _minimum(lhs: Array, rhs: Array) -> Array:
    least = np.minimum(lhs, rhs)
    if lhs.dtype.kind != "f":
        return least
    return np.where(lhs == rhs, np.where(np.signbit(lhs), lhs, rhs), least)


def _maximum(lhs: Array, rhs: Array) -> Array:
    most = np.maximum(lhs, rhs)
    if lhs.dtype.kind != "f":
        return most
    return np.where(lhs == rhs, np.where(np.signbit(lhs), rhs, lhs), most)


def _amount(rhs: Array) -> Array:
    return np.asarray(rhs & rhs.dtype.type(rhs.dtype.itemsize * 8 - 1))


_BINARY: Mapping[BinaryKind, Callable[[Array, Array], Array]] = {
    BinaryKind.ADD: np.add,
    BinaryKind.SUBTRACT: np.subtract,
    BinaryKind.MULTIPLY: np.multiply,
    BinaryKind.DIVIDE: _divide,
    BinaryKind.REMAINDER: _remainder,
    BinaryKind.MINIMUM: _minimum,
    BinaryKind.MAXIMUM: _maximum,
    BinaryKind.AND: np.bitwise_and,
    BinaryKind.OR: np.bitwise_or,
    BinaryKind.XOR: np.bitwise_xor,
    BinaryKind.SHIFT_LEFT: lambda lhs, rhs: np.left_shift(lhs, _amount(rhs)),
    BinaryKind.SHIFT_RIGHT: lambda lhs, rhs: np.right_shift(lhs, _amount(rhs)),
}


def _compare(case: Case[Compare]) -> Array:
    return np.asarray(_COMPARE[case.op.kind.value](*case.operands))


def _convert(case: Case[Convert]) -> Array:
    return case.arithmetic.convert(
        case.operands[0], case.entry.operands[0].dtype, case.op.dtype
    )


_FOLD: Mapping[str, np.ufunc] = {
    "sum": np.add,
    "product": np.multiply,
    "minimum": np.minimum,
    "maximum": np.maximum,
}


def _reduce(case: Case[Reduce]) -> Array:
    (x,) = case.operands
    kept = case.arithmetic.working(case.op.accumulate)
    if case.op.kind is ReductionKind.MEAN:
        total = _fold(np.add, x, case.op, kept)
        count = case.entry.operands[0].type.element_count // max(1, np.size(total))
        return np.asarray(total / kept.type(count))
    if case.dtype is DType.BOOL:
        every = case.op.kind is ReductionKind.MINIMUM
        truth = np.logical_and if every else np.logical_or
        return _fold(truth, x, case.op, np.dtype(bool))
    return _fold(_FOLD[case.op.kind.value], x, case.op, kept)


def _fold(ufunc: Any, x: Array, op: Reduce, kept: np.dtype[Any]) -> Array:  # noqa: ANN401
    """Any: numpy's stubs know keepdims only when it is written out."""
    return np.asarray(ufunc.reduce(x, axis=op.axes, dtype=kept, keepdims=op.keepdims))


def scan_identity(kind: ScanKind, dtype: DType) -> float:
    """What an exclusive scan begins with."""
    if kind is ScanKind.SUM:
        return 0
    if kind is ScanKind.PRODUCT:
        return 1
    if dtype.is_float:
        return float("inf") if kind is ScanKind.MINIMUM else -float("inf")
    return dtype.maximum if kind is ScanKind.MINIMUM else dtype.minimum


def _scan(case: Case[Scan]) -> Array:
    (x,) = case.operands
    kept = case.arithmetic.working(case.op.accumulate)
    if case.op.reverse:
        x = np.flip(x, case.op.axis)
    scanned = _FOLD[case.op.kind.value].accumulate(x, axis=case.op.axis, dtype=kept)
    if case.op.exclusive:
        first = list(x.shape)
        first[case.op.axis] = 1
        begin = np.full(first, scan_identity(case.op.kind, case.dtype), kept)
        joined = np.concatenate([begin, scanned], axis=case.op.axis)
        scanned = np.take(joined, range(x.shape[case.op.axis]), axis=case.op.axis)
    return np.flip(scanned, case.op.axis) if case.op.reverse else scanned


def _dot(case: Case[DotGeneral]) -> Array:
    left, right = (value.type for value in case.entry.operands)
    lhs_free, rhs_free = case.op.free_axes(left, right)
    kept = case.arithmetic.working(case.op.accumulate)
    lhs, rhs = (operand.astype(kept) for operand in case.operands)
    batch = [left.shape[axis] for axis in case.op.lhs_batch]
    depth = int(
        np.prod([left.shape[axis] for axis in case.op.lhs_contracting], dtype=int)
    )
    count = int(np.prod(batch, dtype=int))
    m = int(np.prod([left.shape[axis] for axis in lhs_free], dtype=int))
    n = int(np.prod([right.shape[axis] for axis in rhs_free], dtype=int))
    lhs = lhs.transpose(*case.op.lhs_batch, *lhs_free, *case.op.lhs_contracting)
    rhs = rhs.transpose(*case.op.rhs_batch, *case.op.rhs_contracting, *rhs_free)
    product = np.matmul(lhs.reshape(count, m, depth), rhs.reshape(count, depth, n))
    return np.asarray(product.reshape(case.entry.result.shape))


def _einsum(case: Case[Einsum]) -> Array:
    kept = case.arithmetic.working(case.op.accumulate)
    dtype = case.entry.operands[0].dtype
    spec = case.op.spec

    def product(text: str, *arrays: Array) -> Array:
        return np.asarray(np.einsum(text, *(array.astype(kept) for array in arrays)))

    def simple(index: int) -> Array:
        letters = spec.simplified(index)
        if letters == spec.operands[index]:
            return case.operands[index]
        text = f"{spec.operands[index]}->{letters}"
        return case.arithmetic.settle(product(text, case.operands[index]), dtype)

    current, letters = simple(0), spec.simplified(0)
    steps = spec.steps()
    for index, step in enumerate(steps, 1):
        current = product(
            f"{step.lhs},{step.rhs}->{step.result}", current, simple(index)
        )
        letters = step.result
        if index < len(steps):
            current = case.arithmetic.settle(current, dtype)
    return product(f"{letters}->{spec.result}", current)


def _softmax(case: Case[Softmax]) -> Array:
    x = case.operands[0].astype(case.working)
    if x.shape[case.op.axis] == 0:
        return x
    shifted = x - x.max(axis=case.op.axis, keepdims=True)
    total = np.exp(shifted).sum(axis=case.op.axis, keepdims=True)
    return np.asarray(
        shifted - np.log(total) if case.op.log else np.exp(shifted) / total
    )


def _cross_entropy(case: Case[RowSparseCrossEntropy]) -> Array:
    logits, labels = case.operands
    x = logits.astype(case.working)
    classes = x.shape[-1]
    greatest = x.max(axis=-1, keepdims=True)
    total = np.log(np.exp(x - greatest).sum(axis=-1)) + greatest[..., 0]
    inside = (labels >= 0) & (labels < classes)
    place = np.where(inside, labels, 0).astype(np.int64)[..., None]
    chosen = np.take_along_axis(x, place, axis=-1)[..., 0]
    return np.asarray(np.where(inside, total - chosen, x.dtype.type(np.nan)))


MATH: Mapping[type, Rule] = {
    Unary: _unary,
    Binary: _binary,
    Compare: _compare,
    Convert: _convert,
    Reduce: _reduce,
    Scan: _scan,
    DotGeneral: _dot,
    Einsum: _einsum,
    Softmax: _softmax,
    RowSparseCrossEntropy: _cross_entropy,
}
