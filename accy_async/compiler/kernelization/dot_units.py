"""Large products of 16-bit floats on a GPU's tensor cores.

A block computes a tile of the result, all its threads together, and each thread then
what follows from the sums that it has got. Blocks take tiles in an order in which those
at work at one time share rows and columns, so that these come from the cache.

Source: CUTLASS, "Efficient GEMM in CUDA" (threadblock rasterization).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from accy_async.artifact.formats import ArtifactFormat
from accy_async.compiler.form import (
    Expression,
    ProductTile,
    TileOperand,
    TileProduct,
    VariableHandle,
    constant,
    minimum,
)
from accy_async.compiler.kernelization.assembly import Assembly, ceil_div
from accy_async.compiler.kernelization.products import (
    Extents,
    Matrix,
    Product,
    extents_of,
    find_product,
    matrices_of,
)
from accy_async.compiler.kernelization.profile import TargetProfile
from accy_async.compiler.semantic import Function
from accy_async.dtypes import DType

__all__ = ["has_units", "tiles_of", "unit_tiles", "write_unit_product"]

_LEAST = 16
"""Rows, columns and depth below which tensor cores would mostly multiply zeros."""
_BESIDE = 8
"""Tiles below each other that blocks take before those to the right."""
_BLOCKS = 96
"""Blocks that keep a large GPU busy."""
_GROUPS_ON = "sm_90"

_GROUP_TILES = (
    ProductTile(m=128, n=256, depth=64, warps_m=8, warps_n=1, stages=4),
    ProductTile(m=128, n=128, depth=64, warps_m=8, warps_n=1, stages=3),
    ProductTile(m=64, n=128, depth=64, warps_m=4, warps_n=1, stages=4),
)
"""For sm_90, where four warps multiply at a time: each has 16 rows, all columns."""
_TILES = (
    ProductTile(m=128, n=128, depth=32, warps_m=2, warps_n=2, stages=4),
    ProductTile(m=128, n=256, depth=64, warps_m=2, warps_n=4, stages=3),
    ProductTile(m=64, n=128, depth=64, warps_m=2, warps_n=2, stages=4),
    ProductTile(m=64, n=64, depth=64, warps_m=2, warps_n=2, stages=4),
    ProductTile(m=32, n=64, depth=64, warps_m=1, warps_n=4, stages=4),
)


def has_units(profile: TargetProfile) -> bool:
    """Whether kernels of a target can use tensor cores: CUDA C++, from sm_80 on."""
    features = profile.capabilities.features
    able = features.tensor_cores and features.async_copy
    return able and profile.format is ArtifactFormat.CUDA_CUBIN


def unit_tiles(function: Function, profile: TargetProfile) -> tuple[ProductTile, ...]:
    """Tiles for a function's product, best first; none where it is not for the units.

    They take f16 and bf16 with sums in f32, where the operands come from memory as they
    are, with neighbours along the depth, the rows or the columns. The first tile is the
    largest of which there are enough to keep the device busy.

    Raises:
        UnsupportedOperation: see `find_product`.
    """
    entry, op = find_product(function)
    size = extents_of(entry, op)
    dtypes = {value.dtype for value in entry.operands}
    if not dtypes <= {DType.F16, DType.BF16} or op.accumulate is not DType.F32:
        return ()
    if min(size.m, size.n, size.k) < _LEAST or not size.batch or not has_units(profile):
        return ()
    if None in matrices_of(function):
        return ()
    room = profile.capabilities.max_shared_memory_bytes
    architecture = profile.capabilities.identity.architecture
    tiles = (*_GROUP_TILES, *_TILES) if architecture == _GROUPS_ON else _TILES
    fitting = [tile for tile in tiles if tile.shared_bytes <= room]
    busy = [tile for tile in fitting if tiles_of(size, tile) >= _BLOCKS]
    return tuple(dict.fromkeys([*busy, *reversed(fitting)]))


def tiles_of(size: Extents, tile: ProductTile) -> int:
    """Tiles of all products."""
    return size.batch * ceil_div(size.m, tile.m) * ceil_div(size.n, tile.n)


def write_unit_product(a: Assembly, product: Product, tile: ProductTile) -> None:
    """The kernel's body."""
    size = product.extents
    left, right = matrices_of(a.function)
    assert left is not None
    assert right is not None
    a.k.takes_neighbours = size.n % 2 == 0
    sums = [a.k.thread_variable(f"sum{i}", DType.F32) for i in range(tile.sums)]
    with a.tasks(tiles_of(size, tile)) as task:
        batch, row, column = _place(a, size, tile, task)
        with a.k.region():
            for total in sums:
                total.set(constant(DType.F32, 0))
        a.k.append(
            TileProduct(
                left=_operand(a, left, batch, row, size.m),
                right=_operand(a, right, batch, column, size.n),
                depth=size.k,
                tile=tile,
                sums=tuple(total.name for total in sums),
            )
        )
        with a.k.region():
            _store(a, product, tile, (batch, row, column), sums)


