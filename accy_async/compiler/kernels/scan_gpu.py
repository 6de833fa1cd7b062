"""The scan's kernels for GPUs: the same sums in the same order, to the bit.

What differs from `scan` is how they get there. A GPU needs much in flight, so a block
works on several tiles at once: its threads load a group of each before any of them
is used, 16 bytes of f32. And each thread keeps what it works on in registers, so that a
step reads three others from shared memory and not four. A block of `sums_scan` adds up
by itself what comes before its sums: the order makes trees of that, which are quick,
and so there may be many blocks. It loads the next tiles while it scans these.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from accy_async.compiler.form import (
    ArrayHandle,
    Expression,
    KernelBuilder,
    VariableHandle,
    constant,
    minimum,
    select,
)
from accy_async.compiler.kernels.library import TILE, LibraryKernel
from accy_async.compiler.kernels.scan import (
    GROUP,
    PAD,
    SCAN_TILE,
    STEPS,
    nothing,
    running_sums,
    scan_builder,
)
from accy_async.dtypes import DType

__all__ = ["SHARE", "TILES", "sums_scan", "tile_scan", "tile_sums"]

TILES = 4
"""Tiles that a block works on at a time."""

SHARE = 64
"""Tiles of sums that a block of `sums_scan` scans."""

_ROWS = 4
"""Threads of `sums_scan` beside each other, each with tiles of its own, in tiles."""

_STRIDE = PAD + TILE


def tile_sums(dtype: DType) -> LibraryKernel:
    """As `scan.tile_sums`, launched over ``ceil(n / (TILES * SCAN_TILE))`` blocks.

    Raises:
        InvalidType: the dtype is not one of `SCAN_DTYPES`.
    """
    k = scan_builder("tile_sums", dtype)
    k.takes_neighbours = True
    block_sums = k.buffer("block_sums", dtype, "write_only")
    operand = k.buffer("operand", dtype, "read_only")
    base, count = _elements(k)
    arrays = [k.shared(name, dtype, TILES * TILE) for name in ("even", "odd")]

    def add_up(groups: list[list[Expression]]) -> None:
        for tile, group in enumerate(groups):
            arrays[0][k.thread + tile * TILE] = running_sums(group)[-1]

    _each_group(k, operand, base, count, add_up)
    left = TILES * TILE
    while left > TILES:
        left //= 4
        source, target = arrays
        with k.region(limit=left):
            target[k.thread] = _paired([source[k.thread * 4 + i] for i in range(4)])
        arrays.reverse()
    with k.region(limit=TILES):
        own = k.let("own", k.thread.cast(DType.I64) * SCAN_TILE)
        with k.when(own < count):
            first = k.let("first", k.block_x.cast(DType.U64) * TILES)
            block_sums[first + k.thread.cast(DType.U64)] = arrays[0][k.thread]
    return LibraryKernel(
        "accy.kernel.scan.tile_sums",
        k.build(),
        elements_per_block=TILES * SCAN_TILE,
        tile=SCAN_TILE,
        tile_buffers=frozenset({"block_sums"}),
    )


def sums_scan(dtype: DType) -> LibraryKernel:
    """As `scan.sums_scan`, launched over ``ceil(m / (SHARE * TILE))`` blocks.

    Each block first adds up, in order, all tiles of sums before its own: that is the
    carry that it begins with. ``scanned_sums`` and ``block_sums`` may not be the same.

    Raises:
        InvalidType: the dtype is not one of `SCAN_DTYPES`.
    """
    k = scan_builder("sums_scan", dtype, _ROWS * TILE)
    k.takes_neighbours = True
    scanned_sums = k.buffer("scanned_sums", dtype, "write_only")
    block_sums = k.buffer("block_sums", dtype, "read_only")
    m = k.scalar("m", DType.U32).cast(DType.I64)
    # What fits the 32 KiB that most devices have.
    groups = 2 if dtype.size_bytes == 4 else 1
    at_once = groups * _ROWS
    totals = k.shared("totals", dtype, SHARE)
    arrays = _arrays(k, dtype, at_once)
    first = k.let("first", k.block_x.cast(DType.U64) * (SHARE * TILE))
    end = k.let("end", minimum(first.cast(DType.I64) + SHARE * TILE, m))
    carry = k.variable("carry", _before(k, block_sums, first, arrays[0], totals))
    tiles = _Tiles(k, dtype, groups, _ROWS, arrays=arrays)
    ahead = [k.thread_variable(f"ahead{group}", dtype) for group in range(groups)]

    def fetch(name: str, start: Expression) -> None:
        """Have each thread's elements of the next tiles on their way."""
        left = k.let(name, end - start.cast(DType.I64))
        tiles.fetch(ahead, lambda group: block_sums.at(tiles.at(start, group)), left)

    fetch("all", first)
    with k.count("base", first, end.cast(DType.U64), step=at_once * TILE) as base:
        count = k.let("count", end - base.cast(DType.I64))
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
    return LibraryKernel(
        "accy.kernel.scan.sums_scan", k.build(), elements_per_block=SHARE * TILE
    )


