"""Reading and writing at places that the program computes.

Indices count along one axis and are never negative. One that lies outside the
axis touches no memory there: a gather takes the nearest element, a scatter leaves
that update out.
"""

from __future__ import annotations

from typing import ClassVar

import attrs

from accy_async.compiler.semantic.kinds import ScatterKind, scatter_kind
from accy_async.compiler.semantic.op import Op, axis_of
from accy_async.compiler.semantic.types import TensorType
from accy_async.values import enum, integer

__all__ = ["Gather", "Scatter"]


def _check_indices(op: Op, indices: TensorType) -> None:
    if not indices.dtype.is_integer:
        raise op.refusal(f"the indices are {indices}, expected integers")


def _at_indices(type: TensorType, axis: int, indices: TensorType) -> TensorType:
    shape = (*type.shape[:axis], *indices.shape, *type.shape[axis + 1 :])
    return type.with_shape(shape)


@attrs.frozen
class Gather(Op):
    """The operand's elements at the second operand's indices along an axis.

    The axis is replaced by the indices' axes. An index outside is clamped.
    """

    arity: ClassVar[int | None] = 2
    axis: int = attrs.field(validator=integer())

    @property
    def opcode(self) -> str:
        return "gather"

    def infer(self, operands: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        type, indices = operands
        _check_indices(self, indices)
        axis_of(self, self.axis, type)
        if type.shape[self.axis] == 0 and indices.element_count:
            raise self.refusal(f"operand {type} axis {self.axis} has no elements")
        return (_at_indices(type, self.axis, indices),)


@attrs.frozen
class Scatter(Op):
    """The first operand with the third's elements at the second's indices.

    The updates have the shape a gather at these indices gives. An index outside
    the axis is left out. Of several updates of one element ``SET`` keeps the last, and
    ``ADD`` adds them in their order.
    """

    arity: ClassVar[int | None] = 3
    kind: ScatterKind = attrs.field(converter=scatter_kind, validator=enum(ScatterKind))
    axis: int = attrs.field(validator=integer())

    @property
    def opcode(self) -> str:
        return "scatter" if self.kind is ScatterKind.SET else "scatter_add"

    def attributes(self) -> str:
        return f"axis={self.axis}"

    def infer(self, operands: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        type, indices, updates = operands
        _check_indices(self, indices)
        axis_of(self, self.axis, type)
        self.require_dtype(accepts=self.kind.takes(type.dtype), type=type)
        expected = _at_indices(type, self.axis, indices)
        if updates != expected:
            raise self.refusal(
                f"operand {type} at indices {indices} along axis {self.axis} takes "
                f"updates {expected}, got {updates}"
            )
        return (type,)
