"""The scan's kernels for GPUs: the same sums in the same order, to the bit.

What differs from `scan` is how they get there. A GPU needs much in flight, so a block
works on several tiles at once: its threads load one element of each before any of them
is used. And each thread keeps the element that it works on, in a register, so that a
step reads three others from shared memory and not four. `sums_scan`, which has but one
block, gives it as many threads as there may be, and loads the next tiles while it scans
these.

For 2^28 f32 the three kernels take 0.78, 0.49 and 0.53 ms on an H200, where tile by
tile they took 1.29, 2.78 and 0.89.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from accy_async.compiler.form import (
    Expression,
    KernelBuilder,
    VariableHandle,
    constant,
    select,
)
from accy_async.compiler.kernels.library import TILE, LibraryKernel
from accy_async.compiler.kernels.scan import PAD, STEPS, nothing, scan_builder
from accy_async.dtypes import DType

__all__ = ["TILES", "add_base", "block_scan", "sums_scan"]

TILES = 4
"""Tiles that a block works on at a time; 8 were no faster, 2 slower."""

_ROWS = 4
"""Threads of `sums_scan` beside each other, each with tiles of its own, in tiles."""

_STRIDE = PAD + TILE


def block_scan(dtype: DType) -> LibraryKernel:
    """As `scan.block_scan`, launched over ``ceil(n / (TILES * TILE))`` blocks.

    Raises:
        InvalidType: the dtype is not one of `SCAN_DTYPES`.
    """
    k = scan_builder("block_scan", dtype)
    result = k.buffer("result", dtype, "write_only")
    operand = k.buffer("operand", dtype, "read_only")
    block_sums = k.buffer("block_sums", dtype, "write_only")
    base, count = _elements(k)
    tiles = _Tiles(k, dtype, TILES)
    first = k.let("first", k.block_x.cast(DType.U64) * TILES)

    tiles.load(lambda tile: operand.at(tiles.at(base, tile)), count)
    tiles.scan()

    def store(tile: int) -> None:
        result[tiles.at(base, tile)] = tiles.element(tile)

    tiles.each(count, store)
    with k.region(), k.when(tiles.is_last()):
        for tile in range(TILES):
            with k.when(count > tile * TILE):
                block_sums[first + tile] = tiles.element(tile)
    return LibraryKernel(
        "accy.kernel.scan.block_scan",
        k.build(),
        elements_per_block=TILES * TILE,
        tile_buffers=frozenset({"block_sums"}),
    )


def sums_scan(dtype: DType) -> LibraryKernel:
    """As `scan.sums_scan`: one block.

    Raises:
        InvalidType: the dtype is not one of `SCAN_DTYPES`.
    """
    k = scan_builder("sums_scan", dtype, _ROWS * TILE)
    scanned_sums = k.buffer("scanned_sums", dtype, "write_only")
    block_sums = k.buffer("block_sums", dtype, "read_only")
    m = k.scalar("m", DType.U32).cast(DType.I64)
    # What fits the 48 KiB that every block has.
    groups = 2 if dtype.size_bytes == 4 else 1
    at_once = groups * _ROWS
    totals = k.shared("totals", dtype, at_once)
    tiles = _Tiles(k, dtype, groups, _ROWS)
    ahead = [k.thread_variable(f"ahead{group}", dtype) for group in range(groups)]
    carry = k.variable("carry", nothing(dtype))

    def fetch(name: str, start: Expression) -> None:
        """Have each thread's elements of the next tiles on their way."""
        left = k.let(name, m - start.cast(DType.I64))
        tiles.fetch(ahead, lambda group: block_sums.at(tiles.at(start, group)), left)

    zero = constant(DType.U64, 0)
    fetch("all", zero)
    with k.count("base", zero, m.cast(DType.U64), step=at_once * TILE) as base:
        count = k.let("count", m - base.cast(DType.I64))
        with k.region():
            for group, variable in enumerate(ahead):
                tiles.put(group, variable.value)
        with k.when(count > at_once * TILE):
            fetch("left", k.let("after", base + at_once * TILE))
        tiles.scan()
        with k.region(), k.when(tiles.is_last()):
            for group in range(groups):
                totals[tiles.tile(group)] = tiles.element(group)
        carries = [k.let("carry0", carry.value)]
        for tile in range(at_once):
            carries.append(k.let(f"carry{tile + 1}", carries[-1] + totals.at(tile)))

        def store(group: int) -> None:
            mine = carries[group * _ROWS : (group + 1) * _ROWS]
            before = mine[0]
            for row in range(1, _ROWS):
                before = select(tiles.row < row, before, mine[row])
            scanned_sums[tiles.at(base, group)] = before + tiles.element(group)

        tiles.each(count, store)
        carry.set(carries[-1])
    return LibraryKernel("accy.kernel.scan.sums_scan", k.build(), None)