def _before(
    k: KernelBuilder,
    block_sums: ArrayHandle,
    first: Expression,
    parts: ArrayHandle,
    totals: ArrayHandle,
) -> Expression:
    """The running total, in order, of the tiles of sums before a block's first.

    The last element of a scanned tile is what adding neighbours up in pairs gives, so a
    thread adds up some next to each other, and another one those of a tile.
    """
    run = SHARE * TILE // (_ROWS * TILE)
    per_tile = TILE // run
    total = k.thread_variable("total", block_sums.dtype)
    with k.region(limit=1):
        total.set(nothing(block_sums.dtype))
    zero = constant(DType.U64, 0)
    with k.count("earlier", zero, first, step=SHARE * TILE) as start:
        with k.region():
            at = k.let(None, start + k.thread.cast(DType.U64) * run)
            own = _paired([block_sums[at + i] for i in range(run)])
            # One is left out after each tile's, for the banks of shared memory.
            parts[k.thread + k.thread / per_tile] = own
        with k.region(limit=SHARE):
            at = k.let(None, k.thread * (per_tile + 1))
            totals[k.thread] = _paired([parts[at + i] for i in range(per_tile)])
        with k.region(limit=1):
            for tile in range(SHARE):
                total.set(total.value + totals[tile])
    with k.region(limit=1):
        totals[0] = total.value
    return k.let("before", totals.at(0))


def _paired(values: list[Expression]) -> Expression:
    """A power of two of values added up: neighbours, then neighbouring sums."""
    while len(values) > 1:
        values = [
            left + right for left, right in zip(values[::2], values[1::2], strict=True)
        ]
    return values[0]


def _arrays(k: KernelBuilder, dtype: DType, tiles: int) -> list[ArrayHandle]:
    """The two shared arrays that tiles are scanned in."""
    return [k.shared(name, dtype, tiles * _STRIDE) for name in ("even", "odd")]


def tile_scan(dtype: DType) -> LibraryKernel:
    """As `scan.tile_scan`, launched over ``ceil(n / (TILES * SCAN_TILE))`` blocks.

    Raises:
        InvalidType: the dtype is not one of `SCAN_DTYPES`.
    """
    k = scan_builder("tile_scan", dtype)
    k.takes_neighbours = True
    result = k.buffer("result", dtype, "write_only")
    operand = k.buffer("operand", dtype, "read_only")
    scanned_sums = k.buffer("scanned_sums", dtype, "read_only")
    base, count = _elements(k)
    first = k.let("first", k.block_x.cast(DType.U64) * TILES)
    bases = [k.variable(f"base{tile}", nothing(dtype)) for tile in range(TILES)]
    for tile, variable in enumerate(bases):
        with k.when((first + tile > 0) & (count > tile * SCAN_TILE)):
            variable.set(scanned_sums.at(first + tile - 1))
    own = [
        [k.thread_variable(f"own{tile}_{i}", dtype) for i in range(GROUP)]
        for tile in range(TILES)
    ]
    tiles = _Tiles(k, dtype, TILES)

    def add_up(groups: list[list[Expression]]) -> None:
        for tile, group in enumerate(groups):
            for variable, value in zip(own[tile], running_sums(group), strict=True):
                variable.set(value)
            tiles.put(tile, own[tile][-1].value)

    _each_group(k, operand, base, count, add_up)
    tiles.scan(back=1)
    with k.region():
        for tile, variable in enumerate(bases):
            tiles.set(tile, variable.value + tiles.element(tile))
    with k.when(count >= TILES * SCAN_TILE), k.region():
        at = k.let("at", base + k.thread.cast(DType.U64) * GROUP)
        for tile, group in enumerate(own):
            for i, variable in enumerate(group):
                value = tiles.element(tile) + variable.value
                result[at + (tile * SCAN_TILE + i)] = value
    with k.otherwise(), k.region():
        here = k.let("here", k.thread.cast(DType.U64) * GROUP)
        for tile, group in enumerate(own):
            for i, variable in enumerate(group):
                place = k.let(None, here + (tile * SCAN_TILE + i))
                with k.when(place.cast(DType.I64) < count):
                    result[base + place] = tiles.element(tile) + variable.value
    return LibraryKernel(
        "accy.kernel.scan.tile_scan",
        k.build(),
        elements_per_block=TILES * SCAN_TILE,
        tile=SCAN_TILE,
        tile_buffers=frozenset({"scanned_sums"}),
    )


