"""Device memory from a stream-ordered pool, and pinned host memory for staging."""

from __future__ import annotations

import ctypes
import threading
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from accy_async.backends.cleanup import do_all
from accy_async.backends.cuda.driver import OUT_OF_MEMORY
from accy_async.errors import OutOfMemory

if TYPE_CHECKING:
    from accy_async.backends.cuda.context import CudaContext

__all__ = ["BorrowedMemory", "DeviceMemory", "DevicePool", "PinnedPool"]

_RELEASE_THRESHOLD = 2**64 - 1
"""Freed memory stays with the pool: giving it back makes the next allocation slow
(CUDA Driver API, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD)."""

_LEAST_PINNED = 4096
_POOL_ALIGNMENT = 256
"""CUDA C++ Programming Guide, "Device Memory Accesses": allocations are aligned to
at least that."""


class DeviceMemory:
    """The memory of one buffer."""

    __slots__ = ("address", "byte_size", "start")

    def __init__(self, address: int, byte_size: int, start: int) -> None:
        self.address = address
        self.byte_size = byte_size
        self.start = start  # of what the pool gave, which may begin earlier


class BorrowedMemory(DeviceMemory):
    """The memory of a buffer that somebody else owns, and that a keeper keeps."""

    __slots__ = ("keeper",)

    def __init__(self, address: int, byte_size: int, keeper: object) -> None:
        super().__init__(address, byte_size, address)
        self.keeper = keeper


