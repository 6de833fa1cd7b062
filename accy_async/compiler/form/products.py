"""Products of tiles of matrices, which the threads of a block compute together.

What a region's threads compute each by itself, some devices have units for that take
many threads at a time, as tensor cores do. `TileProduct` says what such units compute,
`ProductTile` which thread gets which sum; `written_out` says it in regions, for
everything that has no such units.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import attrs

from accy_async.compiler.form.dtypechecks import require_integer
from accy_async.compiler.form.expressions import (
    EXPECTED_EXPRESSION,
    IDENTIFIER,
    Builtin,
    BuiltinKind,
    Expression,
    Load,
    MultiplyAdd,
    Name,
    constant,
)
from accy_async.compiler.form.statements import (
    Assign,
    For,
    If,
    Let,
    Region,
    Statement,
)
from accy_async.dtypes import DType
from accy_async.errors import InvalidValue
from accy_async.values import instances, integer, one_of, text, tuple_of

__all__ = ["ProductTile", "TileOperand", "TileProduct", "written_out"]

WARP = 32
"""Threads that a unit takes at a time."""
UNIT_M, UNIT_N, UNIT_DEPTH = 16, 8, 16
"""Rows, columns and depth of what it computes with them."""
_PER_UNIT = UNIT_M * UNIT_N // WARP

_name = text(pattern=IDENTIFIER, what="an identifier")


@attrs.frozen(kw_only=True)
class ProductTile:
    """How a block computes a tile of a product.

    A block has ``warps_m`` by ``warps_n`` groups of 32 threads. Each group has an even
    share of the tile's rows and columns, and has it in pieces of 16 rows and 8 columns,
    of which every thread keeps two neighbours in one row and two eight rows below.

    Attributes:
        m, n: rows and columns of the tile.
        depth: of what is in shared memory of both operands at a time.
        warps_m, warps_n: groups of threads along rows and columns.
        stages: how many such depths are there, fetched or about to be used.
    """

    m: int = attrs.field(validator=integer(32, 1024))
    n: int = attrs.field(validator=integer(32, 1024))
    depth: int = attrs.field(validator=one_of((32, 64)))
    warps_m: int = attrs.field(validator=integer(1, 32))
    warps_n: int = attrs.field(validator=integer(1, 32))
    stages: int = attrs.field(default=3, validator=integer(2, 8))

    def __attrs_post_init__(self) -> None:
        for axis, extent, warps in (
            ("m", self.m, self.warps_m),
            ("n", self.n, self.warps_n),
        ):
            if extent % (warps * 16) or extent // 8 & (extent // 8 - 1):
                raise InvalidValue(
                    f"ProductTile.{axis}",
                    extent,
                    f"a power of two, a multiple of 16 for each of {warps} warps",
                )
        least = max(self.m, self.n, self.depth) // 8
        if self.threads & (self.threads - 1) or not least <= self.threads <= 1024:
            raise InvalidValue(
                "ProductTile.warps_m and warps_n",
                f"{self.threads} threads",
                f"a power of two from {least} to 1024",
            )

    @property
    def threads(self) -> int:
        """Threads of the block."""
        return WARP * self.warps_m * self.warps_n

    @property
    def sums(self) -> int:
        """Sums of each thread."""
        return self.m * self.n // self.threads

    @property
    def shared_bytes(self) -> int:
        """Block-shared memory for operands of 16 bits, beyond what is declared."""
        return (self.m + self.n) * self.depth * 2 * self.stages

    def place(self, thread: Expression, index: int) -> tuple[Expression, Expression]:
        """The row and the column, within the tile, of a thread's sum."""
        row, column = self.offset(index)
        lane, warp = thread % WARP, thread / WARP
        y = warp / self.warps_n * (self.m // self.warps_m) + lane / 4
        x = warp % self.warps_n * (self.n // self.warps_n) + lane % 4 * 2
        return y + row, x + column

    def offset(self, index: int) -> tuple[int, int]:
        """How far down and right of a thread's first sum another one is."""
        piece, part = divmod(index, _PER_UNIT)
        across = self.n // self.warps_n // UNIT_N
        i, j = divmod(piece, across)
        return i * UNIT_M + part // 2 * (UNIT_M // 2), j * UNIT_N + part % 2


@attrs.frozen(kw_only=True)
class TileOperand:
    """A matrix in a buffer, with the rows or columns that a tile has of it.

    Attributes:
        buffer: where it lies.
        dtype: the elements': f16 or bf16.
        begin: its first element in the buffer; uniform.
        first: the first of its rows, or columns, that belong to the tile; uniform.
        extent: how many it has; beyond them everything is zero.
        pitch: elements from one row or column to the next where neighbours along the
            depth are neighbours in memory, else from one depth to the next.
        along_depth: whether they are.
        vector: of how many elements, 1, 2, 4 or 8, ``begin`` and ``pitch`` are
            multiples.
    """

    buffer: str = attrs.field(validator=_name)
    dtype: DType = attrs.field(validator=one_of((DType.F16, DType.BF16)))
    begin: Expression = attrs.field(
        validator=instances(Expression, expected=EXPECTED_EXPRESSION)
    )
    first: Expression = attrs.field(
        validator=instances(Expression, expected=EXPECTED_EXPRESSION)
    )
    extent: int = attrs.field(validator=integer(1, 2**31 - 1))
    pitch: int = attrs.field(validator=integer(0, 2**31 - 1))
    along_depth: bool = attrs.field(validator=instances(bool))
    vector: int = attrs.field(default=1, validator=one_of((1, 2, 4, 8)))

    def __attrs_post_init__(self) -> None:
        require_integer(f"begin of {self.buffer}", self.begin)
        require_integer(f"first of {self.buffer}", self.first)

    def element(self, at: Expression, depth: Expression) -> Expression:
        """An element in f32."""
        major, minor = (at, depth) if self.along_depth else (depth, at)
        index = self.begin.cast(DType.U64) + (major * self.pitch + minor)
        return Load(self.buffer, self.dtype, index).cast(DType.F32)


@attrs.frozen(kw_only=True)
class TileProduct(Statement):
    """Add the products of a tile to the sums of a block's threads, all together.

    Stands in uniform code, and is a barrier. Sum ``index`` of a thread is that at
    `ProductTile.place` of the tile. Products are exact; they are added to it in f32 in
    an order, and with a rounding of each sum, that is the device's own but always the
    same: n of them stay within (n + 16) / 2^23 of the sum of their magnitudes.

    Attributes:
        left: the operand with the rows.
        right: the one with the columns.
        depth: how many products each sum has.
        tile: the tile's shape, and who computes what.
        sums: thread variables of f32, `ProductTile.sums` of them.
    """

    left: TileOperand = attrs.field(validator=instances(TileOperand))
    right: TileOperand = attrs.field(validator=instances(TileOperand))
    depth: int = attrs.field(validator=integer(0, 2**31 - 1))
    tile: ProductTile = attrs.field(validator=instances(ProductTile))
    sums: tuple[str, ...] = attrs.field(
        validator=tuple_of(str, expected="a tuple of names")
    )

    def __attrs_post_init__(self) -> None:
        if self.left.dtype is not self.right.dtype:
            raise InvalidValue(
                "TileProduct.right", self.right.dtype, f"{self.left.dtype} as the left"
            )
        if len(self.sums) != self.tile.sums:
            raise InvalidValue(
                "TileProduct.sums", f"{len(self.sums)} names", f"{self.tile.sums} names"
            )

    @property
    def operands(self) -> tuple[TileOperand, TileOperand]:
        """Both operands."""
        return self.left, self.right

    @property
    def places(self) -> list[Expression]:
        """The expressions that say where the operands' tiles begin."""
        return [place for one in self.operands for place in (one.begin, one.first)]

    def in_regions(self, prefix: str) -> tuple[Statement, ...]:
        """The same in plain statements, with names that begin so."""
        thread = Builtin(BuiltinKind.THREAD)
        body: list[Statement] = []
        depth = Name(f"{prefix}depth", DType.U64)
        for index, total in enumerate(self.sums):
            y, x = self.tile.place(thread, index)
            inner = (
                Let(
                    f"{prefix}row{index}",
                    self.left.first.cast(DType.U64) + y.cast(DType.U64),
                ),
                Let(
                    f"{prefix}column{index}",
                    self.right.first.cast(DType.U64) + x.cast(DType.U64),
                ),
            )
            row, column = (Name(let.name, DType.U64) for let in inner)
            added = MultiplyAdd(
                self.left.element(row, depth),
                self.right.element(column, depth),
                Name(total, DType.F32),
            )
            inside = (row < self.left.extent) & (column < self.right.extent)
            body += [*inner, If(inside, (Assign(total, added),))]
        zero, end = constant(DType.U64, 0), constant(DType.U64, self.depth)
        return (Region((For(depth.name, zero, end, tuple(body)),)),)


def written_out(body: Sequence[Statement]) -> tuple[Statement, ...]:
    """A kernel's body with its products of tiles in plain statements."""
    return tuple(_written_out(body, []))


def _written_out(
    body: Sequence[Statement], found: list[TileProduct]
) -> Iterator[Statement]:
    for statement in body:
        match statement:
            case TileProduct():
                found.append(statement)
                yield from statement.in_regions(f"tile{len(found)}_")
            case For(body=inner):
                yield attrs.evolve(statement, body=tuple(_written_out(inner, found)))
            case If(then=then, otherwise=otherwise):
                yield attrs.evolve(
                    statement,
                    then=tuple(_written_out(then, found)),
                    otherwise=tuple(_written_out(otherwise, found)),
                )
            case _:
                yield statement
