"""Memory of the CPU backend's buffers: aligned, counted, untouched until used."""

from __future__ import annotations

import ctypes
import threading

import numpy as np
from numpy.typing import NDArray

from accy_async.errors import InvalidBuffer, OutOfMemory

__all__ = ["CpuAllocator", "CpuMemory", "borrowed"]

# Any element type may be loaded from the start of any buffer, and a vector of
# the widest registers never straddles a cache line there.
_LEAST_ALIGNMENT = 64


class CpuMemory:
    """The bytes of one buffer, at ``address``.

    Operations keep the array, not this: memory of a freed buffer goes when the
    last of them is done.
    """

    __slots__ = ("_array", "address", "byte_size", "is_borrowed")

    def __init__(self, array: NDArray[np.uint8], *, is_borrowed: bool = False) -> None:
        self._array: NDArray[np.uint8] | None = array
        self.address = int(array.ctypes.data)
        self.byte_size = array.nbytes
        self.is_borrowed = is_borrowed

    @property
    def array(self) -> NDArray[np.uint8]:
        """The bytes, aligned as asked for.

        Raises:
            InvalidBuffer: the buffer was freed.
        """
        array = self._array
        if array is None:
            raise InvalidBuffer("the buffer was destroyed while it was submitted")
        return array

    def release(self) -> None:
        """Let go of the bytes; again does nothing."""
        self._array = None


class CpuAllocator:
    """Gives out memory, up to a limit.

    Args:
        limit_bytes: what all buffers may take together; None for no limit but
            the system's.

    Attributes:
        limit_bytes: that.
    """

    def __init__(self, limit_bytes: int | None) -> None:
        self.limit_bytes = limit_bytes
        self._lock = threading.Lock()
        self._bytes_in_use = 0

    @property
    def bytes_in_use(self) -> int:
        """The sizes of all buffers not freed, together."""
        return self._bytes_in_use

    def allocate(self, byte_size: int, alignment: int) -> CpuMemory:
        """Memory that no page was touched of.

        Raises:
            OutOfMemory: the limit or the system forbids it.
        """
        limit = self.limit_bytes
        with self._lock:
            if limit is not None and self._bytes_in_use + byte_size > limit:
                raise OutOfMemory(
                    f"{byte_size} bytes asked for, {self._bytes_in_use} of {limit} "
                    "in use",
                    requested_bytes=byte_size,
                )
            self._bytes_in_use += byte_size
        try:
            return CpuMemory(_aligned(byte_size, max(alignment, _LEAST_ALIGNMENT)))
        except (MemoryError, ValueError, OverflowError) as error:
            with self._lock:
                self._bytes_in_use -= byte_size
            raise OutOfMemory(
                f"{byte_size} bytes asked for, the system has not got them "
                f"({self._bytes_in_use} in use)",
                requested_bytes=byte_size,
            ) from error

    def free(self, memory: CpuMemory) -> None:
        """Take memory back."""
        memory.release()
        if memory.is_borrowed:
            return
        with self._lock:
            self._bytes_in_use -= memory.byte_size


def borrowed(address: int, byte_size: int, keeper: object) -> CpuMemory:
    """Memory that somebody else owns, and that the keeper keeps in place."""
    if not byte_size:
        return CpuMemory(np.empty(0, np.uint8), is_borrowed=True)
    block = (ctypes.c_uint8 * byte_size).from_address(address)
    # Arrays made of a block keep the block, and so the keeper.
    block.keeper = keeper  # type: ignore[attr-defined]
    return CpuMemory(np.frombuffer(memoryview(block), np.uint8), is_borrowed=True)


def _aligned(byte_size: int, alignment: int) -> NDArray[np.uint8]:
    """Fresh bytes. numpy asks for huge pages where there are enough of them."""
    raw = np.empty(byte_size + alignment - 1, np.uint8)
    offset = -raw.ctypes.data % alignment
    return raw[offset : offset + byte_size]
