"""The expressions of a kernel: immutable, typed trees.

An expression has one dtype, known when it is built, and nothing is converted
unasked: operands of two dtypes are refused. Only a Python number beside an
expression takes the expression's dtype, and only if that dtype holds it exactly
(floats are rounded to nearest).

An expression is evaluated where the statement that holds it runs, all of it:
`select` evaluates both of its sides, so a load that must not happen belongs
into an ``if``. Python's ``==`` compares trees, as for any value; the comparison
that runs on the device is `Expression.equals`.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

import attrs

from accy_async.compiler.form.operations import (
    BinaryOperation,
    Comparison,
    UnaryOperation,
    can_bitcast,
    can_cast,
)
from accy_async.compiler.form.refusals import NO_PYTHON_NUMBER, NoOperand, refuses
from accy_async.dtypes import DType, ScalarArgument, ScalarValue
from accy_async.errors import InvalidType, InvalidValue
from accy_async.values import instances, text

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np

__all__ = [
    "EXPECTED_EXPRESSION",
    "IDENTIFIER",
    "MAX_EXPRESSION_NODES",
    "Binary",
    "Bitcast",
    "Builtin",
    "BuiltinKind",
    "Cast",
    "Compare",
    "Constant",
    "Expression",
    "Load",
    "Name",
    "Operand",
    "Select",
    "Unary",
    "constant",
]

IDENTIFIER = r"[A-Za-z_][A-Za-z0-9_]*"
MAX_EXPRESSION_NODES = 256
"""The nodes of one expression's tree, each use of a shared part counted."""
EXPECTED_EXPRESSION = (
    "an expression: a[i] of an array, v.value of a variable, constant(dtype, n) of a "
    "number, and x.equals(y) instead of x == y"
)
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
@attrs.frozen(order=False)
class Expression:
    """What every expression offers: a dtype and Python's operators.

    The operators are C's: ``/`` divides integers truncating toward zero, ``>>``
    keeps a signed integer's sign.
    """

    nodes: int = attrs.field(init=False, eq=False, repr=False, default=1)

    def __attrs_post_init__(self) -> None:
        nodes = 1 + sum(child.nodes for child in self.children())
        if nodes > MAX_EXPRESSION_NODES:
            raise InvalidValue(
                type(self).__name__,
                f"a tree of {nodes} nodes",
                f"at most {MAX_EXPRESSION_NODES}; name its parts with let",
            )
        object.__setattr__(self, "nodes", nodes)

    @property
    def dtype(self) -> DType:
        """The dtype of the value."""
        return self._dtype()

    def children(self) -> tuple[Expression, ...]:
        """The expressions this one is computed from, left to right."""
        return self._children()

    def walk(self) -> Iterator[Expression]:
        """This expression and all beneath it, parents first."""
        yield self
        for child in self.children():
            yield from child.walk()

    def cast(self, dtype: DType) -> Expression:
        """The value in another dtype; itself if it has that dtype."""
        return self if dtype is self.dtype else Cast(dtype, self)

    def bitcast(self, dtype: DType) -> Expression:
        """The same bits read as another dtype of the same size."""
        return self if dtype is self.dtype else Bitcast(dtype, self)

    def equals(self, other: Operand) -> Expression:
        """Whether the two are equal; a NaN equals nothing."""
        return Compare(Comparison.EQUALS, self, constant(self.dtype, other))

    def differs(self, other: Operand) -> Expression:
        """Whether the two differ; a NaN differs from everything."""
        return Compare(Comparison.DIFFERS, self, constant(self.dtype, other))

    def _dtype(self) -> DType:
        raise NotImplementedError

    def _children(self) -> tuple[Expression, ...]:
        return ()

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
        if isinstance(left, Expression) or not isinstance(right, Expression):
            raise refused_ufunc(type(self).__name__, ufunc)
        result: Expression = getattr(right, reflected)(left)
        return result

    def __lt__(self, other: Operand) -> Expression:
        return Compare(Comparison.LESS, self, constant(self.dtype, other))

    def __le__(self, other: Operand) -> Expression:
        return Compare(Comparison.LESS_EQUAL, self, constant(self.dtype, other))

    def __gt__(self, other: Operand) -> Expression:
        return Compare(Comparison.GREATER, self, constant(self.dtype, other))

    def __ge__(self, other: Operand) -> Expression:
        return Compare(Comparison.GREATER_EQUAL, self, constant(self.dtype, other))

    def __add__(self, other: Operand) -> Expression:
        return Binary(BinaryOperation.ADD, self, constant(self.dtype, other))

    def __radd__(self, other: Operand) -> Expression:
        return Binary(BinaryOperation.ADD, constant(self.dtype, other), self)

    def __sub__(self, other: Operand) -> Expression:
        return Binary(BinaryOperation.SUBTRACT, self, constant(self.dtype, other))

    def __rsub__(self, other: Operand) -> Expression:
        return Binary(BinaryOperation.SUBTRACT, constant(self.dtype, other), self)

    def __mul__(self, other: Operand) -> Expression:
        return Binary(BinaryOperation.MULTIPLY, self, constant(self.dtype, other))

    def __rmul__(self, other: Operand) -> Expression:
        return Binary(BinaryOperation.MULTIPLY, constant(self.dtype, other), self)

    def __truediv__(self, other: Operand) -> Expression:
        return Binary(BinaryOperation.DIVIDE, self, constant(self.dtype, other))

    def __rtruediv__(self, other: Operand) -> Expression:
        return Binary(BinaryOperation.DIVIDE, constant(self.dtype, other), self)

    def __mod__(self, other: Operand) -> Expression:
        return Binary(BinaryOperation.REMAINDER, self, constant(self.dtype, other))

    def __rmod__(self, other: Operand) -> Expression:
        return Binary(BinaryOperation.REMAINDER, constant(self.dtype, other), self)

    def __and__(self, other: Operand) -> Expression:
        return Binary(BinaryOperation.AND, self, constant(self.dtype, other))

    def __rand__(self, other: Operand) -> Expression:
        return Binary(BinaryOperation.AND, constant(self.dtype, other), self)

    def __or__(self, other: Operand) -> Expression:
        return Binary(BinaryOperation.OR, self, constant(self.dtype, other))

    def __ror__(self, other: Operand) -> Expression:
        return Binary(BinaryOperation.OR, constant(self.dtype, other), self)

    def __xor__(self, other: Operand) -> Expression:
        return Binary(BinaryOperation.XOR, self, constant(self.dtype, other))

    def __rxor__(self, other: Operand) -> Expression:
        return Binary(BinaryOperation.XOR, constant(self.dtype, other), self)

    def __lshift__(self, other: Operand) -> Expression:
        return Binary(BinaryOperation.SHIFT_LEFT, self, constant(self.dtype, other))

    def __rlshift__(self, other: Operand) -> Expression:
        return Binary(BinaryOperation.SHIFT_LEFT, constant(self.dtype, other), self)

    def __rshift__(self, other: Operand) -> Expression:
        return Binary(BinaryOperation.SHIFT_RIGHT, self, constant(self.dtype, other))

    def __rrshift__(self, other: Operand) -> Expression:
        return Binary(BinaryOperation.SHIFT_RIGHT, constant(self.dtype, other), self)

    def __pos__(self) -> Expression:
        return self

    def __neg__(self) -> Expression:
        return Unary(UnaryOperation.NEGATE, self)

    def __invert__(self) -> Expression:
        return Unary(UnaryOperation.NOT, self)

    def __abs__(self) -> Expression:
        return Unary(UnaryOperation.ABSOLUTE, self)


