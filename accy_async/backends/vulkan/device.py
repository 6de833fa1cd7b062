"""One logical device: what it can do, its queues, and everything made of it."""

from __future__ import annotations

import os
import threading
from typing import Any

from accy_async.backends.vulkan.binding import Vulkan, load_vulkan
from accy_async.backends.vulkan.choice import DeviceType, FoundDevice, choose_device
from accy_async.backends.vulkan.families import (
    DEFAULT_QUEUES,
    FoundFamily,
    QueueFamily,
    choose_families,
)
from accy_async.backends.vulkan.instance import LEAST_VERSION, VulkanInstance
from accy_async.backends.vulkan.properties import DeviceProperties

__all__ = ["VulkanDevice"]

_LLVMPIPE = 13
"""VK_DRIVER_ID_MESA_LLVMPIPE, which people call lavapipe."""


class VulkanDevice:
    """A device with all that it can do enabled, and a registry of what is made of it.

    Args:
        wanted: as `choose_device` takes it.
        hardware_only: as `choose_device` takes it.
        queues: for kernels, at the most.
        validation: as `VulkanInstance` takes it.

    Raises:
        BackendUnavailable: no loader, no driver, no device.
        InvalidValue: no such device.

    Attributes:
        vulkan: the binding.
        instance: the connection.
        messages: what the validation layer has reported, in order.
        native: the driver's handle.
        limits, capabilities: what it can do.
        family: its queues.
        copying: the queue for copies alone, where it has one.
        tick_ns: the length of a tick of its time stamps.
    """

    def __init__(
        self,
        wanted: int | str | None = None,
        *,
        hardware_only: bool = False,
        queues: int = DEFAULT_QUEUES,
        validation: bool = False,
    ) -> None:
        self._most_queues = queues
        self.vulkan: Vulkan = load_vulkan()
        self.instance = VulkanInstance(self.vulkan, validation=validation)
        self.messages = self.instance.messages
        self._lock = threading.Lock()
        self._made: dict[tuple[str, int], Any] = {}
        self._process = os.getpid()
        self._is_destroyed = False
        self.native: Any = None
        try:
            self._open(wanted, hardware_only=hardware_only)
        except BaseException:
            self.destroy()
            raise

    def _open(self, wanted: int | str | None, *, hardware_only: bool) -> None:
        physicals = self.instance.physical_devices()
        found = [self._find(index, one) for index, one in enumerate(physicals)]
        self.chosen = choose_device(found, wanted, hardware_only=hardware_only)
        self.physical = physicals[self.chosen.index]
        self._properties = DeviceProperties(self.vulkan, self.physical)
        self.limits, self.tick_ns = self._properties.limits, self._properties.tick_ns
        self.family, self.copying = self._families()
        self._create()
        self.capabilities = self._properties.capabilities(self.chosen, self.family)

    # What is made of it

    def make(self, kind: str, info: Any) -> Any:  # noqa: ANN401
        """Make an object, as ``make("Buffer", info)``, and keep account of it."""
        vulkan = self.vulkan
        made = vulkan.get(
            f"vkCreate{kind}", f"Vk{kind}", self.native, info, vulkan.null
        )
        self.keep(kind, made)
        return made

    def keep(self, kind: str, made: Any) -> None:  # noqa: ANN401
        """Keep account of an object made in another way."""
        with self._lock:
            self._made[kind, self._number(made)] = made

    def unmake(self, kind: str, made: Any) -> None:  # noqa: ANN401
        """Destroy an object; once, and never after the device."""
        with self._lock:
            if self._made.pop((kind, self._number(made)), None) is not None:
                self._end(kind, made)

    def made(self) -> dict[str, int]:
        """How many objects there are, by kind."""
        counts: dict[str, int] = {}
        with self._lock:
            for kind, _ in self._made:
                counts[kind] = counts.get(kind, 0) + 1
        return counts

    def destroy(self) -> None:
        """Destroy what is left, newest first, then the device and the connection.

        Nothing may be at work on it. Idempotent; in a forked child nothing happens.
        """
        with self._lock:
            if self.is_destroyed:
                return
            self._is_destroyed = True
            if self.native is not None:
                # At once where all was waited for, and where the device is lost.
                self.vulkan.lib.vkDeviceWaitIdle(self.native)
            left, self._made = list(self._made.items()), {}
            for (kind, _), made in reversed(left):
                self._end(kind, made)
            self._end_native()

    @property
    def is_destroyed(self) -> bool:
        """True once it is, or where it is another process's."""
        return self._is_destroyed or self.is_inherited

    @property
    def is_inherited(self) -> bool:
        """True in a forked child, which must not touch it."""
        return os.getpid() != self._process

    def _end_native(self) -> None:
        """End the device and the connection, of which nothing else is left."""
        if self.native is not None:
            self.vulkan.lib.vkDestroyDevice(self.native, self.vulkan.null)
        self.instance.destroy()

    def _end(self, kind: str, made: Any) -> None:  # noqa: ANN401
        vulkan = self.vulkan
        name = "vkFreeMemory" if kind == "DeviceMemory" else f"vkDestroy{kind}"
        getattr(vulkan.lib, name)(self.native, made, vulkan.null)

    def _number(self, made: Any) -> int:  # noqa: ANN401
        return int(self.vulkan.ffi.cast("uintptr_t", made))

    # Opening it

    def _find(self, index: int, physical: Any) -> FoundDevice:  # noqa: ANN401
        vulkan = self.vulkan
        driver = vulkan.struct("VkPhysicalDeviceDriverProperties")
        both = vulkan.struct("VkPhysicalDeviceProperties2", pNext=driver)
        vulkan.lib.vkGetPhysicalDeviceProperties2(physical, both)
        found = both.properties
        names = vulkan.text(driver.driverName)
        if driver.driverID == _LLVMPIPE:
            names += " lavapipe"
        unusable = ""
        if found.apiVersion < LEAST_VERSION:
            major, minor = found.apiVersion >> 22, found.apiVersion >> 12 & 0x3FF
            unusable = f"it has Vulkan {major}.{minor}, expected 1.2 or newer"
        else:
            features = vulkan.struct("VkPhysicalDeviceVulkan12Features")
            chain = vulkan.struct("VkPhysicalDeviceFeatures2", pNext=features)
            vulkan.lib.vkGetPhysicalDeviceFeatures2(physical, chain)
            if not features.timelineSemaphore:
                unusable = "it has no timeline semaphores"
        return FoundDevice(
            index=index,
            name=vulkan.text(found.deviceName),
            driver=names,
            kind=DeviceType(found.deviceType),
            unusable=unusable,
        )

    def _families(self) -> tuple[QueueFamily, QueueFamily | None]:
        vulkan = self.vulkan
        found = vulkan.list(
            "vkGetPhysicalDeviceQueueFamilyProperties",
            "VkQueueFamilyProperties",
            self.physical,
        )
        return choose_families(
            [
                FoundFamily(one.queueFlags, one.queueCount, one.timestampValidBits)
                for one in found
            ],
            self._most_queues,
        )

    def _create(self) -> None:
        vulkan = self.vulkan
        families = [self.family, *([self.copying] if self.copying else [])]
        queues = [
            vulkan.struct(
                "VkDeviceQueueCreateInfo",
                queueFamilyIndex=family.index,
                queueCount=family.count,
                pQueuePriorities=vulkan.array("float", family.priorities),
            )
            for family in families
        ]
        info = vulkan.struct(
            "VkDeviceCreateInfo",
            pNext=self._properties.features,
            queueCreateInfoCount=len(queues),
            pQueueCreateInfos=vulkan.array("VkDeviceQueueCreateInfo", queues),
        )
        self.native = vulkan.get(
            "vkCreateDevice", "VkDevice", self.physical, info, vulkan.null
        )

    def queue(self, family: int, index: int) -> Any:  # noqa: ANN401
        """The driver's handle of a queue."""
        out = self.vulkan.ffi.new("VkQueue*")
        self.vulkan.lib.vkGetDeviceQueue(self.native, family, index, out)
        return out[0]

    @property
    def queue_count(self) -> int:
        """How many queues are used."""
        return self.family.count + (self.copying is not None)

    @property
    def sharing(self) -> dict[str, object]:
        """How buffers are shared between the families, as they are made with it.

        By both at once where there are two: for buffers that costs nothing on the
        hardware that has two, and handing each over from one to the other does.
        """
        lib = self.vulkan.lib
        if self.copying is None:
            return {"sharingMode": lib.VK_SHARING_MODE_EXCLUSIVE}
        families = sorted({self.family.index, self.copying.index})
        if len(families) == 1:
            return {"sharingMode": lib.VK_SHARING_MODE_EXCLUSIVE}
        return {
            "sharingMode": lib.VK_SHARING_MODE_CONCURRENT,
            "queueFamilyIndexCount": len(families),
            "pQueueFamilyIndices": self.vulkan.array("uint32_t", families),
        }
