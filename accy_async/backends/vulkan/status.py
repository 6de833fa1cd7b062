"""The words in which kernels leave the codes of their failed assertions."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

from accy_async.backends.vulkan.memory import MemoryKind
from accy_async.errors import OutOfMemory

if TYPE_CHECKING:
    from accy_async.backends.vulkan.kernels import Range
    from accy_async.backends.vulkan.memory import Allocator

__all__ = ["StatusWords"]

_WORDS = 4096

_LEAST_LEFT = 1024
"""Words that graphs leave for the launches of streams."""


class StatusWords:
    """A word for each launch that may fail and is at work, in memory of the host's.

    A stream has one such launch at work at most; with more streams than there are
    words, a launch waits for a word. A graph has a word for each of its launches that
    may fail, for as long as there is the graph. Under the submission lock.

    Args:
        allocator: where the words come from.
        alignment: how far apart descriptors may begin.

    Attributes:
        range: the first word, as a descriptor names it; the others by offsets.
    """

    def __init__(self, allocator: Allocator, alignment: int) -> None:
        self._allocator = allocator
        self._step = max(4, alignment)
        self._memory = allocator.take(MemoryKind.DOWNLOAD, _WORDS * self._step)
        self._idle = list(reversed(range(_WORDS)))
        memory = self._memory
        self.range: Range = (memory.block, memory.offset, 4)

    @property
    def has_room(self) -> bool:
        """True where a word is free."""
        return bool(self._idle)

    def take(self) -> int:
        """The offset of a word that is 0 now."""
        offset = self._idle.pop() * self._step
        self.clear(offset)
        return offset

    def reserve(self) -> int:
        """The offset of a word for a graph, which clears it before each launch.

        Raises:
            OutOfMemory: what is left is for streams.
        """
        if len(self._idle) <= _LEAST_LEFT:
            raise OutOfMemory(
                f"no word is left for the assertions of a graph: it has "
                f"{_WORDS - _LEAST_LEFT}, in all graphs together, for kernels that "
                "may fail"
            )
        return self._idle.pop() * self._step

    def clear(self, offset: int) -> None:
        """Make a word 0 again; its launch is not at work."""
        self._word(offset).value = 0

    def read(self, offset: int) -> int:
        """What a word holds; the launch has ended."""
        return self._word(offset).value

    def give_back(self, offset: int) -> None:
        """Make a word free again."""
        self._idle.append(offset // self._step)

    def close(self) -> None:
        """Give the memory back; no launch may be at work."""
        self._allocator.give_back(self._memory)

    def _word(self, offset: int) -> ctypes.c_uint32:
        return ctypes.c_uint32.from_address(self._memory.address + offset)
