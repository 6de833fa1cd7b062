"""Products of tensors: what each of a contraction's kernels needs of it.

A contraction is a batch of products of matrices once its axes are taken in groups:
batch, rows (the left operand's free axes), columns (the right's) and depth (the
contracting ones). `Product` gives elements by these four numbers, whatever the axes
are, and takes what comes before and after the contraction along.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import attrs

from accy_async.compiler import semantic
from accy_async.compiler.form import Expression, multiply_add
from accy_async.compiler.kernelization import operations
from accy_async.compiler.kernelization.assembly import Assembly
from accy_async.compiler.kernelization.elements import is_elementwise
from accy_async.compiler.kernelization.places import Coordinate
from accy_async.compiler.semantic import Function, Operation, TensorType, Value
from accy_async.dtypes import DType
from accy_async.errors import UnsupportedOperation

__all__ = ["Extents", "Matrix", "Product", "extents_of", "find_product", "matrices_of"]


@attrs.frozen
class Extents:
    """How many products there are, and the shape of each."""

    batch: int
    m: int
    n: int
    k: int

    @property
    def elements(self) -> int:
        """Elements of the result."""
        return self.batch * self.m * self.n


@attrs.frozen
class _Group:
    """Axes of an operand that one number counts through, the last fastest."""

    axes: tuple[int, ...]
    extents: tuple[int, ...]
    stride: int | None
    """Elements from one to the next; None where they are not evenly apart."""

    @classmethod
    def of(cls, type: TensorType, axes: Sequence[int]) -> _Group:
        extents = tuple(type.shape[axis] for axis in axes)
        wide = [axis for axis in axes if type.shape[axis] != 1]
        strides = type.strides
        even = all(strides[a] == strides[b] * type.shape[b] for a, b in pairwise(wide))
        stride = (strides[wide[-1]] if wide else 0) if even else None
        return cls(tuple(axes), extents, stride)


@attrs.frozen
class Matrix:
    """Matrices in a buffer, one behind the other.

    Attributes:
        parameter: which of the function's parameters they are.
        apart: elements from one matrix to the next.
        pitch: elements from one line to the next; in a line they are neighbours.
        along_depth: whether a line goes along the depth.
    """

    parameter: int
    apart: int
    pitch: int
    along_depth: bool


@attrs.frozen
class _Side:
    """An operand with its axes in groups: batch, its own, depth."""

    value: Value
    groups: tuple[_Group, _Group, _Group]


def find_product(function: Function) -> tuple[Operation, semantic.DotGeneral]:
    """The one contraction of a function, and its operation.

    Raises:
        UnsupportedOperation: there is none or more than one, another operation is not
            elementwise, or a result has another shape than the contraction.
    """
    found: list[tuple[Operation, semantic.DotGeneral]] = []
    for entry in function.operations:
        if isinstance(entry.op, semantic.DotGeneral):
            found.append((entry, entry.op))
        elif not is_elementwise(entry.op):
            raise UnsupportedOperation(
                f"{entry.op.opcode} is no elementwise operation beside a dot_general"
            )
    if len(found) != 1:
        raise UnsupportedOperation(
            f"dot_general work has one contraction, not {len(found)}"
        )
    shape = found[0][0].result.shape
    for value in function.results:
        if value.shape != shape:
            raise UnsupportedOperation(
                f"dot_general work gives results of shape {shape}, not {value.shape}"
            )
    _check_epilogue(function, found[0][0])
    return found[0]


def _check_epilogue(function: Function, entry: Operation) -> None:
    """Refuse to move elements of the contraction: each is known to one thread only."""
    after = {entry.result}
    for other in function.operations:
        if not after.intersection(other.operands):
            continue
        if not isinstance(other.op, semantic.POINTWISE):
            raise UnsupportedOperation(
                f"{other.op.opcode} moves elements of a dot_general"
            )
        after.add(other.result)


class Product:
    """Elements of a contraction's operands and results by batch, row, column, depth.

    Args:
        a: the kernel's assembly; its function is the work item's.
        swapped: whether rows and columns change places, for results with few columns.
    """

    def __init__(self, a: Assembly, *, swapped: bool = False) -> None:
        self.a = a
        self.entry, op = find_product(a.function)
        self._lhs, self._rhs = _sides(self.entry, op)
        self.dtype = DType.F32 if op.accumulate in _HALVES else op.accumulate
        self.extents = extents_of(self.entry, op)
        self._swapped = swapped
        if swapped:
            self._lhs, self._rhs = self._rhs, self._lhs
            size = self.extents
            self.extents = Extents(size.batch, size.n, size.m, size.k)

    @property
    def rows_along_depth(self) -> bool:
        """Whether neighbours along the depth are neighbours in memory, of rows."""
        return self._lhs.groups[2].stride == 1

    @property
    def columns_along_depth(self) -> bool:
        """The same of the operand that has the columns."""
        return self._rhs.groups[2].stride == 1

    def row_element(
        self, batch: Coordinate, row: Coordinate, depth: Coordinate, behind: int = 0
    ) -> Expression:
        """An element of the operand that has the rows, in the sums' dtype.

        It lies ``behind`` elements further along the depth if `rows_along_depth`, else
        along the rows.
        """
        axis = 2 if self.rows_along_depth else 1
        return self._element(self._lhs, (batch, row, depth), axis, behind)

    def column_element(
        self, batch: Coordinate, depth: Coordinate, column: Coordinate, behind: int = 0
    ) -> Expression:
        """The same of the operand that has the columns."""
        axis = 2 if self.columns_along_depth else 1
        return self._element(self._rhs, (batch, column, depth), axis, behind)

    def add(self, left: Expression, right: Expression, total: Expression) -> Expression:
        """One product more in a sum."""
        if self.dtype.is_float:
            return multiply_add(left, right, total)
        return total + left * right

    def store(
        self,
        batch: Coordinate,
        row: Coordinate,
        column: Coordinate,
        total: Expression,
        behind: int = 0,
    ) -> None:
        """Write the results that follow from a finished sum, so far along the row."""
        self._write([self._results(batch, row, column, total, behind)])

    def store_row(
        self,
        batch: Coordinate,
        row: Coordinate,
        column: Coordinate,
        totals: Sequence[Expression],
    ) -> None:
        """The same for neighbours along a row, all computed before any is written."""
        self._write(
            [
                self._results(batch, row, column, total, behind)
                for behind, total in enumerate(totals)
            ]
        )

    def _results(
        self,
        batch: Coordinate,
        row: Coordinate,
        column: Coordinate,
        total: Expression,
        behind: int,
    ) -> tuple[Expression, list[Expression]]:
        """Where a sum's results lie, and what they are."""
        a, places, size = self.a, self.a.places, self.extents
        if self._swapped:
            row, column = column, row
        m, n = (size.n, size.m) if self._swapped else (size.m, size.n)
        at = places.add(places.multiply(batch, m), row)
        linear = a.k.let(
            None, places.number(places.add(places.multiply(at, n), column))
        )
        if behind:  # added last, so that LLVM sees which ones are neighbours
            linear = a.k.let(None, linear + behind)
        known = a.k.let(None, operations.convert(total, self.entry.result.dtype))
        a.elements.bound[self.entry.result] = lambda _: known
        place = places.at(self.entry.result.shape, linear)
        return linear, [a.elements.value(v, place) for v in a.function.results]

    def _write(self, results: Sequence[tuple[Expression, list[Expression]]]) -> None:
        for index, out in enumerate(self.a.results):
            for linear, values in results:
                out[linear] = values[index]

    def _element(
        self, side: _Side, numbers: tuple[Coordinate, ...], axis: int, behind: int
    ) -> Expression:
        places = self.a.places
        linear: Coordinate | None = 0
        for group, number in zip(side.groups, numbers, strict=True):
            if group.stride is None or linear is None:
                linear = None
            else:
                linear = places.add(linear, places.multiply(number, group.stride))
        if behind and linear is not None:
            step = behind * (side.groups[axis].stride or 0)
            linear = places.add(places.named(linear), step)  # last, as in `_results`
        coordinates: list[Coordinate] = [0] * side.value.rank
        operands = self.a.function.parameters
        if linear is None or side.value not in operands:
            for index, (group, number) in enumerate(
                zip(side.groups, numbers, strict=True)
            ):
                whole = places.add(number, behind) if index == axis else number
                unravelled = places.unravel(whole, group.extents)
                for one, given in zip(group.axes, unravelled, strict=True):
                    coordinates[one] = given
            if linear is not None:
                linear = places.named(linear)
        place = places.coordinate(side.value.shape, coordinates, linear)
        value = self.a.elements.value(side.value, place)
        return operations.convert(value, self.dtype)


