"""Products of matrices on a GPU: tiles of both operands in shared memory.

A block computes a tile of the result. It goes along the depth in steps: its threads
copy a tile of each operand into shared memory, meet, and add the products of these
tiles to their sums, which stay in registers. In large results each thread computes
several rows and columns, in groups of four neighbours, so that what it loads from
shared memory is used that often and loads of four go together.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import attrs

from accy_async.compiler.form import ArrayHandle, Expression, constant
from accy_async.compiler.kernelization.assembly import Assembly, ceil_div
from accy_async.compiler.kernelization.places import Coordinate
from accy_async.compiler.kernelization.products import Extents, Product
from accy_async.compiler.kernelization.schedules import Threads2D

__all__ = ["GpuTiling", "write_gpu_product"]

_NEIGHBOURS = 4
_PADDING = 4
"""Elements between the columns of the left tile, which threads write across banks."""


@attrs.frozen
class GpuTiling:
    """The part of a product that a block computes.

    Attributes:
        threads: of a block, along columns and rows.
        rows, columns: that each thread computes: 1, or a multiple of four.
        depth: of the tiles in shared memory.
    """

    threads: Threads2D
    rows: int = 1
    columns: int = 1
    depth: int = 16

    @property
    def m(self) -> int:
        """Rows of the tile."""
        return self.threads.y * self.rows

    @property
    def n(self) -> int:
        """Columns of the tile."""
        return self.threads.x * self.columns

    def grid(self, extents: Extents) -> tuple[int, int, int]:
        """Tiles along columns and rows, and products."""
        return ceil_div(extents.n, self.n), ceil_div(extents.m, self.m), extents.batch


def write_gpu_product(a: Assembly, product: Product, tiling: GpuTiling) -> None:
    """The kernel's body."""
    _Writer(a, product, tiling).write()


class _Writer:
    def __init__(self, a: Assembly, product: Product, tiling: GpuTiling) -> None:
        self.a, self.product, self.tiling = a, product, tiling
        self.size = product.extents
        dtype = product.dtype
        self.pitch = tiling.m + _PADDING
        self.left = a.k.shared("left", dtype, tiling.depth * self.pitch)
        self.right = a.k.shared("right", dtype, tiling.depth * tiling.n)
        self.sums = [
            [a.k.thread_variable(f"sum{i}_{j}", dtype) for j in range(tiling.columns)]
            for i in range(tiling.rows)
        ]

    def write(self) -> None:
        a, tiling = self.a, self.tiling
        nx, ny, nz = tiling.grid(self.size)
        with (
            self._tiles("z", nz) as batch,
            self._tiles("y", ny) as y,
            self._tiles("x", nx) as x,
            a.places.scope(),
        ):
            row = a.k.let("row", y * tiling.m)
            column = a.k.let("column", x * tiling.n)
            with a.k.region():
                for sums in self.sums:
                    for total in sums:
                        total.set(constant(self.product.dtype, 0))
            with a.k.count(
                "begin", a.number(0), a.number(self.size.k), tiling.depth
            ) as begin:
                self._load(batch, row, column, begin)
                self._multiply()
            with a.k.region():
                self._store(batch, row, column)

    @contextmanager
    def _tiles(self, axis: str, count: int) -> Iterator[Expression]:
        """The tiles of this block along one axis of the grid: every grid-th."""
        a = self.a
        block = a.wide(getattr(a.k, f"block_{axis}"))
        grid = a.wide(getattr(a.k, f"grid_{axis}"))
        rounds = (a.number(count - 1) + grid - block) / grid
        with a.k.count(f"round_{axis}", a.number(0), rounds) as number:
            yield a.k.let(f"tile_{axis}", block + number * grid)

    def _load(
        self, batch: Expression, row: Expression, column: Expression, begin: Expression
    ) -> None:
        """Copy a tile of each operand; what lies outside is 0."""
        a, tiling, product, size = self.a, self.tiling, self.product, self.size
        with a.k.region():
            for turn, inside in self._turns(tiling.m * tiling.depth):
                with self._where(inside), a.places.scope():
                    y, depth = turn / tiling.depth, turn % tiling.depth
                    at = a.k.let(None, depth * self.pitch + y)
                    place = (batch, a.k.let(None, row + y), begin + depth)
                    fits = (place[1] < size.m) & (place[2] < size.k)
                    self._put(
                        self.left, at, fits, lambda p=place: product.row_element(*p)
                    )
            for turn, inside in self._turns(tiling.n * tiling.depth):
                with self._where(inside), a.places.scope():
                    depth, x = turn / tiling.n, turn % tiling.n
                    place = (batch, begin + depth, a.k.let(None, column + x))
                    fits = (place[1] < size.k) & (place[2] < size.n)
                    self._put(
                        self.right,
                        turn,
                        fits,
                        lambda p=place: product.column_element(*p),
                    )

    def _turns(self, elements: int) -> Iterator[tuple[Expression, Expression | None]]:
        """A thread's elements of a tile, and whether there are so many."""
        a, threads = self.a, self.a.threads
        for first in range(0, elements, threads):
            turn = a.k.let(None, a.thread + first)
            yield turn, (turn < elements if first + threads > elements else None)

    @contextmanager
    def _where(self, inside: Expression | None) -> Iterator[None]:
        if inside is None:
            yield
            return
        with self.a.k.when(inside):
            yield

    def _put(
        self,
        array: ArrayHandle,
        at: Expression,
        fits: Expression,
        make: object,
    ) -> None:
        assert callable(make)
        with self.a.k.when(fits):
            array[at] = make()
        with self.a.k.otherwise():
            array[at] = constant(self.product.dtype, 0)

    def _multiply(self) -> None:
        a, tiling = self.a, self.tiling
        x, y = a.wide(a.k.thread_x), a.wide(a.k.thread_y)
        with a.k.region():
            rows = [
                a.k.let(None, place)
                for place in self._own(y, tiling.threads.y, tiling.rows)
            ]
            columns = [
                a.k.let(None, place)
                for place in self._own(x, tiling.threads.x, tiling.columns)
            ]
            with a.k.count("depth", a.number(0), a.number(tiling.depth)) as depth:
                lefts = [self.left[depth * self.pitch + i] for i in rows]
                rights = [self.right[depth * tiling.n + j] for j in columns]
                for left, sums in zip(lefts, self.sums, strict=True):
                    for right, total in zip(rights, sums, strict=True):
                        total.set(self.product.add(left, right, total.value))

    def _own(self, thread: Expression, threads: int, count: int) -> list[Expression]:
        """The rows or columns of a tile that a thread computes."""
        if count == 1:
            return [thread]
        return [
            thread * _NEIGHBOURS + (group * threads * _NEIGHBOURS + i)
            for group in range(count // _NEIGHBOURS)
            for i in range(_NEIGHBOURS)
        ]

    def _store(self, batch: Expression, row: Expression, column: Expression) -> None:
        a, tiling, size = self.a, self.tiling, self.size
        x, y = a.wide(a.k.thread_x), a.wide(a.k.thread_y)
        columns = [
            a.k.let(None, column + j)
            for j in self._own(x, tiling.threads.x, tiling.columns)
        ]
        for i, sums in zip(
            self._own(y, tiling.threads.y, tiling.rows), self.sums, strict=True
        ):
            at: Coordinate = a.k.let(None, row + i)
            with a.k.when(a.places.number(at) < size.m):
                for j, total in zip(columns, sums, strict=True):
                    with a.k.when(j < size.n), a.places.scope():
                        self.product.store(batch, at, j, total.value)
