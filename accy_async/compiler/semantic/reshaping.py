"""The builder's methods that move elements."""

from __future__ import annotations

from collections.abc import Sequence

from accy_async.compiler.semantic.recorder import Operand, Recorder
from accy_async.compiler.semantic.shaping import (
    Broadcast,
    Concatenate,
    Pad,
    Reshape,
    Reverse,
    Slice,
    Transpose,
)
from accy_async.compiler.semantic.types import EXTENTS, TensorType, Value
from accy_async.errors import InvalidProgram
from accy_async.values import listed

__all__ = ["ShapingMethods"]


class ShapingMethods(Recorder):
    """Other shapes and orders of the same elements.

    What would change nothing is not recorded: the operand is the result.
    """

    def broadcast(
        self, operand: Value, shape: Sequence[int], axes: Sequence[int] | None = None
    ) -> Value:
        """The operand repeated to fill a shape.

        Args:
            operand: what is repeated.
            shape: the result's.
            axes: the result's axis for each of the operand's; None: the last ones,
                as numpy does it.
        """
        type = self.own(operand).type
        target = listed("broadcast.shape", shape, EXTENTS)
        if axes is None:
            if len(target) < type.rank:
                raise InvalidProgram(
                    f"operand {type} has more axes than {list(target)}",
                    operation="broadcast",
                )
            axes = range(len(target) - type.rank, len(target))
        op = Broadcast(target, tuple(axes))
        if target == type.shape and op.axes == tuple(range(type.rank)):
            return operand
        return self.record_one(op, operand)

    def reshape(self, operand: Value, shape: Sequence[int]) -> Value:
        """The same elements in another shape of as many."""
        target = listed("reshape.shape", shape, EXTENTS)
        if self.own(operand).shape == target:
            return operand
        return self.record_one(Reshape(target), operand)

    def transpose(
        self, operand: Value, permutation: Sequence[int] | None = None
    ) -> Value:
        """The axes in another order; None reverses them."""
        rank = self.own(operand).rank
        order = tuple(reversed(range(rank)) if permutation is None else permutation)
        if order == tuple(range(rank)):
            return operand
        return self.record_one(Transpose(order), operand)

    def slice(
        self,
        operand: Value,
        starts: Sequence[int],
        limits: Sequence[int],
        strides: Sequence[int] | None = None,
    ) -> Value:
        """Every stride-th index from start up to, not with, limit, for each axis."""
        type = self.own(operand).type
        steps = (1,) * type.rank if strides is None else tuple(strides)
        op = Slice(tuple(starts), tuple(limits), steps)
        (result,) = op.result_types((type,))
        return operand if result == type else self.record_one(op, operand)

    def concatenate(self, operands: Sequence[Value], axis: int = 0) -> Value:
        """The operands one after the other along an axis."""
        if len(operands) == 1:
            return self.own(operands[0])
        return self.record_one(Concatenate(axis), *operands)

    def pad(
        self,
        operand: Value,
        low: Sequence[int],
        high: Sequence[int],
        value: Operand = 0,
    ) -> Value:
        """``value`` before (low) and after (high) the operand along each axis."""
        type = self.own(operand).type
        op = Pad(tuple(low), tuple(high))
        if not any((*op.low, *op.high)):
            op.result_types((type, TensorType(type.dtype, ())))
            return operand
        if not isinstance(value, Value):
            value = self.constant(value, TensorType(type.dtype, ()))
        return self.record_one(op, operand, value)

    def reverse(self, operand: Value, axes: Sequence[int]) -> Value:
        """The elements in the opposite order along the axes."""
        return self.record_one(Reverse(tuple(axes)), operand)