class DevicePool:
    """A pool of the device's memory, of the backend's own.

    Memory is given out and taken back on a stream that does nothing else. What
    is given out has been waited for, which takes microseconds; what is taken back
    is idle, as buffers are freed only when every stream has come past their last
    use. So no other stream has to be ordered with this one.
    """

    def __init__(self, context: CudaContext, limit_bytes: int | None) -> None:
        self._context = context
        self._limit = limit_bytes
        self._given = 0
        self._lock = threading.Lock()
        driver = context.driver
        properties = driver.CUmemPoolProps()
        properties.allocType = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        properties.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        properties.location.id = context.index
        if limit_bytes is not None:
            properties.maxSize = limit_bytes
        self._pool = context.check(
            driver.cuMemPoolCreate(properties), "cuMemPoolCreate"
        )
        attribute = driver.CUmemPool_attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
        try:
            answer = driver.cuMemPoolSetAttribute(
                self._pool, attribute, driver.cuuint64_t(_RELEASE_THRESHOLD)
            )
            context.check(answer, "cuMemPoolSetAttribute")
            self._stream = context.check(driver.cuStreamCreate(1), "cuStreamCreate")
        except BaseException:
            driver.cuMemPoolDestroy(self._pool)
            raise

    def allocate(self, byte_size: int, alignment: int) -> DeviceMemory:
        """Memory of that size and alignment, which any stream may use.

        Raises:
            OutOfMemory: there is none left.
        """
        if byte_size == 0:
            return DeviceMemory(0, 0, 0)
        with self._lock:  # the pool's own limit is rounded up, to megabytes
            has_room = self._limit is None or self._given + byte_size <= self._limit
            if has_room:
                self._given += byte_size
        if not has_room:
            raise self._out_of_memory(byte_size)
        try:
            return self._take(byte_size, alignment)
        except BaseException:
            with self._lock:
                self._given -= byte_size
            raise

    def _take(self, byte_size: int, alignment: int) -> DeviceMemory:
        """Memory of the pool's, whatever the limit says."""
        # What the pool gives is aligned for every dtype: 256 bytes.
        spare = alignment if alignment > _POOL_ALIGNMENT else 0
        with self._context.relaxed():
            answer, waited = self._ask(byte_size + spare)
            if int(answer[0]) == OUT_OF_MEMORY:  # what is cached may be in the way
                self.trim()
                answer, waited = self._ask(byte_size + spare)
        # Errors may take the backend's lock: they wait until the pool's is free.
        if int(answer[0]) == OUT_OF_MEMORY:
            raise self._out_of_memory(byte_size)
        start = int(self._context.check(answer, "cuMemAllocFromPoolAsync"))
        try:
            self._context.check(waited, "cuStreamSynchronize")
        except BaseException:
            self._context.driver.cuMemFreeAsync(start, self._stream)  # nobody has it
            raise
        return DeviceMemory(-(-start // alignment) * alignment, byte_size, start)

    def _ask(self, byte_size: int) -> tuple[Any, Any]:
        """What the driver answers to an allocation, and to waiting for it."""
        driver = self._context.driver
        with self._lock:
            answer = driver.cuMemAllocFromPoolAsync(byte_size, self._pool, self._stream)
            return answer, driver.cuStreamSynchronize(self._stream)

    def _out_of_memory(self, byte_size: int) -> OutOfMemory:
        found = self.statistics()
        limit = "" if self._limit is None else f" of at most {self._limit}"
        return OutOfMemory(
            f"{byte_size} bytes asked for, {found['used_bytes']} in use{limit}, "
            f"{found['reserved_bytes']} taken from the device",
            requested_bytes=byte_size,
        )

    def free(self, memory: DeviceMemory) -> None:
        """Take idle memory back."""
        if memory.byte_size == 0:
            return
        driver = self._context.driver
        with self._context.relaxed(), self._lock:
            answer = driver.cuMemFreeAsync(memory.start, self._stream)
            self._given -= memory.byte_size
        self._context.check(answer, "cuMemFreeAsync")

    def allow(self, device: int) -> None:
        """Let another GPU, by its index, read and write all of the pool's memory."""
        driver = self._context.driver
        access = driver.CUmemAccessDesc()
        access.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        access.location.id = device
        access.flags = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        with self._context.relaxed():
            answer = driver.cuMemPoolSetAccess(self._pool, [access], 1)
        self._context.check(answer, "cuMemPoolSetAccess")

    def trim(self, keep_bytes: int = 0) -> None:
        """Give what is not in use back to the device, down to that much."""
        driver = self._context.driver
        with self._context.relaxed():
            # What was taken back is the pool's once its stream has come to it.
            waited = driver.cuStreamSynchronize(self._stream)
            answer = driver.cuMemPoolTrimTo(self._pool, keep_bytes)
        self._context.check(waited, "cuStreamSynchronize")
        self._context.check(answer, "cuMemPoolTrimTo")

    def statistics(self) -> dict[str, int]:
        """Bytes in use, bytes that the pool has, and the most of both so far."""
        driver = self._context.driver
        kinds = driver.CUmemPool_attribute
        found = {}
        for name, attribute in (
            ("used_bytes", kinds.CU_MEMPOOL_ATTR_USED_MEM_CURRENT),
            ("reserved_bytes", kinds.CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT),
            ("peak_used_bytes", kinds.CU_MEMPOOL_ATTR_USED_MEM_HIGH),
            ("peak_reserved_bytes", kinds.CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH),
        ):
            with self._context.relaxed():
                answer = driver.cuMemPoolGetAttribute(self._pool, attribute)
            found[name] = int(self._context.check(answer, "cuMemPoolGetAttribute"))
        memory_bytes = self._context.capabilities.identity.memory_bytes
        found["limit_bytes"] = memory_bytes if self._limit is None else self._limit
        return found

    def close(self) -> None:
        """Destroy the pool; none of its memory may be in use."""
        driver, check = self._context.driver, self._context.check

        def wait() -> None:
            with self._context.relaxed():
                answer = driver.cuStreamSynchronize(self._stream)
            check(answer, "cuStreamSynchronize")

        do_all(
            "destroying the pool of device memory",
            (
                wait,
                lambda: check(driver.cuMemPoolDestroy(self._pool), "cuMemPoolDestroy"),
                lambda: check(driver.cuStreamDestroy(self._stream), "cuStreamDestroy"),
            ),
        )


class PinnedPool:
    """Page-locked host memory, kept by size for using it again.

    Any thread. Sizes are rounded up to powers of two.
    """

    def __init__(self, context: CudaContext) -> None:
        self._context = context
        self._lock = threading.Lock()
        self._idle: dict[int, list[int]] = {}
        self._all: list[int] = []

    def take(self, byte_size: int) -> tuple[int, NDArray[np.uint8]]:
        """A block of at least that size: its address, and its bytes."""
        size = max(_LEAST_PINNED, 1 << (byte_size - 1).bit_length())
        with self._lock:
            idle = self._idle.get(size)
            address = idle.pop() if idle else 0
        if not address:
            address = self._allocate(size)
        view = (ctypes.c_uint8 * size).from_address(address)
        return address, np.ctypeslib.as_array(view)

    def give_back(self, address: int, byte_size: int) -> None:
        """Return a block; the device is done with it."""
        size = max(_LEAST_PINNED, 1 << (byte_size - 1).bit_length())
        with self._lock:
            self._idle.setdefault(size, []).append(address)

    def close(self) -> None:
        """Free every block; none may be in use."""
        driver = self._context.driver
        self._context.make_current()
        with self._lock:
            blocks, self._all = self._all, []
            self._idle.clear()

        def free(address: int) -> None:
            with self._context.relaxed():
                answer = driver.cuMemFreeHost(address)
            self._context.check(answer, "cuMemFreeHost")

        do_all("freeing pinned memory", [partial(free, one) for one in blocks])

    def _allocate(self, size: int) -> int:
        driver = self._context.driver
        self._context.make_current()
        with self._context.relaxed():
            # Portable (1) and mapped (2): any context may use it, and the device too.
            answer: Any = driver.cuMemHostAlloc(size, 1 | 2)
        address = int(self._context.check(answer, "cuMemHostAlloc"))
        with self._lock:
            self._all.append(address)
        return address
