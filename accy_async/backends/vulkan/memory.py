"""Memory in three kinds, sub-allocated from blocks.

Drivers allow few allocations (4096 by the specification) and take long for each, so
that buffers are parts of *blocks*. A block is one allocation with one VkBuffer over
all of it, mapped for as long as it lives where the host can see it. What is larger
than a quarter of a block gets one of its own. A block that nothing is taken of is
kept for the next, one of each kind; `Allocator.trim` gives the others back.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any

from accy_async.backends.vulkan.ranges import Ranges
from accy_async.errors import OutOfMemory

if TYPE_CHECKING:
    from accy_async.backends.vulkan.device import VulkanDevice
    from accy_async.backends.vulkan.hazards import Access

__all__ = ["Allocator", "Block", "MemoryKind", "VulkanMemory", "rank_types"]

_BLOCK_BYTES = 64 << 20
_ALIGNMENT = 256
"""minStorageBufferOffsetAlignment is at most that, by the specification."""


_LOCAL, _VISIBLE, _COHERENT, _CACHED = 1, 2, 4, 8
"""Bits of VkMemoryPropertyFlagBits."""

_SPECIAL = 0x10 | 0x20 | 0x40 | 0x80
"""Lazily allocated, protected, AMD's coherent and uncached: for uses of their own."""


class MemoryKind(Enum):
    """What memory is for."""

    DEVICE = "device"
    """Buffers: the device's own memory where it has any."""

    UPLOAD = "upload"
    """What the host writes and the device reads."""

    DOWNLOAD = "download"
    """What the device writes and the host reads, so in the host's caches."""


class Block:
    """One allocation, with a buffer over all of it.

    Attributes:
        kind: what it is for.
        byte_size: how large it is.
        buffer: the driver's handle.
        address: where the host sees it; 0 where it does not.
    """

    __slots__ = ("address", "buffer", "byte_size", "kind", "memory", "ranges")

    def __init__(
        self,
        kind: MemoryKind,
        byte_size: int,
        buffer: Any,  # noqa: ANN401
        memory: Any,  # noqa: ANN401
        address: int,
    ) -> None:
        self.kind = kind
        self.byte_size = byte_size
        self.buffer = buffer
        self.memory = memory
        self.address = address
        self.ranges = Ranges(byte_size)


class VulkanMemory:
    """A part of a block.

    Attributes:
        block: where it is.
        offset: where in the block.
        byte_size: what was asked for; ``padded`` what was taken, a multiple of 16.
        written: the last writing of it that was handed to a queue, or None.
        reads: the last reading on each queue since then.
    """

    __slots__ = ("block", "byte_size", "offset", "padded", "reads", "written")

    def __init__(self, block: Block, offset: int, byte_size: int, padded: int) -> None:
        self.block = block
        self.offset = offset
        self.byte_size = byte_size
        self.padded = padded
        self.written: Access | None = None
        self.reads: dict[object, Access] = {}

    @property
    def address(self) -> int:
        """Where the host sees it."""
        return self.block.address + self.offset


