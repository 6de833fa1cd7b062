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

from accy_async.compiler.form.dtypechecks import (
    require_bool,
    require_integer,
    require_same,
    undefined,
)
from accy_async.compiler.form.operations import (
    BinaryOperation,
    Comparison,
    UnaryOperation,
    can_bitcast,
    can_cast,
    computes_in_floats,
)
from accy_async.compiler.form.operators import Operators
from accy_async.compiler.form.refusals import NoOperand
from accy_async.dtypes import DType, ScalarArgument, ScalarValue
from accy_async.errors import InvalidType, InvalidValue
from accy_async.values import instances, text

if TYPE_CHECKING:
    from collections.abc import Iterator

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
    "MultiplyAdd",
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


@attrs.frozen(order=False)
class Expression(Operators):
    """What every expression offers: a dtype, its parts and Python's operators."""

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

    def _dtype(self) -> DType:
        raise NotImplementedError

    def _children(self) -> tuple[Expression, ...]:
        return ()

    def _unary(self, operation: UnaryOperation) -> Expression:
        return Unary(operation, self)

    def _binary(self, operation: BinaryOperation, other: Operand) -> Expression:
        return Binary(operation, self, constant(self.dtype, other))

    def _reflected(self, operation: BinaryOperation, other: Operand) -> Expression:
        return Binary(operation, constant(self.dtype, other), self)

    def _compare(self, comparison: Comparison, other: Operand) -> Expression:
        return Compare(comparison, self, constant(self.dtype, other))


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
            raise undefined(self.operation.value, self.dtype)
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
        require_same(self.operation.value, self.left, self.right)
        if not self.operation.takes(self.dtype):
            raise undefined(self.operation.value, self.dtype)
        super().__attrs_post_init__()

    def _dtype(self) -> DType:
        return self.left.dtype

    def _children(self) -> tuple[Expression, ...]:
        return (self.left, self.right)


@attrs.frozen(order=False)
class MultiplyAdd(Expression):
    """``left * right + addend`` of f32 or f64, rounded once or twice.

    As the device does it faster: once where it has an instruction for both. The one
    operation that may be contracted, for sums whose order is not specified either.
    """

    left: Expression = attrs.field(validator=_operand)
    right: Expression = attrs.field(validator=_operand)
    addend: Expression = attrs.field(validator=_operand)

    def __attrs_post_init__(self) -> None:
        require_same("multiply_add", self.left, self.right)
        require_same("multiply_add", self.left, self.addend)
        if not computes_in_floats(self.dtype):
            raise undefined("multiply_add", self.dtype)
        super().__attrs_post_init__()

    def _dtype(self) -> DType:
        return self.addend.dtype

    def _children(self) -> tuple[Expression, ...]:
        return (self.left, self.right, self.addend)


@attrs.frozen(order=False)
class Compare(Expression):
    """A comparison of two values of one dtype; a bool."""

    comparison: Comparison = attrs.field(validator=instances(Comparison))
    left: Expression = attrs.field(validator=_operand)
    right: Expression = attrs.field(validator=_operand)

    def __attrs_post_init__(self) -> None:
        require_same(self.comparison.value, self.left, self.right)
        if not self.comparison.takes(self.left.dtype):
            raise undefined(self.comparison.value, self.left.dtype)
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
        require_same("select", self.then, self.otherwise)
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