Operand = Expression | ScalarValue


def _bits(scalar: ScalarArgument) -> tuple[str, bytes]:
    return scalar.dtype.value, scalar.to_bytes()


_operand = instances(Expression, expected=EXPECTED_EXPRESSION)


@attrs.frozen(order=False)
class Constant(Expression):
    """A number of the dtype; equal to another where dtype and bits are."""

    scalar: ScalarArgument = attrs.field(validator=instances(ScalarArgument), eq=_bits)

    def _dtype(self) -> DType:
        return self.scalar.dtype


@attrs.frozen(order=False)
class Name(Expression):
    """The value that a parameter, let, variable or loop index has here."""

    name: str = attrs.field(validator=text(pattern=IDENTIFIER, what="an identifier"))
    kind: DType = attrs.field(validator=instances(DType))

    def _dtype(self) -> DType:
        return self.kind


class BuiltinKind(StrEnum):
    """Where a thread is. All are u32; `is_uniform` ones are one per block."""

    THREAD_X = "thread_x"
    THREAD_Y = "thread_y"
    THREAD_Z = "thread_z"
    THREAD = "thread"
    """The linear id: ``x + size_x * (y + size_y * z)``."""
    BLOCK_X = "block_x"
    BLOCK_Y = "block_y"
    BLOCK_Z = "block_z"
    GRID_X = "grid_x"
    """Blocks along x in the launch."""
    GRID_Y = "grid_y"
    GRID_Z = "grid_z"

    @property
    def is_uniform(self) -> bool:
        """True where all threads of a block see one value."""
        return not self.value.startswith("thread")


