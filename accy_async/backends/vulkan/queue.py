"""One queue of a device: commands recorded into batches, batches counted.

A *batch* is one or more command buffers and what is to be done on the host once they
have run. A queue has at most one open; `VulkanQueue.flush` submits it. The queue's
semaphore, a timeline, counts the batches that have run: it is all that anybody waits
for, the host and other queues alike. So a stream needs no semaphore of its own, and as
many streams as there are share the queues there are.

A queue is used by one thread at a time: everything here is called under the
submission lock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from time import monotonic_ns
from typing import TYPE_CHECKING, Any, NamedTuple

from accy_async.backends.vulkan.barriers import Synchronization
from accy_async.backends.vulkan.bound import Bound
from accy_async.backends.vulkan.hazards import Hazards
from accy_async.backends.vulkan.results import VkResult, VulkanError
from accy_async.errors import AccyError

if TYPE_CHECKING:
    from accy_async.backends.guards import Guard
    from accy_async.backends.vulkan.device import VulkanDevice
    from accy_async.backends.vulkan.families import QueueFamily
    from accy_async.backends.vulkan.memory import VulkanMemory
    from accy_async.backends.vulkan.streams import VulkanStream
    from accy_async.errors import DeviceError

__all__ = ["Batch", "Ended", "Finisher", "VulkanQueue"]

Finisher = Callable[[bool], "DeviceError | None"]
"""What is to be done on the host once a batch has run; gives what failed.