def _each_group(
    k: KernelBuilder,
    operand: ArrayHandle,
    base: Expression,
    count: Expression,
    do: Callable[[list[list[Expression]]], None],
) -> None:
    """Have each thread do something with its groups, one of each tile.

    All are loaded before any is used; those at the end are filled up.
    """
    with k.when(count >= TILES * SCAN_TILE), k.region():
        at = k.let("from", base + k.thread.cast(DType.U64) * GROUP)
        starts = [tile * SCAN_TILE for tile in range(TILES)]
        do([[operand[at + (start + i)] for i in range(GROUP)] for start in starts])
    with k.otherwise(), k.region():
        own = k.let("mine", k.thread.cast(DType.U64) * GROUP)
        groups = []
        for tile in range(TILES):
            group = [
                k.variable(f"x{tile}_{i}", nothing(operand.dtype)) for i in range(GROUP)
            ]
            for i, variable in enumerate(group):
                place = k.let(None, own + (tile * SCAN_TILE + i))
                with k.when(place.cast(DType.I64) < count):
                    variable.set(operand[base + place])
            groups.append([variable.value for variable in group])
        do(groups)


class _Tiles:
    """Tiles that are scanned together: in two shared arrays, back and forth.

    The block has ``rows`` times `TILE` threads, and each thread an element in
    ``groups`` tiles: those with its row's number in every group of ``rows`` tiles.
    """

    def __init__(
        self,
        k: KernelBuilder,
        dtype: DType,
        groups: int,
        rows: int = 1,
        *,
        arrays: Sequence[ArrayHandle] = (),
    ) -> None:
        self._k = k
        self._dtype = dtype
        self._rows = rows
        self._mine = [k.thread_variable(f"mine{i}", dtype) for i in range(groups)]
        self._arrays = arrays or _arrays(k, dtype, groups * rows)
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
        self.set(group, value)
        self._arrays[0][self._place(group, 0)] = self.element(group)

    def set(self, group: int, value: Expression) -> None:
        """The same once the tiles are scanned."""
        self._mine[group].set(value)

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

    def scan(self, *, back: int = 0) -> None:
        """Scan them, so that each thread's element is what becomes of it.

        Or of the one so far before it: the first step looks there.
        """
        even, odd = self._arrays
        for step in STEPS:
            with self._k.region():
                for group, mine in enumerate(self._mine):
                    own = even[self._place(group, back)] if back else mine.value
                    near, far, farther = (
                        even[self._place(group, back + n * step)] for n in (1, 2, 3)
                    )
                    mine.set((own + near) + (far + farther))
                    if step != STEPS[-1]:
                        odd[self._place(group, 0)] = mine.value
            even, odd, back = odd, even, 0

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
    base = k.let("base", k.block_x.cast(DType.U64) * (TILES * SCAN_TILE))
    return base, k.let("count", n.cast(DType.I64) - base.cast(DType.I64))
