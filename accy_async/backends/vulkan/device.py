"""One logical device: what it can do, its queues, and everything made of it."""

from __future__ import annotations

import os
import threading
from typing import Any

from accy_async.artifact.formats import ArtifactFormat, BackendKind
from accy_async.artifact.native.host import core_count
from accy_async.artifact.requirements import DeviceFeatures, SubgroupFeatures
from accy_async.backends.capabilities import Capabilities, DeviceIdentity
from accy_async.backends.vulkan.binding import Vulkan, load_vulkan
from accy_async.backends.vulkan.choice import DeviceType, FoundDevice, choose_device
from accy_async.backends.vulkan.families import (
    FoundFamily,
    QueueFamily,
    choose_families,
)
from accy_async.backends.vulkan.instance import LEAST_VERSION, VulkanInstance
from accy_async.backends.vulkan.limits import VulkanLimits
from accy_async.dtypes import DType

__all__ = ["VulkanDevice"]

_VENDORS = {
    0x1002: "AMD",
    0x1010: "Imagination",
    0x106B: "Apple",
    0x10DE: "NVIDIA",
    0x13B5: "ARM",
    0x5143: "Qualcomm",
    0x8086: "Intel",
    0x10005: "Mesa",
}
"""Source: PCI-SIG's ids, and Vulkan's registry (VkVendorId)."""

_LLVMPIPE = 13
"""VK_DRIVER_ID_MESA_LLVMPIPE, which people call lavapipe."""

_NEEDED_BY = {
    "shaderFloat64": (DType.F64,),
    "shaderInt64": (DType.I64, DType.U64),
    "storageBuffer8BitAccess": (DType.I8, DType.U8, DType.BOOL),
    "storageBuffer16BitAccess": (DType.I16, DType.U16, DType.F16, DType.BF16),
}
_SUBGROUP = (
    "basic",
    "vote",
    "arithmetic",
    "ballot",
    "shuffle",
    "shuffle relative",
    "clustered",
    "quad",
)
"""The bits of VkSubgroupFeatureFlagBits, from the lowest."""


