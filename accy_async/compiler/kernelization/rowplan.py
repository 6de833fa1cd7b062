"""What a function with reductions computes for each row, and in which order.

A *row* is all elements along the reduced axes at one place of the others. Values are
of two kinds: one element for each element of the operand (*full*), or one for each row
(*row*). Reductions that need no other's result belong to one *stage*: one pass over the
row computes them all.
"""

from __future__ import annotations

import attrs

from accy_async.compiler import semantic
from accy_async.compiler.kernelization.elements import is_elementwise
from accy_async.compiler.semantic import Function, Operation, Value
from accy_async.errors import UnsupportedOperation

__all__ = ["RowPlan", "plan_rows"]


@attrs.frozen
class RowPlan:
    """The rows of a function.

    Attributes:
        shape: of what is reduced.
        axes: the reduced axes.
        stages: the reductions of each pass, in order.
        row_values: what is one element a row and follows from a reduction, in order,
            with the stage after which it is known.
        full_results: numbers of the results with an element for each of the operand.
        row_results: numbers of the results with an element for each row.
    """

    shape: tuple[int, ...]
    axes: tuple[int, ...]
    stages: tuple[tuple[Operation, ...], ...]
    row_values: tuple[tuple[Value, int], ...]
    full_results: tuple[int, ...]
    row_results: tuple[int, ...]

    @property
    def kept(self) -> tuple[int, ...]:
        """The axes that are not reduced."""
        return tuple(a for a in range(len(self.shape)) if a not in self.axes)

    @property
    def row_shape(self) -> tuple[int, ...]:
        """The extents of the kept axes."""
        return tuple(self.shape[axis] for axis in self.kept)

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return _product(self.row_shape)

    @property
    def extent(self) -> int:
        """The elements of a row."""
        return _product(tuple(self.shape[axis] for axis in self.axes))


def _product(extents: tuple[int, ...]) -> int:
    count = 1
    for extent in extents:
        count *= extent
    return count


def plan_rows(function: Function) -> RowPlan:
    """The rows of a function with at least one reduction.

    Raises:
        UnsupportedOperation: it has reductions of other operands' shapes or along
            other axes, or moves elements of what follows from one between rows.
    """
    reductions = [e for e in function.operations if isinstance(e.op, semantic.Reduce)]
    if not reductions:
        raise UnsupportedOperation(f"function {function.name} reduces nothing")
    first = reductions[0]
    assert isinstance(first.op, semantic.Reduce)
    analysis = _Analysis(first.operands[0].shape, first.op.axes)
    for entry in function.operations:
        analysis.operation(entry)
    count = max(analysis.stage_of[e.result] for e in reductions)
    stages = tuple(
        tuple(e for e in reductions if analysis.stage_of[e.result] == stage)
        for stage in range(1, count + 1)
    )
    rows: list[int] = []
    full: list[int] = []
    for index, value in enumerate(function.results):
        (rows if analysis.is_row_result(value) else full).append(index)
    values = tuple((v, analysis.stage_of[v]) for v in analysis.row_values)
    return RowPlan(
        analysis.shape, first.op.axes, stages, values, tuple(full), tuple(rows)
    )


class _Analysis:
    """Goes through a function's operations in order."""

    def __init__(self, shape: tuple[int, ...], axes: tuple[int, ...]) -> None:
        self.shape = shape
        self.axes = axes
        self.kept = tuple(a for a in range(len(shape)) if a not in axes)
        self.shapes = (
            tuple(shape[axis] for axis in self.kept),
            tuple(1 if a in axes else extent for a, extent in enumerate(shape)),
        )
        self.stage_of: dict[Value, int] = {}
        """The stages that a value waits for, of those that wait for any."""
        self.row_values: list[Value] = []

    def operation(self, entry: Operation) -> None:
        """Note what an operation's result is."""
        op = entry.op
        waited = [self.stage_of[v] for v in entry.operands if v in self.stage_of]
        stage = max(waited, default=0)
        if isinstance(op, semantic.Reduce):
            if op.axes != self.axes or entry.operands[0].shape != self.shape:
                raise self._refusal(entry, "is along other axes than the first")
            in_rows = any(v in self.row_values for v in entry.operands)
            if in_rows and self.shape not in self.shapes:  # but in rows of one element
                raise self._refusal(entry, "reduces what was reduced")
            self._note(entry.result, stage + 1, row=True)
        elif not is_elementwise(op):
            raise self._refusal(entry, "is no elementwise operation")
        elif waited:
            self._note(entry.result, stage, row=self._is_row(entry))

    def is_row_result(self, value: Value) -> bool:
        """Whether a result has an element for each row."""
        if value in self.stage_of:
            return value in self.row_values
        if value.shape == self.shape:
            return False
        if value.shape not in self.shapes:
            raise UnsupportedOperation(f"{value!r} is neither full nor one of rows")
        return True

    def _is_row(self, entry: Operation) -> bool:
        """Whether what follows from reductions is one of rows."""
        rows = [v for v in entry.operands if v in self.row_values]
        full = [v for v in entry.operands if v in self.stage_of and v not in rows]
        op, shape = entry.op, entry.result.shape
        if isinstance(op, semantic.POINTWISE):
            if full and rows and self.shape not in self.shapes:
                raise self._refusal(entry, "mixes rows and elements")
            return not full
        if isinstance(op, semantic.Reshape) and rows and shape in self.shapes:
            return True
        if isinstance(op, semantic.Broadcast) and rows:
            kept = rows[0].shape == self.shapes[0]
            axes = self.kept if kept else tuple(range(len(self.shape)))
            if op.axes == axes and shape in (self.shape, self.shapes[1]):
                return shape != self.shape
        raise self._refusal(entry, "moves elements between rows")

    def _note(self, value: Value, stage: int, *, row: bool) -> None:
        self.stage_of[value] = stage
        if row:
            self.row_values.append(value)

    def _refusal(self, entry: Operation, why: str) -> UnsupportedOperation:
        return UnsupportedOperation(f"{entry.op.opcode}: {entry.result!r} {why}")
