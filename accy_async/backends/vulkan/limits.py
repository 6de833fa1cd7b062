"""What a Vulkan device can do, as a value, and what a module asks of it.

Nothing here talks to a driver: tests compare modules with the least that the
specification allows a device to have.
"""

from __future__ import annotations

from collections.abc import Iterator

import attrs

from accy_async.artifact.spirv import SpirvModule
from accy_async.errors import CapabilityMismatch, InvalidArtifact
from accy_async.values import frozenset_of, integer, integers

__all__ = ["MODULE_FEATURES", "VulkanLimits", "check_module"]

_EXTENTS = integers(1, 2**32 - 1, length=3)


@attrs.frozen(kw_only=True)
class VulkanLimits:
    """Limits and features of a device; the defaults are the least there may be.

    Source: Vulkan 1.3 specification, "Required Limits".

    Attributes:
        max_invocations: ``maxComputeWorkGroupInvocations``.
        max_local_size: ``maxComputeWorkGroupSize``.
        max_groups: ``maxComputeWorkGroupCount``.
        max_shared_bytes: ``maxComputeSharedMemorySize``.
        max_push_bytes: ``maxPushConstantsSize``.
        max_storage_bytes: ``maxStorageBufferRange``.
        max_storage_buffers: that one set and one stage may have.
        max_allocations: ``maxMemoryAllocationCount``.
        max_allocation_bytes: ``maxMemoryAllocationSize``.
        storage_alignment: ``minStorageBufferOffsetAlignment``.
        features: what it has of optional features, modes of floats and operations of
            subgroups, by Vulkan's names.
    """

    max_invocations: int = attrs.field(default=128, validator=integer(1))
    max_local_size: tuple[int, int, int] = attrs.field(
        default=(128, 128, 64), validator=_EXTENTS
    )
    max_groups: tuple[int, int, int] = attrs.field(
        default=(65535, 65535, 65535), validator=_EXTENTS
    )
    max_shared_bytes: int = attrs.field(default=16384, validator=integer())
    max_push_bytes: int = attrs.field(default=128, validator=integer())
    max_storage_bytes: int = attrs.field(default=2**27, validator=integer())
    max_storage_buffers: int = attrs.field(default=4, validator=integer())
    max_allocations: int = attrs.field(default=4096, validator=integer())
    max_allocation_bytes: int = attrs.field(default=2**30, validator=integer(1))
    storage_alignment: int = attrs.field(default=256, validator=integer(1))
    features: frozenset[str] = attrs.field(
        default=frozenset(), validator=frozenset_of(str)
    )


_CAPABILITIES = {
    "Float16": "shaderFloat16",
    "Float64": "shaderFloat64",
    "Int64": "shaderInt64",
    "Int64Atomics": "shaderBufferInt64Atomics",
    "Int16": "shaderInt16",
    "Int8": "shaderInt8",
    "GroupNonUniform": "subgroup basic",
    "GroupNonUniformVote": "subgroup vote",
    "GroupNonUniformArithmetic": "subgroup arithmetic",
    "GroupNonUniformBallot": "subgroup ballot",
    "GroupNonUniformShuffle": "subgroup shuffle",
    "66": "subgroup shuffle relative",
    "67": "subgroup clustered",
    "68": "subgroup quad",
    "StorageBuffer16BitAccess": "storageBuffer16BitAccess",
    "UniformAndStorageBuffer16BitAccess": "uniformAndStorageBuffer16BitAccess",
    "StoragePushConstant16": "storagePushConstant16",
    "StorageBuffer8BitAccess": "storageBuffer8BitAccess",
    "UniformAndStorageBuffer8BitAccess": "uniformAndStorageBuffer8BitAccess",
    "StoragePushConstant8": "storagePushConstant8",
    "VulkanMemoryModel": "vulkanMemoryModel",
    "VulkanMemoryModelDeviceScope": "vulkanMemoryModelDeviceScope",
    "4427": "shaderDrawParameters",
}
"""What a device must have for a module that declares a capability. Source: Vulkan
1.3 specification, "SPIR-V Capabilities"."""