@attrs.frozen(order=False)
class Builtin(Expression):
    """An id or size of the launch, as u32."""

    which: BuiltinKind = attrs.field(validator=instances(BuiltinKind))

    def _dtype(self) -> DType:
        return DType.U32


@attrs.frozen(order=False)
class Load(Expression):
    """One element of a buffer or block-shared array.

    The index counts elements and may be of any integer dtype; an index outside
    the array is the kernel's error, and not checked.
    """

    array: str = attrs.field(validator=text(pattern=IDENTIFIER, what="an identifier"))
    kind: DType = attrs.field(validator=instances(DType))
    index: Expression = attrs.field(validator=_operand)

    def __attrs_post_init__(self) -> None:
        require_integer(f"index of {self.array}", self.index)
        super().__attrs_post_init__()

    def _dtype(self) -> DType:
        return self.kind

    def _children(self) -> tuple[Expression, ...]:
        return (self.index,)


@attrs.frozen(order=False)
class Unary(Expression):
    """An operation on one value."""

    operation: UnaryOperation = attrs.field(validator=instances(UnaryOperation))
    value: Expression = attrs.field(validator=_operand)

    def __attrs_post_init__(self) -> None:
        if not self.operation.takes(self.dtype):
            raise _undefined(self.operation.value, self.dtype)
        super().__attrs_post_init__()

    def _dtype(self) -> DType:
        return self.value.dtype

    def _children(self) -> tuple[Expression, ...]:
        return (self.value,)


@attrs.frozen(order=False)
class Binary(Expression):
    """An operation on two values of one dtype."""

    operation: BinaryOperation = attrs.field(validator=instances(BinaryOperation))
    left: Expression = attrs.field(validator=_operand)
    right: Expression = attrs.field(validator=_operand)

    def __attrs_post_init__(self) -> None:
        _require_same(self.operation.value, self.left, self.right)
        if not self.operation.takes(self.dtype):
            raise _undefined(self.operation.value, self.dtype)
        super().__attrs_post_init__()

    def _dtype(self) -> DType:
        return self.left.dtype

    def _children(self) -> tuple[Expression, ...]:
        return (self.left, self.right)


@attrs.frozen(order=False)
class Compare(Expression):
    """A comparison of two values of one dtype; a bool."""

    comparison: Comparison = attrs.field(validator=instances(Comparison))
    left: Expression = attrs.field(validator=_operand)
    right: Expression = attrs.field(validator=_operand)

    def __attrs_post_init__(self) -> None:
        _require_same(self.comparison.value, self.left, self.right)
        if not self.comparison.takes(self.left.dtype):
            raise _undefined(self.comparison.value, self.left.dtype)
        super().__attrs_post_init__()

    def _dtype(self) -> DType:
        return DType.BOOL

    def _children(self) -> tuple[Expression, ...]:
        return (self.left, self.right)


