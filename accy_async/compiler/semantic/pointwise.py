"""The builder's methods for elementwise operations, constants and calls."""

from __future__ import annotations

from collections.abc import Sequence

from accy_async.compiler.semantic.calls import KernelCall
from accy_async.compiler.semantic.elementwise import (
    Binary,
    Compare,
    Convert,
    Iota,
    Select,
    Unary,
)
from accy_async.compiler.semantic.kinds import (
    BinaryKind,
    ComparisonKind,
    OperandEffect,
    UnaryKind,
)
from accy_async.compiler.semantic.recorder import Operand, Recorder
from accy_async.compiler.semantic.types import TensorType, Value
from accy_async.dtypes import DType

__all__ = ["ElementwiseMethods"]


class ElementwiseMethods(Recorder):
    """What each element is computed from, by itself.

    A Python number stands for a constant of the other operand's type. `kinds`
    says what each operation computes and on which dtypes.
    """

    def unary(self, kind: UnaryKind | str, operand: Value) -> Value:
        """One of `UnaryKind`."""
        return self.record_one(Unary(kind), operand)

    def binary(self, kind: BinaryKind | str, lhs: Operand, rhs: Operand) -> Value:
        """One of `BinaryKind`."""
        op = Binary(kind)
        return self.record_one(op, *self.alike(op.opcode, lhs, rhs))

    def compare(self, lhs: Operand, rhs: Operand, kind: ComparisonKind | str) -> Value:
        """One of `ComparisonKind`: eq, ne, lt, le, gt, ge; gives truth values."""
        op = Compare(kind)
        return self.record_one(op, *self.alike(op.opcode, lhs, rhs))

    def add(self, lhs: Operand, rhs: Operand) -> Value:
        """Sum."""
        return self.binary(BinaryKind.ADD, lhs, rhs)

    def sub(self, lhs: Operand, rhs: Operand) -> Value:
        """Lhs - rhs."""
        return self.binary(BinaryKind.SUBTRACT, lhs, rhs)

    def mul(self, lhs: Operand, rhs: Operand) -> Value:
        """Lhs * rhs."""
        return self.binary(BinaryKind.MULTIPLY, lhs, rhs)

    def div(self, lhs: Operand, rhs: Operand) -> Value:
        """Lhs / rhs; of integers truncated toward zero."""
        return self.binary(BinaryKind.DIVIDE, lhs, rhs)

    def remainder(self, lhs: Operand, rhs: Operand) -> Value:
        """The remainder of the integers' division, with the sign of lhs."""
        return self.binary(BinaryKind.REMAINDER, lhs, rhs)

    def minimum(self, lhs: Operand, rhs: Operand) -> Value:
        """The lesser; NaN if either is."""
        return self.binary(BinaryKind.MINIMUM, lhs, rhs)

    def maximum(self, lhs: Operand, rhs: Operand) -> Value:
        """The greater; NaN if either is."""
        return self.binary(BinaryKind.MAXIMUM, lhs, rhs)

    def logical_and(self, lhs: Operand, rhs: Operand) -> Value:
        """Both; of integers bit by bit."""
        return self.binary(BinaryKind.AND, lhs, rhs)

    def logical_or(self, lhs: Operand, rhs: Operand) -> Value:
        """Either; of integers bit by bit."""
        return self.binary(BinaryKind.OR, lhs, rhs)

    def logical_xor(self, lhs: Operand, rhs: Operand) -> Value:
        """One of them; of integers bit by bit."""
        return self.binary(BinaryKind.XOR, lhs, rhs)

    def logical_not(self, operand: Value) -> Value:
        """Not; of integers bit by bit."""
        return self.unary(UnaryKind.NOT, operand)

    def neg(self, operand: Value) -> Value:
        """The number with the other sign."""
        return self.unary(UnaryKind.NEGATE, operand)

    def abs(self, operand: Value) -> Value:
        """The number without its sign."""
        return self.unary(UnaryKind.ABSOLUTE, operand)

    def exp(self, operand: Value) -> Value:
        """E to the power of the operand."""
        return self.unary(UnaryKind.EXP, operand)

    def log(self, operand: Value) -> Value:
        """The natural logarithm."""
        return self.unary(UnaryKind.LOG, operand)

    def sqrt(self, operand: Value) -> Value:
        """The square root, correctly rounded."""
        return self.unary(UnaryKind.SQRT, operand)

    def tanh(self, operand: Value) -> Value:
        """The hyperbolic tangent."""
        return self.unary(UnaryKind.TANH, operand)

    def select(self, condition: Value, on_true: Operand, on_false: Operand) -> Value:
        """``on_true`` where the condition holds, else ``on_false``."""
        op = Select()
        return self.record_one(op, condition, *self.alike(op.opcode, on_true, on_false))

    def convert(self, operand: Value, dtype: DType | str) -> Value:
        """The numbers in another dtype; the operand itself if it has that."""
        wanted = TensorType(dtype, ()).dtype
        if self.own(operand).dtype is wanted:
            return operand
        return self.record_one(Convert(wanted), operand)

    def iota(self, type: TensorType, axis: int = 0) -> Value:
        """0, 1, 2 and so on along an axis."""
        return self.record_one(Iota(type, axis))

    def kernel_call(
        self,
        operands: Sequence[Value],
        results: Sequence[TensorType],
        *,
        target: str,
        version: int = 1,
        operand_effects: Sequence[OperandEffect | str] | None = None,
        result_aliases: Sequence[int | None] | None = None,
    ) -> tuple[Value, ...]:
        """Call a registered kernel; see `KernelCall`.

        Args:
            operands: its operands.
            results: the types of its results.
            target: the registry's name for it.
            version: the registry's version of it.
            operand_effects: what it does to each operand; None: only reads.
            result_aliases: the operand whose memory each result takes over, or
                None; None for all: memory of its own.
        """
        effects = (
            ["read"] * len(operands) if operand_effects is None else operand_effects
        )
        aliases = [None] * len(results) if result_aliases is None else result_aliases
        op = KernelCall(target, version, effects, results, aliases)
        return self.record(op, operands)