MODULE_FEATURES = frozenset(_CAPABILITIES.values())
"""The features that modules may ask for."""

_EVERYWHERE = frozenset({"0", "Shader", "50"})  # Matrix, Shader, ImageQuery
_MODES = {
    4459: "shaderDenormPreserveFloat",
    4460: "shaderDenormFlushToZeroFloat",
    4461: "shaderSignedZeroInfNanPreserveFloat",
    4462: "shaderRoundingModeRTEFloat",
    4463: "shaderRoundingModeRTZFloat",
}
_MODE_CAPABILITIES = frozenset(
    {
        "DenormPreserve",
        "DenormFlushToZero",
        "SignedZeroInfNanPreserve",
        "RoundingModeRTE",
        "RoundingModeRTZ",
    }
)
"""Asked for by each mode with its width, which say more."""


def check_module(
    module: SpirvModule, entry_name: str, buffers: int, limits: VulkanLimits
) -> None:
    """Refuse a kernel that the device cannot run, or that cannot be given its buffers.

    Args:
        module: the kernel's, already read.
        entry_name: the kernel.
        buffers: how many the kernel takes.
        limits: the device's.

    Raises:
        InvalidArtifact: it has other resources than its buffers.
        CapabilityMismatch: naming each limit with its value, and each feature.
    """
    for binding in module.bindings:
        if binding.kind != "storage_buffer" or binding.set != 0:
            raise InvalidArtifact(
                f"SPIR-V: kernel {entry_name!r} has a {binding.kind} at set "
                f"{binding.set}, binding {binding.binding}; kernels take storage "
                "buffers of set 0"
            )
        if binding.binding > buffers:
            raise InvalidArtifact(
                f"SPIR-V: kernel {entry_name!r} has a buffer at binding "
                f"{binding.binding}, its artifact says that it takes {buffers}"
            )
    lacking = [*_features(module, limits), *_beyond(module, entry_name, limits)]
    if lacking:
        raise CapabilityMismatch(
            f"kernel {entry_name!r} on Vulkan: the device lacks {', '.join(lacking)}"
        )


def _features(module: SpirvModule, limits: VulkanLimits) -> Iterator[str]:
    for capability in sorted(module.capabilities):
        if capability in _EVERYWHERE or capability in _MODE_CAPABILITIES:
            continue
        feature = _CAPABILITIES.get(capability)
        if feature is None:
            yield f"SPIR-V capability {capability}"
        elif feature not in limits.features:
            yield feature
    for mode, *literals in sorted(module.execution_modes):
        name = _MODES.get(mode)
        if name is not None and f"{name}{literals[0]}" not in limits.features:
            yield f"{name}{literals[0]}"


def _beyond(
    module: SpirvModule, entry_name: str, limits: VulkanLimits
) -> Iterator[str]:
    """Each limit that is not enough, with what is asked for."""
    size = next(e.local_size for e in module.entry_points if e.name == entry_name)
    threads = size[0] * size[1] * size[2]
    wanted = [
        ("maxComputeWorkGroupInvocations", threads, limits.max_invocations),
        *(
            (f"maxComputeWorkGroupSize {axis}", got, limit)
            for axis, got, limit in zip("xyz", size, limits.max_local_size, strict=True)
        ),
        (
            "bytes of maxComputeSharedMemorySize",
            module.shared_bytes,
            limits.max_shared_bytes,
        ),
        (
            "bytes of maxPushConstantsSize",
            module.push_constant_bytes,
            limits.max_push_bytes,
        ),
        (
            "maxPerStageDescriptorStorageBuffers",
            len(module.bindings),
            limits.max_storage_buffers,
        ),
    ]
    for what, value, limit in wanted:
        if value > limit:
            yield f"{value} {what} (it has {limit})"
