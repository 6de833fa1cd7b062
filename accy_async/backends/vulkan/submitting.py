"""Handing operations to queues, and finishing what has run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, cast

from accy_async.backends.journal import JOURNAL_MASK
from accy_async.backends.vulkan.batches import at_work
from accy_async.backends.vulkan.finishing import VulkanFinishing, fail
from accy_async.backends.vulkan.hub import wait_for
from accy_async.backends.vulkan.launching import launch_on
from accy_async.backends.vulkan.operations import Nothing
from accy_async.backends.vulkan.results import VkResult, VulkanError
from accy_async.backends.vulkan.streams import Operation, VulkanStream
from accy_async.errors import AccyError, DeviceError

if TYPE_CHECKING:
    from accy_async.backends.contract.steps import LaunchStep
    from accy_async.backends.guards import Guard
    from accy_async.backends.handles import StreamHandle
    from accy_async.backends.hooks import StreamState
    from accy_async.backends.journal import Label
    from accy_async.backends.launch import PreparedLaunch
    from accy_async.backends.vulkan.batches import Batch
    from accy_async.backends.vulkan.launching import VulkanLaunch
    from accy_async.backends.vulkan.queue import VulkanQueue
    from accy_async.backends.vulkan.recorder import Recorder

__all__ = ["VulkanSubmitting"]

_DEBUG_NS = 10**11


class VulkanSubmitting(VulkanFinishing):
    """The part of the backend that knows which operation is where."""

    is_debugging: bool
    _computing: list[VulkanQueue]
    _opened: list[VulkanQueue]
    _gathering: int

    def _queue_for(self, priority: int) -> VulkanQueue:
        """The queue for kernels of a priority; that with the fewest streams."""
        normal = len(self._computing) - self._device.family.urgent
        is_urgent = self.capabilities.clamp_priority(priority) < 0
        queues = self._computing[normal:] if is_urgent else self._computing[:normal]
        return min(queues, key=lambda one: one.streams)

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
            self._hub.ring()
            if operation.is_ready and not on.blocked_at:
                self._pump()
            return
        with self._recovering():
            self._hand_over(on, operation)
        if not self._gathering or on.queue.is_full:
            self._flush(operation, on)
        if self._stalled:
            self._pump()

    def _submit_launch(
        self,
        stream: VulkanStream,
        position: int,
        launch: VulkanLaunch,
        label: Label,
        guard: Guard | None,
        recorder: Recorder | None,
    ) -> None:
        """`_submit` of a launch that cannot fail, where nothing stands before it.

        Raises:
            AccyError: the driver refuses it; it is as if it had not been submitted.
        """
        line = stream.timeline
        stream.journal.work[position & JOURNAL_MASK] = label
        if (line.has_failed and line.error_at(position) is not None) or (
            guard is not None and guard.blocks()
        ):
            stream.end_with(position)
        else:
            with self._recovering():
                try:
                    launch_on(stream, launch, position, guard, recorder)
                except BaseException as error:
                    self._end_refused(error)
                    stream.end_with(position)
                    self._check_loss(error)
                    raise
        if not self._gathering or stream.queue.is_full:
            self._flush(None, stream)
        if self._stalled:
            self._pump()

    @contextmanager
    def _recovering(self) -> Iterator[None]:
        """A block that records; where it fails, what others recorded is submitted."""
        try:
            yield
        except BaseException:
            if not self._gathering and self._lost is None:
                self._pump()
            raise

    def _hand_over(
        self, stream: VulkanStream, operation: Operation, *, is_late: bool = False
    ) -> None:
        """Hand an operation over; what fails of a late one its waits are told."""
        position, line, guard = operation.position, stream.timeline, operation.guard
        stream.journal.note(position, operation.work)
        try:
            if not operation.keeps_order and (
                (line.has_failed and line.error_at(position) is not None)
                or (guard is not None and guard.blocks())
            ):
                operation.release()
                stream.end_with(position)
                return
            operation.hand_over(stream)
        except BaseException as error:
            operation.release()
            self._end_refused(error)
            if is_late:
                fail(stream, position, guard, _as_failure(error, operation.call))
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
        refusal: BaseException | None = None
        while self._opened:
            queue = self._opened[0]
            try:
                queue.flush()
            except BaseException as error:  # noqa: BLE001 - raised when all are flushed
                self._end_refused(error)
                self._check_loss(error)
                refusal = refusal or error
                continue
            if self.is_debugging:
                self._await_now(queue, operation, stream)
            if not queue.long:  # else the hub is at it
                self._relieve(queue)
        if refusal is not None:
            raise refusal

    def _pump(self) -> None:
        """Hand over whatever of what was kept has its turn now.

        What the driver refuses of it fails at its waits: who submitted it has gone on.
        """
        while True:
            moved, any_moved = True, False
            while moved and self._stalled:
                moved = False
                for stream in list(self._stalled):
                    moved |= self._move(stream)
                any_moved |= moved
            if any_moved:  # who sleeps for it began to before it had a batch
                self._hub.ring()
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
            except Exception:  # noqa: BLE001 - whoever waits is told
                continue
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

        They end behind what their streams had come to before, on whichever queue.
        """
        for queue in self._queues:
            refused, queue.refused = queue.refused, []
            for batch in refused:
                self._end_batch(batch, error)

    def _end_batch(self, batch: Batch, error: BaseException) -> None:
        """End the operations of one that was refused, in order."""
        batch.behind = {}
        for stream, position, finisher, guard, before in batch.ended:
            if finisher is not None:
                finisher(False)
            if before is not batch:
                stream.batch = at_work(before, stream)
            if stream.blocked_at == position:
                stream.blocked_at = 0
            fail(stream, position, guard, _as_failure(error, "vkQueueSubmit"))
            stream.end_with(position)
            batch.behind[stream] = stream.batch
        batch.clear()

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


def _as_failure(error: BaseException, call: str) -> DeviceError:
    """What the waits for an operation raise that the driver has refused."""
    failed = DeviceError(f"the driver refused it: {error}", call=call)
    failed.__cause__ = error
    return failed
