"""Which operations of a queue have to be held apart: the barriers, and no others.

A queue begins its commands in order, and lets them overlap unless a barrier holds
them apart. Commands get *serials*, counting up within their queue, and a barrier
holds apart all commands before it from all behind it: so one number says, for a
queue, up to which serial everything is ordered before what comes next. An operation
needs a barrier where it reads what was written, or writes what was written or read,
by a command with a later serial than that. Nobody has to know of streams here: two of
them on one queue are no different from one.

What another queue did last is waited for by that queue's semaphore, which counts its
batches; so was every write made visible, whether the host waited for it or not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

    from accy_async.backends.vulkan.memory import VulkanMemory
    from accy_async.backends.vulkan.queue import VulkanQueue

__all__ = ["Access", "Hazards"]


class Access(NamedTuple):
    """A use of memory: on which queue, by its serial, in the queue's which batch."""

    queue: VulkanQueue
    serial: int
    batch: int


class Hazards:
    """What the commands of one queue have to be ordered behind.

    Attributes:
        serial: of the last command.
        ordered: the serial up to which the last barrier holds commands apart from
            what comes next.
    """

    __slots__ = ("_queue", "ordered", "serial")

    def __init__(self, queue: VulkanQueue) -> None:
        self._queue = queue
        self.serial = 0
        self.ordered = 0

    def meet(
        self, reads: Iterable[VulkanMemory], writes: Iterable[VulkanMemory], batch: int
    ) -> bool:
        """Note a command that comes next; True where it takes a barrier before it.

        The caller records that barrier. Waits for other queues are asked of the queue
        itself.

        Args:
            reads: what it reads.
            writes: what it writes, or both.
            batch: the number of the batch that it becomes part of.
        """
        queue, ordered = self._queue, self.ordered
        found = [memory.written for memory in reads]
        for memory in writes:
            found.append(memory.written)
            if memory.reads:
                found += memory.reads.values()
        needs_barrier = False
        for before in found:
            if before is None:
                continue
            if before.queue is not queue:
                queue.wait_for(before.queue, before.batch)
            elif before.serial > ordered:
                needs_barrier = True
        if needs_barrier:
            self.ordered = self.serial
        self.serial = serial = self.serial + 1
        access = Access(queue, serial, batch)
        for memory in reads:
            memory.reads[queue] = access
        for memory in writes:
            memory.written = access
            if memory.reads:
                memory.reads.clear()
        return needs_barrier

    def forget_barriers(self) -> None:
        """Say that barriers were not submitted: what comes next takes one again."""
        self.ordered = 0
