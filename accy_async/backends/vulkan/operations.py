"""What streams are given beside launches: copies, fills, events, waits."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

from accy_async.backends.vulkan.batches import at_work
from accy_async.backends.vulkan.memory import MemoryKind
from accy_async.backends.vulkan.regions import Pattern, copy_region, fill_region
from accy_async.backends.vulkan.streams import Operation, take_failure

if TYPE_CHECKING:
    from accy_async.backends.guards import Guard
    from accy_async.backends.hostmemory import HostMemory
    from accy_async.backends.vulkan.batches import Batch
    from accy_async.backends.vulkan.clock import TickClock, VulkanEvent
    from accy_async.backends.vulkan.memory import Allocator, VulkanMemory
    from accy_async.backends.vulkan.streams import VulkanStream
    from accy_async.backends.vulkan.timeline import VulkanTimeline
    from accy_async.errors import DeviceError

__all__ = [
    "Copy",
    "Download",
    "Fill",
    "HostGate",
    "Mark",
    "Nothing",
    "Upload",
    "WaitFor",
]


class Upload(Operation):
    """A copy of the host's bytes to a buffer.

    Args:
        position: where on the stream's timeline.
        guard: asked before it is handed over, and told of its failure.
        allocator: has memory to stage the bytes in.
        target: the buffer.
        offset: where in the buffer.
        data: the bytes.
        behind: of its stream, where what is before it there may write the bytes: they
            are staged when all of that has ended. None to stage them now.
    """

    __slots__ = ("_allocator", "_behind", "_data", "_offset", "_staged", "_target")
    call = "write_buffer"

    def __init__(
        self,
        position: int,
        guard: Guard | None,
        allocator: Allocator,
        target: VulkanMemory,
        offset: int,
        data: HostMemory,
        behind: VulkanTimeline | None = None,
    ) -> None:
        self.position = position
        self.guard = guard
        self._allocator = allocator
        self._target = target
        self._offset = offset
        self._staged = allocator.take(MemoryKind.UPLOAD, data.byte_size)
        self._behind = behind
        self._data: HostMemory | None = None
        if behind is None:
            self._stage(data)
        else:
            self._data = data

    @property
    def is_ready(self) -> bool:
        behind = self._behind
        return behind is None or behind.noted >= self.position - 1

    def hand_over(self, stream: VulkanStream) -> None:
        if self._data is not None:
            self._stage(self._data)
            self._data = None
        staged, target = self._staged, self._target
        queue = stream.turn_to(stream.queue_for_copy(staged.byte_size))
        commands = queue.commands((), (target,))
        ends = (staged, 0), (target, self._offset)
        copy_region(queue.device.vulkan, commands, *ends, staged.byte_size)
        size = staged.byte_size  # long is what keeps much of the host's memory, too
        queue.end(stream, self.position, self._finish, copied_bytes=size)

    def release(self) -> None:
        self._allocator.give_back(self._staged)

    def _stage(self, data: HostMemory) -> None:
        ctypes.memmove(self._staged.address, data.address, data.byte_size)

    def _finish(self, has_run: bool) -> DeviceError | None:
        self.release()
        return None


class Download(Operation):
    """A copy from a buffer to staging memory, and from there to the host's."""

    __slots__ = ("_allocator", "_offset", "_out", "_source", "_staged")
    call = "read_buffer"

    def __init__(
        self,
        position: int,
        guard: Guard | None,
        allocator: Allocator,
        source: VulkanMemory,
        offset: int,
        out: HostMemory,
    ) -> None:
        self.position = position
        self.guard = guard
        self._allocator = allocator
        self._source = source
        self._offset = offset
        self._out = out
        self._staged = allocator.take(MemoryKind.DOWNLOAD, out.byte_size)

    def hand_over(self, stream: VulkanStream) -> None:
        staged = self._staged
        queue = stream.turn_to(stream.queue_for_copy(staged.byte_size))
        commands = queue.commands((self._source,), (staged,))
        ends = (self._source, self._offset), (staged, 0)
        copy_region(queue.device.vulkan, commands, *ends, staged.byte_size)
        queue.batch().writes_host = True
        size = staged.byte_size
        queue.end(stream, self.position, self._finish, copied_bytes=size)

    def release(self) -> None:
        self._allocator.give_back(self._staged)

    def _finish(self, has_run: bool) -> DeviceError | None:
        staged = self._staged
        if has_run:
            ctypes.memmove(self._out.address, staged.address, staged.byte_size)
        self.release()
        return None


