"""What the devices behind GLSL and MSL can do, and refusing what they cannot."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

import attrs

from accy_async.compiler.form import Kernel
from accy_async.compiler.form.traversal import every_expression
from accy_async.dtypes import DType
from accy_async.errors import CapabilityMismatch
from accy_async.values import frozenset_of, integer, integers

__all__ = [
    "MetalTarget",
    "VulkanFeature",
    "VulkanTarget",
    "dtypes_of",
    "refuse",
    "refuse_limits",
]

_EXTENT = integers(1, 2**32 - 1, length=3)


class VulkanFeature(StrEnum):
    """What a Vulkan device may offer beyond Vulkan 1.2, by Vulkan's own names."""

    FLOAT64 = "shaderFloat64"
    INT64 = "shaderInt64"
    STORAGE_8 = "storageBuffer8BitAccess"
    STORAGE_16 = "storageBuffer16BitAccess"
    NANS_32 = "shaderSignedZeroInfNanPreserveFloat32"
    NANS_64 = "shaderSignedZeroInfNanPreserveFloat64"
    ROUNDING_32 = "shaderRoundingModeRTEFloat32"
    ROUNDING_64 = "shaderRoundingModeRTEFloat64"
    SUBNORMALS_32 = "shaderDenormPreserveFloat32"
    SUBNORMALS_64 = "shaderDenormPreserveFloat64"


_OPTIONAL = frozenset({VulkanFeature.SUBNORMALS_32, VulkanFeature.SUBNORMALS_64})


@attrs.frozen(kw_only=True)
class VulkanTarget:
    """The device a SPIR-V module is for.

    What a kernel does not use it does not ask for. The last six features, modes of
    the floats, are asked for wherever the device has them and the kernel computes in
    that width; without one the device decides: it may flush subnormals, round to
    zero, or take NaNs for numbers.

    Attributes:
        features: that the device has. The default is what desktop GPUs and the
            software driver share: all but the modes that keep subnormals.
        max_threads: ``maxComputeWorkGroupInvocations``.
        max_threadgroup: ``maxComputeWorkGroupSize``.
        max_shared_bytes: ``maxComputeSharedMemorySize``.
        max_push_constant_bytes: ``maxPushConstantsSize``; every device has 128.
        max_storage_buffers: ``maxPerStageDescriptorStorageBuffers``.
    """

    features: frozenset[VulkanFeature] = attrs.field(
        default=frozenset(VulkanFeature) - _OPTIONAL,
        validator=frozenset_of(VulkanFeature),
    )
    max_threads: int = attrs.field(default=1024, validator=integer(1))
    max_threadgroup: tuple[int, int, int] = attrs.field(
        default=(1024, 1024, 64), validator=_EXTENT
    )
    max_shared_bytes: int = attrs.field(default=32768, validator=integer())
    max_push_constant_bytes: int = attrs.field(default=128, validator=integer())
    max_storage_buffers: int = attrs.field(default=32, validator=integer())


@attrs.frozen(kw_only=True)
class MetalTarget:
    """The device MSL is for; the defaults are every Apple GPU's since the A11.

    Source: Apple, "Metal Feature Set Tables".
    """

    max_threads: int = attrs.field(default=1024, validator=integer(1))
    max_shared_bytes: int = attrs.field(default=32768, validator=integer())
    max_buffers: int = attrs.field(default=31, validator=integer(1))


def refuse(kernel: Kernel, where: str, lacking: Iterable[str]) -> None:
    """Raise CapabilityMismatch if a device lacks something."""
    listed = ", ".join(lacking)
    if listed:
        raise CapabilityMismatch(
            f"kernel {kernel.name!r} on {where}: the device lacks {listed}"
        )


def refuse_limits(
    kernel: Kernel, where: str, limits: Iterable[tuple[str, int, int]]
) -> None:
    """Raise CapabilityMismatch where a number is beyond the device's limit."""
    lacking = (
        f"{wanted} {what} (it has {limit})"
        for what, wanted, limit in limits
        if wanted > limit
    )
    refuse(kernel, where, lacking)


def dtypes_of(kernel: Kernel) -> frozenset[DType]:
    """The dtypes of all that a kernel keeps or computes."""
    groups = (kernel.buffers, kernel.scalars, kernel.shared, kernel.thread_variables)
    kept = {parameter.dtype for group in groups for parameter in group}
    computed = {expression.dtype for expression in every_expression(kernel)}
    return frozenset(kept | computed)
