"""Waits: the async part of the contract."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import anyio
import anyio.lowlevel

from accy_async.backends.contract.core import Settled, SettleTimeout
from accy_async.backends.contract.ownership import Ownership
from accy_async.backends.contract.streams import Streams, mark_of
from accy_async.backends.handles import BufferHandle, EventHandle, StreamHandle
from accy_async.backends.nativecancel import outlast
from accy_async.backends.timeline import Mark, Timeline
from accy_async.errors import DeviceError, DeviceLost

if TYPE_CHECKING:
    from accy_async.backends.owners import Owner

__all__ = ["Waits"]


class Waits(Streams, Ownership):
    """Waiting for one device."""

    async def wait_stream(
        self, stream: StreamHandle | None, position: int | None = None
    ) -> None:
        """Return once the work now submitted to the stream is done.

        Args:
            stream: the stream; None for the default stream.
            position: of what it is to be done up to, if not to the end.

        Raises:
            DeviceError: some of it failed.
            InvalidStream: the stream is not alive.

        Cancellation: only the wait stops; the work goes on.
        """
        self._check("wait_stream")
        mark = self.mark(stream)
        if position is not None:
            mark = Mark(mark.timeline, position)
        await self._wait_mark(mark)

    async def ends_soon(self, stream: StreamHandle) -> bool:
        """Give the loop a turn or two, where a stream's work may be done by then.

        For who would have to make ready for a longer wait, and need not then.

        Returns:
            True where all work now submitted to it is done, and none of it failed.
            False where `wait_stream` is to tell, maybe without a turn.

        Cancellation: as for `wait_stream`.
        """
        del stream
        return False

    async def wait_default_stream(self) -> None:
        """Return once the work now submitted to the default stream is done.

        Raises:
            DeviceError: some of it failed.

        Cancellation: only the wait stops; the work goes on.
        """
        self._check("wait_default_stream")
        await self._wait_mark(self.mark(None))

    async def wait_event(self, event: EventHandle) -> None:
        """Return once the event's last recorded point is reached.

        Raises:
            DeviceError: the work it marks failed.
            InvalidEvent: the event is not alive or was never recorded.

        Cancellation: only the wait stops; the work goes on.
        """
        self._check("wait_event")
        timeline, position = mark_of(self._table.get(event), "wait_event")
        await self._wait_mark(Mark(timeline, position))

    async def wait_buffer(self, buffer: BufferHandle) -> None:
        """Return once the work now submitted that uses the buffer is done.

        Raises:
            DeviceError: some of it failed.
            ExceptionGroup: work failed on several streams.
            InvalidBuffer: the buffer is not alive.

        Cancellation: only the wait stops; the work goes on.
        """
        self._check("wait_buffer")
        uses = self._table.get(buffer).last_uses()
        if not uses:
            await anyio.lowlevel.checkpoint()
        await self._wait_marks(uses)

    async def wait_device(self) -> None:
        """Return once the work now submitted to every stream is done.

        Raises:
            DeviceError: some of it failed.
            ExceptionGroup: work failed on several streams.

        Cancellation: only the wait stops; the work goes on.
        """
        self._check("wait_device")
        await self._wait_marks(
            [Mark(line, line.submitted) for line in self._timelines()]
        )

    async def wait_for_owner(self, owner: Owner, deadline: float) -> None:
        """`wait_device` for an owner that leaves: it tells what nobody was told yet.

        One that is alone on the device answers for all of its work, those beside
        others for what uses their own objects: also for what was destroyed in the midst
        of it. What a cleanup has spent its grace on before, in vain, has that much less
        of this one (see `Reaper.give_up`).

        Args:
            owner: who leaves.
            deadline: until when, on the clock of `anyio.current_time`.

        Raises:
            DeviceError: work failed that no wait has told of.
            ExceptionGroup: such work failed on several streams.

        Cancellation: only the wait stops.
        """
        self._check("wait_for_owner")
        lines = self._timelines()
        if self._owners <= {owner}:
            marks = [Mark(line, line.submitted) for line in lines]
        else:
            marks = self._last_uses_by(owner, lines)
        in_time = [mark for mark in marks if await _is_in_time(mark, deadline)]
        await self._wait_marks(in_time, Timeline.raise_untold)

    async def wait_retired(self, owner: Owner, deadline: float) -> None:
        """Return when the reaper holds nothing of an owner's; it tells no failure.

        Args:
            owner: whose objects.
            deadline: until when, as for `wait_for_owner`.

        Cancellation: only the wait stops.
        """
        self._check("wait_retired")
        for resource in self._table.retired(owner):
            while not resource.is_exported and (blocker := resource.blocker()):
                mark = Mark(*blocker)
                if not await _is_in_time(mark, deadline):
                    break
                await mark.wait_reached()
        self._table.sweep()
        self._tidy()

    def _tidy(self) -> None:
        """Do what was put off until the device stands still, if it does."""

    def _last_uses_by(self, owner: Owner, lines: list[Timeline]) -> list[Mark]:
        """How far each of these streams has to come to be done with an owner's work."""
        furthest: dict[Timeline, int] = {}
        for resource in (*self._table.living(owner), *self._table.retired(owner)):
            marks = resource.last_uses()
            if resource.timeline is not None:
                marks.append(Mark(resource.timeline, resource.timeline.submitted))
            for mark in marks:
                line = mark.timeline
                furthest[line] = max(furthest.get(line, 0), mark.position)
        return [Mark(line, furthest[line]) for line in lines if line in furthest]

    async def _wait_marks(
        self,
        marks: list[Mark],
        tell: Callable[[Timeline, int], None] = Timeline.raise_at,
    ) -> None:
        """Wait for every mark, then raise what failed at any of them.

        Nothing is told before all is reached: a wait that is cut short, and begun anew,
        misses none of it.
        """
        for mark in marks:
            await self._reach(mark)
        errors: list[Exception] = []
        for mark in marks:
            try:
                self._tell(mark, tell)
            except DeviceError as error:
                errors.append(error)
                if isinstance(error, DeviceLost):
                    break
        if len(errors) == 1:
            raise errors[0]
        if errors:
            raise ExceptionGroup("several streams failed", errors)

    async def _wait_mark(self, mark: Mark) -> None:
        await self._reach(mark)
        self._tell(mark, Timeline.raise_at)

    async def _reach(self, mark: Mark) -> None:
        """Wait, and free what the wait showed to be idle before anybody looks."""
        is_dropped = False
        try:
            await mark.wait_reached()
        except GeneratorExit:  # by the collector, on a thread that may hold the locks
            is_dropped = True
            raise
        finally:
            if not is_dropped:
                self._discard_abandoned()
                self._table.sweep()

    def _tell(self, mark: Mark, tell: Callable[[Timeline, int], None]) -> None:
        """Raise what failed at a mark that is reached."""
        if mark.timeline.has_failed:
            try:
                tell(mark.timeline, mark.position)
            except DeviceLost:
                self._is_loss_told = True
                raise

    async def settle(
        self, wait: Callable[[], Awaitable[object]], grace_s: float | None = None
    ) -> Exception | None:
        """Best-effort wait of a cleanup: shielded, with a deadline.

        Args:
            wait: an async callable, e.g. ``backend.wait_device``, which may be called
                again; see `settle_whole`.
            grace_s: the deadline in seconds; the backend's own if left out.

        Returns:
            The error the wait raised, a SettleTimeout if it did not end in time,
            or None.

        Cancellation: shielded from it; asyncio's own, which knows no shield, is raised
            afterwards.
        """
        settled, cancelled = await self.settle_whole(wait, grace_s)
        if cancelled is not None:
            raise cancelled
        return settled

    async def settle_whole(
        self, wait: Callable[[], Awaitable[object]], grace_s: float | None = None
    ) -> Settled:
        """`settle`, for who has more to do before a cancellation may go on.

        Args:
            wait: as for `settle`. It is called anew after each of asyncio's own
                cancellations: what it raises, it has to raise in one piece.
            grace_s: as for `settle`.

        Returns:
            What `settle` returns, and what it would raise.

        Cancellation: shielded from it; asyncio's own is returned.
        """
        grace = self.grace_s if grace_s is None else grace_s
        failed: Exception | None = None

        async def attempt() -> None:
            nonlocal failed
            try:
                await wait()
            except Exception as error:  # noqa: BLE001 - returned, not swallowed
                failed = error

        ended = await outlast(attempt, anyio.current_time() + grace)
        if not ended.is_over:
            failed = SettleTimeout(f"the device did not finish within {grace:g} s")
        return Settled(failed, ended.cancelled)


async def _is_in_time(mark: Mark, deadline: float) -> bool:
    """False for what a cleanup waited for in vain, if it is not reached even now.

    It has until the deadline, less the time that it had before.
    """
    waited_s = mark.timeline.waited_in_vain(mark.position)
    if not waited_s or mark.is_reached:
        return True
    with anyio.CancelScope(deadline=deadline - waited_s):
        await mark.wait_reached()
    return mark.is_reached