class VulkanDevice:
    """A device with all that it can do enabled, and a registry of what is made of it.

    Args:
        wanted: as `choose_device` takes it.
        hardware_only: as `choose_device` takes it.
        validation: as `VulkanInstance` takes it.

    Raises:
        BackendUnavailable: no loader, no driver, no device.
        InvalidValue: no such device.

    Attributes:
        vulkan: the binding.
        instance: the connection.
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
        validation: bool = False,
    ) -> None:
        self.vulkan: Vulkan = load_vulkan()
        self.instance = VulkanInstance(self.vulkan, validation=validation)
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
        self._read()
        self.family, self.copying = self._families()
        self._create()
        self.capabilities = self._capabilities()

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
            if self.native is not None:
                self.vulkan.lib.vkDestroyDevice(self.native, self.vulkan.null)
            self.instance.destroy()

    @property
    def is_destroyed(self) -> bool:
        """True once it is, or where it is another process's."""
        return self._is_destroyed or self.is_inherited

    @property
    def is_inherited(self) -> bool:
        """True in a forked child, which must not touch it."""
        return os.getpid() != self._process

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

    def _read(self) -> None:
        """Read properties and features; the latter are also how to enable them."""
        vulkan, lib = self.vulkan, self.vulkan.lib
        self._driver = vulkan.struct("VkPhysicalDeviceDriverProperties")
        controls = vulkan.struct(
            "VkPhysicalDeviceFloatControlsProperties", pNext=self._driver
        )
        self._subgroup = vulkan.struct(
            "VkPhysicalDeviceSubgroupProperties", pNext=controls
        )
        self._properties = vulkan.struct(
            "VkPhysicalDeviceProperties2", pNext=self._subgroup
        )
        lib.vkGetPhysicalDeviceProperties2(self.physical, self._properties)
        twelve = vulkan.struct("VkPhysicalDeviceVulkan12Features")
        eleven = vulkan.struct("VkPhysicalDeviceVulkan11Features", pNext=twelve)
        self._features = vulkan.struct("VkPhysicalDeviceFeatures2", pNext=eleven)
        lib.vkGetPhysicalDeviceFeatures2(self.physical, self._features)
        # It costs every access of a buffer a comparison, and promises nothing to us.
        self._features.features.robustBufferAccess = 0
        names = {
            name
            for place in (self._features.features, eleven, twelve, controls)
            for name in _flags(vulkan, place)
        }
        if self._subgroup.supportedStages & lib.VK_SHADER_STAGE_COMPUTE_BIT:
            names |= {
                f"subgroup {name}"
                for bit, name in enumerate(_SUBGROUP)
                if self._subgroup.supportedOperations >> bit & 1
            }
        limits = self._properties.properties.limits
        self.tick_ns = float(limits.timestampPeriod)
        self.limits = VulkanLimits(
            max_invocations=limits.maxComputeWorkGroupInvocations,
            max_local_size=tuple(limits.maxComputeWorkGroupSize),
            max_groups=tuple(limits.maxComputeWorkGroupCount),
            max_shared_bytes=limits.maxComputeSharedMemorySize,
            max_push_bytes=limits.maxPushConstantsSize,
            max_storage_bytes=limits.maxStorageBufferRange,
            max_storage_buffers=min(
                limits.maxPerStageDescriptorStorageBuffers,
                limits.maxDescriptorSetStorageBuffers,
            ),
            max_allocations=limits.maxMemoryAllocationCount,
            storage_alignment=limits.minStorageBufferOffsetAlignment,
            features=frozenset(names),
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
            ]
        )

    def _create(self) -> None:
        vulkan = self.vulkan
        families = [self.family, *([self.copying] if self.copying else [])]
        queues = [
            vulkan.struct(
                "VkDeviceQueueCreateInfo",
                queueFamilyIndex=family.index,
                queueCount=family.count,
                pQueuePriorities=vulkan.array("float", [1.0] * family.count),
            )
            for family in families
        ]
        info = vulkan.struct(
            "VkDeviceCreateInfo",
            pNext=self._features,
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

    def _capabilities(self) -> Capabilities:
        vulkan, found, limits = self.vulkan, self._properties.properties, self.limits
        features = limits.features
        lacking = {
            dtype
            for name, dtypes in _NEEDED_BY.items()
            if name not in features
            for dtype in dtypes
        }
        driver = vulkan.text(self._driver.driverName)
        details = vulkan.text(self._driver.driverInfo)
        architecture = f"{found.vendorID:04x}:{found.deviceID:04x}"
        has_clock = self.family.timestamp_bits and self.tick_ns > 0
        return Capabilities(
            identity=DeviceIdentity(
                backend=BackendKind.VULKAN,
                name=vulkan.text(found.deviceName),
                vendor=_VENDORS.get(found.vendorID, f"{found.vendorID:#06x}"),
                architecture=architecture,
                compute_units=core_count() if self.chosen.is_software else 1,
                memory_bytes=self._memory_bytes(),
                driver=f"{driver} {details}".strip(),
                index=self.chosen.index,
                is_software=self.chosen.is_software,
            ),
            formats=frozenset({ArtifactFormat.VULKAN_SPIRV}),
            dtypes=frozenset(DType) - lacking,
            features=DeviceFeatures(
                int64_atomics="shaderBufferInt64Atomics" in features
            ),
            subgroup=SubgroupFeatures(
                supported="subgroup basic" in features,
                shuffle="subgroup shuffle" in features,
                vote="subgroup vote" in features,
                arithmetic="subgroup arithmetic" in features,
                size=self._subgroup.subgroupSize,
            ),
            max_threads_per_block=limits.max_invocations,
            max_threadgroup=limits.max_local_size,
            max_grid=limits.max_groups,
            max_shared_memory_bytes=limits.max_shared_bytes,
            max_push_constant_bytes=limits.max_push_bytes,
            max_streams=16,
            device_graphs=True,
            timing_resolution_ns=self.tick_ns if has_clock else 1.0,
        )

    def _memory_bytes(self) -> int:
        """Of the largest heap of the device's own."""
        vulkan = self.vulkan
        out = vulkan.ffi.new("VkPhysicalDeviceMemoryProperties*")
        vulkan.lib.vkGetPhysicalDeviceMemoryProperties(self.physical, out)
        local = vulkan.lib.VK_MEMORY_HEAP_DEVICE_LOCAL_BIT
        heaps = [out.memoryHeaps[index] for index in range(out.memoryHeapCount)]
        sizes = [int(heap.size) for heap in heaps if heap.flags & local]
        return max(sizes, default=0)


def _flags(vulkan: Vulkan, structure: Any) -> list[str]:  # noqa: ANN401
    """The fields of a structure that are true."""
    kind = vulkan.ffi.typeof(structure)
    fields = (kind.item if kind.kind == "pointer" else kind).fields
    return [
        name
        for name, field in fields
        if field.type.cname.startswith(("uint32_t", "unsigned int", "VkBool32"))
        and name != "sType"
        and getattr(structure, name)
    ]
