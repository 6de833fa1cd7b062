"""Products of tiles on the tensor cores of NVIDIA's GPUs, in CUDA C++.

A block's threads copy what they need of both operands into shared memory, a few depths
ahead and past the registers (``cp.async``), in stages that they go round. Groups of 32
threads take it from there as the tensor cores want it (``ldmatrix``) and multiply
(``mma.sync``): 16 rows, 8 columns, 16 deep at a time, 16-bit floats summed in f32.

A stage holds lines of the operand as they lie in memory, in pieces of 16 bytes. Which
piece is where in its line depends on the line, so that eight threads that take the same
piece of eight lines find them in different banks. What is outside of an operand is
copied as zeros. Operands whose lines do not all begin at multiples of 16 bytes are
copied in smaller pieces, and such as begin elsewhere than buffers do by ordinary loads.

That is there from sm_80 on. On sm_90, of tiles that suit, four warps at a time multiply
what their tensor cores read from shared memory by themselves (``wgmma``). That is no
instruction of other architectures, newer ones among them: the code has to be made for
``sm_90a``, and is that for warps where it is made for another.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from accy_async.compiler.emit.text.tensor_groups import (
    GROUPS,
    IF_GROUPS,
    multiplication,
)
from accy_async.compiler.emit.text.tensor_warps import WARPS
from accy_async.compiler.form import Kernel, ProductTile, TileOperand, TileProduct
from accy_async.compiler.form.traversal import every_statement
from accy_async.dtypes import DType

__all__ = ["call", "text"]


def text(kernels: Sequence[Kernel]) -> str:
    """The functions that these kernels call."""
    columns = {
        statement.tile.n
        for kernel in kernels
        for statement in every_statement(kernel.body)
        if isinstance(statement, TileProduct) and is_for_groups(statement.tile)
    }
    parts = ["namespace accy {", WARPS]
    if columns:
        parts += [IF_GROUPS, *map(multiplication, sorted(columns)), GROUPS]
    return "\n".join([*parts, "}  // namespace accy"])


def is_for_groups(tile: ProductTile) -> bool:
    """Whether four warps at a time can compute it: each has 16 rows and all columns."""
    is_whole = tile.warps_n == 1 and tile.n <= 256
    is_high = tile.m == 16 * tile.warps_m and tile.m % 64 == 0
    return is_whole and is_high and tile.depth == 64 and tile.stages > 2


def call(
    product: TileProduct,
    operands: Sequence[str],
    places: Sequence[str],
    sums: Sequence[str],
) -> Iterator[str]:
    """The statements of one product.

    Args:
        product: the product.
        operands: what its operands' buffers are called.
        places: where each operand begins, and the first row or column of its tile.
        sums: what the sums are called.
    """
    tile = product.tile
    shape = (tile.m, tile.n, tile.depth, tile.warps_m, tile.warps_n, tile.stages)
    dtype = "true" if product.left.dtype is DType.BF16 else "false"
    kinds = (
        _operand(product.left, product.depth, tile.m, tile),
        _operand(product.right, product.depth, tile.n, tile),
    )
    left, left_first, right, right_first = places
    yield "{"
    yield f"    float tile_sums[{len(sums)}] = {{{', '.join(sums)}}};"
    arguments = (
        f"tile_sums, {operands[0]} + {left}, {left_first}, "
        f"{operands[1]} + {right}, {right_first}, thread_index"
    )
    name = "groups_product" if is_for_groups(tile) else "warps_product"
    numbers = ", ".join(map(str, (*shape, product.depth)))
    for test, vectors in _ways(product, operands):
        one, two = (
            kind.format(vector=vector)
            for kind, vector in zip(kinds, vectors, strict=True)
        )
        called = f"accy::{name}<{dtype}, {numbers}, {one}, {two}>"
        yield f"    {test}{called}({arguments});"
    for index, name in enumerate(sums):
        yield f"    {name} = tile_sums[{index}];"
    yield "}"


def _ways(
    product: TileProduct, operands: Sequence[str]
) -> Iterator[tuple[str, tuple[int, ...]]]:
    """The ways of copying, elements at a time, and what is asked before each."""
    vectors = tuple(operand.vector for operand in product.operands)
    apart = [
        f"uint64({operand}) & {2 * vector - 1}u"
        for operand, vector in zip(operands, vectors, strict=True)
        if vector > 1
    ]
    if apart:
        yield f"if (({' | '.join(apart)}) == 0u) ", vectors
        yield "else ", (1,) * len(vectors)
    else:
        yield "", vectors


def _operand(operand: TileOperand, depth: int, extent: int, tile: ProductTile) -> str:
    """The type that says how an operand lies in memory."""
    along = "true" if operand.along_depth else "false"
    lines, length = (
        (extent, tile.depth) if operand.along_depth else (tile.depth, extent)
    )
    return (
        f"accy::TileSource<{lines}, {length}, {tile.threads}, {operand.extent}, "
        f"{depth}, {operand.pitch}ull, {along}, {{vector}}>"
    )
