"""A session on one device: the whole of its parts, and how it is left."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable

import anyio
import anyio.lowlevel

from accy_async.backends.base import Settled, SettleTimeout
from accy_async.backends.cleanup import overtake, raise_together
from accy_async.backends.loops import uninterrupted
from accy_async.errors import DeviceLost, GraceExpired
from accy_async.session.compiling import SessionCompiler
from accy_async.session.fragments import SessionFragments
from accy_async.session.launches import SessionLaunches
from accy_async.session.sharing import SessionSharing
from accy_async.session.streams import SessionStreams
from accy_async.session.tuning import SessionTuning

__all__ = ["Session"]

_LEAST_SETTLE_S = 0.02
"""What is idle has the time to say so, however long the runs took to stop."""


@uninterrupted
class Session(
    SessionStreams,
    SessionSharing,
    SessionCompiler,
    SessionFragments,
    SessionLaunches,
    SessionTuning,
):
    """A device and what was made on it; `open_session` makes one.

    Attributes:
        backend: the device, for calls that the session does not wrap. What is
            made on it is the session's too.
        grace_s: how long cleanup may wait for the device, in seconds.
        max_streams: how many streams may be leased at a time.
        max_in_flight: pipeline launches in flight at most.
        observer: told of what happens, unless a call names another.
    """

    def _drain(self) -> None:
        """Take nothing new, and cancel what runs. Idempotent."""
        if self._state == "open":
            self._state = "draining"
            self._left_at = anyio.current_time()
        self._runs.cancel_all()

    async def _stop_runs(self) -> None:
        """Cancel what runs, and wait for it: each run ends within the grace."""
        self._drain()
        await self._runs.wait_all()

    async def _leave(
        self, primary: BaseException | None, interrupt: BaseException | None
    ) -> None:
        errors, late = await self._clean_up(primary)
        interrupt = interrupt or late
        if interrupt is not None:
            primary = overtake(primary, interrupt, errors)
        raise_together("the session", primary, errors)

    async def _clean_up(
        self, primary: BaseException | None
    ) -> tuple[list[Exception], BaseException | None]:
        """Wait for the device, and destroy everything.

        Args:
            primary: what the block ended with.

        Returns:
            What went wrong, and what interrupted it.
        """
        self._drain()
        interrupt: BaseException | None = None
        cancelled: BaseException | None = None
        again: BaseException | None = None
        backend = self.backend
        settled: Exception | None = None
        errors: list[Exception] = []
        deadline = self._deadline()
        try:
            if backend.is_healthy:
                settled, cancelled = await self._settle(
                    lambda: backend.wait_for_owner(self._owner, deadline)
                )
        except BaseException as error:  # noqa: BLE001 - raised below
            interrupt = interrupt or error
        late = self._destroy_objects(errors)
        try:
            if backend.is_healthy and not isinstance(settled, SettleTimeout):
                # What was destroyed in the midst of its use, and what other threads
                # have submitted since, which is the last: nothing is left to use.
                _, again = await self._settle(
                    lambda: backend.wait_retired(self._owner, deadline)
                )
        except BaseException as error:  # noqa: BLE001 - raised below
            late = late or error
        errors += backend.untold_refusals(self._owner)
        late = late or self._close_backend(errors)
        interrupt = interrupt or late
        self._state = "closed"
        held = backend.reaper.overdue(self._owner)
        if held:
            is_cut = interrupt is not None and not isinstance(settled, SettleTimeout)
            expired = GraceExpired(self.title, self.grace_s, held, is_cut)
            errors.insert(0, expired)
            backend.reaper.give_up(held, self.grace_s)
        if settled is not None and not isinstance(settled, SettleTimeout):
            errors.insert(0, settled)
        errors += self._runs.unobserved_errors()
        lost = backend.untold_loss() if settled is None else None
        if lost is not None and not _tells_of(lost, (primary, *errors)):
            errors.insert(0, lost)
        return errors, interrupt or cancelled or again

    def _deadline(self) -> float:
        """When the one grace for all of the leaving is over."""
        least = anyio.current_time() + _LEAST_SETTLE_S
        return max(self._left_at + self.grace_s, least)

    async def _settle(self, wait: Callable[[], Awaitable[object]]) -> Settled:
        """Wait within what is left of it."""
        left_s = self._deadline() - anyio.current_time()
        return await self.backend.settle_whole(wait, left_s)

    def _destroy_objects(self, errors: list[Exception]) -> BaseException | None:
        """Destroy what is left; returns the interrupt that came between, if one did."""
        return _closed(lambda: self.backend.close_owner(self._owner), errors)

    def _close_backend(self, errors: list[Exception]) -> BaseException | None:
        """The same with the backend, where it is the session's."""
        return _closed(self.backend.close, errors) if self._is_owned else None


def _closed(
    close: Callable[[], object], errors: list[Exception]
) -> BaseException | None:
    """Close something; returns what interrupted that, if anything did."""
    try:
        close()
    except ExceptionGroup as group:
        errors.extend(group.exceptions)
    except Exception as error:  # noqa: BLE001 - joined to the session's outcome
        errors.append(error)
    except BaseException as error:  # noqa: BLE001 - raised by the caller
        return error
    return None


def _tells_of(lost: DeviceLost, errors: Iterable[BaseException | None]) -> bool:
    """True where one of the errors is, or holds, this loss of the device."""
    for error in errors:
        if isinstance(error, BaseExceptionGroup):
            if _tells_of(lost, error.exceptions):
                return True
        elif isinstance(error, DeviceLost) and error.__cause__ is lost.__cause__:
            return True
    return False