def add_base(dtype: DType) -> LibraryKernel:
    """As `scan.add_base`, launched over ``ceil(n / (TILES * TILE))`` blocks.

    Raises:
        InvalidType: the dtype is not one of `SCAN_DTYPES`.
    """
    k = scan_builder("add_base", dtype)
    result = k.buffer("result", dtype, "read_write")
    scanned_sums = k.buffer("scanned_sums", dtype, "read_only")
    base, count = _elements(k)
    first = k.let("first", k.block_x.cast(DType.U64) * TILES)
    is_whole = k.let("is_whole", count >= TILES * TILE)
    with k.when((k.block_x > 0) & is_whole), k.region():
        places = [_place(k, base, tile) for tile in range(TILES)]
        values = [result[place] for place in places]
        before = [scanned_sums[first + tile - 1] for tile in range(TILES)]
        for tile, place in enumerate(places):
            result[place] = before[tile] + values[tile]
    with k.otherwise():
        for tile in range(TILES):
            with k.when((first + tile > 0) & (count > tile * TILE)):
                one = k.let(f"before{tile}", scanned_sums.at(first + tile - 1))
                with k.region(limit=count - tile * TILE):
                    place = _place(k, base, tile)
                    result[place] = one + result[place]
    return LibraryKernel(
        "accy.kernel.scan.add_base",
        k.build(),
        elements_per_block=TILES * TILE,
        tile_buffers=frozenset({"scanned_sums"}),
    )


class _Tiles:
    """Tiles that are scanned together: in two shared arrays, back and forth.

    The block has ``rows`` times `TILE` threads, and each thread an element in
    ``groups`` tiles: those with its row's number in every group of ``rows`` tiles.
    """

    def __init__(
        self, k: KernelBuilder, dtype: DType, groups: int, rows: int = 1
    ) -> None:
        self._k = k
        self._dtype = dtype
        self._rows = rows
        self._mine = [k.thread_variable(f"mine{i}", dtype) for i in range(groups)]
        self._arrays = [
            k.shared("even", dtype, groups * rows * _STRIDE),
            k.shared("odd", dtype, groups * rows * _STRIDE),
        ]
        with k.region(limit=constant(DType.U32, PAD)):
            for array in self._arrays:
                for tile in range(groups * rows):
                    array[k.thread + tile * _STRIDE] = nothing(dtype)

    @property
    def row(self) -> Expression:
        """The thread's row."""
        return self._k.thread / TILE

    def tile(self, group: int) -> Expression:
        """The number of the thread's tile in a group."""
        return self.row + group * self._rows

    def is_last(self) -> Expression:
        """Whether the thread has the last element of its tiles."""
        return self._k.thread % TILE >= TILE - 1

    def at(self, base: Expression, group: int) -> Expression:
        """Where the thread's element of a group is in a buffer."""
        return base + group * self._rows * TILE + self._k.thread.cast(DType.U64)

    def element(self, group: int) -> Expression:
        """The thread's element of a group."""
        return self._mine[group].value

    def put(self, group: int, value: Expression) -> None:
        """Have the thread's element of a group be this; within a region."""
        self._mine[group].set(value)
        self._arrays[0][self._place(group, 0)] = self.element(group)

    def load(self, element: Callable[[int], Expression], count: Expression) -> None:
        """Load the elements, of which there are ``count``."""
        self.fetch(self._mine, element, count)
        with self._k.region():
            for group in range(len(self._mine)):
                self._arrays[0][self._place(group, 0)] = self.element(group)

    def fetch(
        self,
        into: Sequence[VariableHandle],
        element: Callable[[int], Expression],
        count: Expression,
    ) -> None:
        """Have each thread load its elements, all of them before one is used.

        What there is not counts as the number that changes nothing.
        """
        with self._k.when(count < self._all), self._k.region():
            for variable in into:
                variable.set(nothing(self._dtype))
        self.each(count, lambda group: into[group].set(element(group)))

    def scan(self) -> None:
        """Scan them, so that each thread's element is what becomes of it."""
        even, odd = self._arrays
        for step in STEPS:
            with self._k.region():
                for group, mine in enumerate(self._mine):
                    near, far, farther = (
                        even[self._place(group, n * step)] for n in (1, 2, 3)
                    )
                    mine.set((mine.value + near) + (far + farther))
                    if step != STEPS[-1]:
                        odd[self._place(group, 0)] = mine.value
            even, odd = odd, even

    def each(self, count: Expression, do: Callable[[int], None]) -> None:
        """Do something for each of the thread's elements, where there is one."""
        groups, per_group = len(self._mine), self._rows * TILE
        with self._k.when(count >= self._all), self._k.region():
            for group in range(groups):
                do(group)
        with self._k.otherwise():
            for group in range(groups):
                with self._k.region(limit=count - group * per_group):
                    do(group)

    @property
    def _all(self) -> int:
        return len(self._mine) * self._rows * TILE

    def _place(self, group: int, back: int) -> Expression:
        """Where an element is in shared memory, or one so far before it."""
        fixed = group * self._rows * _STRIDE + PAD - back
        if self._rows == 1:
            return self._k.thread + fixed
        return self._k.thread + self.row * PAD + fixed


def _elements(k: KernelBuilder) -> tuple[Expression, Expression]:
    """Declare ``n``; a block's first element (u64) and how many are left (i64)."""
    n = k.scalar("n", DType.U32)
    base = k.let("base", k.block_x.cast(DType.U64) * (TILES * TILE))
    return base, k.let("count", n.cast(DType.I64) - base.cast(DType.I64))


def _place(k: KernelBuilder, base: Expression, tile: int) -> Expression:
    """Where the thread's element of a tile is in a buffer."""
    return base + tile * TILE + k.thread.cast(DType.U64)
