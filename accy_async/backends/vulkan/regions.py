"""Copies and fills as commands, recorded for streams and for graphs alike."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from accy_async.backends.vulkan.binding import Vulkan
    from accy_async.backends.vulkan.memory import VulkanMemory

__all__ = ["Pattern", "Place", "copy_region", "fill_region"]

_PATTERN_BYTES = 64 << 10
"""How much of a long pattern is staged, to be copied over and over."""

Place = tuple["VulkanMemory", int]
"""Memory and an offset in it."""


class Pattern:
    """A pattern written over so many bytes.

    vkCmdFillBuffer writes whole words of 32 bits; what it cannot do is copied from
    staging memory that has the pattern.

    Attributes:
        byte_size: how much it is written over.
        word: what is filled with.
        filled_bytes: how much of it vkCmdFillBuffer writes, from the start.
        staged_bytes: how much staging memory the rest takes; 0 for none.
    """

    __slots__ = ("_repeated", "byte_size", "filled_bytes", "staged_bytes", "word")

    def __init__(self, pattern: bytes, byte_size: int) -> None:
        self.byte_size = byte_size
        self._repeated = pattern * (8 // len(pattern))
        is_word = self._repeated[:4] == self._repeated[4:]
        self.word = int.from_bytes(self._repeated[:4], "little")
        self.filled_bytes = byte_size - byte_size % 4 if is_word else 0
        self.staged_bytes = min(byte_size - self.filled_bytes, _PATTERN_BYTES)

    def stage(self, staged: VulkanMemory) -> None:
        """Write the pattern to staging memory."""
        text = self._repeated * (-(-staged.byte_size // 8))
        ctypes.memmove(staged.address, text, staged.byte_size)


def copy_region(
    vulkan: Vulkan,
    commands: Any,  # noqa: ANN401
    source: Place,
    target: Place,
    byte_size: int,
) -> None:
    """Record a copy of bytes between two places."""
    if not byte_size:
        return
    (read, from_), (written, to) = source, target
    region = vulkan.ffi.new(
        "VkBufferCopy*", (read.offset + from_, written.offset + to, byte_size)
    )
    vulkan.lib.vkCmdCopyBuffer(
        commands, read.block.buffer, written.block.buffer, 1, region
    )


def fill_region(
    vulkan: Vulkan,
    commands: Any,  # noqa: ANN401
    target: VulkanMemory,
    pattern: Pattern,
    staged: VulkanMemory | None,
) -> None:
    """Record the writing of a pattern over a buffer's first bytes.

    Args:
        vulkan: the binding.
        commands: the command buffer.
        target: the buffer.
        pattern: what is written.
        staged: memory that has the pattern, where the pattern takes any.
    """
    block, filled = target.block, pattern.filled_bytes
    if filled:
        vulkan.lib.vkCmdFillBuffer(
            commands, block.buffer, target.offset, filled, pattern.word
        )
    if staged is None:
        return
    step, size = staged.byte_size, pattern.byte_size
    regions = vulkan.ffi.new(
        "VkBufferCopy[]",
        [
            (staged.offset, target.offset + at, min(step, size - at))
            for at in range(filled, size, step)
        ],
    )
    vulkan.lib.vkCmdCopyBuffer(
        commands, staged.block.buffer, block.buffer, len(regions), regions
    )
