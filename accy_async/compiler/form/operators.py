"""Python's operators as expressions, and what Python would do that the form has not.

A number beside an expression becomes a constant of its dtype. The operators are
C's: ``/`` divides integers truncating toward zero, ``>>`` keeps a signed integer's
sign.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Self

from accy_async.compiler.form.operations import (
    BinaryOperation,
    Comparison,
    UnaryOperation,
)
from accy_async.compiler.form.refusals import NO_PYTHON_NUMBER, refuses
from accy_async.errors import InvalidType

if TYPE_CHECKING:
    import numpy as np

    from accy_async.compiler.form.expressions import Expression, Operand

__all__ = ["Operators", "refused_ufunc"]

_REFLECTED = {
    "add": "__radd__",
    "subtract": "__rsub__",
    "multiply": "__rmul__",
    "divide": "__rtruediv__",
    "true_divide": "__rtruediv__",
    "remainder": "__rmod__",
    "bitwise_and": "__rand__",
    "bitwise_or": "__ror__",
    "bitwise_xor": "__rxor__",
    "left_shift": "__rlshift__",
    "right_shift": "__rrshift__",
    "less": "__gt__",
    "less_equal": "__ge__",
    "greater": "__lt__",
    "greater_equal": "__le__",
}
_OURS = {
    **{name: name for name in ("sqrt", "exp", "log", "tanh", "floor", "minimum")},
    "maximum": "maximum",
    "ceil": "ceiling",
    "trunc": "truncate",
    "rint": "round_even",
    "where": "select",
    "absolute": "abs",
    "equal": "x.equals",
    "not_equal": "x.differs",
    "fmin": "minimum",
    "fmax": "maximum",
}


@refuses(
    NO_PYTHON_NUMBER,
    "an operation of the kernel form (floor, ceiling, truncate, round_even, sqrt, "
    "k.count, ...): the value is known only on the device",
)
@refuses({"__pow__": "**", "__rpow__": "**"}, "products, such as x * x, or exp and log")
@refuses(
    {"__floordiv__": "//", "__rfloordiv__": "//"},
    "/, which truncates integers toward zero; floor(x / y) for floats",
)
@refuses({"__matmul__": "@", "__rmatmul__": "@"}, "a sum of products, in a count")
@refuses({"__divmod__": "divmod()", "__rdivmod__": "divmod()"}, "x / y and x % y")
class Operators:
    """The operators of an expression, on the operations that it makes of them."""

    __slots__ = ()

    @abstractmethod
    def _unary(self, operation: UnaryOperation) -> Expression:
        """The operation on this value."""

    @abstractmethod
    def _binary(self, operation: BinaryOperation, other: Operand) -> Expression:
        """The operation with this value on the left."""

    @abstractmethod
    def _reflected(self, operation: BinaryOperation, other: Operand) -> Expression:
        """The operation with this value on the right."""

    @abstractmethod
    def _compare(self, comparison: Comparison, other: Operand) -> Expression:
        """The comparison with this value on the left."""

    def equals(self, other: Operand) -> Expression:
        """Whether the two are equal; a NaN equals nothing."""
        return self._compare(Comparison.EQUALS, other)

    def differs(self, other: Operand) -> Expression:
        """Whether the two differ; a NaN differs from everything."""
        return self._compare(Comparison.DIFFERS, other)

    def __bool__(self) -> bool:
        raise InvalidType(
            type(self).__name__,
            "its truth value in Python",
            "k.when(...), select(...), or & and | instead of and and or: it is known "
            "only on the device",
        )

    def __array_ufunc__(
        self, ufunc: np.ufunc, method: str, *inputs: object, **options: object
    ) -> Expression:
        """Python's operators with a numpy scalar on their left; no other ufunc."""
        reflected = _REFLECTED.get(ufunc.__name__)
        if reflected is None or method != "__call__" or options or len(inputs) != 2:
            raise refused_ufunc(type(self).__name__, ufunc)
        left, right = inputs
        if isinstance(left, Operators) or not isinstance(right, Operators):
            raise refused_ufunc(type(self).__name__, ufunc)
        result: Expression = getattr(right, reflected)(left)
        return result

    def __lt__(self, other: Operand) -> Expression:
        return self._compare(Comparison.LESS, other)

    def __le__(self, other: Operand) -> Expression:
        return self._compare(Comparison.LESS_EQUAL, other)

    def __gt__(self, other: Operand) -> Expression:
        return self._compare(Comparison.GREATER, other)

    def __ge__(self, other: Operand) -> Expression:
        return self._compare(Comparison.GREATER_EQUAL, other)

    def __add__(self, other: Operand) -> Expression:
        return self._binary(BinaryOperation.ADD, other)

    def __radd__(self, other: Operand) -> Expression:
        return self._reflected(BinaryOperation.ADD, other)

    def __sub__(self, other: Operand) -> Expression:
        return self._binary(BinaryOperation.SUBTRACT, other)

    def __rsub__(self, other: Operand) -> Expression:
        return self._reflected(BinaryOperation.SUBTRACT, other)

    def __mul__(self, other: Operand) -> Expression:
        return self._binary(BinaryOperation.MULTIPLY, other)

    def __rmul__(self, other: Operand) -> Expression:
        return self._reflected(BinaryOperation.MULTIPLY, other)

    def __truediv__(self, other: Operand) -> Expression:
        return self._binary(BinaryOperation.DIVIDE, other)

    def __rtruediv__(self, other: Operand) -> Expression:
        return self._reflected(BinaryOperation.DIVIDE, other)

    def __mod__(self, other: Operand) -> Expression:
        return self._binary(BinaryOperation.REMAINDER, other)

    def __rmod__(self, other: Operand) -> Expression:
        return self._reflected(BinaryOperation.REMAINDER, other)

    def __and__(self, other: Operand) -> Expression:
        return self._binary(BinaryOperation.AND, other)

    def __rand__(self, other: Operand) -> Expression:
        return self._reflected(BinaryOperation.AND, other)

    def __or__(self, other: Operand) -> Expression:
        return self._binary(BinaryOperation.OR, other)

    def __ror__(self, other: Operand) -> Expression:
        return self._reflected(BinaryOperation.OR, other)

    def __xor__(self, other: Operand) -> Expression:
        return self._binary(BinaryOperation.XOR, other)

    def __rxor__(self, other: Operand) -> Expression:
        return self._reflected(BinaryOperation.XOR, other)

    def __lshift__(self, other: Operand) -> Expression:
        return self._binary(BinaryOperation.SHIFT_LEFT, other)

    def __rlshift__(self, other: Operand) -> Expression:
        return self._reflected(BinaryOperation.SHIFT_LEFT, other)

    def __rshift__(self, other: Operand) -> Expression:
        return self._binary(BinaryOperation.SHIFT_RIGHT, other)

    def __rrshift__(self, other: Operand) -> Expression:
        return self._reflected(BinaryOperation.SHIFT_RIGHT, other)

    def __pos__(self) -> Self:
        return self

    def __neg__(self) -> Expression:
        return self._unary(UnaryOperation.NEGATE)

    def __invert__(self) -> Expression:
        return self._unary(UnaryOperation.NOT)

    def __abs__(self) -> Expression:
        return self._unary(UnaryOperation.ABSOLUTE)


def refused_ufunc(subject: str, ufunc: np.ufunc) -> InvalidType:
    """What to raise where one of numpy's functions is called on a part of a kernel."""
    name = ufunc.__name__
    ours = f"{_OURS[name]}(...)" if name in _OURS else "a function"
    return InvalidType(
        subject, f"numpy.{name}", f"{ours} of the kernel form: it runs on the device"
    )
