"""The inclusive scan of any length up to 2**32 - 1, in three kernels.

`block_scan` scans each tile of `TILE` elements by itself and writes the tiles'
sums; `sums_scan`, one block, scans those sums; `add_base` adds to each tile but
the first the scanned sum of all tiles before it.

The order of summation is part of the contract. Within a tile it is that of
Hillis and Steele: for d = 1, 2, 4, ... below `TILE`, all at once,

    x[t] = x[t] + x[t - d]  where t >= d, else x[t]

(the kernels take two such steps at a time, which makes the same sums). The sums
are scanned in tiles in the same way, and each such tile then gets the *carry*,
``result = carry + x[t]``, where the carry is the running total, in order, of the
last elements of all sums' tiles before. At last ``result = base + x[t]``. What
a tile lacks at the end counts as the number that changes nothing: 0, or -0.0
for floats. `reference_scan` gives the same bits on the host.

Source: W. D. Hillis and G. L. Steele, "Data parallel algorithms", CACM 29(12),
1986.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from accy_async.compiler.form import (
    ArrayHandle,
    Expression,
    KernelBuilder,
    constant,
)
from accy_async.compiler.kernels.elementwise import tile_elements
from accy_async.compiler.kernels.library import TILE, LibraryKernel
from accy_async.dtypes import DType
from accy_async.errors import InvalidType, InvalidValue

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = [
    "MAX_SCAN_LENGTH",
    "PAD",
    "SCAN_DTYPES",
    "STEPS",
    "add_base",
    "block_scan",
    "nothing",
    "reference_scan",
    "scan_additions",
    "scan_builder",
    "sums_scan",
]

MAX_SCAN_LENGTH = 2**31
"""The longest array a scan takes, in elements."""

SCAN_DTYPES = (DType.F32, DType.F64, DType.I32, DType.I64, DType.U32, DType.U64)

STEPS = (1, 4, 16, 64)
"""Hillis and Steele's steps, every other one: the kernels take two at a time."""

PAD = 3 * STEPS[-1]
"""Elements before each tile in shared memory, which change nothing."""


def block_scan(dtype: DType) -> LibraryKernel:
    """Scan each tile: ``(result, operand, block_sums; n: u32)``.

    ``block_sums`` has ``ceil(n / TILE)`` elements, one for each block. The
    operand may be the result.

    Raises:
        InvalidType: the dtype is not one of `SCAN_DTYPES`.
    """
    k = scan_builder("block_scan", dtype)
    result = k.buffer("result", dtype, "write_only")
    operand = k.buffer("operand", dtype, "read_only")
    block_sums = k.buffer("block_sums", dtype, "write_only")
    base, count = tile_elements(k)
    i = base + k.thread.cast(DType.U64)
    tile = _Tile(k, dtype)
    scanned = tile.scan(operand.at(i), count)
    with k.region(limit=count):
        result[i] = scanned(k.thread)
    with k.region(limit=constant(DType.U32, 1)):
        block_sums[k.block_x] = scanned(k.thread + (TILE - 1))
    return LibraryKernel(
        "accy.kernel.scan.block_scan",
        k.build(),
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


def add_base(dtype: DType) -> LibraryKernel:
    """Add to each tile what came before it: ``(result, scanned_sums; n: u32)``.

    ``result`` is what `block_scan` wrote, updated in place; block b > 0 adds
    ``scanned_sums[b - 1]``.

    Raises:
        InvalidType: the dtype is not one of `SCAN_DTYPES`.
    """
    k = scan_builder("add_base", dtype)
    result = k.buffer("result", dtype, "read_write")
    scanned_sums = k.buffer("scanned_sums", dtype, "read_only")
    base, count = tile_elements(k)
    with k.when(k.block_x > 0):
        before = k.let("before", scanned_sums.at(k.block_x - 1))
        with k.region(limit=count):
            i = base + k.thread.cast(DType.U64)
            result[i] = before + result[i]
    return LibraryKernel(
        "accy.kernel.scan.add_base",
        k.build(),
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
        tiles = _scan_tiles(values, dtype)
        sums = _scan_tiles(tiles[:, -1], dtype)
        totals = np.add.accumulate(sums[:, -1], dtype=values.dtype)
        sums[1:] = totals[:-1, np.newaxis] + sums[1:]
        bases = sums.reshape(-1)[: len(tiles) - 1]
        tiles[1:] = bases[:, np.newaxis] + tiles[1:]
    return tiles.reshape(-1)[: len(values)]


def scan_additions(length: int) -> int:
    """How many additions an element passes through at most on its way to a sum.

    With ``k`` of them, unit roundoff ``u`` and ``gamma = k u / (1 - k u)``, the
    error of each result is at most ``gamma`` times the sum of the absolute
    values up to there, if nothing overflows.

    Source: N. J. Higham, Accuracy and Stability of Numerical Algorithms, 2nd
    ed., SIAM 2002, lemma 3.1 and section 4.2.
    """
    tiles = -(-length // TILE)
    steps = TILE.bit_length() - 1
    return steps if tiles <= 1 else 2 * steps + -(-tiles // TILE) + 1


class _Tile:
    """Two block-shared arrays that a tile is scanned in, back and forth.

    Each begins with elements that change nothing, so that no step asks whether
    an element has another before it, and vectors need no masks.
    """

    def __init__(self, k: KernelBuilder, dtype: DType) -> None:
        self._k = k
        self._dtype = dtype
        self._arrays = [
            k.shared("even", dtype, PAD + TILE),
            k.shared("odd", dtype, PAD + TILE),
        ]
        with k.region(limit=constant(DType.U32, PAD)):
            for array in self._arrays:
                array[k.thread] = nothing(dtype)

    def scan(
        self, element: Expression, count: Expression
    ) -> Callable[[Expression], Expression]:
        """Scan ``count`` elements; gives what makes each of the tile's results.

        The last two steps are left to whoever takes the results, which saves a
        pass over the tile.
        """
        k, (even, odd) = self._k, self._arrays
        with k.region(limit=count):
            even[k.thread + PAD] = element
        with k.when(count < TILE), k.region():
            missing = k.thread.cast(DType.I64) >= count
            with k.when(missing):
                even[k.thread + PAD] = nothing(self._dtype)
        for step in STEPS[:-1]:
            with k.region():
                odd[k.thread + PAD] = _two_steps(even, k.thread, step)
            even, odd = odd, even
        last = even

        def result(at: Expression) -> Expression:
            return _two_steps(last, at, STEPS[-1])

        return result


def _two_steps(array: ArrayHandle, at: Expression, step: int) -> Expression:
    """Hillis and Steele's steps for ``step`` and ``2 * step`` in one."""
    near = array.at(at + PAD) + array.at(at + (PAD - step))
    far = array.at(at + (PAD - 2 * step)) + array.at(at + (PAD - 3 * step))
    return near + far


def nothing(dtype: DType) -> Expression:
    """The number that added to any other gives that other, to the bit."""
    return constant(dtype, -0.0 if dtype.is_float else 0)


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


def _scan_tiles(values: NDArray[Any], dtype: DType) -> NDArray[Any]:
    """Each tile scanned by itself, as rows, the last filled up."""
    rows = -(-len(values) // TILE)
    tiles = np.full(rows * TILE, -0.0 if dtype.is_float else 0, dtype=values.dtype)
    tiles[: len(values)] = values
    tiles = tiles.reshape(rows, TILE)
    step = 1
    while step < TILE:
        stepped = tiles.copy()
        stepped[:, step:] += tiles[:, :-step]
        tiles, step = stepped, 2 * step
    return tiles
