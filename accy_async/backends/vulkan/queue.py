"""One queue of a device: commands recorded into batches, batches counted.

A queue has at most one batch open; `VulkanQueue.flush` submits it. The queue's
semaphore, a timeline, counts the batches that have run: it is all that anybody waits
for, the host and other queues alike. So a stream needs no semaphore of its own, and as
many streams as there are share the queues there are.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from time import monotonic_ns, sleep
from typing import TYPE_CHECKING, Any

from accy_async.backends.vulkan.barriers import Synchronization
from accy_async.backends.vulkan.batches import Batch
from accy_async.backends.vulkan.bound import Bound
from accy_async.backends.vulkan.hazards import Hazards
from accy_async.backends.vulkan.native import COUNTER_CALL, NativeQueue
from accy_async.backends.vulkan.results import VkResult, VulkanError
from accy_async.errors import AccyError

if TYPE_CHECKING:
    from accy_async.backends.guards import Guard
    from accy_async.backends.vulkan.batches import Finisher
    from accy_async.backends.vulkan.device import VulkanDevice
    from accy_async.backends.vulkan.families import QueueFamily
    from accy_async.backends.vulkan.memory import VulkanMemory
    from accy_async.backends.vulkan.streams import VulkanStream

__all__ = ["VulkanQueue"]

_LONG_BYTES = 256 * 1024
"""What is copied on the host from there on takes longer than a loop should stand."""

_MOST_COMMANDS = 512
"""Operations of one batch: so that the device begins before all are recorded."""


class VulkanQueue(NativeQueue):
    """One queue.

    Args:
        device: the device.
        family: the queue's family.
        index: its number within the family.
        opened: gets the queues that have an open batch.
        follow: called when one is submitted that takes long on the host afterwards.

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

    def __init__(
        self,
        device: VulkanDevice,
        family: QueueFamily,
        index: int,
        opened: list[VulkanQueue],
        follow: Callable[[], None],
    ) -> None:
        super().__init__(device, family.index, index)
        self.synchronization = Synchronization(device.vulkan, family)
        self._opened = opened
        self._follow = follow
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
        self._asking: list[None] = []  # one for each thread that asks the driver
        self._is_given_back = False

    # Recording

    def batch(self) -> Batch:
        """The open batch."""
        batch = self._open
        if batch is None:
            batch = self._open = Batch(self, self.submitted + 1)
            batch.waits, self._owed = self._owed, {}
            self._opened.append(self)
        return batch

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
            commands = batch.commands = self._new_commands(batch)
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
        batch.end(stream, position, finisher, guard)
        if finisher is not None:
            batch.has_finishers = True
            batch.is_long |= copied_bytes >= _LONG_BYTES

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

    def flush(self) -> None:
        """Submit the open batch, if there is one.

        Raises:
            AccyError: the driver refuses it. Its operations have failed then.
        """
        batch = self._open
        if batch is None:
            return
        try:
            self._submit(batch)
        except BaseException:
            self._refuse(batch)
            raise
        self._open = None
        self._opened.remove(self)
        self.submitted = batch.number
        self.flying.append(batch)
        if batch.is_long:
            self.long += 1
            self._follow()

    def _refuse(self, batch: Batch) -> None:
        """Take the open batch for refused; the backend ends its operations."""
        self._open = None
        self._opened.remove(self)
        # Its number comes again; the next one holds apart and waits in its place.
        self.hazards.forget_barriers()
        self._owed.update(batch.waits)
        batch.is_finished = True
        self.refused.append(batch)
        self._take_refused(batch.own)
        batch.own = []

    @property
    def is_full(self) -> bool:
        """True where the open batch should not grow any more."""
        return self._open is not None and self._open.count >= _MOST_COMMANDS

    # Finishing

    def reached(self) -> int:
        """The number of the last batch that has run; asks the driver.

        Takes no lock. So it says that it asks before it looks whether it may.

        Raises:
            VulkanError: the device is lost.
        """
        self._asking.append(None)
        try:
            if self._is_given_back:
                return self.submitted
            found = self._counter()
        finally:
            self._asking.pop()
        # What some drivers say of a device that is gone. One more may have run than is
        # known to have been submitted: asking takes no lock.
        if found > self.submitted + 1:
            raise VulkanError(
                f"the device is lost: {found} batches are said to have run, of "
                f"{self.submitted}",
                code=VkResult.DEVICE_LOST,
                call=COUNTER_CALL,
            )
        return found

    def stop_asking(self) -> None:
        """Have nobody ask the driver from now on: its device is given back.

        All that was submitted has run. Returns once nobody asks any more.
        """
        self._is_given_back = True
        while self._asking:
            sleep(0)

    def spin(self, number: int, until: int) -> None:
        """Ask until a batch has run, no longer than until that time."""
        try:
            while self.reached() < number and monotonic_ns() < until:
                continue
        except AccyError:
            return  # who looks next finds the same

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
        self._give_back(batch.own)
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

    def _new_commands(self, batch: Batch) -> Any:  # noqa: ANN401
        commands = self._take_commands()
        batch.own.append(commands)
        batch.bound = Bound()
        self._begin_commands(commands)
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
        self._end_commands(commands)
        batch.buffers.append(commands)

    def _submit(self, batch: Batch) -> None:
        self._close(batch)
        waits: Sequence[tuple[Any, int]] = ()
        if batch.waits:
            waits = [(one.semaphore, number) for one, number in batch.waits.items()]
        self._submit_buffers(batch.buffers, batch.number, waits)
        batch.buffers = []