_HALVES = (DType.F16, DType.BF16)


def _groups(type: TensorType, *axes: tuple[int, ...]) -> tuple[_Group, _Group, _Group]:
    batch, own, depth = (_Group.of(type, group) for group in axes)
    return batch, own, depth


def _sides(entry: Operation, op: semantic.DotGeneral) -> tuple[_Side, _Side]:
    """The operands of a contraction."""
    lhs, rhs = entry.operands
    lhs_free, rhs_free = op.free_axes(lhs.type, rhs.type)
    return (
        _Side(lhs, _groups(lhs.type, op.lhs_batch, lhs_free, op.lhs_contracting)),
        _Side(rhs, _groups(rhs.type, op.rhs_batch, rhs_free, op.rhs_contracting)),
    )


def matrices_of(function: Function) -> tuple[Matrix | None, Matrix | None]:
    """The operands of a function's contraction as they lie in memory.

    None stands for one that is computed first, or whose neighbours are apart.
    """
    left, right = _sides(*find_product(function))
    return _matrix(function, left), _matrix(function, right)


def _matrix(function: Function, side: _Side) -> Matrix | None:
    apart, own, depth = (group.stride for group in side.groups)
    if side.value not in function.parameters:
        return None
    if apart is None or own is None or depth is None or 1 not in (own, depth):
        return None
    along = depth == 1
    pitch = own if along else depth
    if pitch >= 2**31:
        return None
    return Matrix(function.parameters.index(side.value), apart, pitch, along)


def extents_of(entry: Operation, op: semantic.DotGeneral) -> Extents:
    """Batch, rows, columns and depth of a contraction."""
    lhs, rhs = (value.type for value in entry.operands)
    lhs_free, rhs_free = op.free_axes(lhs, rhs)

    def count(type: TensorType, axes: tuple[int, ...]) -> int:
        total = 1
        for axis in axes:
            total *= type.shape[axis]
        return total

    return Extents(
        batch=count(lhs, op.lhs_batch),
        m=count(lhs, lhs_free),
        n=count(rhs, rhs_free),
        k=count(lhs, op.lhs_contracting),
    )
