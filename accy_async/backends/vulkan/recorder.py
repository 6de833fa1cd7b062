"""Command buffers that are recorded once and submitted again and again."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from accy_async.backends.vulkan.device import VulkanDevice

__all__ = ["Recorder", "Recording"]


class Recording:
    """A command buffer, and what it uses.

    Whatever is at work keeps its recordings, so that what was recorded again
    meanwhile runs as it was; the command buffer is used again once nobody has it.
    """

    __slots__ = ("__weakref__", "kept", "native")

    def __init__(self, native: Any, kept: object, idle: deque[Any]) -> None:  # noqa: ANN401
        self.native = native
        self.kept = kept
        weakref.finalize(self, idle.append, native).atexit = False


class Recorder:
    """Records, into command buffers of its own for the queues that compute.

    By one thread at a time, as pools of command buffers want it.

    Args:
        device: the device.
    """

    def __init__(self, device: VulkanDevice) -> None:
        vulkan, lib = device.vulkan, device.vulkan.lib
        self._device = device
        # Finalizers put them back, which may take no lock.
        self._idle: deque[Any] = deque()
        self._pool = device.make(
            "CommandPool",
            vulkan.struct(
                "VkCommandPoolCreateInfo",
                flags=lib.VK_COMMAND_POOL_CREATE_RESET_COMMAND_BUFFER_BIT,
                queueFamilyIndex=device.family.index,
            ),
        )
        # It may be submitted again while it is at work.
        self._begin = vulkan.struct(
            "VkCommandBufferBeginInfo",
            flags=lib.VK_COMMAND_BUFFER_USAGE_SIMULTANEOUS_USE_BIT,
        )

    def record(self, write: Callable[[Any], None], kept: object) -> Recording:
        """Record what a function writes into a command buffer.

        Args:
            write: gets the command buffer.
            kept: what has to live as long as the recording.

        Raises:
            AccyError: the driver refuses; its command buffer goes with the pool.
        """
        vulkan, commands = self._device.vulkan, self._take()
        vulkan.call("vkBeginCommandBuffer", commands, self._begin)
        write(commands)
        vulkan.call("vkEndCommandBuffer", commands)
        return Recording(commands, kept, self._idle)

    def close(self) -> None:
        """Give the command buffers back; none may be at work."""
        self._device.unmake("CommandPool", self._pool)

    def _take(self) -> Any:  # noqa: ANN401
        try:
            return self._idle.popleft()
        except IndexError:
            vulkan = self._device.vulkan
            info = vulkan.struct(
                "VkCommandBufferAllocateInfo",
                commandPool=self._pool,
                level=vulkan.lib.VK_COMMAND_BUFFER_LEVEL_PRIMARY,
                commandBufferCount=1,
            )
            return vulkan.get(
                "vkAllocateCommandBuffers",
                "VkCommandBuffer",
                self._device.native,
                info,
            )
