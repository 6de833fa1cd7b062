"""The operations of programs as expressions of the kernel form.

f16 and bf16 are computed in f32 and rounded once for each operation.
"""

from __future__ import annotations

from accy_async.compiler import form
from accy_async.compiler.form import Expression, constant
from accy_async.compiler.form.operations import BinaryOperation, UnaryOperation
from accy_async.compiler.semantic import BinaryKind, ComparisonKind, UnaryKind
from accy_async.dtypes import DType

__all__ = [
    "binary",
    "combine",
    "compare",
    "convert",
    "identity",
    "narrow",
    "unary",
    "widen",
]

_HALVES = (DType.F16, DType.BF16)


def widen(value: Expression) -> Expression:
    """The value in the dtype that it is computed in."""
    return value.cast(DType.F32) if value.dtype in _HALVES else value


def narrow(value: Expression, dtype: DType) -> Expression:
    """A computed value rounded to its dtype."""
    return value if value.dtype is dtype else convert(value, dtype)


def unary(kind: UnaryKind, value: Expression) -> Expression:
    """One operation on one value."""
    computed = form.Unary(UnaryOperation(kind.value), widen(value))
    return narrow(computed, value.dtype)


def binary(kind: BinaryKind, left: Expression, right: Expression) -> Expression:
    """One operation on two values of one dtype."""
    a, b = widen(left), widen(right)
    if kind in (BinaryKind.MINIMUM, BinaryKind.MAXIMUM):
        return narrow(_extreme(BinaryOperation(kind.value), a, b), left.dtype)
    return narrow(form.Binary(BinaryOperation(kind.value), a, b), left.dtype)


def _extreme(operation: BinaryOperation, a: Expression, b: Expression) -> Expression:
    """IEEE's minimum or maximum: the form's, but that a NaN wins."""
    least = form.Binary(operation, a, b)
    if not a.dtype.is_float:
        return least
    return form.select(a.differs(a), a, form.select(b.differs(b), b, least))


def compare(kind: ComparisonKind, left: Expression, right: Expression) -> Expression:
    """A comparison of two values of one dtype."""
    a, b = widen(left), widen(right)
    match kind:
        case ComparisonKind.EQ:
            return a.equals(b)
        case ComparisonKind.NE:
            return a.differs(b)
        case ComparisonKind.LT:
            return a < b
        case ComparisonKind.LE:
            return a <= b
        case ComparisonKind.GT:
            return a > b
        case ComparisonKind.GE:
            return a >= b


def convert(value: Expression, dtype: DType) -> Expression:
    """The number in another dtype; to a truth value: whether it differs from 0."""
    if value.dtype is dtype:
        return value
    if dtype is DType.BOOL:
        wide = widen(value)
        return wide.differs(constant(wide.dtype, 0))
    if value.dtype in _HALVES or dtype in _HALVES:
        return value.cast(DType.F32).cast(dtype)
    return value.cast(dtype)


def combine(kind: str, left: Expression, right: Expression) -> Expression:
    """One step of a sum, product, minimum or maximum; of truth values all and any."""
    if left.dtype is DType.BOOL:
        return left & right if kind == "minimum" else left | right
    return binary(_COMBINING[kind], left, right)


_COMBINING = {
    "sum": BinaryKind.ADD,
    "product": BinaryKind.MULTIPLY,
    "minimum": BinaryKind.MINIMUM,
    "maximum": BinaryKind.MAXIMUM,
}


def identity(kind: str, dtype: DType) -> Expression:
    """What changes nothing: combined with any value it gives that value."""
    if dtype is DType.BOOL:
        return constant(dtype, kind == "minimum")
    if kind == "sum":
        return constant(dtype, 0)
    if kind == "product":
        return constant(dtype, 1)
    if dtype.is_float:
        return constant(dtype, float("inf") * (1 if kind == "minimum" else -1))
    return constant(dtype, dtype.maximum if kind == "minimum" else dtype.minimum)