class Allocator:
    """All memory of a device.

    Any thread. Buffers are freed when the device is done with them, so that what is
    given back can be given out at once.

    Args:
        device: the device.
        limit_bytes: what buffers may take together; None for no limit but the
            device's.
    """

    def __init__(self, device: VulkanDevice, limit_bytes: int | None = None) -> None:
        self._device = device
        self._limit = limit_bytes
        self._lock = threading.Lock()
        self._blocks: dict[MemoryKind, list[Block]] = {kind: [] for kind in MemoryKind}
        self._used = dict.fromkeys(MemoryKind, 0)
        self._types = _memory_types(device)
        self._usage = (
            device.vulkan.lib.VK_BUFFER_USAGE_STORAGE_BUFFER_BIT
            | device.vulkan.lib.VK_BUFFER_USAGE_TRANSFER_SRC_BIT
            | device.vulkan.lib.VK_BUFFER_USAGE_TRANSFER_DST_BIT
        )

    def take(
        self, kind: MemoryKind, byte_size: int, alignment: int = _ALIGNMENT
    ) -> VulkanMemory:
        """Memory of that size at least.

        Raises:
            OutOfMemory: there is none left; with the sizes in the message.
        """
        alignment = max(alignment, _ALIGNMENT)
        padded = max(16, -(-byte_size // 16) * 16)
        with self._lock:
            used = self._used[kind]
            limit = self._limit if kind is MemoryKind.DEVICE else None
            if limit is not None and used + byte_size > limit:
                raise self._exhausted(kind, byte_size)
            for block in self._blocks[kind]:
                offset = block.ranges.take(padded, alignment)
                if offset is not None:
                    break
            else:
                block = self._open(kind, padded, byte_size)
                found = block.ranges.take(padded, alignment)
                assert found is not None
                offset = found
            self._used[kind] += byte_size
        return VulkanMemory(block, offset, byte_size, padded)

    def give_back(self, memory: VulkanMemory) -> None:
        """Take memory back that the device is done with."""
        block = memory.block
        with self._lock:
            block.ranges.give_back(memory.offset, memory.padded)
            self._used[block.kind] -= memory.byte_size
            if block.ranges.is_empty and block.byte_size > _BLOCK_BYTES:
                self._close(block)  # too large to be kept for what may come

    def trim(self, keep_bytes: int = 0) -> None:
        """Give blocks that nothing is taken of back, down to that much in all."""
        with self._lock:
            for block in [b for found in self._blocks.values() for b in found]:
                if block.ranges.is_empty and self._reserved() > keep_bytes:
                    self._close(block)

    def statistics(self) -> dict[str, int]:
        """Bytes in use and bytes taken from the device, of buffers and of the rest."""
        memory_bytes = self._device.capabilities.identity.memory_bytes
        with self._lock:
            reserved = {
                kind: sum(block.byte_size for block in self._blocks[kind])
                for kind in MemoryKind
            }
            staging = (MemoryKind.UPLOAD, MemoryKind.DOWNLOAD)
            return {
                "used_bytes": self._used[MemoryKind.DEVICE],
                "reserved_bytes": reserved[MemoryKind.DEVICE],
                "limit_bytes": memory_bytes if self._limit is None else self._limit,
                "staging_used_bytes": sum(self._used[kind] for kind in staging),
                "staging_reserved_bytes": sum(reserved[kind] for kind in staging),
                "allocations": sum(map(len, self._blocks.values())),
            }

    def _reserved(self) -> int:
        return sum(b.byte_size for found in self._blocks.values() for b in found)

    def _open(self, kind: MemoryKind, padded: int, byte_size: int) -> Block:
        """A new block with room for that much, which may be all of it."""
        allocations = sum(map(len, self._blocks.values()))
        if allocations >= self._device.limits.max_allocations:
            raise self._exhausted(kind, byte_size)
        size = _BLOCK_BYTES if padded <= _BLOCK_BYTES // 4 else padded
        most = self._device.limits.max_allocation_bytes
        if size > most:
            raise OutOfMemory(
                f"{byte_size} bytes asked for, the device's maxMemoryAllocationSize is "
                f"{most}",
                requested_bytes=byte_size,
            )
        try:
            block = self._allocate(kind, size)
        except OutOfMemory as error:
            if size == padded:
                raise self._exhausted(kind, byte_size) from error
            try:
                block = self._allocate(kind, padded)
            except OutOfMemory:
                raise self._exhausted(kind, byte_size) from error
        self._blocks[kind].append(block)
        return block

    def _allocate(self, kind: MemoryKind, size: int) -> Block:
        device, vulkan = self._device, self._device.vulkan
        ffi = vulkan.ffi
        info = vulkan.struct(
            "VkBufferCreateInfo", size=size, usage=self._usage, **device.sharing
        )
        buffer = device.make("Buffer", info)
        try:
            needs = ffi.new("VkMemoryRequirements*")
            vulkan.lib.vkGetBufferMemoryRequirements(device.native, buffer, needs)
            info = vulkan.struct(
                "VkMemoryAllocateInfo",
                allocationSize=needs.size,
                memoryTypeIndex=self._type(kind, needs.memoryTypeBits),
            )
            memory = vulkan.get(
                "vkAllocateMemory", "VkDeviceMemory", device.native, info, vulkan.null
            )
        except BaseException:
            device.unmake("Buffer", buffer)
            raise
        device.keep("DeviceMemory", memory)
        address = 0
        try:
            vulkan.call("vkBindBufferMemory", device.native, buffer, memory, 0)
            if kind is not MemoryKind.DEVICE:
                mapped = vulkan.get(
                    "vkMapMemory", "void*", device.native, memory, 0, size, 0
                )
                address = int(ffi.cast("uintptr_t", mapped))
        except BaseException:
            device.unmake("Buffer", buffer)
            device.unmake("DeviceMemory", memory)
            raise
        return Block(kind, size, buffer, memory, address)

    def _close(self, block: Block) -> None:
        self._blocks[block.kind].remove(block)
        self._device.unmake("Buffer", block.buffer)
        self._device.unmake("DeviceMemory", block.memory)

    def _type(self, kind: MemoryKind, allowed: int) -> int:
        for index in self._types[kind]:
            if allowed >> index & 1:
                return index
        raise OutOfMemory(f"the device has no memory of the kind {kind.value}")

    def _exhausted(self, kind: MemoryKind, byte_size: int) -> OutOfMemory:
        reserved = sum(block.byte_size for block in self._blocks[kind])
        limit = ""
        if kind is MemoryKind.DEVICE and self._limit is not None:
            limit = f" of at most {self._limit}"
        return OutOfMemory(
            f"{byte_size} bytes asked for, {self._used[kind]} in use{limit}, "
            f"{reserved} taken from the device",
            requested_bytes=byte_size,
        )


def _memory_types(device: VulkanDevice) -> dict[MemoryKind, list[int]]:
    vulkan = device.vulkan
    found = vulkan.ffi.new("VkPhysicalDeviceMemoryProperties*")
    vulkan.lib.vkGetPhysicalDeviceMemoryProperties(device.physical, found)
    count = found.memoryTypeCount
    return rank_types([found.memoryTypes[i].propertyFlags for i in range(count)])


def rank_types(flags: Sequence[int]) -> dict[MemoryKind, list[int]]:
    """The types of memory that will do for each kind, the best first.

    Args:
        flags: VkMemoryPropertyFlags of each type.
    """
    seen = _VISIBLE | _COHERENT
    rules = {
        # kind: needed, wanted, unwanted
        # What the host sees of the device's own may be a small window.
        MemoryKind.DEVICE: (0, _LOCAL, seen),
        MemoryKind.UPLOAD: (seen, 0, _LOCAL | _CACHED),
        MemoryKind.DOWNLOAD: (seen, _CACHED, _LOCAL),
    }
    types = {}
    for kind, (needed, good, bad) in rules.items():

        def rank(index: int, good: int = good, bad: int = bad) -> tuple[int, int, int]:
            missing = (good & ~flags[index]).bit_count()
            return missing, (bad & flags[index]).bit_count(), index

        able = [
            index
            for index, flag in enumerate(flags)
            if flag & needed == needed and not flag & _SPECIAL
        ]
        types[kind] = sorted(able, key=rank)
    return types
