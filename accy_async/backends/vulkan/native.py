"""One queue as the driver has it: its semaphore, its command buffers, submissions.

What every submission is made with is made once. A queue is used by one thread at a
time: everything here but the semaphore's number is used under the submission lock.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from accy_async.backends.vulkan.device import VulkanDevice

__all__ = ["COUNTER_CALL", "NativeQueue"]

COUNTER_CALL = "vkGetSemaphoreCounterValue"
"""The call that says how far a queue has come."""


class NativeQueue:
    """A queue, with a timeline semaphore that says how far it has come.

    Args:
        device: the device.
        family: the number of the queue's family.
        index: its number within the family.

    Attributes:
        device: the device.
        native: the driver's handle.
        semaphore: gets the number of each submission once it has run.
    """

    _info: Any
    _numbers: Any
    _commands: Any

    def __init__(self, device: VulkanDevice, family: int, index: int) -> None:
        self.device = device
        self.native = device.queue(family, index)
        self._idle: list[Any] = []
        vulkan, lib = device.vulkan, device.vulkan.lib
        kind = vulkan.struct(
            "VkSemaphoreTypeCreateInfo", semaphoreType=lib.VK_SEMAPHORE_TYPE_TIMELINE
        )
        info = vulkan.struct("VkSemaphoreCreateInfo", pNext=kind)
        self.semaphore = device.make("Semaphore", info)
        self._prepare()
        self._pool = device.make(
            "CommandPool",
            vulkan.struct(
                "VkCommandPoolCreateInfo",
                flags=lib.VK_COMMAND_POOL_CREATE_RESET_COMMAND_BUFFER_BIT,
                queueFamilyIndex=family,
            ),
        )
        self._begin = vulkan.struct(
            "VkCommandBufferBeginInfo",
            flags=lib.VK_COMMAND_BUFFER_USAGE_ONE_TIME_SUBMIT_BIT,
        )

    # Command buffers

    def _take_commands(self) -> Any:  # noqa: ANN401
        """A command buffer that nobody uses, not begun.

        Raises:
            AccyError: the driver has none to give.
        """
        if self._idle:
            return self._idle.pop()
        vulkan = self.device.vulkan
        info = vulkan.struct(
            "VkCommandBufferAllocateInfo",
            commandPool=self._pool,
            level=vulkan.lib.VK_COMMAND_BUFFER_LEVEL_PRIMARY,
            commandBufferCount=1,
        )
        return vulkan.get(
            "vkAllocateCommandBuffers", "VkCommandBuffer", self.device.native, info
        )

    def _begin_commands(self, commands: Any) -> None:  # noqa: ANN401
        """Begin to record into a command buffer that is submitted once.

        Raises:
            AccyError: the driver refuses.
        """
        self.device.vulkan.call("vkBeginCommandBuffer", commands, self._begin)

    def _end_commands(self, commands: Any) -> None:  # noqa: ANN401
        """End what is recorded into a command buffer.

        Raises:
            AccyError: the driver refuses what was recorded.
        """
        self.device.vulkan.call("vkEndCommandBuffer", commands)

    def _give_back(self, commands: Iterable[Any]) -> None:
        """Take command buffers back that have run."""
        self._idle += commands

    def _take_refused(self, commands: Iterable[Any]) -> None:
        """Take command buffers back that have not run, and are not going to."""
        reset = self.device.vulkan.lib.vkResetCommandBuffer
        self._idle += [one for one in commands if reset(one, 0) >= 0]

    # Submissions

    def _submit_buffers(
        self, buffers: Sequence[Any], number: int, waits: Sequence[tuple[Any, int]]
    ) -> None:
        """Submit command buffers.

        Args:
            buffers: in order.
            number: what the semaphore is to have once they have run.
            waits: semaphores, and what they are to have before.

        Raises:
            AccyError: the driver refuses; nothing was submitted.
        """
        vulkan, info = self.device.vulkan, self._info
        self._number[0] = number
        count = info.commandBufferCount = len(buffers)
        if count > len(self._commands):
            self._commands = vulkan.ffi.new("VkCommandBuffer[]", 2 * count)
            info.pCommandBuffers = self._commands
        for index, commands in enumerate(buffers):
            self._commands[index] = commands
        info.waitSemaphoreCount = len(waits)
        self._numbers.waitSemaphoreValueCount = len(waits)
        kept = self._wait_in(info, waits) if waits else None
        vulkan.call("vkQueueSubmit", self.native, 1, info, vulkan.null)
        del kept  # the driver has read it

    def _counter(self) -> int:
        """What the semaphore has now; asks the driver, on any thread.

        Raises:
            VulkanError: the device is lost.
        """
        counter = self._new_counter()  # for other threads ask at the same moment
        self._ask(counter)
        found: int = counter[0]
        return found

    def _ask(self, counter: Any) -> None:  # noqa: ANN401
        """Ask the driver how far the semaphore is."""
        device = self.device
        device.vulkan.call(COUNTER_CALL, device.native, self.semaphore, counter)

    def _prepare(self) -> None:
        """Make once what every submission is made with."""
        vulkan = self.device.vulkan
        self._number = vulkan.array("uint64_t", [0])
        self._new_counter = partial(vulkan.ffi.new, vulkan.ffi.typeof("uint64_t*"))
        self._commands = vulkan.ffi.new("VkCommandBuffer[]", 8)
        self._numbers = vulkan.struct(
            "VkTimelineSemaphoreSubmitInfo",
            signalSemaphoreValueCount=1,
            pSignalSemaphoreValues=self._number,
        )
        self._info = vulkan.struct(
            "VkSubmitInfo",
            pNext=self._numbers,
            pCommandBuffers=self._commands,
            signalSemaphoreCount=1,
            pSignalSemaphores=vulkan.array("VkSemaphore", [self.semaphore]),
        )

    def _wait_in(self, info: Any, waits: Sequence[tuple[Any, int]]) -> tuple[Any, ...]:  # noqa: ANN401
        """Have a submission wait for semaphores; what has to live until then."""
        vulkan, stages = self.device.vulkan, self.device.vulkan.lib
        values = vulkan.array("uint64_t", [value for _, value in waits])
        semaphores = vulkan.array("VkSemaphore", [one for one, _ in waits])
        every = [stages.VK_PIPELINE_STAGE_ALL_COMMANDS_BIT] * len(waits)
        masks = vulkan.array("VkPipelineStageFlags", every)
        self._numbers.pWaitSemaphoreValues = values
        info.pWaitSemaphores = semaphores
        info.pWaitDstStageMask = masks
        return values, semaphores, masks
