"""Products of matrices on a CPU: a strip of lanes, a few rows at a time.

A block's threads are the lanes of vectors: neighbouring columns. It copies their
columns, a stretch of the depth at a time, into block-shared memory, where they lie one
after another in the first-level cache, and goes through its rows in groups of a few,
whose sums stay in registers: each element loaded is used for as many products.

Source: K. Goto, R. van de Geijn, "Anatomy of High-Performance Matrix Multiplication",
ACM TOMS 34(3), 2008.
"""

from __future__ import annotations

import attrs

from accy_async.compiler.form import (
    ArrayHandle,
    Expression,
    VariableHandle,
    constant,
    minimum,
)
from accy_async.compiler.kernelization.assembly import Assembly, ceil_div
from accy_async.compiler.kernelization.products import Extents, Product
from accy_async.dtypes import DType

__all__ = ["CpuTiling", "cpu_tiling", "write_cpu_product"]

_SHARED_BYTES = 32 * 1024
"""For the columns of a stretch: the first-level cache of most cores."""
_GROUP = 6
"""Rows at a time: with two vectors of lanes 12 of a core's 16 vector registers."""
_ROWS = 96
"""Rows of a block, a multiple of the group."""


@attrs.frozen
class CpuTiling:
    """The part of a product that a block computes."""

    lanes: int
    rows: int
    stretch: int

    def panels(self, extents: Extents) -> int:
        """Blocks along the columns."""
        return ceil_div(extents.n, self.lanes)

    def chunks(self, extents: Extents) -> int:
        """Blocks along the rows."""
        return ceil_div(extents.m, self.rows)


def cpu_tiling(extents: Extents, dtype: DType) -> CpuTiling:
    """The tiling of a product whose sums are of the dtype."""
    lanes = 64 // dtype.size_bytes
    stretch = _SHARED_BYTES // (lanes * dtype.size_bytes)
    return CpuTiling(
        lanes=min(lanes, 16),
        rows=min(_ROWS, ceil_div(max(extents.m, 1), _GROUP) * _GROUP),
        stretch=max(1, min(stretch, extents.k)),
    )


def write_cpu_product(a: Assembly, product: Product, tiling: CpuTiling) -> None:
    """The kernel's body."""
    _Writer(a, product, tiling).write()


class _Writer:
    def __init__(self, a: Assembly, product: Product, tiling: CpuTiling) -> None:
        self.a, self.product, self.tiling = a, product, tiling
        self.size = product.extents
        self.columns = a.k.shared(
            "columns", product.dtype, tiling.stretch * tiling.lanes
        )
        self.in_stretches = self.size.k > tiling.stretch
        self.sums: ArrayHandle | None = None
        if self.in_stretches:
            self.sums = a.k.shared("sums", product.dtype, tiling.rows * tiling.lanes)
        self.accumulators = [
            a.k.thread_variable(f"acc{i}", product.dtype)
            for i in range(min(_GROUP, self.size.m))
        ]

    def write(self) -> None:
        a, size, tiling = self.a, self.size, self.tiling
        panels, chunks = tiling.panels(size), tiling.chunks(size)
        column = a.k.let("column", a.block % panels * tiling.lanes)
        rest = a.k.let("rest", a.block / panels)
        first = a.k.let("first", rest % chunks * tiling.rows)
        batch = a.k.let("batch", rest / chunks)
        last = a.k.let("last", minimum(first + tiling.rows, size.m))
        if not self.in_stretches:
            self._stretch(
                batch, first, last, column, a.number(0), a.number(self.size.k)
            )
            return
        with a.k.count("begin", a.number(0), a.number(size.k), tiling.stretch) as begin:
            end = a.k.let("end", minimum(begin + tiling.stretch, size.k))
            self._stretch(batch, first, last, column, begin, end)

    def _stretch(
        self,
        batch: Expression,
        first: Expression,
        last: Expression,
        column: Expression,
        begin: Expression,
        end: Expression,
    ) -> None:
        a = self.a
        self._pack(batch, column, begin, end)
        whole = a.k.let(None, first + (last - first) / _GROUP * _GROUP)
        where = batch, column, begin, end
        if self.size.m >= _GROUP:
            with (
                a.k.count(a.fresh("row"), first, whole, _GROUP) as row,
                a.places.scope(),
            ):
                self._group(row, row - first, _GROUP, *where)
        if self.size.m % _GROUP:
            with a.k.when(whole < last), a.places.scope():
                self._group(whole, whole - first, self.size.m % _GROUP, *where)

    def _pack(
        self,
        batch: Expression,
        column: Expression,
        begin: Expression,
        end: Expression,
    ) -> None:
        """Copy the columns of a stretch; those beyond the last are 0."""
        a, lanes = self.a, self.tiling.lanes
        with a.k.count(a.fresh("depth"), begin, end) as depth:
            at = a.k.let(None, (depth - begin) * lanes)
            left = a.left(a.number(self.size.n), column)
            with a.k.when(left >= lanes), a.k.region(), a.places.scope():
                value = self.product.column_element(batch, depth, column + a.thread)
                self.columns[at + a.thread] = value
            with a.k.otherwise():
                with a.k.region():
                    self.columns[at + a.thread] = constant(self.product.dtype, 0)
                with a.k.region(limit=left), a.places.scope():
                    value = self.product.column_element(batch, depth, column + a.thread)
                    self.columns[at + a.thread] = value

    def _group(
        self,
        row: Expression,
        local: Expression,
        count: int,
        batch: Expression,
        column: Expression,
        begin: Expression,
        end: Expression,
    ) -> None:
        """The sums of a few rows over a stretch."""
        a, lanes = self.a, self.tiling.lanes
        accumulators = self.accumulators[:count]
        self._begin(accumulators, local, begin)
        with a.k.count(a.fresh("depth"), begin, end) as depth, a.places.scope():
            elements = [
                a.k.let(None, self.product.row_element(batch, row + i, depth))
                for i in range(count)
            ]
            with a.k.region():
                at = (depth - begin) * lanes + a.thread
                shared = self.columns[at]
                for element, total in zip(elements, accumulators, strict=True):
                    total.set(self.product.add(element, shared, total.value))
        left = a.left(a.number(self.size.n), column)
        if self.sums is None:
            self._finish(accumulators, batch, row, column, left)
            return
        with a.k.when(end.equals(self.size.k)):
            self._finish(accumulators, batch, row, column, left)
        with a.k.otherwise(), a.k.region():
            for i, total in enumerate(accumulators):
                self.sums[(local + i) * lanes + a.thread] = total.value

    def _begin(
        self, accumulators: list[VariableHandle], local: Expression, begin: Expression
    ) -> None:
        a, lanes = self.a, self.tiling.lanes
        zero = constant(self.product.dtype, 0)
        if self.sums is None:
            with a.k.region():
                for total in accumulators:
                    total.set(zero)
            return
        with a.k.when(begin.equals(0)), a.k.region():
            for total in accumulators:
                total.set(zero)
        with a.k.otherwise(), a.k.region():
            for i, total in enumerate(accumulators):
                total.set(self.sums[(local + i) * lanes + a.thread])

    def _finish(
        self,
        accumulators: list[VariableHandle],
        batch: Expression,
        row: Expression,
        column: Expression,
        left: Expression,
    ) -> None:
        a = self.a
        with a.k.region(limit=left):
            for i, total in enumerate(accumulators):
                with a.places.scope():
                    at = a.k.let(None, column + a.thread)
                    self.product.store(batch, row + i, at, total.value)
