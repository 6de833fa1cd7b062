"""Batches: what is submitted together, and what ends with it.

A *batch* is one or more command buffers and what is to be done on the host once they
have run. Operations without commands, such as a recorded event, end with a batch too.

A batch that the driver *refuses* never runs. What was to end with it ends behind
whatever its stream had come to before, which may be at work on another queue.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from accy_async.backends.vulkan.bound import Bound

if TYPE_CHECKING:
    from accy_async.backends.guards import Guard
    from accy_async.backends.vulkan.queue import VulkanQueue
    from accy_async.backends.vulkan.streams import VulkanStream
    from accy_async.errors import DeviceError

__all__ = ["Batch", "Ended", "Finisher", "at_work"]

Finisher = Callable[[bool], "DeviceError | None"]
"""What is to be done on the host once a batch has run; gives what failed.

It is told whether the batch has run: one that was refused has not.
"""

_NOTHING = Bound()


class Ended(NamedTuple):
    """An operation that ends with a batch; see `Batch.end`."""

    stream: VulkanStream
    position: int
    finisher: Finisher | None
    guard: Guard | None
    before: Batch | None
    """What its stream had come to before: mostly this batch, or the one before."""


class Batch:
    """Operations that are submitted together.

    Attributes:
        queue: where.
        number: the queue's semaphore has it once the batch has run.
        commands: the command buffer that is being recorded; None for none.
        bound: what that has bound.
        buffers: the command buffers before it, in order.
        own: those of all that are to be used again.
        count: how many operations have commands in it.
        ended: the operations that end with it, in order.
        kept: what has to live until then.
        waits: of other queues, the batches that it comes after.
        writes_host: True where the host is to see what its commands write.
        has_finishers: True where something is to be done on the host then,
        is_long: and where that takes long.
        is_finished: True once all that has happened, or where it was refused.
        behind: where it was refused, what each of its streams had come to before.
    """

    __slots__ = (
        "behind",
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
        self.behind: dict[VulkanStream, Batch | None] | None = None

    def end(
        self,
        stream: VulkanStream,
        position: int,
        finisher: Finisher | None = None,
        guard: Guard | None = None,
    ) -> None:
        """Say that an operation ends with it.

        Args:
            stream: whose it is.
            position: the operation's.
            finisher: what is to be done on the host then.
            guard: told of its failure in place of the stream.
        """
        self.ended.append(Ended(stream, position, finisher, guard, stream.batch))
        stream.batch = self
        stream.handed = position

    def clear(self) -> None:
        """Let go of what it has: all that was to happen has."""
        self.ended.clear()
        self.kept.clear()


def at_work(batch: Batch | None, stream: VulkanStream) -> Batch | None:
    """The batch that what a stream ended with this one ends with, as things stand.

    It is another one where this one was refused; None where all that has happened.
    """
    while batch is not None and batch.behind is not None:
        batch = batch.behind.get(stream)
    return None if batch is None or batch.is_finished else batch
