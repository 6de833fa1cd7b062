"""Handing operations to queues, and finishing what has run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, cast

from accy_async.backends.base import Backend
from accy_async.backends.vulkan.hub import wait_for
from accy_async.backends.vulkan.operations import Nothing
from accy_async.backends.vulkan.results import VkResult, VulkanError
from accy_async.backends.vulkan.streams import Operation, VulkanStream
from accy_async.errors import AccyError, DeviceError, DeviceLost

if TYPE_CHECKING:
    from accy_async.backends.contract.steps import LaunchStep
    from accy_async.backends.guards import Guard
    from accy_async.backends.handles import StreamHandle
    from accy_async.backends.hooks import StreamState
    from accy_async.backends.launch import PreparedLaunch
    from accy_async.backends.vulkan.device import VulkanDevice
    from accy_async.backends.vulkan.hub import Hub
    from accy_async.backends.vulkan.queue import Batch, Ended, VulkanQueue

__all__ = ["VulkanSubmitting"]

_DEBUG_NS = 10**11


class VulkanSubmitting(Backend):
    """The part of the backend that knows which operation is where."""

    _device: VulkanDevice
    _hub: Hub
    _queues: list[VulkanQueue]
    is_debugging: bool
    _stalled: dict[VulkanStream, None]
    _gathering: int

    # Submission, under the submission lock

    @contextmanager
    def _at(self, stream: StreamState, position: int) -> Iterator[None]:
        """A block that makes an operation; where it cannot, its position is passed."""
        try:
            yield
        except BaseException:
            self._submit(stream, Nothing(position))
            raise

    def _submit(self, stream: StreamState, operation: Operation) -> None:
        """Hand an operation over, or keep it until its turn comes.

        Raises:
            AccyError: the driver refuses it; it is as if it had not been submitted.
        """
        on = cast("VulkanStream", stream)
        if on.pending or not on.can_take(operation):
            on.pending.append(operation)
            self._stalled[on] = None
            if operation.is_ready and not on.blocked_at:
                self._pump()
            return
        self._hand_over(on, operation)
        if not self._gathering or on.queue.is_full:
            self._flush(operation, on)
        if self._stalled:
            self._pump()

    def _hand_over(
        self, stream: VulkanStream, operation: Operation, *, is_late: bool = False
    ) -> None:
        """Hand an operation over; what fails of a late one its waits are told."""
        position, line, guard = operation.position, stream.timeline, operation.guard
        stream.journal.note(position, operation.work)
        if not operation.keeps_order and (
            (line.has_failed and line.error_at(position) is not None)
            or (guard is not None and guard.blocks())
        ):
            operation.release()
            stream.end_with(position)
            return
        try:
            operation.hand_over(stream)
        except BaseException as error:
            operation.release()
            self._end_refused(error)
            if is_late:
                _fail(stream, position, guard, _as_failure(error, operation.call))
            stream.end_with(position)
            self._check_loss(error)
            raise
        if operation.can_fail:
            stream.blocked_at = position

    def _flush(
        self, operation: Operation | None = None, stream: VulkanStream | None = None
    ) -> None:
        """Submit what is recorded on every queue.

        Raises:
            AccyError: the driver refuses some of it, whose operations have failed.
        """
        try:
            self._flush_queues(operation, stream)
        except BaseException:
            if self._stalled and self._lost is None:
                self._pump()  # what waited for its outcome has one
            raise

    def _flush_queues(
        self, operation: Operation | None = None, stream: VulkanStream | None = None
    ) -> None:
        for queue in self._queues:
            number = queue.submitted
            try:
                queue.flush()
            except BaseException as error:
                self._end_refused(error)
                self._check_loss(error)
                raise
            if queue.submitted != number and self.is_debugging:
                self._await_now(queue, operation, stream)

    def _pump(self) -> None:
        """Hand over whatever of what was kept has its turn now.

        What the driver refuses of it fails at its waits: who submitted it has gone on.
        """
        while True:
            moved = True
            while moved and self._stalled:
                moved = False
                for stream in list(self._stalled):
                    moved |= self._move(stream)
            try:
                self._flush_queues()
            except AccyError:
                if self._lost is not None:
                    return
                continue  # whoever waits is told; what waited for it has its turn
            return

    def _move(self, stream: VulkanStream) -> bool:
        """Hand over what is next on a stream, as far as may be; True for any."""
        moved = False
        while stream.pending and stream.can_take(stream.pending[0]):
            operation = stream.pending.popleft()
            moved = True
            try:
                self._hand_over(stream, operation, is_late=True)
            except AccyError:
                continue  # whoever waits is told
        if not stream.pending:
            self._stalled.pop(stream, None)
        return moved

    @contextmanager
    def _gather(self) -> Iterator[None]:
        """A block whose operations are submitted together, under the lock."""
        with self._lock:
            self._gathering += 1
            try:
                yield
            finally:
                self._gathering -= 1
                if not self._gathering and self._lost is None:
                    self._flush()

    def submit_launches(
        self, launches: Sequence[PreparedLaunch], stream: StreamHandle | None = None
    ) -> None:
        """As the contract says, in as few batches as can be."""
        with self._gather():
            super().submit_launches(launches, stream)

    def submit_steps(self, steps: Sequence[LaunchStep], positions: list[int]) -> None:
        """As the contract says, in as few batches as can be."""
        with self._gather():
            super().submit_steps(steps, positions)

    def _end_refused(self, error: BaseException) -> None:
        """Fail the operations of batches that the driver has refused.

        They end behind what was submitted before them.
        """
        for queue in self._queues:
            refused, queue.refused = queue.refused, []
            for batch in refused:
                for stream, position, finisher, guard in batch.ended:
                    if finisher is not None:
                        finisher(False)
                    stream.batch = queue.newest()
                    if stream.blocked_at == position:
                        stream.blocked_at = 0
                    _fail(stream, position, guard, _as_failure(error, "vkQueueSubmit"))
                    stream.end_with(position)
                batch.kept.clear()

    def _check_loss(self, error: BaseException) -> None:
        """Where an error says that the device is gone, say so everywhere.

        Raises:
            DeviceLost: it does.
        """
        if isinstance(error, VulkanError) and error.is_loss:
            lost = self._lose(error)
            told = lost.copy()
            told.__cause__ = lost.__cause__
            raise told from lost.__cause__

    def _await_now(
        self,
        queue: VulkanQueue,
        operation: Operation | None,
        stream: VulkanStream | None,
    ) -> None:
        """Wait for what was just submitted; what is lost then, it has lost."""
        result = wait_for(self._device, [(queue.semaphore, queue.submitted)], _DEBUG_NS)
        if result == VkResult.DEVICE_LOST:
            node, kernel = (
                (None, None) if operation is None else operation.label or (None, None)
            )
            self._check_loss(
                VulkanError(
                    "the device was lost by it",
                    code=result,
                    call="launch" if operation is None else operation.call,
                    node=node,
                    kernel=kernel,
                    stream=None if stream is None else stream.id,
                )
            )

    # Finishing, on the hub's thread

    def awaited(self) -> list[tuple[VulkanQueue, int]]:
        """The queues at work, each with the number of its oldest batch."""
        with self._lock:
            return [
                (queue, queue.flying[0].number)
                for queue in self._queues
                if queue.flying
            ]

    def finish(self) -> None:
        """Finish what has run, hand over what has its turn then, free what is idle."""
        try:
            for queue in self._queues:
                if queue.flying:
                    self._finish_queue(queue, queue.reached())
        except VulkanError as error:
            self.lose_to(error)
            return
        with self._lock:
            if self._stalled and self._lost is None:
                self._pump()
        self._after_completion()

    def lose_to(self, error: VulkanError) -> None:
        """The device is gone, as a wait has found."""
        self._lose(error)
        self._after_completion()

    def _lose(self, found: DeviceError) -> DeviceLost:
        with self._lock:
            lost = super()._lose(found)
            for stream in list(self._stalled):
                stream.pending.clear()
            self._stalled.clear()
            for queue in self._queues:
                queue.drop()
        return lost

    def _finish_queue(self, queue: VulkanQueue, reached: int) -> None:
        """Finish a queue's batches up to a number, which have run.

        Before each, those of other queues that it waited for on the device: a stream
        that went from one queue to the other is told in its own order.
        """
        while True:
            with self._lock:
                if not queue.flying or queue.flying[0].number > reached:
                    return
                batch = queue.flying[0]
                ended = list(batch.ended)
            for other, number in batch.waits.items():
                self._finish_queue(other, number)
            failures: dict[int, DeviceError] = {}
            for index, one in enumerate(ended):
                error = None if one.finisher is None else _finish(one)
                if error is not None:
                    failures[index] = error
            with self._lock:
                if self._lost is not None:
                    return
                queue.retire()
                self._complete(batch, failures)

    def _complete(self, batch: Batch, failures: dict[int, DeviceError]) -> None:
        """Tell of each operation of a batch that it has ended."""
        for index, (stream, position, _, guard) in enumerate(batch.ended):
            if (error := failures.get(index)) is not None:
                _fail(stream, position, guard, error)
            if stream.blocked_at == position:
                stream.blocked_at = 0
            stream.timeline.complete(position)
            if stream.batch is batch:
                stream.batch = None
        batch.ended.clear()
        batch.kept.clear()

    def _after_completion(self) -> None:
        """Free what became idle."""


def _finish(ended: Ended) -> DeviceError | None:
    """Do what is to be done on the host; gives what failed."""
    assert ended.finisher is not None
    try:
        return ended.finisher(True)
    except Exception as error:  # noqa: BLE001 - whoever waits is told
        failed = DeviceError(f"finishing failed on the host: {error}")
        failed.__cause__ = error.with_traceback(None)
        return failed


def _fail(
    stream: VulkanStream, position: int, guard: Guard | None, error: DeviceError
) -> None:
    """Say that an operation failed, before it is completed."""
    if guard is not None:
        guard.failed(error)
    else:
        stream.timeline.fail(position, error)


def _as_failure(error: BaseException, call: str) -> DeviceError:
    """What the waits for an operation raise that the driver has refused."""
    failed = DeviceError(f"the driver refused it: {error}", call=call)
    failed.__cause__ = error
    return failed
