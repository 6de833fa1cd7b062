"""The device's time: counters of ticks that may be narrow, absent or stuck.

A queue's time stamps have so many valid bits, none where it has no clock. Those above
mean nothing, and a counter begins again at 0: a difference is taken modulo its width.
Without a clock the host's is read when the batch has been seen to end, and the event
says so. A stamp of 0 was never written: such an event counts as not measured.

Stamps are copied to memory of the host's by the queue itself: to read one takes no
call of the driver, which may not like to be called while a queue is at work.

Source: Vulkan 1.3 specification, "Timestamp Queries"; VkQueueFamilyProperties.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from accy_async.backends.hooks import EventState
from accy_async.backends.vulkan.memory import Allocator, MemoryKind, VulkanMemory

if TYPE_CHECKING:
    from accy_async.backends.timeline import Timeline
    from accy_async.backends.vulkan.device import VulkanDevice
    from accy_async.backends.vulkan.operations import Mark
    from accy_async.backends.vulkan.queue import VulkanQueue
    from accy_async.backends.vulkan.streams import VulkanStream

__all__ = ["TickClock", "VulkanEvent", "elapsed_ticks"]

_POOL_SLOTS = 256


def elapsed_ticks(start: int, end: int, valid_bits: int) -> int | None:
    """Ticks from one stamp to another; None where one was not written.

    Args:
        start: the first, with whatever above its valid bits.
        end: the second, taken less than half a turn of the counter later or earlier.
        valid_bits: how many bits of them count, 1 to 64.
    """
    mask = (1 << valid_bits) - 1
    if not start & mask or not end & mask:
        return None
    passed = (end - start) & mask
    return passed - mask - 1 if passed > mask >> 1 else passed


class VulkanEvent(EventState):
    """An event.

    Attributes:
        recorded: the operation that marks it, on the stream ``recorded_on``.
        ticks: the device's stamp there, None before it is told.
        source: ``"device"``, or ``"host"`` where the queue has no clock.
    """

    def __init__(self, *, has_timing: bool, source: str) -> None:
        super().__init__(has_timing=has_timing)
        self.recorded: Mark | None = None
        self.recorded_on: VulkanStream | None = None
        self.ticks: int | None = None
        self.source = source


class TickClock:
    """Takes stamps, and has the queries for them.

    Args:
        device: the device.
        allocator: where the host's memory for stamps comes from.
        valid_bits: of its queue's stamps.
        tick_ns: how long a tick is.
        lock: the submission lock, under which events are told.
    """

    def __init__(
        self,
        device: VulkanDevice,
        allocator: Allocator,
        valid_bits: int,
        tick_ns: float,
        lock: threading.RLock,
    ) -> None:
        self._device = device
        self._allocator = allocator
        self._bits = valid_bits if tick_ns > 0 else 0
        self._tick_ns = tick_ns
        self._lock = lock
        self._slots_lock = threading.Lock()
        self._slots: list[tuple[_Pool, int]] = []

    @property
    def source(self) -> str:
        """Whose time events get."""
        return "device" if self._bits else "host"

    def stamp(self, queue: VulkanQueue, commands: Any) -> Callable[[], int]:  # noqa: ANN401
        """Record the taking of a stamp; gives what reads it once the batch has run."""
        if not self._bits:
            return time.perf_counter_ns
        slot = self._take()
        pool, index = slot
        lib = self._device.vulkan.lib
        queue.order(commands)
        lib.vkCmdResetQueryPool(commands, pool.native, index, 1)
        lib.vkCmdWriteTimestamp(
            commands, lib.VK_PIPELINE_STAGE_BOTTOM_OF_PIPE_BIT, pool.native, index
        )
        stamps = pool.stamps
        lib.vkCmdCopyQueryPoolResults(
            commands,
            pool.native,
            index,
            1,
            stamps.block.buffer,
            stamps.offset + 8 * index,
            8,
            lib.VK_QUERY_RESULT_64_BIT | lib.VK_QUERY_RESULT_WAIT_BIT,
        )
        queue.batch().writes_host = True
        return lambda: self._read(slot)

    def tell(
        self, event: VulkanEvent, mark: tuple[Timeline, int] | None, ticks: int | None
    ) -> None:
        """Have an event know its stamp, unless it was recorded anew since."""
        with self._lock:
            if event.mark == mark:
                event.ticks = ticks

    def elapsed_ns(self, start: VulkanEvent, end: VulkanEvent) -> float | None:
        """The time between two events; None where one of them was not measured."""
        if start.ticks is None or end.ticks is None:
            return None
        if not self._bits:
            return float(end.ticks - start.ticks)
        ticks = elapsed_ticks(start.ticks, end.ticks, self._bits)
        return None if ticks is None else ticks * self._tick_ns

    def _take(self) -> tuple[_Pool, int]:
        with self._slots_lock:
            if not self._slots:
                vulkan = self._device.vulkan
                info = vulkan.struct(
                    "VkQueryPoolCreateInfo",
                    queryType=vulkan.lib.VK_QUERY_TYPE_TIMESTAMP,
                    queryCount=_POOL_SLOTS,
                )
                pool = _Pool(
                    self._device.make("QueryPool", info),
                    self._allocator.take(MemoryKind.DOWNLOAD, 8 * _POOL_SLOTS),
                )
                self._slots = [(pool, index) for index in range(_POOL_SLOTS)]
            return self._slots.pop()

    def _read(self, slot: tuple[_Pool, int]) -> int:
        pool, index = slot
        ticks = ctypes.c_uint64.from_address(pool.stamps.address + 8 * index).value
        with self._slots_lock:
            self._slots.append(slot)
        return ticks


class _Pool(NamedTuple):
    """Queries, and the host's memory of what they gave."""

    native: Any
    stamps: VulkanMemory