def _store(
    a: Assembly,
    product: Product,
    tile: ProductTile,
    begin: tuple[Expression, Expression, Expression],
    sums: Sequence[VariableHandle],
) -> None:
    """Write what follows from a thread's sums: pairs of neighbours, row by row."""
    batch, size = begin[0], product.extents
    y, x = tile.place(a.thread, 0)
    row, column = a.k.let(None, begin[1] + y), a.k.let(None, begin[2] + x)
    rows: dict[int, list[int]] = {}
    for index in range(0, tile.sums, 2):
        rows.setdefault(tile.offset(index)[0], []).append(index)
    for down, indices in rows.items():
        at = a.k.let(None, row + down) if down else row
        with _when(a, at, size.m, tile.m), a.places.scope():
            for index in indices:
                right = tile.offset(index)[1]
                to = a.k.let(None, column + right) if right else column
                pair = sums[index].value, sums[index + 1].value
                if size.n % 2 == 0:
                    with _when(a, to, size.n, tile.n), a.places.scope():
                        product.store_row(batch, at, to, pair)
                    continue
                for behind, total in enumerate(pair):
                    with a.k.when(to + behind < size.n), a.places.scope():
                        product.store(batch, at, to, total, behind)


@contextmanager
def _when(a: Assembly, at: Expression, extent: int, tile: int) -> Iterator[None]:
    """Where a row or column is one of the result's."""
    if extent % tile == 0:
        yield
        return
    with a.k.when(at < extent):
        yield


def _place(
    a: Assembly, size: Extents, tile: ProductTile, task: Expression
) -> tuple[Expression, Expression, Expression]:
    """Which product a task is of, and its tile's first row and column."""
    down, across = ceil_div(size.m, tile.m), ceil_div(size.n, tile.n)
    batch = a.k.let("batch", task / (down * across))
    within = a.k.let("within", task % (down * across))
    band = a.k.let("band", within / (_BESIDE * across) * _BESIDE)
    high = a.k.let("high", minimum(a.number(down) - band, a.number(_BESIDE)))
    left = a.k.let("left_in_band", within % (_BESIDE * across))
    row = a.k.let("row", (band + left % high) * tile.m)
    return batch, row, a.k.let("column", left / high * tile.n)


def _operand(
    a: Assembly, matrix: Matrix, batch: Expression, first: Expression, extent: int
) -> TileOperand:
    buffer = a.operands[matrix.parameter]
    return TileOperand(
        buffer=buffer.name,
        dtype=buffer.dtype,
        begin=batch * matrix.apart,
        first=first,
        extent=extent,
        pitch=matrix.pitch,
        along_depth=matrix.along_depth,
        vector=math.gcd(8, matrix.apart, matrix.pitch),
    )