class Copy(Operation):
    """A copy from one buffer's start to another's."""

    __slots__ = ("_byte_size", "_source", "_target")
    call = "copy_buffer"

    def __init__(
        self,
        position: int,
        guard: Guard | None,
        source: VulkanMemory,
        target: VulkanMemory,
        byte_size: int,
    ) -> None:
        self.position = position
        self.guard = guard
        self._source = source
        self._target = target
        self._byte_size = byte_size

    def hand_over(self, stream: VulkanStream) -> None:
        queue = stream.turn_to(stream.queue)
        commands = queue.commands((self._source,), (self._target,))
        ends = (self._source, 0), (self._target, 0)
        copy_region(queue.device.vulkan, commands, *ends, self._byte_size)
        queue.end(stream, self.position)


class Fill(Operation):
    """A pattern written over a buffer's first bytes."""

    __slots__ = ("_allocator", "_pattern", "_staged", "_target")
    call = "fill_buffer"

    def __init__(
        self,
        position: int,
        guard: Guard | None,
        allocator: Allocator,
        target: VulkanMemory,
        pattern: Pattern,
    ) -> None:
        self.position = position
        self.guard = guard
        self._allocator = allocator
        self._target = target
        self._pattern = pattern
        self._staged: VulkanMemory | None = None
        if pattern.staged_bytes:
            self._staged = allocator.take(MemoryKind.UPLOAD, pattern.staged_bytes)
            pattern.stage(self._staged)

    def hand_over(self, stream: VulkanStream) -> None:
        queue, target = stream.turn_to(stream.queue), self._target
        commands = queue.commands((), (target,))
        vulkan = queue.device.vulkan
        fill_region(vulkan, commands, target, self._pattern, self._staged)
        finisher = None if self._staged is None else self._finish
        queue.end(stream, self.position, finisher)

    def release(self) -> None:
        if self._staged is not None:
            self._allocator.give_back(self._staged)

    def _finish(self, has_run: bool) -> DeviceError | None:
        self.release()
        return None


class Mark(Operation):
    """The point that an event marks; the device takes its time there if it is to.

    Attributes:
        is_with_queue: True once it is handed over.
    """

    __slots__ = ("_batch", "_clock", "_event", "is_with_queue")
    call = "record_event"
    keeps_order = True

    def __init__(self, position: int, event: VulkanEvent, clock: TickClock) -> None:
        self.position = position
        self.guard = None
        self._event = event
        self._clock = clock
        self._batch: Batch | None = None
        self.is_with_queue = False

    def batch(self, stream: VulkanStream) -> Batch | None:
        """What it ends with, on its stream; None where it has ended."""
        return at_work(self._batch, stream)

    def hand_over(self, stream: VulkanStream) -> None:
        self.is_with_queue = True
        if not self._event.has_timing:
            stream.end_with(self.position)
            self._batch = stream.batch
            return
        queue = stream.turn_to(stream.queue)
        clock, event = self._clock, self._event
        commands = queue.commands()
        mark = event.mark
        read = clock.stamp(queue, commands)

        def finish(has_run: bool) -> DeviceError | None:
            ticks = read()  # whatever it is, the query is free again
            clock.tell(event, mark, ticks if has_run else None)
            return None

        queue.end(stream, self.position, finish)
        self._batch = stream.batch


class Nothing(Operation):
    """Nothing but an end, behind what was submitted before."""

    __slots__ = ()
    call = "mark"
    keeps_order = True

    def __init__(self, position: int) -> None:
        self.position = position
        self.guard = None

    def hand_over(self, stream: VulkanStream) -> None:
        stream.end_with(self.position)


class WaitFor(Operation):
    """Holds a stream back until another has come to a recorded point."""

    __slots__ = ("_mark", "_stream")
    call = "stream_wait_event"
    keeps_order = True

    def __init__(self, position: int, mark: Mark, awaited: VulkanStream) -> None:
        self.position = position
        self.guard = None
        self._mark = mark
        self._stream = awaited

    @property
    def is_ready(self) -> bool:
        return self._mark.is_with_queue

    def hand_over(self, stream: VulkanStream) -> None:
        cause = self._stream.timeline.error_at(self._mark.position)
        take_failure(stream, self.position, cause)
        stream.end_with(self.position, self._mark.batch(self._stream))


class HostGate(Operation):
    """Holds a stream back until somebody on the host opens it."""

    __slots__ = ("is_open",)
    call = "gate"
    keeps_order = True

    def __init__(self, position: int) -> None:
        self.position = position
        self.guard = None
        self.is_open = False

    @property
    def is_ready(self) -> bool:
        return self.is_open

    def hand_over(self, stream: VulkanStream) -> None:
        stream.end_with(self.position)
