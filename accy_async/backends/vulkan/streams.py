"""Streams: operations in order, handed to a queue as soon as nothing stands before.

Most operations are recorded where they are submitted. One that has to wait for the
host stays in the stream's own queue, and so does all behind it: an operation behind a
kernel that may fail (whose outcome decides whether it runs at all), and one behind an
event whose own operation is not with a queue yet. Nothing is ever given to a queue
that would wait there for something which comes to a queue later: however few queues
streams share, they cannot block each other so.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from typing import TYPE_CHECKING

from accy_async.backends.hooks import StreamState
from accy_async.backends.journal import Journal

if TYPE_CHECKING:
    from accy_async.backends.guards import Guard
    from accy_async.backends.journal import Label, Work
    from accy_async.backends.vulkan.batches import Batch
    from accy_async.backends.vulkan.queue import VulkanQueue
    from accy_async.backends.vulkan.timeline import VulkanTimeline
    from accy_async.errors import DeviceError

__all__ = ["Operation", "VulkanStream", "take_failure"]

_LEAST_APART_BYTES = 1 << 20
"""Smaller copies go where the kernels go: from one queue to another and back again
takes two semaphores, some 10 us each, in which a bus moves some hundred KiB."""


class Operation(ABC):
    """Something submitted to a stream.

    Attributes:
        position: where on the stream's timeline.
        guard: asked before it is handed over, and told of its failure.
    """

    __slots__ = ("guard", "position")

    call: str
    position: int
    guard: Guard | None
    keeps_order = False
    """True for an operation that is not skipped when one before it failed."""

    label: Label | None = None
    """What errors call a launch."""

    @property
    def work(self) -> Work | None:
        """What the journal has of it."""
        return self.label

    can_fail = False
    """True where what comes behind it has to wait for its outcome."""

    @property
    def is_ready(self) -> bool:
        """True where nothing that it waits for is still with the host."""
        return True

    @abstractmethod
    def hand_over(self, stream: VulkanStream) -> None:
        """Record it, and say where it ends; under the submission lock."""

    def release(self) -> None:
        """Give back what it holds: it is not going to run, or has."""
        return


class VulkanStream(StreamState):
    """One stream.

    Args:
        timeline: how far it has come.
        queue: where its operations go.
        copies: where large copies from and to the host go; None for there too.
        priority: as it was asked for.

    Attributes:
        pending: operations that are not with the queue yet.
        queues: where its operations may be, and those of other streams that its own
            end with.
        batch: the one that the last operation handed over ends with.
        handed: the position of that operation.
        blocked_at: the position of a kernel that may fail and is at work; 0 for none.
    """

    journal: Journal

    def __init__(
        self,
        timeline: VulkanTimeline,
        queue: VulkanQueue,
        copies: VulkanQueue | None = None,
        priority: int = 0,
    ) -> None:
        super().__init__(timeline, priority)
        self._own = (queue,) if copies is None else (queue, copies)
        self.queues: tuple[VulkanQueue, ...] = self._own
        self.queue = queue
        self._copies = copies
        self.journal = Journal()
        self.pending: deque[Operation] = deque()
        self.batch: Batch | None = None
        self.handed = 0
        self.blocked_at = 0
        queue.streams += 1
        timeline.stream = self

    def can_take(self, operation: Operation) -> bool:
        """True where the operation may be handed over now, if it is the next."""
        return not self.blocked_at and operation.is_ready

    def queue_for_copy(self, byte_size: int) -> VulkanQueue:
        """Where copies of that size between the host and the device go."""
        if self._copies is None or byte_size < _LEAST_APART_BYTES:
            return self.queue
        return self._copies

    def turn_to(self, queue: VulkanQueue) -> VulkanQueue:
        """Have a queue's next command come after all of the stream; the queue."""
        if queue not in self.queues:
            self.queues = (*self.queues, queue)
        last = self.batch
        if last is not None and last.queue is not queue and not last.is_finished:
            queue.wait_for(last.queue, last.number)
        return queue

    def end_with(self, position: int, other: Batch | None = None) -> None:
        """End an operation that has no commands, as soon as all before it has ended.

        Args:
            position: the operation's.
            other: a batch that it also waits for.
        """
        last = self.batch
        if last is not None and last.is_finished:
            last = None
        also = None if other is None or other.is_finished else other
        if last is not None and also is not None and also.queue is not last.queue:
            queue = self.turn_to(self.queue)
            queue.wait_for(also.queue, also.number)
            queue.end(self, position)
            return
        if last is None:  # nothing of it is left anywhere
            self.queues = self._own
        if also is not None and (last is None or also.number > last.number):
            last = also
        if last is None:
            self.timeline.complete(position)
            return
        if last.queue not in self.queues:
            self.queues = (*self.queues, last.queue)
        last.end(self, position)

    def batches_at(self, position: int) -> list[tuple[VulkanQueue, int]]:
        """Those to wait for until the position is reached, by number.

        Those that come first, where it is not known which it is.
        """
        batch = self.batch
        if batch is not None and position == self.handed:
            return [(batch.queue, batch.number)]
        found = ((queue, queue.oldest) for queue in self.queues)
        return [(queue, one.number) for queue, one in found if one is not None]


def take_failure(
    stream: VulkanStream, position: int, cause: DeviceError | None
) -> None:
    """Fail a stream's wait for what has failed elsewhere, if it has."""
    if cause is None:
        return
    consequence = cause.copy()
    consequence.is_consequence = True
    consequence.__cause__ = cause
    stream.timeline.fail(position, consequence)
