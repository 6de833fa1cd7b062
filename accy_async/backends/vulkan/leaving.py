"""The end of a backend that nobody has closed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from accy_async.backends.vulkan.hub import wait_for
from accy_async.backends.vulkan.results import VkResult

if TYPE_CHECKING:
    from accy_async.backends.vulkan.device import VulkanDevice
    from accy_async.backends.vulkan.hub import Hub
    from accy_async.backends.vulkan.queue import VulkanQueue

__all__ = ["leave"]

_LEAVING_S = 2.0
"""How long an interpreter that exits waits for what is still at work."""


def leave(device: VulkanDevice, hub: Hub, queues: Sequence[VulkanQueue]) -> None:
    """Give back the device of a backend that nobody has closed.

    What is at work is waited for, not for ever: then it is left to the system.
    """
    if device.is_inherited:
        return
    # Its thread may be giving the device back at this moment: the interpreter must not
    # be gone before.
    has_stopped = hub.stop(_LEAVING_S)
    if device.is_destroyed:
        return
    for queue in queues:
        pairs = [(queue.semaphore, queue.submitted)]
        result = wait_for(device, pairs, int(_LEAVING_S * 1e9))
        if result == VkResult.TIMEOUT:
            return
    if has_stopped:
        device.destroy()
