"""Operations on whole rows: softmax, and the loss of sparse labels.

Both could be written with reductions; they are operations of their own because a
device computes each in one pass over the row, and `expand` writes them out where
there is no such kernel.
"""

from __future__ import annotations

from typing import ClassVar

import attrs

from accy_async.compiler.semantic.op import Op, axis_of
from accy_async.compiler.semantic.types import TensorType
from accy_async.values import instances, integer

__all__ = ["RowSparseCrossEntropy", "Softmax"]


@attrs.frozen
class Softmax(Op):
    """exp(x - max) / sum(exp(x - max)) along an axis; its logarithm with ``log``.

    Computed in f32 for f16 and bf16, and rounded once.
    """

    axis: int = attrs.field(validator=integer())
    log: bool = attrs.field(default=False, validator=instances(bool))

    @property
    def opcode(self) -> str:
        return "log_softmax" if self.log else "softmax"

    def attributes(self) -> str:
        return f"axis={self.axis}"

    def infer(self, operands: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        (type,) = operands
        axis_of(self, self.axis, type)
        self.require_dtype(accepts=type.dtype.is_float, type=type)
        return (type,)


@attrs.frozen
class RowSparseCrossEntropy(Op):
    """The cross entropy of each row's softmax with one true class a row.

    For logits ``[..., classes]`` and integer labels ``[...]`` the result is
    ``log(sum(exp(row))) - row[label]``, of the logits' dtype and the labels'
    shape. A label outside the classes gives NaN.
    """

    arity: ClassVar[int | None] = 2

    @property
    def opcode(self) -> str:
        return "row_sparse_cross_entropy"

    def infer(self, operands: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        logits, labels = operands
        self.require_dtype(accepts=logits.dtype.is_float, type=logits, name="logits")
        if not labels.dtype.is_integer:
            raise self.refusal(f"the labels are {labels}, expected integers")
        if logits.rank == 0 or logits.shape[:-1] != labels.shape:
            raise self.refusal(
                f"logits {logits} take labels of all but their last axis, got {labels}"
            )
        if logits.shape[-1] == 0:
            raise self.refusal(f"logits {logits} have no classes")
        return (logits.with_shape(labels.shape),)
