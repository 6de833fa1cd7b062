"""Vulkan devices: SPIR-V kernels on their queues, behind the one contract."""

from accy_async.backends.vulkan.backend import VulkanBackend

__all__ = ["VulkanBackend"]
