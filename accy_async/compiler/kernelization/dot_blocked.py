"""Large products on a GPU: several rows and columns a thread, tiles fetched ahead.

A block goes along the depth in steps, with a tile of each operand in shared memory. A
thread's sums stay in registers, for rows and columns in groups of four neighbours, so
that what it loads from shared memory is used that often, and four loads are one. On
devices with registers to spare it fetches its part of the next tiles before it
multiplies the ones that are there: the memory answers meanwhile.

Four elements of an operand that lie next to each other are fetched together: along the
depth, or along the rows or columns, whichever way the operand lies in memory.

Source: CUTLASS, "Efficient GEMM in CUDA" (the hierarchy of tiles).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import attrs

from accy_async.artifact.formats import BackendKind
from accy_async.compiler.form import (
    ArrayHandle,
    Expression,
    VariableHandle,
    constant,
)
from accy_async.compiler.kernelization.assembly import Assembly
from accy_async.compiler.kernelization.dot_gpu import GpuTiling, block_tiles
from accy_async.compiler.kernelization.products import Product

__all__ = ["write_blocked_product"]

_NEIGHBOURS = 4
"""Elements that one access has."""
_PADDING = 4
"""Elements between columns that threads write across banks."""
_UNROLLED = 2
"""Steps along the depth that are written out: with more, ptxas wants so many registers
that a multiprocessor has one block of the largest tiles at a time, not two."""

Fetch = Callable[[Expression, Expression, Expression, int], Expression]
"""An operand's element by its product, its row or column, its depth, and how far behind
that along the depth, or along the rows or columns."""


def write_blocked_product(a: Assembly, product: Product, tiling: GpuTiling) -> None:
    """The kernel's body."""
    _Writer(a, product, tiling).write()


@attrs.frozen
class _Tile:
    """One operand's tile in shared memory, ``[depth][row or column]``.

    Attributes:
        array: the shared memory.
        extent: rows or columns of the tile.
        pitch: from one depth to the next.
        whole: rows or columns of the operand.
        along_depth: whether elements at neighbouring depths are neighbours.
        fetch: an element of the operand.
    """

    array: ArrayHandle
    extent: int
    pitch: int
    whole: int
    along_depth: bool
    fetch: Fetch


