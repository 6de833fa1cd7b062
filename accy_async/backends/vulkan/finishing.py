"""Finishing what has run: on the host, and for whoever waits.

Batches are finished in the order in which their queue runs them, by whoever looks
first. Those that leave nothing to do on the host, as most launches do, by anybody, at
any time. Where something is left (a copy out of staging memory, an assertion to be
read), by who waits, or by the hub's thread: that is never done by two of them at once.

The hub follows the device only where somebody needs it to: a task that sleeps, a copy
that takes long on the host, an operation that waits for its turn there, an object that
is to be freed. Otherwise submitting would have to share the interpreter with it.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from accy_async.backends.base import Backend
from accy_async.backends.pace import Paces
from accy_async.backends.refusals import is_interrupt
from accy_async.backends.vulkan.results import VulkanError
from accy_async.errors import AccyError, DeviceError, DeviceLost

if TYPE_CHECKING:
    from collections.abc import Mapping

    from accy_async.backends.guards import Guard
    from accy_async.backends.vulkan.batches import Batch, Ended
    from accy_async.backends.vulkan.device import VulkanDevice
    from accy_async.backends.vulkan.hub import Hub
    from accy_async.backends.vulkan.queue import VulkanQueue
    from accy_async.backends.vulkan.streams import VulkanStream
    from accy_async.backends.vulkan.timeline import VulkanTimeline

__all__ = ["VulkanFinishing", "fail"]

_LOOKED_FOR_AT = 32
"""So many batches of a queue are at work before who submits another looks."""


class VulkanFinishing(Backend):
    """The part of the backend that knows what has run."""

    _device: VulkanDevice
    _hub: Hub
    _queues: list[VulkanQueue]
    _stalled: dict[VulkanStream, None]

    def _begin_finishing(self) -> None:
        self.paces = Paces()
        self._watched: dict[VulkanTimeline, None] = {}
        self._finishing = threading.RLock()  # before the submission lock

    def _pump(self) -> None:
        """Hand over whatever of what was kept has its turn now."""
        raise NotImplementedError

    # On any thread

    def look(self, stream: VulkanStream) -> bool:
        """Complete what has run of a stream and leaves nothing to do on the host.

        Any thread, whatever it holds; never blocks. False where something is left.
        """
        for queue in stream.queues:
            first = queue.oldest
            if first is None:
                continue
            try:
                reached = queue.reached()
            except AccyError:
                return False  # the hub finds the same
            if reached < first.number:
                continue
            if not self._lock.acquire(blocking=False):
                return True  # whoever has it will not be long
            try:
                if not self._retire(queue, reached):
                    return False
            finally:
                self._lock.release()
        return True

    def take(self, stream: VulkanStream) -> None:
        """Complete what has run of a stream, unless that takes long on the host."""
        for queue in stream.queues:
            self._take(queue)

    def catch_up(self) -> None:
        """Complete what has run of every stream, unless that takes long on the host."""
        for queue in self._queues:
            self._take(queue)

    def _take(self, queue: VulkanQueue) -> None:
        try:
            self._finish_briefly(queue)
        except VulkanError as error:
            self.lose_to(error)
            return
        except AccyError:
            return  # whoever sleeps is seen to by the hub
        if self._stalled:
            with self._lock:
                if self._lost is None:
                    self._pump()

    def follow(self, line: VulkanTimeline, position: int) -> None:
        """Have the hub see to one more who sleeps until that position."""
        self._watched[line] = None
        stream = line.stream
        batch = None if stream is None else stream.batch
        if batch is None:
            self._hub.ring()
        else:
            self._hub.ring_unless_waiting(batch.queue, batch.number)

    def ring(self) -> None:
        """Have the hub see to whatever has run."""
        self._hub.ring()

    def _relieve(self, queue: VulkanQueue) -> None:
        """Look where much is at work; under the submission lock."""
        if len(queue.flying) < _LOOKED_FOR_AT or queue.submitted % _LOOKED_FOR_AT:
            return
        try:
            self._finish_briefly(queue)
        except AccyError:
            self._hub.ring()  # it finds the same

    def _finish_briefly(self, queue: VulkanQueue) -> None:
        """Finish what has run of a queue, unless it takes long, or somebody is at it.

        Raises:
            AccyError: the driver does not say what has run.
        """
        first = queue.oldest
        if first is None:
            return
        reached = queue.reached()
        if reached >= first.number and self._finishing.acquire(blocking=False):
            try:
                self._finish_queue(queue, reached, is_brief=True)
            finally:
                self._finishing.release()

    # On the hub's thread

    def awaited(self) -> dict[VulkanQueue, int]:
        """The batches that somebody needs to know of, by their queues."""
        with self._lock:
            is_eager = bool(self._stalled or self._is_closed or self._reaper)
            wanted = {
                queue: first.number
                for queue in self._queues
                if (is_eager or queue.long) and (first := queue.oldest) is not None
            }
            if not is_eager:
                self._add_watched(wanted)
            return wanted

    def _add_watched(self, wanted: dict[VulkanQueue, int]) -> None:
        """Those that tasks sleep for."""
        for line in list(self._watched):
            # One that is watched anew right now comes back by itself.
            del self._watched[line]
            position, stream = line.first_awaited, line.stream
            if position is None or stream is None:
                continue
            self._watched[line] = None
            for queue, number in stream.batches_at(position):
                wanted[queue] = min(number, wanted.get(queue, number))

    def finish(self) -> None:
        """Finish what has run, hand over what has its turn then, free what is idle."""
        try:
            with self._finishing:
                for queue in self._queues:
                    if queue.flying:
                        self._finish_queue(queue, queue.reached())
        except VulkanError as error:
            self.lose_to(error)
            return
        with self._lock:
            if self._stalled and self._lost is None:
                self._pump()
        self.after()

    def lose_to(self, error: VulkanError) -> None:
        """The device is gone, as a call has found."""
        self._lose(error)
        self.after()

    def after(self) -> None:
        """Free what became idle."""

    # Within

    def _lose(self, found: DeviceError) -> DeviceLost:
        with self._lock:
            for queue in self._queues:
                queue.drop()
            lost = super()._lose(found)
            for stream in list(self._stalled):
                stream.pending.clear()
            self._stalled.clear()
        return lost

    def _retire(self, queue: VulkanQueue, reached: int) -> bool:
        """Complete batches up to a number, which have run; under the submission lock.

        Before each, those of other queues that it waited for on the device: a stream
        that went from one queue to the other is told in its own order.

        Returns:
            False where it stopped before one that leaves something to do on the host.
        """
        while queue.flying and queue.flying[0].number <= reached:
            batch = queue.flying[0]
            if batch.has_finishers:
                return False
            for other, number in batch.waits.items():
                if not self._retire(other, number):
                    return False
            queue.retire()
            self._complete(batch, {})
        return True

    def _finish_queue(
        self, queue: VulkanQueue, reached: int, *, is_brief: bool = False
    ) -> bool:
        """Finish batches up to a number, which have run; by one thread at a time.

        Returns:
            False where it stopped before one that takes long, if it is to be brief.
        """
        while True:
            with self._lock:
                if self._retire(queue, reached):
                    return True
                batch = queue.flying[0]
                ended = list(batch.ended)
            for other, number in batch.waits.items():
                if not self._finish_queue(other, number, is_brief=is_brief):
                    return False
            if is_brief and batch.is_long:
                return False
            failures: dict[int, DeviceError] = {}
            for index, one in enumerate(ended):
                error = None if one.finisher is None else _finish(one)
                if error is not None:
                    failures[index] = error
            with self._lock:
                if self._lost is not None:
                    return True
                if queue.oldest is batch:  # or else somebody has looked meanwhile
                    queue.retire()
                    self._complete(batch, failures)

    def _complete(self, batch: Batch, failures: Mapping[int, DeviceError]) -> None:
        """Tell of each operation of a batch that it has ended."""
        last: dict[VulkanStream, int] = {}
        for index, (stream, position, _, guard, _) in enumerate(batch.ended):
            if failures and (error := failures.get(index)) is not None:
                fail(stream, position, guard, error)
            if stream.blocked_at == position:
                stream.blocked_at = 0
            last[stream] = position
        for stream, position in last.items():
            stream.timeline.complete(position)
            if stream.batch is batch:
                stream.batch = None
        batch.clear()


def fail(
    stream: VulkanStream, position: int, guard: Guard | None, error: DeviceError
) -> None:
    """Say that an operation failed, before it is completed."""
    if guard is not None:
        try:
            guard.failed(error)
            return
        except BaseException as cause:
            if is_interrupt(cause):
                raise
            error.add_note(f"and its guard failed: {type(cause).__name__}: {cause}")
    stream.timeline.fail(position, error)


def _finish(ended: Ended) -> DeviceError | None:
    """Do what is to be done on the host; gives what failed."""
    assert ended.finisher is not None
    try:
        return ended.finisher(True)
    except BaseException as error:
        if is_interrupt(error):
            raise
        failed = DeviceError(f"finishing failed on the host: {error}")
        failed.__cause__ = error.with_traceback(None)
        return failed
