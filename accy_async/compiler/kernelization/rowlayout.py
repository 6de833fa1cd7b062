"""How rows lie on the blocks and threads of a launch."""

from __future__ import annotations

import attrs

from accy_async.compiler.kernelization.assembly import ceil_div

__all__ = ["RowLayout"]


@attrs.frozen
class RowLayout:
    """How rows lie on blocks and threads.

    Attributes:
        threads: of a block, a power of two where they work together.
        lanes: threads that take a row, a power of two; None: all of the block's.
        rows_per_block: rows that a block takes one after another, if together.
        unrolled: elements that a thread takes at a time.
        neighbours: how many of these lie next to each other each time, which the rows'
            extent is then a multiple of.
        accumulators: results that a thread keeps beside each other, a power of two: of
            the elements that it takes at a time each takes every so many-th.
        parts: into how many parts each row is cut.
    """

    threads: int
    lanes: int | None = None
    rows_per_block: int = 1
    unrolled: int = 1
    neighbours: int = 1
    accumulators: int = 1
    parts: int = 1

    def tiles(self, rows: int) -> int:
        """Blocks that the rows fill, without parts."""
        return ceil_div(rows, self.rows_at_once or self.rows_per_block)

    @property
    def rows_at_once(self) -> int:
        """Rows that a block's threads take apart; 0 where they work together."""
        return 0 if self.lanes is None else self.threads // self.lanes

    def part_extent(self, extent: int) -> int:
        """Elements of a part, but for the last."""
        step = (self.lanes or self.threads) * self.unrolled
        return ceil_div(ceil_div(extent, self.parts), step) * step