class _Writer:
    def __init__(self, a: Assembly, product: Product, tiling: GpuTiling) -> None:
        self.a, self.product, self.tiling = a, product, tiling
        self.size = product.extents
        self.fetches_ahead = a.profile.backend is BackendKind.CUDA
        a.k.takes_neighbours = True
        self.left = self._tile(
            "left", tiling.m, self.size.m, product.rows_along_depth, self._row
        )
        self.right = self._tile(
            "right", tiling.n, self.size.n, product.columns_along_depth, self._column
        )
        dtype = product.dtype
        self.sums = [
            [a.k.thread_variable(f"sum{i}_{j}", dtype) for j in range(tiling.columns)]
            for i in range(tiling.rows)
        ]
        self.ahead: list[VariableHandle] = []
        if self.fetches_ahead:
            count = (tiling.m + tiling.n) * tiling.depth // a.threads
            self.ahead = [a.k.thread_variable(f"ahead{i}", dtype) for i in range(count)]

    def _tile(
        self,
        name: str,
        extent: int,
        whole: int,
        along_depth: bool,
        fetch: Fetch,
    ) -> _Tile:
        pitch = extent + (_PADDING if along_depth else 0)
        array = self.a.k.shared(name, self.product.dtype, self.tiling.depth * pitch)
        return _Tile(array, extent, pitch, whole, along_depth, fetch)

    def _row(
        self, batch: Expression, row: Expression, depth: Expression, behind: int
    ) -> Expression:
        return self.product.row_element(batch, row, depth, behind)

    def _column(
        self, batch: Expression, column: Expression, depth: Expression, behind: int
    ) -> Expression:
        return self.product.column_element(batch, depth, column, behind)

    def write(self) -> None:
        a, tiling, depth = self.a, self.tiling, self.tiling.depth
        with block_tiles(a, tiling.grid(self.size)) as (x, y, batch):
            row = a.k.let("row", y * tiling.m)
            column = a.k.let("column", x * tiling.n)
            with a.k.region():
                for sums in self.sums:
                    for total in sums:
                        total.set(constant(self.product.dtype, 0))
                if self.fetches_ahead and self.size.k:
                    self._fetch(batch, row, column, a.number(0))
            with a.k.count("begin", a.number(0), a.number(self.size.k), depth) as begin:
                with a.k.region(), a.places.scope():
                    if not self.fetches_ahead:
                        self._fetch(batch, row, column, begin)
                    else:
                        self._put_all()
                with a.k.region():
                    if self.fetches_ahead and self.size.k > depth:
                        following = a.k.let(None, begin + depth)
                        with a.k.when(following < self.size.k):
                            self._fetch(batch, row, column, following)
                    self._multiply()
            with a.k.region():
                self._store(batch, row, column)

    # Tiles: a thread's groups of four elements of each.

    def _fetch(
        self, batch: Expression, row: Expression, column: Expression, begin: Expression
    ) -> None:
        """Take the elements of both tiles, ahead or into shared memory."""
        a, number = self.a, 0
        for tile, first in ((self.left, row), (self.right, column)):
            for group in range(self._groups(tile)):
                with a.places.scope():
                    outer, depth = self._places(tile, group)
                    at = a.k.let(None, first + outer)
                    where = a.k.let(None, begin + depth)
                    number = self._fetch_group(tile, batch, at, where, number, group)

    def _fetch_group(
        self,
        tile: _Tile,
        batch: Expression,
        at: Expression,
        where: Expression,
        number: int,
        group: int,
    ) -> int:
        """Four elements; those outside the operand are 0."""
        a, zero = self.a, constant(self.product.dtype, 0)
        targets = self.ahead[number : number + _NEIGHBOURS]
        shared = [] if self.fetches_ahead else self._shared_places(tile, group)

        def put(index: int, value: Expression) -> None:
            if self.fetches_ahead:
                targets[index].set(value)
            else:
                tile.array[shared[index]] = value

        moving = self.size.k if tile.along_depth else tile.whole
        if moving % _NEIGHBOURS == 0:
            with self._inside(tile, at, where, 0) as is_all:
                values = [
                    a.k.let(None, tile.fetch(batch, at, where, i))
                    for i in range(_NEIGHBOURS)
                ]
                for index, value in enumerate(values):
                    put(index, value)
            if not is_all:
                with a.k.otherwise():
                    for index in range(_NEIGHBOURS):
                        put(index, zero)
            return number + _NEIGHBOURS
        for index in range(_NEIGHBOURS):
            with self._inside(tile, at, where, index) as is_all, a.places.scope():
                put(index, tile.fetch(batch, at, where, index))
            if not is_all:
                with a.k.otherwise():
                    put(index, zero)
        return number + _NEIGHBOURS

    @contextmanager
    def _inside(
        self, tile: _Tile, at: Expression, where: Expression, behind: int
    ) -> Iterator[bool]:
        """Where an element is one of the operand's; True if all of them are."""
        depth_behind, at_behind = (behind, 0) if tile.along_depth else (0, behind)
        tests = []
        if tile.whole % tile.extent:
            tests.append(at + at_behind < tile.whole)
        if self.size.k % self.tiling.depth:
            tests.append(where + depth_behind < self.size.k)
        if not tests:
            yield True
            return
        test = tests[0] if len(tests) == 1 else tests[0] & tests[1]
        with self.a.k.when(test):
            yield False

    def _put_all(self) -> None:
        """Move what was fetched ahead into shared memory."""
        number = 0
        for tile in (self.left, self.right):
            for group in range(self._groups(tile)):
                for place in self._shared_places(tile, group):
                    tile.array[place] = self.ahead[number].value
                    number += 1

    def _groups(self, tile: _Tile) -> int:
        """Groups of four that each thread has of a tile."""
        return tile.extent * self.tiling.depth // (self.a.threads * _NEIGHBOURS)

    def _places(self, tile: _Tile, group: int) -> tuple[Expression, Expression]:
        """The first element of a thread's group: its row or column, and its depth."""
        a = self.a
        number = a.k.let(None, a.thread + group * a.threads)
        across = self.tiling.depth if tile.along_depth else tile.extent
        each = across // _NEIGHBOURS
        major = a.k.let(None, number / each)
        minor = a.k.let(None, number % each * _NEIGHBOURS)
        return (major, minor) if tile.along_depth else (minor, major)

    def _shared_places(self, tile: _Tile, group: int) -> list[Expression]:
        """Where a group's elements lie in shared memory."""
        outer, depth = self._places(tile, group)
        first = self.a.k.let(None, depth * tile.pitch + outer)
        step = tile.pitch if tile.along_depth else 1
        return [first + i * step if i else first for i in range(_NEIGHBOURS)]

    # The products.

    def _multiply(self) -> None:
        a, tiling = self.a, self.tiling
        rows = self._own(a.wide(a.k.thread_y), tiling.threads.y, tiling.rows)
        columns = self._own(a.wide(a.k.thread_x), tiling.threads.x, tiling.columns)
        rows, columns = ([a.k.let(None, p) for p in own] for own in (rows, columns))
        with a.k.count(
            "depth", a.number(0), a.number(tiling.depth), _UNROLLED
        ) as depth:
            for step in range(_UNROLLED):
                at = a.k.let(None, depth + step) if step else depth
                lefts = [self.left.array[at * self.left.pitch + i] for i in rows]
                rights = [self.right.array[at * self.right.pitch + j] for j in columns]
                for left, sums in zip(lefts, self.sums, strict=True):
                    for right, total in zip(rights, sums, strict=True):
                        total.set(self.product.add(left, right, total.value))

    def _own(self, thread: Expression, threads: int, count: int) -> list[Expression]:
        """The rows or columns of a tile that a thread computes."""
        return [
            thread * _NEIGHBOURS + (group * threads * _NEIGHBOURS + i)
            for group in range(count // _NEIGHBOURS)
            for i in range(_NEIGHBOURS)
        ]

    def _store(self, batch: Expression, row: Expression, column: Expression) -> None:
        a, tiling, size = self.a, self.tiling, self.size
        first = a.k.let(None, column + a.wide(a.k.thread_x) * _NEIGHBOURS)
        rows = self._own(a.wide(a.k.thread_y), tiling.threads.y, tiling.rows)
        whole_rows, whole_columns = size.m % tiling.m == 0, size.n % tiling.n == 0
        groups = range(0, tiling.columns, _NEIGHBOURS)
        for i, sums in zip(rows, self.sums, strict=True):
            at = a.k.let(None, row + i)
            with self._when(None if whole_rows else at < size.m), a.places.scope():
                for group in groups:
                    begin = first + group * tiling.threads.x if group else first
                    begin = a.k.let(None, begin)
                    mine = sums[group : group + _NEIGHBOURS]
                    if whole_columns:
                        totals = [total.value for total in mine]
                        self.product.store_row(batch, at, begin, totals)
                        continue
                    for j, total in enumerate(mine):
                        with a.k.when(begin + j < size.n), a.places.scope():
                            self.product.store(batch, at, begin, total.value, j)

    @contextmanager
    def _when(self, test: Expression | None) -> Iterator[None]:
        if test is None:
            yield
            return
        with self.a.k.when(test):
            yield
