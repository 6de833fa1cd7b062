"""Opening a session, and leaving it whole."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import anyio
import anyio.lowlevel

from accy_async.backends.base import DEFAULT_GRACE_S, Backend, SettleTimeout
from accy_async.backends.catalogue import open_backend
from accy_async.backends.cleanup import leaves, overtake, raise_together
from accy_async.backends.completion import run_abandonable
from accy_async.errors import (
    DeviceLost,
    GraceExpired,
    InvalidType,
    InvalidValue,
    SessionClosed,
)

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

    from accy_async.observe.protocol import Observer

from accy_async.session.compiling import SessionCompiler
from accy_async.session.core import harmless
from accy_async.session.fragments import SessionFragments
from accy_async.session.launches import SessionLaunches
from accy_async.session.sharing import SessionSharing
from accy_async.session.streams import SessionStreams

__all__ = ["DEFAULT_MAX_IN_FLIGHT", "Session", "open_session"]

_LEAST_SETTLE_S = 0.02
"""What is idle has the time to say so, however long the runs took to stop."""

_OPENED_AT_ONCE = frozenset({"cpu", "recording"})

DEFAULT_MAX_IN_FLIGHT = 512
"""Pipeline launches in flight: half of the depth (1024) at which a CUDA launch
queue begins to block its caller."""


@asynccontextmanager
async def open_session(
    backend: str | Backend = "auto",
    *,
    grace: float | None = None,
    max_streams: int | None = None,
    max_in_flight: int = DEFAULT_MAX_IN_FLIGHT,
    observer: Observer | None = None,
    debug: bool = False,
) -> AsyncIterator[Session]:
    """Open a session on a device, and close it on the way out.

    Leaving the block in any way awaits the work in flight for ``grace`` seconds
    at most and destroys every object made in it, newest first. What the device
    still uses then is left to the reaper, and the block ends with a
    `GraceExpired` that names it. A caller's own backend stays open, without
    what was made on it during the session.

    Args:
        backend: ``"auto"`` (the best here), a backend's name, or an open backend.
        grace: how long cleanup may wait for the device, in seconds; 5 if left
            out, a caller's own backend's if that is given.
        max_streams: how many streams may be leased at a time; as many as the
            device makes use of if left out.
        max_in_flight: pipeline launches in flight before `Session.launch_pipeline`
            waits for the oldest; and operations that all graph runs together may
            have in flight.
        observer: told of every run, load, upload and download; None costs nothing.
        debug: True to have a GPU wait for each launch where it is submitted, so that
            an error names the launch that caused it; other devices always know.

    Raises:
        InvalidValue: no such backend, or a number out of range; or ``debug`` for an
            open backend, which was to be opened with it.
        BackendUnavailable: it cannot run here.
        DeviceError: on leaving: work that nobody awaited failed.
        ExceptionGroup: the block and its cleanup failed, or the cleanup failed
            in several ways or under a cancellation.

    Cancellation: an ordinary exit; the cleanup is shielded, for the grace.
    """
    _check_number("grace", grace, 0.0)
    _check_number("max_streams", max_streams, 1)
    _check_number("max_in_flight", max_in_flight, 1)
    is_owned = not isinstance(backend, Backend)
    if isinstance(backend, Backend):
        if debug:
            raise InvalidValue(
                "open_session.debug", debug, "False: open the backend with debug=True"
            )
        device = backend
    elif backend in _OPENED_AT_ONCE:
        device = open_backend(backend, grace_s=DEFAULT_GRACE_S)
    else:  # a driver may take its time
        device = await run_abandonable(
            lambda: open_backend(backend, grace_s=DEFAULT_GRACE_S, debug=debug),
            lambda late: late.close(),
            name=f"open {backend}",
        )
    session = Session(
        device,
        is_owned=is_owned,
        grace_s=device.grace_s if grace is None else grace,
        max_streams=max_streams or device.capabilities.max_streams,
        max_in_flight=max_in_flight,
        observer=harmless(observer),
    )
    primary: BaseException | None = None
    interrupt: BaseException | None = None
    tasks = anyio.create_task_group()
    try:
        async with tasks:
            session._begin(tasks)  # noqa: SLF001 - opened here, left here
            try:
                await anyio.lowlevel.checkpoint()
                yield session
            except BaseException as error:  # noqa: BLE001 - _leave raises it
                primary = error
            with anyio.CancelScope(shield=True):
                await session._stop_runs()  # noqa: SLF001
    except BaseExceptionGroup as group:
        # Nothing but an interrupt ends the session's own group, in whatever depth.
        interrupt = next(leaves(group))
    except BaseException as error:  # noqa: BLE001 - as above
        primary = primary or error
    if _is_lost(primary, tasks):
        primary = SessionClosed(
            "the session ended: a task of one of its runs was cancelled from outside"
        )
    await session._leave(primary, interrupt)  # noqa: SLF001


class Session(
    SessionStreams,
    SessionSharing,
    SessionCompiler,
    SessionFragments,
    SessionLaunches,
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

    def _begin(self, group: TaskGroup) -> None:
        self._group = group

    async def _stop_runs(self) -> None:
        """Cancel what runs, and wait for it: each run ends within the grace."""
        self._state = "draining"
        self._left_at = anyio.current_time()
        self._runs.cancel_all()
        await self._runs.wait_all()

    async def _leave(
        self, primary: BaseException | None, interrupt: BaseException | None
    ) -> None:
        self._state = "draining"
        backend = self.backend
        settled: Exception | None = None
        errors: list[Exception] = []
        held_before = set(backend.reaper.overdue(self._owner))
        try:
            if backend.is_healthy:
                settled = await self._settle(
                    lambda: backend.wait_open_streams(self._owner)
                )
        except BaseException as error:  # noqa: BLE001 - raised below
            interrupt = interrupt or error
        late = self._destroy_objects(errors)
        try:
            if backend.is_healthy and not isinstance(settled, SettleTimeout):
                # What other threads have submitted in between, which is the last:
                # nothing that they could use is left.
                await self._settle(
                    lambda: backend.wait_retired(self._owner, held_before)
                )
        except BaseException as error:  # noqa: BLE001 - raised below
            late = late or error
        late = late or self._close_backend(errors)
        interrupt = interrupt or late
        self._state = "closed"
        held = [
            name
            for name in backend.reaper.overdue(self._owner)
            if name not in held_before
        ]
        if held:
            is_cut = interrupt is not None and not isinstance(settled, SettleTimeout)
            expired = GraceExpired("the session", self.grace_s, held, is_cut)
            errors.insert(0, expired)
        if settled is not None and not isinstance(settled, SettleTimeout):
            errors.insert(0, settled)
        errors += self._runs.unobserved_errors()
        lost = backend.untold_loss() if settled is None else None
        if lost is not None and not _tells_of(lost, (primary, *errors)):
            errors.insert(0, lost)
        if interrupt is not None:
            primary = overtake(primary, interrupt, errors)
        raise_together("the session", primary, errors)

    async def _settle(self, wait: Callable[[], object]) -> Exception | None:
        """Wait within what is left of the one grace for all of the leaving."""
        left_s = self._left_at + self.grace_s - anyio.current_time()
        return await self.backend.settle(wait, max(left_s, _LEAST_SETTLE_S))

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
    except BaseException as error:  # noqa: BLE001 - raised by the caller
        return error
    return None


def _is_lost(primary: BaseException | None, tasks: TaskGroup) -> bool:
    """True where nothing but the session's own group has cancelled its block.

    As anyio does to it when asyncio cancels a task in it by itself.
    """
    return (
        isinstance(primary, anyio.get_cancelled_exc_class())
        and tasks.cancel_scope.cancel_called
        and anyio.current_effective_deadline() > -math.inf
    )


def _tells_of(lost: DeviceLost, errors: Iterable[BaseException | None]) -> bool:
    """True where one of the errors is, or holds, this loss of the device."""
    for error in errors:
        if isinstance(error, BaseExceptionGroup):
            if _tells_of(lost, error.exceptions):
                return True
        elif isinstance(error, DeviceLost) and error.__cause__ is lost.__cause__:
            return True
    return False


def _check_number(name: str, value: float | None, minimum: float) -> None:
    field = f"open_session.{name}"
    expected = f"a number of at least {minimum:g}, or None"
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InvalidType(field, value, expected)
    if not value >= minimum:
        raise InvalidValue(field, value, expected)
