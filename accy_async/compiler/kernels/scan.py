"""The inclusive scan of any length up to 2**32 - 1, in three kernels.

`tile_sums` adds up each tile of `SCAN_TILE` elements; `sums_scan` scans the tiles'
sums; `tile_scan` scans each tile onto the scanned sum of all tiles before it. So the
elements are read twice, and the results written once.

The order of summation is part of the contract. A tile has `TILE` *groups* of four
elements. Within a group sums run from left to right: ``y[0] = x[0]``, ``y[i] = y[i-1] +
x[i]``. The groups' last, ``s[t]``, are scanned in the order of Hillis and Steele: for d
= 1, 2, 4, ... below `TILE`, all at once,

    s[t] = s[t] + s[t - d]  where t >= d, else s[t]

(the kernels take two such steps at a time, which makes the same sums). The last of
them is the tile's sum; each group's results are ``(base + s[t - 1]) + y[i]``, where
``base`` is the scanned sum of the tiles before.

The sums are scanned in tiles of `TILE` sums, each by Hillis and Steele's steps, and
each such tile then gets the *carry*, ``carry + s[t]``: the running total, in order, of
the last elements of all sums' tiles before. What a tile lacks at the end, what comes
before a tile's first group, and the first tile's base count as the number that changes
nothing: 0, or -0.0 for floats. `reference_scan` gives the same bits on the host.

Source: W. D. Hillis and G. L. Steele, "Data parallel algorithms", CACM 29(12),
1986.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from accy_async.compiler.form import (
    ArrayHandle,
    Expression,
    KernelBuilder,
    constant,
)
from accy_async.compiler.kernels.library import TILE, LibraryKernel
from accy_async.dtypes import DType
from accy_async.errors import InvalidType, InvalidValue

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = [
    "GROUP",
    "MAX_SCAN_LENGTH",
    "PAD",
    "SCAN_DTYPES",
    "SCAN_TILE",
    "STEPS",
    "nothing",
    "reference_scan",
    "reference_sums_scan",
    "running_sums",
    "scan_additions",
    "scan_builder",
    "sums_scan",
    "tile_scan",
    "tile_sums",
]

MAX_SCAN_LENGTH = 2**31
"""The longest array a scan takes, in elements."""

SCAN_DTYPES = (DType.F32, DType.F64, DType.I32, DType.I64, DType.U32, DType.U64)

GROUP = 4
"""Elements that are added up one after another; a thread's."""

SCAN_TILE = GROUP * TILE
"""Elements of a tile: a group for each of a block's threads."""

STEPS = (1, 4, 16, 64)
"""Hillis and Steele's steps, every other one: the kernels take two at a time."""

PAD = 3 * STEPS[-1]
"""Elements before each tile in shared memory, which change nothing."""

_PAD = PAD + STEPS[-1]
"""As many, where a step is seen from one element further; whole vectors, on CPUs."""


