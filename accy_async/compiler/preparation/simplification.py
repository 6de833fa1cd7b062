"""What need not be computed: moves that move nothing, and numbers known beforehand.

Every rule keeps each element to the bit: no sum is reordered, and nothing is computed
here that devices may round otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import attrs

from accy_async.compiler.semantic import (
    Binary,
    BinaryKind,
    Broadcast,
    Compare,
    Constant,
    ContextLimits,
    Convert,
    DotGeneral,
    Function,
    FunctionBuilder,
    Op,
    Operation,
    Reduce,
    Reshape,
    Reverse,
    Select,
    Slice,
    TensorType,
    Transpose,
    Unary,
    UnaryKind,
    Value,
    evaluate,
    rewrite,
)

__all__ = ["simplified"]

_INEXACT = (UnaryKind.EXP, UnaryKind.LOG, UnaryKind.TANH)
_NEUTRAL_RIGHT = {
    BinaryKind.MULTIPLY: 1,
    BinaryKind.DIVIDE: 1,
    BinaryKind.SUBTRACT: 0,
}


def simplified(function: Function, *, limits: ContextLimits) -> Function:
    """The function without what need not be computed."""
    return rewrite(function, _Simplifier(), limits=limits)


class _Simplifier:
    """The rule, which remembers what made the values of the new function."""

    def __init__(self) -> None:
        self._seen = 0
        self._made: dict[Value, Operation] = {}

    def __call__(
        self, f: FunctionBuilder, entry: Operation, operands: tuple[Value, ...]
    ) -> Sequence[Value] | None:
        for made in f.operations[self._seen :]:
            self._made.update(dict.fromkeys(made.results, made))
        self._seen = len(f.operations)
        if len(entry.results) != 1 or not operands:
            return None
        kept = self._unchanged(entry, operands)
        if kept is None:
            kept = _reshaped(f, entry, operands)
        if kept is None:
            kept = self._merged(f, entry, operands)
        if kept is None and isinstance(entry.op, DotGeneral):
            kept = self._untransposed(f, entry.op, operands)
        if kept is None:
            kept = self._by_zero(f, entry, operands)
        if kept is None:
            kept = self._folded(f, entry, operands)
        return None if kept is None else [kept]

    def _op(self, value: Value) -> Op | None:
        made = self._made.get(value)
        return None if made is None else made.op

    def _splat(self, value: Value) -> Constant | None:
        op = self._op(value)
        return op if isinstance(op, Constant) and op.is_splat else None

    def _number(self, value: Value) -> float | None:
        splat = self._splat(value)
        return None if splat is None else splat.to_numpy().flat[0].item()

    def _unchanged(self, entry: Operation, operands: tuple[Value, ...]) -> Value | None:
        """The operand that the result is."""
        first, type = operands[0], entry.result.type
        match entry.op:
            case Reshape() | Broadcast() | Slice() | Convert() if first.type == type:
                return first
            case Transpose(permutation=order) if order == tuple(range(first.rank)):
                return first
            case Reverse(axes=axes) if all(first.shape[a] == 1 for a in axes):
                return first
            case Select():
                chosen = self._number(first)
                return None if chosen is None else operands[1 if chosen else 2]
            case Binary(kind=kind) if kind in _NEUTRAL_RIGHT:
                neutral = self._number(operands[1]) == _NEUTRAL_RIGHT[kind]
                # x - 0.0 is x, but x - -0.0 loses the sign of x = -0.0.
                if kind is BinaryKind.SUBTRACT and first.dtype.is_float:
                    return None
                return first if neutral else None
            case Binary(kind=BinaryKind.ADD) if first.dtype.is_integer:
                return first if self._number(operands[1]) == 0 else None
            case _:
                return None

    def _merged(
        self, f: FunctionBuilder, entry: Operation, operands: tuple[Value, ...]
    ) -> Value | None:
        """One move for two in a row."""
        before = self._made.get(operands[0])
        if before is None:
            return None
        match before.op, entry.op:
            case Reshape(), Reshape():
                return f.reshape(before.operands[0], entry.result.shape)
            case Transpose(permutation=first), Transpose(permutation=second):
                return f.transpose(before.operands[0], [first[a] for a in second])
            case _:
                return None

    def _by_zero(
        self, f: FunctionBuilder, entry: Operation, operands: tuple[Value, ...]
    ) -> Value | None:
        """A float through zero as itself times infinity, which is the same.

        There are drivers that take the first for undefined: Mesa 22.3's lavapipe does,
        where the zero is a constant of f64.
        """
        match entry.op:
            case Binary(kind=BinaryKind.DIVIDE) if operands[0].dtype.is_float:
                zero = self._number(operands[1])
            case _:
                return None
        if zero != 0:
            return None
        return f.mul(operands[0], math.copysign(math.inf, zero))

    def _untransposed(
        self, f: FunctionBuilder, op: DotGeneral, operands: tuple[Value, ...]
    ) -> Value | None:
        """A product of operands as they were before they were transposed."""
        lhs, rhs = operands
        free = op.free_axes(lhs.type, rhs.type)
        lhs, lhs_axes = self._source(lhs, free[0])
        rhs, rhs_axes = self._source(rhs, free[1])
        if (lhs, rhs) == operands:
            return None
        moved = attrs.evolve(
            op,
            lhs_contracting=tuple(lhs_axes[a] for a in op.lhs_contracting),
            rhs_contracting=tuple(rhs_axes[a] for a in op.rhs_contracting),
            lhs_batch=tuple(lhs_axes[a] for a in op.lhs_batch),
            rhs_batch=tuple(rhs_axes[a] for a in op.rhs_batch),
        )
        return f.record_one(moved, lhs, rhs)

    def _source(
        self, value: Value, free: tuple[int, ...]
    ) -> tuple[Value, tuple[int, ...]]:
        """What was transposed, and which of its axes each axis is.

        The value itself where its free axes would come in another order, which is
        the order of the result's axes.
        """
        made = self._made.get(value)
        if made is not None and isinstance(made.op, Transpose):
            axes = made.op.permutation
            moved = [axes[axis] for axis in free]
            if moved == sorted(moved):
                return made.operands[0], axes
        return value, tuple(range(value.rank))

    def _folded(
        self, f: FunctionBuilder, entry: Operation, operands: tuple[Value, ...]
    ) -> Value | None:
        """A constant of one number, where all operands are such."""
        splats = [self._splat(value) for value in operands]
        given = [splat for splat in splats if splat is not None]
        if len(given) < len(operands):
            return None
        type = entry.result.type
        match entry.op:
            case Broadcast() | Reshape() | Transpose() | Slice() | Reverse():
                return f.record_one(
                    Constant(type, given[0].data if type.element_count else b"")
                )
            case Unary(kind=kind) if kind in _INEXACT:
                return None
            case Unary() | Binary() | Compare() | Select() | Convert():
                return f.record_one(_computed(entry.op, given, type))
            case _:
                return None


def _reshaped(
    f: FunctionBuilder, entry: Operation, operands: tuple[Value, ...]
) -> Value | None:
    """A reduction of one element each as the shape that it gives."""
    match entry.op:
        case Reduce(axes=axes) if all(operands[0].shape[axis] == 1 for axis in axes):
            return f.reshape(operands[0], entry.result.shape)
        case _:
            return None


def _computed(op: Op, given: Sequence[Constant], type: TensorType) -> Constant:
    """The op on single elements, for all elements of the type."""
    entries = []
    values: list[Value] = []
    for constant in given:
        one = TensorType(constant.type.dtype, ())
        values.append(Value(len(values), one))
        entries.append(Operation(Constant(one, constant.data), (), (values[-1],)))
    result = Value(len(values), TensorType(type.dtype, ()))
    entries.append(Operation(op, tuple(values), (result,)))
    function = Function("folded", (), tuple(entries), (result,))
    (element,) = evaluate(function, ())
    return Constant.of(element, type)