@attrs.frozen(order=False)
class Select(Expression):
    """``then`` where the condition holds, else ``otherwise``; both are evaluated."""

    condition: Expression = attrs.field(validator=_operand)
    then: Expression = attrs.field(validator=_operand)
    otherwise: Expression = attrs.field(validator=_operand)

    def __attrs_post_init__(self) -> None:
        require_bool("condition of select", self.condition)
        _require_same("select", self.then, self.otherwise)
        super().__attrs_post_init__()

    def _dtype(self) -> DType:
        return self.then.dtype

    def _children(self) -> tuple[Expression, ...]:
        return (self.condition, self.then, self.otherwise)


@attrs.frozen(order=False)
class Cast(Expression):
    """The value in another dtype, rounded or wrapped as `operations` says."""

    target: DType = attrs.field(validator=instances(DType))
    value: Expression = attrs.field(validator=_operand)

    def __attrs_post_init__(self) -> None:
        source = self.value.dtype
        if not can_cast(source, self.target):
            remedy = "differs(0)" if self.target is DType.BOOL else "a cast through f32"
            raise InvalidType("cast", f"{source} to {self.target}", remedy)
        super().__attrs_post_init__()

    def _dtype(self) -> DType:
        return self.target

    def _children(self) -> tuple[Expression, ...]:
        return (self.value,)


@attrs.frozen(order=False)
class Bitcast(Expression):
    """The same bits read as another dtype."""

    target: DType = attrs.field(validator=instances(DType))
    value: Expression = attrs.field(validator=_operand)

    def __attrs_post_init__(self) -> None:
        if not can_bitcast(self.value.dtype, self.target):
            raise InvalidType(
                "bitcast",
                f"{self.value.dtype} to {self.target}",
                "two dtypes of one size, neither bool",
            )
        super().__attrs_post_init__()

    def _dtype(self) -> DType:
        return self.target

    def _children(self) -> tuple[Expression, ...]:
        return (self.value,)


def refused_ufunc(subject: str, ufunc: np.ufunc) -> InvalidType:
    """What to raise where one of numpy's functions is called on a part of a kernel."""
    name = ufunc.__name__
    ours = f"{_OURS[name]}(...)" if name in _OURS else "a function"
    return InvalidType(
        subject, f"numpy.{name}", f"{ours} of the kernel form: it runs on the device"
    )


def constant(dtype: DType, value: Operand) -> Expression:
    """A number as a constant of the dtype; an expression is returned as it is.

    Raises:
        InvalidType, OutOfRange: the dtype does not hold the number.
    """
    if not isinstance(dtype, DType):
        raise InvalidType(
            "constant.dtype", dtype, "a DType; write constant(dtype, value)"
        )
    if isinstance(value, Expression):
        return value
    if isinstance(value, NoOperand):
        raise InvalidType("operand", value, value.meant)
    return Constant(ScalarArgument.of(dtype, value))


def operands(what: str, left: Operand, right: Operand) -> tuple[Expression, Expression]:
    """Two operands as expressions; a number beside one takes the other's dtype.

    Raises:
        InvalidType: neither is an expression.
    """
    if isinstance(left, Expression):
        return left, constant(left.dtype, right)
    if isinstance(right, Expression):
        return constant(right.dtype, left), right
    raise InvalidType(what, (left, right), f"two operands, one {EXPECTED_EXPRESSION}")


def require_integer(what: str, value: Expression) -> None:
    """Refuse a value that is not of an integer dtype."""
    if not value.dtype.is_integer:
        raise InvalidType(what, value.dtype.value, "an integer dtype")


def require_bool(what: str, value: Expression) -> None:
    """Refuse a value that is not a bool."""
    if value.dtype is not DType.BOOL:
        raise InvalidType(what, value.dtype.value, "a bool")


def _require_same(what: str, left: Expression, right: Expression) -> None:
    if left.dtype is not right.dtype:
        raise InvalidType(
            what, f"{left.dtype} and {right.dtype}", "two operands of one dtype"
        )


def _undefined(what: str, dtype: DType) -> InvalidType:
    hint = "; cast to f32 first" if dtype in (DType.F16, DType.BF16) else ""
    return InvalidType(what, dtype.value, f"a dtype that {what} is defined on{hint}")
