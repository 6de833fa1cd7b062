"""One thread for a device, which waits for what somebody needs to know of.

It waits for the semaphores of the queues with such work, for whichever comes first,
and has the backend finish what has run. Whoever needs to know of something that it
does not wait for yet wakes it by one more semaphore, which the host signals. It waits
a second at most at a time, so that a wait which runs out is no error, and a device
that is lost becomes one.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from accy_async.backends.hubthread import start_hub_thread
from accy_async.backends.vulkan.results import VkResult, VulkanError

if TYPE_CHECKING:
    from accy_async.backends.vulkan.device import VulkanDevice
    from accy_async.backends.vulkan.queue import VulkanQueue

__all__ = ["Finishes", "Hub", "wait_for"]

_PATIENCE_NS = 10**9


class Finishes(Protocol):
    """The backend, as the hub knows it."""

    def awaited(self) -> dict[VulkanQueue, int]:
        """The batches that somebody needs to know of, by their queues."""

    def finish(self) -> None:
        """Finish what has run."""

    def after(self) -> None:
        """Free what became idle."""

    def has_ended(self) -> bool:
        """True where nothing will come any more."""

    def lose_to(self, error: VulkanError) -> None:
        """The device is gone."""

    def leave(self) -> None:
        """The thread ends, and calls the driver no more."""


class Hub:
    """The thread, which is started when it is first needed.

    Args:
        device: the device.
        backend: what has finished work told; kept alive only while it has some.
        name: of the thread.
    """

    def __init__(self, device: VulkanDevice, backend: Finishes, name: str) -> None:
        self._device = device
        self._backend = weakref.ref(backend)
        self._name = name
        self._cond = threading.Condition(threading.Lock())
        self._is_stopping = False
        self._is_rung = False
        self._is_asleep = False
        self._waiting: Mapping[VulkanQueue, int] | None = None
        self._rings = 0
        self._thread: threading.Thread | None = None
        vulkan = device.vulkan
        kind = vulkan.struct(
            "VkSemaphoreTypeCreateInfo",
            semaphoreType=vulkan.lib.VK_SEMAPHORE_TYPE_TIMELINE,
        )
        self._bell = device.make(
            "Semaphore", vulkan.struct("VkSemaphoreCreateInfo", pNext=kind)
        )

    def ring(self) -> None:
        """Have the thread look at everything anew; any thread, never blocks.

        Raises:
            RuntimeUnavailable: the system has no thread to give; the next ring tries
                again.
        """
        with self._cond:
            self._ring()

    def ring_unless_waiting(self, queue: VulkanQueue, number: int) -> None:
        """`ring`, where it does not wait for that batch, or one before it, already."""
        with self._cond:
            waiting = self._waiting
            if waiting is None or waiting.get(queue, number + 1) > number:
                self._ring()

    @property
    def is_at_work(self) -> bool:
        """True where the thread may be calling the driver, and is not this one."""
        with self._cond:
            thread = self._thread
            return (
                thread is not None
                and thread.is_alive()
                and not self._is_asleep
                and thread is not threading.current_thread()
            )

    def stop(self, patience_s: float = 0.0) -> bool:
        """Have the thread end, and wait so long for it; True where it has ended."""
        with self._cond:
            self._is_stopping = True
            self._ring()
            thread = self._thread
        if thread is None or thread is threading.current_thread():
            return True
        thread.join(patience_s)
        return not thread.is_alive()

    def _ring(self) -> None:
        """Wake the thread, wherever it waits; the condition is held."""
        if self._thread is None and not self._is_stopping:
            self._thread = start_hub_thread(self._serve, self._name)
        if self._is_rung:
            return
        self._is_rung = True
        self._cond.notify()
        if self._waiting is None:
            return
        self._rings += 1
        vulkan = self._device.vulkan
        info = vulkan.struct(
            "VkSemaphoreSignalInfo", semaphore=self._bell, value=self._rings
        )
        vulkan.lib.vkSignalSemaphore(self._device.native, info)

    def _serve(self) -> None:
        while True:
            backend = self._backend()
            if backend is None:
                return
            if self._is_stopping or backend.has_ended():
                backend.leave()
                return
            try:
                is_at_work = self._follow(backend)
            except BaseException as error:  # noqa: BLE001 - whoever waits is told
                lost = VulkanError(
                    f"following the device failed: {type(error).__name__}: {error}"
                )
                lost.__cause__ = error.with_traceback(None)
                backend.lose_to(lost)
                is_at_work = False  # nothing will come any more
            del backend
            if is_at_work:
                continue
            with self._cond:
                self._is_asleep = True
                self._cond.wait_for(lambda: self._is_rung)
                self._is_asleep = self._is_rung = False

    def _follow(self, backend: Finishes) -> bool:
        """Finish what has run, and wait for more; False where there is nothing to."""
        backend.finish()
        waits = backend.awaited()
        if not waits:
            backend.after()  # somebody else may have finished the last of it
            return False
        error = self._wait(waits)
        if error is not None:
            backend.lose_to(error)
        return True

    def _wait(self, waits: Mapping[VulkanQueue, int]) -> VulkanError | None:
        """Wait for one of these to come as far, or for a ring; what went wrong."""
        pairs = [(queue.semaphore, number) for queue, number in waits.items()]
        with self._cond:
            if self._is_rung:
                # `waits` may have been looked up before what it was rung for.
                self._is_rung = False
                return None
            self._waiting = waits
            pairs.append((self._bell, self._rings + 1))
        result = wait_for(self._device, pairs, _PATIENCE_NS)
        with self._cond:
            self._waiting = None
            self._is_rung = False
        if result < 0:
            return VulkanError(
                "the device is lost" if result == VkResult.DEVICE_LOST else "no wait",
                code=result,
                call="vkWaitSemaphores",
            )
        return None


def wait_for(
    device: VulkanDevice, pairs: list[tuple[Any, int]], timeout_ns: int
) -> int:
    """Wait until one of the semaphores has its value; returns the VkResult."""
    vulkan = device.vulkan
    info = vulkan.struct(
        "VkSemaphoreWaitInfo",
        flags=vulkan.lib.VK_SEMAPHORE_WAIT_ANY_BIT,
        semaphoreCount=len(pairs),
        pSemaphores=vulkan.array("VkSemaphore", [one for one, _ in pairs]),
        pValues=vulkan.array("uint64_t", [value for _, value in pairs]),
    )
    return int(vulkan.lib.vkWaitSemaphores(device.native, info, timeout_ns))
