"""Which parts of a block of memory are free: the bookkeeping of sub-allocation."""

from __future__ import annotations

from bisect import bisect_left, insort

__all__ = ["Ranges"]


class Ranges:
    """The free ranges of a block, kept in order, neighbours joined.

    Args:
        byte_size: the block's size.
    """

    __slots__ = ("_free", "byte_size", "free_bytes")

    def __init__(self, byte_size: int) -> None:
        self.byte_size = byte_size
        self.free_bytes = byte_size
        self._free: list[tuple[int, int]] = [(0, byte_size)] if byte_size else []

    @property
    def is_empty(self) -> bool:
        """True where nothing of the block is taken."""
        return self.free_bytes == self.byte_size

    @property
    def largest(self) -> int:
        """The size of the largest free range."""
        return max((size for _, size in self._free), default=0)

    def take(self, byte_size: int, alignment: int) -> int | None:
        """Where a range of that size begins now, in the smallest gap that has room.

        Returns:
            Its offset, a multiple of ``alignment``; None where no gap has room.
        """
        best: tuple[int, int, int] | None = None
        for index, (start, size) in enumerate(self._free):
            padding = -start % alignment
            if size >= byte_size + padding and (best is None or size < best[0]):
                best = size, index, start + padding
        if best is None:
            return None
        size, index, offset = best
        start = self._free[index][0]
        left = [
            (first, length)
            for first, length in (
                (start, offset - start),
                (offset + byte_size, start + size - offset - byte_size),
            )
            if length
        ]
        self._free[index : index + 1] = left
        self.free_bytes -= byte_size
        return offset

    def give_back(self, offset: int, byte_size: int) -> None:
        """Make a range that was taken free again."""
        insort(self._free, (offset, byte_size))
        index = bisect_left(self._free, (offset, byte_size))
        self._join(index)
        if index:
            self._join(index - 1)
        self.free_bytes += byte_size

    def _join(self, index: int) -> None:
        """Join a range with the one behind it, if they touch."""
        if index + 1 >= len(self._free):
            return
        (start, size), (following, more) = self._free[index : index + 2]
        if start + size == following:
            self._free[index : index + 2] = [(start, size + more)]
