"""The builder's methods that combine elements: reductions, scans, products, rows."""

from __future__ import annotations

from collections.abc import Sequence

from accy_async.compiler.semantic.einsum import EinsumSpec
from accy_async.compiler.semantic.kinds import (
    ReductionKind,
    ScanKind,
    default_accumulator,
)
from accy_async.compiler.semantic.products import DotGeneral, Einsum
from accy_async.compiler.semantic.recorder import Recorder
from accy_async.compiler.semantic.reductions import Reduce, Scan
from accy_async.compiler.semantic.rows import RowSparseCrossEntropy, Softmax
from accy_async.compiler.semantic.types import Value
from accy_async.dtypes import DType
from accy_async.errors import InvalidProgram

__all__ = ["ReducingMethods"]


class ReducingMethods(Recorder):
    """Sums and their like. Axes count from 0; those below 0 from the end.

    ``accumulate`` is the dtype that partial results are kept in; None: f32 for f16
    and bf16, else the operand's.
    """

    def reduce(
        self,
        operand: Value,
        kind: ReductionKind | str,
        axes: Sequence[int] | int | None = None,
        *,
        keepdims: bool = False,
        accumulate: DType | None = None,
    ) -> Value:
        """Combine the elements along the axes, None for all; see `ReductionKind`."""
        rank = self.own(operand).rank
        given = (axes,) if isinstance(axes, int) else axes
        chosen = range(rank) if given is None else (self._axis(a, rank) for a in given)
        kept = self._accumulator(operand.dtype, accumulate)
        op = Reduce(kind, tuple(chosen), kept, keepdims)
        return self.record_one(op, operand)

    def scan(
        self,
        operand: Value,
        kind: ScanKind | str,
        axis: int = -1,
        *,
        exclusive: bool = False,
        reverse: bool = False,
        accumulate: DType | None = None,
    ) -> Value:
        """Each element combined with all before it along the axis; see `Scan`."""
        place = self._axis(axis, self.own(operand).rank)
        kept = self._accumulator(operand.dtype, accumulate)
        op = Scan(kind, place, kept, exclusive, reverse)
        return self.record_one(op, operand)

    def dot_general(
        self,
        lhs: Value,
        rhs: Value,
        lhs_contracting: Sequence[int],
        rhs_contracting: Sequence[int],
        lhs_batch: Sequence[int] = (),
        rhs_batch: Sequence[int] = (),
        *,
        accumulate: DType | None = None,
        result: DType | None = None,
    ) -> Value:
        """Products summed over the contracting axes; see `DotGeneral`.

        Args:
            lhs: left operand.
            rhs: right operand.
            lhs_contracting: axes of lhs that are summed over.
            rhs_contracting: the axes of rhs that go with them.
            lhs_batch: axes of lhs that are kept, one product for each index.
            rhs_batch: the axes of rhs that go with them.
            accumulate: what the sums are kept in.
            result: the result's dtype; None: the operands'.
        """
        dtype = self.own(lhs).dtype
        op = DotGeneral(
            self._accumulator(dtype, accumulate),
            dtype if result is None else result,
            tuple(lhs_contracting),
            tuple(rhs_contracting),
            tuple(lhs_batch),
            tuple(rhs_batch),
        )
        return self.record_one(op, lhs, rhs)

    def matmul(self, lhs: Value, rhs: Value) -> Value:
        """The product of two matrices: ``[m,k]`` by ``[k,n]`` gives ``[m,n]``."""
        return self.dot_general(lhs, rhs, [1], [0])

    def einsum(
        self,
        operands: Sequence[Value],
        spec: str | EinsumSpec,
        *,
        accumulate: DType | None = None,
        result: DType | None = None,
    ) -> Value:
        """Products by a specification such as ``mk,kn->mn``; see `EinsumSpec`."""
        if not operands:
            raise InvalidProgram("takes at least one operand", operation="einsum")
        parsed = spec if isinstance(spec, EinsumSpec) else EinsumSpec.parse(spec)
        dtype = self.own(operands[0]).dtype
        kept = self._accumulator(dtype, accumulate)
        op = Einsum(parsed, kept, dtype if result is None else result)
        return self.record_one(op, *operands)

    def softmax(self, operand: Value, axis: int = -1, *, log: bool = False) -> Value:
        """Softmax along an axis, or its logarithm."""
        return self.record_one(
            Softmax(self._axis(axis, self.own(operand).rank), log), operand
        )

    def row_sparse_cross_entropy(self, logits: Value, labels: Value) -> Value:
        """The loss of each row for its label; see `RowSparseCrossEntropy`."""
        return self.record_one(RowSparseCrossEntropy(), logits, labels)

    @staticmethod
    def _accumulator(dtype: DType, accumulate: DType | None) -> DType:
        return default_accumulator(dtype) if accumulate is None else accumulate

    @staticmethod
    def _axis(axis: int, rank: int) -> int:
        return axis + rank if -rank <= axis < 0 else axis