def tile_sums(dtype: DType) -> LibraryKernel:
    """Add up each tile: ``(block_sums, operand; n: u32)``.

    ``block_sums`` has ``ceil(n / SCAN_TILE)`` elements, one for each block.

    Raises:
        InvalidType: the dtype is not one of `SCAN_DTYPES`.
    """
    k = scan_builder("tile_sums", dtype)
    block_sums = k.buffer("block_sums", dtype, "write_only")
    operand = k.buffer("operand", dtype, "read_only")
    base, count = _tile_elements(k)
    arrays = [k.shared("even", dtype, TILE), k.shared("odd", dtype, TILE // 4)]

    def add_up(group: list[Expression]) -> None:
        arrays[0][k.thread] = running_sums(group)[-1]

    _each_group(k, operand, base, count, add_up)
    left = TILE
    while left > 1:
        left //= 4
        source, target = arrays
        with k.region(limit=left):
            four = [source[k.thread * 4 + i] for i in range(4)]
            target[k.thread] = (four[0] + four[1]) + (four[2] + four[3])
        arrays.reverse()
    with k.region(limit=1):
        block_sums[k.block_x] = arrays[0][0]
    return LibraryKernel(
        "accy.kernel.scan.tile_sums",
        k.build(),
        elements_per_block=SCAN_TILE,
        tile=SCAN_TILE,
        tile_buffers=frozenset({"block_sums"}),
    )


def sums_scan(dtype: DType) -> LibraryKernel:
    """Scan the tiles' sums in one block: ``(scanned_sums, block_sums; m: u32)``.

    Both have ``m`` elements, and may be the same. One block goes through all of
    them, 1 / `TILE` of the whole scan's elements.

    Raises:
        InvalidType: the dtype is not one of `SCAN_DTYPES`.
    """
    k = scan_builder("sums_scan", dtype)
    scanned_sums = k.buffer("scanned_sums", dtype, "write_only")
    block_sums = k.buffer("block_sums", dtype, "read_only")
    m = k.scalar("m", DType.U32).cast(DType.U64)
    carry = k.variable("carry", nothing(dtype))
    tile = _Tile(k, dtype)
    zero = constant(DType.U64, 0)
    with k.count("base", zero, m, step=TILE) as base:
        count = k.let("count", m.cast(DType.I64) - base.cast(DType.I64))
        i = base + k.thread.cast(DType.U64)
        scanned = tile.scan(block_sums.at(i), count)
        with k.region(limit=count):
            scanned_sums[i] = carry.value + scanned(k.thread)
        carry.set(carry.value + scanned(constant(DType.U32, TILE - 1)))
    return LibraryKernel("accy.kernel.scan.sums_scan", k.build(), None)


def tile_scan(dtype: DType) -> LibraryKernel:
    """Scan each tile: ``(result, operand, scanned_sums; n: u32)``.

    Block b > 0 begins with ``scanned_sums[b - 1]``. The operand may be the result.

    Raises:
        InvalidType: the dtype is not one of `SCAN_DTYPES`.
    """
    k = scan_builder("tile_scan", dtype)
    result = k.buffer("result", dtype, "write_only")
    operand = k.buffer("operand", dtype, "read_only")
    scanned_sums = k.buffer("scanned_sums", dtype, "read_only")
    base, count = _tile_elements(k)
    own = [k.thread_variable(f"own{i}", dtype) for i in range(GROUP)]
    before = k.variable("before", nothing(dtype))
    with k.when(k.block_x > 0):
        before.set(scanned_sums.at(k.block_x - 1))

    def add_up(group: list[Expression]) -> None:
        for variable, value in zip(own, running_sums(group), strict=True):
            variable.set(value)

    _each_group(k, operand, base, count, add_up)
    tile = _Tile(k, dtype)
    scanned = tile.scan(own[-1].value, constant(DType.I64, TILE), back=1)
    with k.when(count >= SCAN_TILE), k.region():
        start = k.let("start", before.value + scanned(k.thread))
        first = k.let("first", base + k.thread.cast(DType.U64) * GROUP)
        for i, variable in enumerate(own):
            result[first + i] = start + variable.value
    with k.otherwise(), k.region():
        start = k.let("begin", before.value + scanned(k.thread))
        here = k.let("here", k.thread.cast(DType.U64) * GROUP)
        for i, variable in enumerate(own):
            with k.when((here + i).cast(DType.I64) < count):
                result[base + here + i] = start + variable.value
    return LibraryKernel(
        "accy.kernel.scan.tile_scan",
        k.build(),
        elements_per_block=SCAN_TILE,
        tile=SCAN_TILE,
        tile_buffers=frozenset({"scanned_sums"}),
    )


def reference_scan(values: NDArray[Any]) -> NDArray[Any]:
    """The scan on the host, in the kernels' order and so with the same bits.

    Args:
        values: one dimension, of a dtype in `SCAN_DTYPES`.

    Returns:
        A new array of the same shape and dtype. Only the bits of NaNs may differ
        from the kernels'.

    Raises:
        InvalidType, InvalidValue: another dtype, or not one dimension.
    """
    dtype = DType.from_numpy(values.dtype)
    if dtype not in SCAN_DTYPES:
        raise InvalidType("reference_scan", dtype, _listed())
    if values.ndim != 1:
        raise InvalidValue("reference_scan", values.shape, "one dimension")
    if len(values) == 0:
        return values.copy()
    with np.errstate(all="ignore"):
        groups = _filled(values, SCAN_TILE).reshape(-1, TILE, GROUP)
        np.add.accumulate(groups, axis=2, out=groups)
        before = np.full(groups.shape[:2], _nothing(dtype), values.dtype)
        scanned = _stepped(groups[:, :, -1])
        before[:, 1:] = scanned[:, :-1]
        bases = reference_sums_scan(scanned[:, -1])[:-1]
        before[1:] = bases[:, np.newaxis] + before[1:]
        groups += before[:, :, np.newaxis]
    return groups.reshape(-1)[: len(values)]


def reference_sums_scan(sums: NDArray[Any]) -> NDArray[Any]:
    """What `sums_scan` makes of at least one sum, on the host, with the same bits."""
    with np.errstate(all="ignore"):
        tiles = _stepped(_filled(sums, TILE))
        totals = np.add.accumulate(tiles[:, -1], dtype=sums.dtype)
        tiles[1:] = totals[:-1, np.newaxis] + tiles[1:]
    return tiles.reshape(-1)[: len(sums)]


def scan_additions(length: int) -> int:
    """How many additions an element passes through at most on its way to a sum.

    With ``k`` of them, unit roundoff ``u`` and ``gamma = k u / (1 - k u)``, the
    error of each result is at most ``gamma`` times the sum of the absolute
    values up to there, if nothing overflows.

    Source: N. J. Higham, Accuracy and Stability of Numerical Algorithms, 2nd
    ed., SIAM 2002, lemma 3.1 and section 4.2.
    """
    tiles = -(-length // SCAN_TILE)
    steps = TILE.bit_length() - 1
    to_groups = GROUP - 1 + steps
    return to_groups + (1 if tiles <= 1 else steps + -(-tiles // TILE) + 2)


class _Tile:
    """Two block-shared arrays that a tile is scanned in, back and forth.

    Each begins with elements that change nothing, so that no step asks whether
    an element has another before it, and vectors need no masks.
    """

    def __init__(self, k: KernelBuilder, dtype: DType) -> None:
        self._k = k
        self._dtype = dtype
        self._arrays = [
            k.shared("even", dtype, _PAD + TILE),
            k.shared("odd", dtype, _PAD + TILE),
        ]
        with k.region(limit=constant(DType.U32, _PAD)):
            for array in self._arrays:
                array[k.thread] = nothing(dtype)

    def scan(
        self, element: Expression, count: Expression, *, back: int = 0
    ) -> Callable[[Expression], Expression]:
        """Scan ``count`` elements; gives what makes each of the tile's results.

        Those are seen from so many elements further. The last two steps are left to
        whoever takes the results, which saves a pass over the tile.
        """
        k, (even, odd) = self._k, self._arrays
        with k.region(limit=count):
            even[k.thread + _PAD] = element
        with k.when(count < TILE), k.region():
            missing = k.thread.cast(DType.I64) >= count
            with k.when(missing):
                even[k.thread + _PAD] = nothing(self._dtype)
        for step in STEPS[:-1]:
            with k.region():
                odd[k.thread + _PAD] = _two_steps(even, k.thread + _PAD, step)
            even, odd = odd, even
        last = even

        def result(at: Expression) -> Expression:
            return _two_steps(last, at + (_PAD - back), STEPS[-1])

        return result


def _two_steps(array: ArrayHandle, at: Expression, step: int) -> Expression:
    """Hillis and Steele's steps for ``step`` and ``2 * step`` in one."""
    near = array.at(at) + array.at(at - step)
    return near + (array.at(at - 2 * step) + array.at(at - 3 * step))


def running_sums(values: Sequence[Expression]) -> list[Expression]:
    """The running sums of a group."""
    return list(itertools.accumulate(values, lambda left, right: left + right))


def _tile_elements(k: KernelBuilder) -> tuple[Expression, Expression]:
    """Declare ``n``; a block's first element (u64) and how many are left (i64)."""
    n = k.scalar("n", DType.U32)
    base = k.let("base", k.block_x.cast(DType.U64) * SCAN_TILE)
    return base, k.let("count", n.cast(DType.I64) - base.cast(DType.I64))


def _each_group(
    k: KernelBuilder,
    operand: ArrayHandle,
    base: Expression,
    count: Expression,
    do: Callable[[list[Expression]], None],
) -> None:
    """Have each thread do something with its group, which is filled up at the end."""
    with k.when(count >= SCAN_TILE), k.region():
        at = k.let("at", base + k.thread.cast(DType.U64) * GROUP)
        do([operand[at + i] for i in range(GROUP)])
    with k.otherwise(), k.region():
        own = k.let("own", k.thread.cast(DType.U64) * GROUP)
        some = [k.variable(f"x{i}", nothing(operand.dtype)) for i in range(GROUP)]
        for i, variable in enumerate(some):
            with k.when((own + i).cast(DType.I64) < count):
                variable.set(operand[base + own + i])
        do([variable.value for variable in some])


def nothing(dtype: DType) -> Expression:
    """The number that added to any other gives that other, to the bit."""
    return constant(dtype, _nothing(dtype))


def scan_builder(name: str, dtype: DType, threads: int = TILE) -> KernelBuilder:
    """A builder for one of the scan's kernels, with so many threads in a block.

    Raises:
        InvalidType: the dtype is not one of `SCAN_DTYPES`.
    """
    if dtype not in SCAN_DTYPES:
        raise InvalidType(f"accy.kernel.scan.{name}", dtype, _listed())
    return KernelBuilder(f"accy_{name}_{dtype}", threadgroup=(threads, 1, 1))


def _listed() -> str:
    return "one of " + ", ".join(map(str, SCAN_DTYPES))


def _nothing(dtype: DType) -> float:
    return -0.0 if dtype.is_float else 0


def _filled(values: NDArray[Any], tile: int) -> NDArray[Any]:
    """A copy as rows of tiles, the last filled up with what changes nothing."""
    rows = -(-len(values) // tile)
    nothing_ = _nothing(DType.from_numpy(values.dtype))
    tiles = np.full(rows * tile, nothing_, dtype=values.dtype)
    tiles[: len(values)] = values
    return tiles.reshape(rows, tile)


def _stepped(tiles: NDArray[Any]) -> NDArray[Any]:
    """Each row scanned by Hillis and Steele's steps."""
    step = 1
    while step < TILE:
        stepped = tiles.copy()
        stepped[:, step:] += tiles[:, :-step]
        tiles, step = stepped, 2 * step
    return tiles
