"""Vulkan's result codes, and the errors that they stand for.

Source: Vulkan 1.3 specification, "Return Codes" (VkResult).
"""

from __future__ import annotations

from enum import IntEnum

from accy_async.errors import AccyError, CapabilityMismatch, DeviceError, OutOfMemory

__all__ = ["VkResult", "VulkanError", "describe", "result_error"]


class VkResult(IntEnum):
    """What calls return; errors are below 0."""

    SUCCESS = 0
    NOT_READY = 1
    TIMEOUT = 2
    INCOMPLETE = 5
    OUT_OF_HOST_MEMORY = -1
    OUT_OF_DEVICE_MEMORY = -2
    INITIALIZATION_FAILED = -3
    DEVICE_LOST = -4
    MEMORY_MAP_FAILED = -5
    LAYER_NOT_PRESENT = -6
    EXTENSION_NOT_PRESENT = -7
    FEATURE_NOT_PRESENT = -8
    INCOMPATIBLE_DRIVER = -9
    TOO_MANY_OBJECTS = -10
    FORMAT_NOT_SUPPORTED = -11
    FRAGMENTED_POOL = -12
    UNKNOWN = -13
    OUT_OF_POOL_MEMORY = -1000069000
    INVALID_EXTERNAL_HANDLE = -1000072003
    FRAGMENTATION = -1000161000
    INVALID_SHADER = -1000012000


_MEMORY = frozenset(
    {
        VkResult.OUT_OF_HOST_MEMORY,
        VkResult.OUT_OF_DEVICE_MEMORY,
        VkResult.TOO_MANY_OBJECTS,
        VkResult.OUT_OF_POOL_MEMORY,
        VkResult.FRAGMENTATION,
        VkResult.FRAGMENTED_POOL,
    }
)
_LACKING = frozenset(
    {
        VkResult.LAYER_NOT_PRESENT,
        VkResult.EXTENSION_NOT_PRESENT,
        VkResult.FEATURE_NOT_PRESENT,
        VkResult.INCOMPATIBLE_DRIVER,
    }
)


class VulkanError(DeviceError):
    """The driver refused a call; ``code`` is its VkResult."""

    @property
    def is_loss(self) -> bool:
        """True where the device is gone; a wait that runs out is no error."""
        return self.code == VkResult.DEVICE_LOST


def describe(result: int) -> str:
    """A result code by its name and number."""
    try:
        name = VkResult(result).name
    except ValueError:
        return f"VkResult {result}"
    prefix = "VK_ERROR_" if result < 0 else "VK_"
    return f"{prefix}{name} ({result})"


def result_error(result: int, call: str) -> AccyError:
    """The error of a result code below 0."""
    what = f"{call}: {describe(result)}"
    if result in _MEMORY:
        return OutOfMemory(what)
    if result in _LACKING:
        return CapabilityMismatch(what)
    return VulkanError(what, code=int(result), call=call)
