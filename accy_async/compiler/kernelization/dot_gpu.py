"""Products of matrices on a GPU: tiles of both operands in shared memory.

A block computes a tile of the result, a thread one element of it. It goes along the
depth in steps: its threads copy a tile of each operand into shared memory, meet, and
add the products of these tiles to their sums. Large results have threads that compute
several elements, see `dot_blocked`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import attrs

from accy_async.compiler.form import ArrayHandle, Expression, constant
from accy_async.compiler.kernelization.assembly import Assembly, ceil_div
from accy_async.compiler.kernelization.products import Extents, Product
from accy_async.compiler.kernelization.schedules import Threads2D

__all__ = ["GpuTiling", "block_tiles", "write_gpu_product"]

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
        self.total = a.k.thread_variable("total", dtype)

    def write(self) -> None:
        a, tiling = self.a, self.tiling
        with block_tiles(a, tiling.grid(self.size)) as (x, y, batch):
            row = a.k.let("row", y * tiling.m)
            column = a.k.let("column", x * tiling.n)
            with a.k.region():
                self.total.set(constant(self.product.dtype, 0))
            with a.k.count(
                "begin", a.number(0), a.number(self.size.k), tiling.depth
            ) as begin:
                self._load(batch, row, column, begin)
                self._multiply()
            with a.k.region():
                self._store(batch, row, column)

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
                    self._put(self.left, at, fits, partial(product.row_element, *place))
            for turn, inside in self._turns(tiling.n * tiling.depth):
                with self._where(inside), a.places.scope():
                    depth, x = turn / tiling.n, turn % tiling.n
                    place = (batch, begin + depth, a.k.let(None, column + x))
                    fits = (place[1] < size.k) & (place[2] < size.n)
                    element = partial(product.column_element, *place)
                    self._put(self.right, turn, fits, element)

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
        make: Callable[[], Expression],
    ) -> None:
        with self.a.k.when(fits):
            array[at] = make()
        with self.a.k.otherwise():
            array[at] = constant(self.product.dtype, 0)

    def _multiply(self) -> None:
        a, tiling = self.a, self.tiling
        x, y = a.wide(a.k.thread_x), a.wide(a.k.thread_y)
        with (
            a.k.region(),
            a.k.count("depth", a.number(0), a.number(tiling.depth)) as depth,
        ):
            left = self.left[depth * self.pitch + y]
            right = self.right[depth * tiling.n + x]
            self.total.set(self.product.add(left, right, self.total.value))

    def _store(self, batch: Expression, row: Expression, column: Expression) -> None:
        a, size = self.a, self.size
        at = a.k.let(None, row + a.wide(a.k.thread_y))
        to = a.k.let(None, column + a.wide(a.k.thread_x))
        with a.k.when((at < size.m) & (to < size.n)), a.places.scope():
            self.product.store(batch, at, to, self.total.value)


@contextmanager
def block_tiles(
    a: Assembly, counts: tuple[int, int, int]
) -> Iterator[tuple[Expression, Expression, Expression]]:
    """The tiles of a block: every grid-th along each axis of the grid."""
    nx, ny, nz = counts
    with (
        _tiles(a, "z", nz) as z,
        _tiles(a, "y", ny) as y,
        _tiles(a, "x", nx) as x,
        a.places.scope(),
    ):
        yield x, y, z


@contextmanager
def _tiles(a: Assembly, axis: str, count: int) -> Iterator[Expression]:
    block = a.wide(getattr(a.k, f"block_{axis}"))
    grid = a.wide(getattr(a.k, f"grid_{axis}"))
    rounds = (a.number(count - 1) + grid - block) / grid
    with a.k.count(f"round_{axis}", a.number(0), rounds) as number:
        yield a.k.let(f"tile_{axis}", block + number * grid)
