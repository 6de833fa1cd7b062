"""What a device is and can do, as its driver tells; and which of it is enabled."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from accy_async.artifact.formats import ArtifactFormat, BackendKind
from accy_async.artifact.native.host import core_count
from accy_async.artifact.requirements import DeviceFeatures, SubgroupFeatures
from accy_async.backends.capabilities import Capabilities, DeviceIdentity
from accy_async.backends.vulkan.limits import MODULE_FEATURES, VulkanLimits
from accy_async.dtypes import DType

if TYPE_CHECKING:
    from accy_async.backends.vulkan.binding import Vulkan
    from accy_async.backends.vulkan.choice import FoundDevice
    from accy_async.backends.vulkan.families import QueueFamily

__all__ = ["DeviceProperties"]

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


_ENABLED = MODULE_FEATURES | {"timelineSemaphore", "shaderSubgroupExtendedTypes"}
"""The features that kernels may ask for, and what the backend itself needs. No others
are enabled: some cost every access of a buffer something, whoever uses them."""

_UNITS = (
    ("VK_NV_shader_sm_builtins", "ShaderSMBuiltinsPropertiesNV", ("shaderSMCount",)),
    (
        "VK_AMD_shader_core_properties",
        "ShaderCorePropertiesAMD",
        (
            "shaderEngineCount",
            "shaderArraysPerEngineCount",
            "computeUnitsPerShaderArray",
        ),
    ),
)
"""By which extension a device tells its processors, as the product of these fields."""


class DeviceProperties:
    """What one device is and can do.

    Args:
        vulkan: the binding.
        physical: the driver's handle.

    Attributes:
        features: what is to be enabled, as making the device takes it.
        limits: limits and features as a value; of features those that are enabled.
        tick_ns: the length of a tick of its time stamps.
    """

    def __init__(self, vulkan: Vulkan, physical: Any) -> None:  # noqa: ANN401
        self._vulkan = vulkan
        self._physical = physical
        self._read()

    def _read(self) -> None:
        vulkan, lib = self._vulkan, self._vulkan.lib
        self._driver = vulkan.struct("VkPhysicalDeviceDriverProperties")
        memory = vulkan.struct(
            "VkPhysicalDeviceMaintenance3Properties", pNext=self._driver
        )
        controls = vulkan.struct(
            "VkPhysicalDeviceFloatControlsProperties", pNext=memory
        )
        self._subgroup = vulkan.struct(
            "VkPhysicalDeviceSubgroupProperties", pNext=controls
        )
        self._properties = vulkan.struct(
            "VkPhysicalDeviceProperties2", pNext=self._subgroup
        )
        units = self._units_asked()
        if units is not None:
            self._driver.pNext = units[0]
        lib.vkGetPhysicalDeviceProperties2(self._physical, self._properties)
        self._units = 1
        if units is not None:
            for name in units[1]:
                self._units *= max(1, int(getattr(units[0], name)))
        twelve = vulkan.struct("VkPhysicalDeviceVulkan12Features")
        eleven = vulkan.struct("VkPhysicalDeviceVulkan11Features", pNext=twelve)
        self.features = vulkan.struct("VkPhysicalDeviceFeatures2", pNext=eleven)
        lib.vkGetPhysicalDeviceFeatures2(self._physical, self.features)
        names = set(_flags(vulkan, controls))
        for place in (self.features.features, eleven, twelve):
            for name in _flags(vulkan, place):
                if name in _ENABLED:
                    names.add(name)
                else:
                    setattr(place, name, 0)
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
            max_allocation_bytes=memory.maxMemoryAllocationSize,
            storage_alignment=limits.minStorageBufferOffsetAlignment,
            features=frozenset(names),
        )

    def capabilities(self, chosen: FoundDevice, family: QueueFamily) -> Capabilities:
        """What programs are told, of a device that was found as this."""
        vulkan, found, limits = self._vulkan, self._properties.properties, self.limits
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
        has_clock = family.timestamp_bits and self.tick_ns > 0
        return Capabilities(
            identity=DeviceIdentity(
                backend=BackendKind.VULKAN,
                name=vulkan.text(found.deviceName),
                vendor=_VENDORS.get(found.vendorID, f"{found.vendorID:#06x}"),
                architecture=architecture,
                compute_units=core_count() if chosen.is_software else self._units,
                memory_bytes=self._memory_bytes(),
                driver=f"{driver} {details}".strip(),
                index=chosen.index,
                is_software=chosen.is_software,
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
            priorities=(0, -1) if family.urgent else (0, 0),
            max_streams=16,
            device_graphs=True,
            timing_resolution_ns=self.tick_ns if has_clock else 1.0,
        )

    def _memory_bytes(self) -> int:
        """Of the largest heap of the device's own."""
        vulkan = self._vulkan
        out = vulkan.ffi.new("VkPhysicalDeviceMemoryProperties*")
        vulkan.lib.vkGetPhysicalDeviceMemoryProperties(self._physical, out)
        local = vulkan.lib.VK_MEMORY_HEAP_DEVICE_LOCAL_BIT
        heaps = [out.memoryHeaps[index] for index in range(out.memoryHeapCount)]
        sizes = [int(heap.size) for heap in heaps if heap.flags & local]
        return max(sizes, default=0)

    def _units_asked(self) -> tuple[Any, tuple[str, ...]] | None:
        """A structure in which the device tells its processors, and the fields."""
        vulkan = self._vulkan
        extensions = {
            vulkan.text(one.extensionName)
            for one in vulkan.list(
                "vkEnumerateDeviceExtensionProperties",
                "VkExtensionProperties",
                self._physical,
                vulkan.null,
            )
        }
        for extension, name, fields in _UNITS:
            if extension in extensions:
                return vulkan.struct(f"VkPhysicalDevice{name}"), fields
        return None


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
