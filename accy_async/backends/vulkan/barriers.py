"""Barriers as the families of queues take them.

A family that only copies knows no stage of shaders, and its barriers may not name one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from accy_async.backends.vulkan.binding import Vulkan
    from accy_async.backends.vulkan.families import QueueFamily

__all__ = ["Synchronization"]


class Synchronization:
    """The two barriers that are used, on queues of one family.

    Args:
        vulkan: the binding.
        family: the family.
    """

    def __init__(self, vulkan: Vulkan, family: QueueFamily) -> None:
        lib = vulkan.lib
        work = lib.VK_PIPELINE_STAGE_TRANSFER_BIT
        written = lib.VK_ACCESS_TRANSFER_WRITE_BIT
        touched = written | lib.VK_ACCESS_TRANSFER_READ_BIT
        if family.can_compute:
            work |= lib.VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT
            written |= lib.VK_ACCESS_SHADER_WRITE_BIT
            touched |= lib.VK_ACCESS_SHADER_WRITE_BIT | lib.VK_ACCESS_SHADER_READ_BIT
        self._record = lib.vkCmdPipelineBarrier
        self._null = vulkan.null
        self._work = work
        self._host = lib.VK_PIPELINE_STAGE_HOST_BIT
        self._apart = vulkan.struct(
            "VkMemoryBarrier", srcAccessMask=written, dstAccessMask=touched
        )
        self._to_host = vulkan.struct(
            "VkMemoryBarrier",
            srcAccessMask=written,
            dstAccessMask=lib.VK_ACCESS_HOST_READ_BIT,
        )

    def hold_apart(self, commands: Any) -> None:  # noqa: ANN401
        """Hold what was recorded, and what was submitted before, apart from the rest.

        Writes are seen by what comes next, whatever command buffer it is in.
        """
        null, work = self._null, self._work
        self._record(commands, work, work, 0, 1, self._apart, 0, null, 0, null)

    def show_host(self, commands: Any) -> None:  # noqa: ANN401
        """Have the host see what was written, which a semaphore alone does not do."""
        null, barrier = self._null, self._to_host
        self._record(commands, self._work, self._host, 0, 1, barrier, 0, null, 0, null)