It is told whether the batch has run: one that was refused has not.
"""


class Ended(NamedTuple):
    """An operation that ends with a batch; see `VulkanQueue.end`."""

    stream: VulkanStream
    position: int
    finisher: Finisher | None
    guard: Guard | None


_LONG_BYTES = 256 * 1024
"""What is copied on the host from there on takes longer than a loop should stand."""

_NOTHING = Bound()
_COUNTER_CALL = "vkGetSemaphoreCounterValue"

_MOST_COMMANDS = 512
"""Operations of one batch: so that the device begins before all are recorded."""


class Batch:
    """Operations that are submitted together.

    Attributes:
        queue: where.
        number: the queue's semaphore has it once the batch has run.
        commands: the command buffer that is being recorded; None for none.
        bound: what that has bound.
        buffers: the command buffers before it, in order.
        own: those of all that are to be used again.
        ended: the operations in it, in order.
        kept: what has to live until then.
        has_finishers: True where something is to be done on the host then,
        is_long: and where that takes long.
        is_finished: True once all that has happened.
    """

    __slots__ = (
        "bound",
        "buffers",
        "commands",
        "count",
        "ended",
        "has_finishers",
        "is_finished",
        "is_long",
        "kept",
        "number",
        "own",
        "queue",
        "waits",
        "writes_host",
    )

    def __init__(self, queue: VulkanQueue, number: int) -> None:
        self.queue = queue
        self.number = number
        self.commands: Any = None
        self.bound = _NOTHING
        self.buffers: list[Any] = []
        self.own: list[Any] = []
        self.count = 0
        self.ended: list[Ended] = []
        self.kept: list[object] = []
        self.waits: dict[VulkanQueue, int] = {}
        self.writes_host = False
        self.has_finishers = False
        self.is_long = False
        self.is_finished = False


class VulkanQueue:
    """One queue.

    Args:
        device: the device.
        family: the queue's family.
        index: its number within the family.
        opened: gets the queues that have an open batch.

    Attributes:
        synchronization: the barriers that its family takes.
        semaphore: counts the batches that have run.
        submitted: the number of the last batch that was submitted.
        flying: the batches that were submitted and are not finished, oldest first.
        long: how many of them leave something to do on the host that takes long.
        refused: batches that the driver refused, for the backend to end.
        hazards: what its commands have to be ordered behind.
        streams: how many streams are on it.
        dropped_barriers: how many of the next barriers are left out; for tests that
            show that their absence is noticed.
    """

    _info: Any
    _numbers: Any
    _commands: Any

    def __init__(
        self,
        device: VulkanDevice,
        family: QueueFamily,
        index: int,
        opened: list[VulkanQueue],
    ) -> None:
        self.device = device
        self.index = index
        self.native = device.queue(family.index, index)
        self.synchronization = Synchronization(device.vulkan, family)
        self._opened = opened
        self.submitted = 0
        self.long = 0
        self.streams = 0
        self.dropped_barriers = 0
        self.flying: deque[Batch] = deque()
        self.refused: list[Batch] = []
        self.hazards = Hazards(self)
        self._open: Batch | None = None
        self._seen: dict[VulkanQueue, int] = {}
        self._owed: dict[VulkanQueue, int] = {}  # what refused batches would have
        self._idle: list[Any] = []
        vulkan, lib = device.vulkan, device.vulkan.lib
        kind = vulkan.struct(
            "VkSemaphoreTypeCreateInfo", semaphoreType=lib.VK_SEMAPHORE_TYPE_TIMELINE
        )
        info = vulkan.struct("VkSemaphoreCreateInfo", pNext=kind)
        self.semaphore = device.make("Semaphore", info)
        self._prepare_submission()
        self._pool = device.make(
            "CommandPool",
            vulkan.struct(
                "VkCommandPoolCreateInfo",
                flags=lib.VK_COMMAND_POOL_CREATE_RESET_COMMAND_BUFFER_BIT,
                queueFamilyIndex=family.index,
            ),
        )
        self._begin = vulkan.struct(
            "VkCommandBufferBeginInfo",
            flags=lib.VK_COMMAND_BUFFER_USAGE_ONE_TIME_SUBMIT_BIT,
        )

    # Recording

    def batch(self) -> Batch:
        """The open batch."""
        batch = self._open
        if batch is None:
            batch = self._open = Batch(self, self.submitted + 1)
            batch.waits, self._owed = self._owed, {}
            self._opened.append(self)
        return batch

    def newest(self) -> Batch | None:
        """The batch that ends last of all, where any is not finished."""
        if self._open is not None:
            return self._open
        return self.flying[-1] if self.flying else None

    def commands(
        self, reads: Iterable[VulkanMemory] = (), writes: Iterable[VulkanMemory] = ()
    ) -> Any:  # noqa: ANN401
        """The command buffer for an operation that uses these; barriers are seen to.

        Raises:
            AccyError: the driver has none to give.
        """
        batch = self.batch()
        commands = batch.commands
        if commands is None:
            commands = batch.commands = self._take_commands()
        if self.hazards.meet(reads, writes, batch.number):
            self.order(commands)
        batch.count += 1
        return commands

    def hold(
        self, reads: Iterable[VulkanMemory], writes: Iterable[VulkanMemory]
    ) -> bool:
        """Whether a command that uses these, and comes next, takes a barrier first."""
        if not self.hazards.meet(reads, writes, self.batch().number):
            return False
        if self.dropped_barriers:
            self.dropped_barriers -= 1
            return False
        return True

    def put(self, buffer: Any) -> None:  # noqa: ANN401
        """Put a command buffer into the open batch that was recorded beforehand.

        Raises:
            AccyError: the driver refuses what was recorded before it.
        """
        batch = self.batch()
        if batch.commands is not None:
            self._close_open(batch)
        batch.buffers.append(buffer)
        batch.count += 1

    def order(self, commands: Any) -> None:  # noqa: ANN401
        """Hold what was recorded apart from what comes next."""
        if self.dropped_barriers:
            self.dropped_barriers -= 1
            return
        self.synchronization.hold_apart(commands)

    def replay(
        self,
        buffers: Sequence[Any],
        reads: Iterable[VulkanMemory],
        writes: Iterable[VulkanMemory],
        count: int,
    ) -> None:
        """Put command buffers into the open batch that were recorded beforehand.

        The first one begins with a barrier against all that comes before it.

        Args:
            buffers: the driver's handles.
            reads: what their commands read.
            writes: what they write, or both.
            count: how many operations they are.

        Raises:
            AccyError: the driver refuses what was recorded before them.
        """
        batch = self.batch()
        self._close_open(batch)
        before = self.hazards.serial
        self.hazards.meet(reads, writes, batch.number)
        self.hazards.ordered = before
        batch.buffers += buffers
        batch.count += count

    def end(
        self,
        stream: VulkanStream,
        position: int,
        finisher: Finisher | None = None,
        guard: Guard | None = None,
        copied_bytes: int = 0,
    ) -> None:
        """Say that an operation ends with the open batch.

        Args:
            stream: whose it is.
            position: the operation's.
            finisher: what is to be done on the host then.
            guard: told of its failure in place of the stream.
            copied_bytes: how much is to be copied on the host then.
        """
        batch = self.batch()
        batch.ended.append(Ended(stream, position, finisher, guard))
        if finisher is not None:
            batch.has_finishers = True
            batch.is_long |= copied_bytes >= _LONG_BYTES
        stream.batch = batch
        stream.handed = position

    def wait_for(self, other: VulkanQueue, number: int) -> None:
        """Have the open batch begin only once another queue has run that batch."""
        if other is self or self._seen.get(other, 0) >= number:
            return
        if number > other.submitted:
            other.flush()
        if number > other.submitted:  # it was refused: what came before it is left
            for before, reached in other._owed.items():
                self.wait_for(before, reached)
            number = other.submitted
            if self._seen.get(other, 0) >= number:
                return
        self._seen[other] = number
        self.batch().waits[other] = number

    def flush(self) -> bool:
        """Submit the open batch, if there is one.

        Returns:
            True where it leaves something to do on the host that takes long.

        Raises:
            AccyError: the driver refuses it. Its operations have failed then.
        """
        batch = self._open
        if batch is None:
            return False
        try:
            self._submit(batch)
        except BaseException:
            self._refuse(batch)
            raise
        self._open = None
        self._opened.remove(self)
        self.submitted = batch.number
        self.flying.append(batch)
        self.long += batch.is_long
        return batch.is_long

    def _refuse(self, batch: Batch) -> None:
        """Take the open batch for refused; the backend ends its operations."""
        self._open = None
        self._opened.remove(self)
        # Its number comes again; the next one holds apart and waits in its place.
        self.hazards.forget_barriers()
        self._owed.update(batch.waits)
        batch.is_finished = True
        self.refused.append(batch)
        reset = self.device.vulkan.lib.vkResetCommandBuffer
        self._idle += [one for one in batch.own if reset(one, 0) >= 0]
        batch.own = []

    @property
    def is_full(self) -> bool:
        """True where the open batch should not grow any more."""
        return self._open is not None and self._open.count >= _MOST_COMMANDS

    # Finishing

    def reached(self) -> int:
        """The number of the last batch that has run; asks the driver.

        Raises:
            VulkanError: the device is lost.
        """
        counter = self._new_counter()  # for other threads ask at the same moment
        self._ask(counter)
        found: int = counter[0]
        # What some drivers say of a device that is gone. One more may have run than is
        # known to have been submitted: asking takes no lock.
        if found > self.submitted + 1:
            raise VulkanError(
                f"the device is lost: {found} batches are said to have run, of "
                f"{self.submitted}",
                code=VkResult.DEVICE_LOST,
                call=_COUNTER_CALL,
            )
        return found

    def spin(self, number: int, until: int) -> None:
        """Ask until a batch has run, no longer than until that time."""
        try:
            while self.reached() < number and monotonic_ns() < until:
                continue
        except AccyError:
            return  # who looks next finds the same

    def _ask(self, counter: Any) -> None:  # noqa: ANN401
        """Ask the driver how far the semaphore is."""
        vulkan = self.device.vulkan
        vulkan.call(_COUNTER_CALL, self.device.native, self.semaphore, counter)

    @property
    def oldest(self) -> Batch | None:
        """The batch that is finished next; on any thread."""
        try:
            return self.flying[0]
        except IndexError:
            return None

    def retire(self) -> Batch:
        """Take the oldest batch off, which has run and been finished."""
        batch = self.flying.popleft()
        batch.is_finished = True
        self.long -= batch.is_long
        self._idle += batch.own
        batch.own = []
        return batch

    def drop(self) -> None:
        """Forget everything: the device is gone."""
        for batch in (*self.flying, *([self._open] if self._open else [])):
            batch.is_finished = True
        if self._open is not None:
            self._open = None
            self._opened.remove(self)
        self.flying.clear()
        self.long = 0

    # Within

    def _take_commands(self) -> Any:  # noqa: ANN401
        device, vulkan = self.device, self.device.vulkan
        if self._idle:
            commands = self._idle.pop()
        else:
            info = vulkan.struct(
                "VkCommandBufferAllocateInfo",
                commandPool=self._pool,
                level=vulkan.lib.VK_COMMAND_BUFFER_LEVEL_PRIMARY,
                commandBufferCount=1,
            )
            commands = vulkan.get(
                "vkAllocateCommandBuffers", "VkCommandBuffer", device.native, info
            )
        self.batch().own.append(commands)
        self.batch().bound = Bound()
        vulkan.call("vkBeginCommandBuffer", commands, self._begin)
        return commands

    def _close_open(self, batch: Batch) -> None:
        """`_close` the open batch, or refuse it."""
        try:
            self._close(batch)
        except BaseException:
            self._refuse(batch)
            raise

    def _close(self, batch: Batch) -> None:
        """End the command buffer that is being recorded, if there is one."""
        commands, batch.commands = batch.commands, None
        if commands is None:
            return
        if batch.writes_host:
            self.synchronization.show_host(commands)
            batch.writes_host = False
        self.device.vulkan.call("vkEndCommandBuffer", commands)
        batch.buffers.append(commands)

    def _submit(self, batch: Batch) -> None:
        vulkan = self.device.vulkan
        self._close(batch)
        info = self._info
        self._number[0] = batch.number
        count = info.commandBufferCount = len(batch.buffers)
        if count > len(self._commands):
            self._commands = vulkan.ffi.new("VkCommandBuffer[]", 2 * count)
            info.pCommandBuffers = self._commands
        for index, commands in enumerate(batch.buffers):
            self._commands[index] = commands
        info.waitSemaphoreCount = len(batch.waits)
        self._numbers.waitSemaphoreValueCount = len(batch.waits)
        if batch.waits:
            kept = self._wait_in(info, batch.waits)
            vulkan.call("vkQueueSubmit", self.native, 1, info, vulkan.null)
            del kept  # the driver has read it
        else:
            vulkan.call("vkQueueSubmit", self.native, 1, info, vulkan.null)
        batch.buffers = []

    def _prepare_submission(self) -> None:
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

    def _wait_in(self, info: Any, waits: dict[VulkanQueue, int]) -> tuple[Any, ...]:  # noqa: ANN401
        """Have a submission wait for other queues; what has to live until then."""
        vulkan, stages = self.device.vulkan, self.device.vulkan.lib
        values = vulkan.array("uint64_t", list(waits.values()))
        semaphores = vulkan.array("VkSemaphore", [queue.semaphore for queue in waits])
        every = [stages.VK_PIPELINE_STAGE_ALL_COMMANDS_BIT] * len(waits)
        masks = vulkan.array("VkPipelineStageFlags", every)
        self._numbers.pWaitSemaphoreValues = values
        info.pWaitSemaphores = semaphores
        info.pWaitDstStageMask = masks
        return values, semaphores, masks
