"""Opening a session, on one device or on several, and leaving it whole."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, TypeVar, overload

import anyio
import anyio.lowlevel

from accy_async.backends.base import Backend
from accy_async.backends.cleanup import leaves
from accy_async.backends.loops import uninterrupted
from accy_async.backends.nativecancel import native_cancels, outlast
from accy_async.errors import InvalidType, InvalidValue, SessionClosed
from accy_async.session.core import harmless
from accy_async.session.multi.session import MultiSession
from accy_async.session.naming import open_device, open_devices
from accy_async.session.policy import PlacingPolicy, place_least_loaded
from accy_async.session.single import Session

if TYPE_CHECKING:
    from accy_async.observe.protocol import Observer

__all__ = ["DEFAULT_MAX_IN_FLIGHT", "Session", "open_session"]

DEFAULT_MAX_IN_FLIGHT = 512
"""Pipeline launches in flight: half of the depth (1024) at which a CUDA launch
queue begins to block its caller."""

_SessionT = TypeVar("_SessionT", Session, MultiSession)


@overload
def open_session(
    backend: str | Backend = "auto",
    *,
    grace: float | None = None,
    max_streams: int | None = None,
    max_in_flight: int = DEFAULT_MAX_IN_FLIGHT,
    observer: Observer | None = None,
    debug: bool = False,
) -> AbstractAsyncContextManager[Session]: ...
@overload
def open_session(
    *,
    devices: str | Iterable[str | int | Backend],
    policy: PlacingPolicy = place_least_loaded,
    grace: float | None = None,
    max_streams: int | None = None,
    max_in_flight: int = DEFAULT_MAX_IN_FLIGHT,
    observer: Observer | None = None,
    debug: bool = False,
) -> AbstractAsyncContextManager[MultiSession]: ...
def open_session(
    backend: str | Backend = "auto",
    *,
    devices: str | Iterable[str | int | Backend] | None = None,
    policy: PlacingPolicy = place_least_loaded,
    grace: float | None = None,
    max_streams: int | None = None,
    max_in_flight: int = DEFAULT_MAX_IN_FLIGHT,
    observer: Observer | None = None,
    debug: bool = False,
) -> AbstractAsyncContextManager[Session] | AbstractAsyncContextManager[MultiSession]:
    """Open a session on a device, or on several, and close it on the way out.

    Leaving the block in any way awaits the work in flight for ``grace`` seconds
    at most and destroys every object made in it, newest first. What the device
    still uses then is left to the reaper, and the block ends with a
    `GraceExpired` that names it. A caller's own backend stays open, without
    what was made on it during the session.

    Args:
        backend: ``"auto"`` (the best here), a backend's name, or an open backend.
        devices: in place of ``backend``, several devices: ``"all"`` for every GPU, or
            a list of names (``"cuda:1"``, ``"cpu"``), indices of GPUs and open
            backends. The session is a `MultiSession` then.
        policy: with ``devices``, places what may go to any of them.
        grace: how long cleanup may wait for the device, in seconds; 5 if left
            out, a caller's own backend's if that is given. It is one for all devices.
        max_streams: how many streams may be leased at a time; as many as the
            device makes use of if left out. Of each device, as ``max_in_flight`` is.
        max_in_flight: pipeline launches in flight before `Session.launch_pipeline`
            waits for the oldest; and operations that all graph runs together may
            have in flight.
        observer: told of every run, load, upload and download; None costs nothing.
        debug: True to have a GPU wait for each launch where it is submitted, so that
            an error names the launch that caused it; other devices always know.

    Raises:
        InvalidType: what is given is of another type.
        InvalidValue: no such backend, or a number out of range; or ``debug`` for an
            open backend, which was to be opened with it; or ``devices`` beside
            ``backend``, empty, or with one device twice.
        BackendUnavailable: it cannot run here.
        DeviceError: on leaving: work that nobody awaited failed.
        ExceptionGroup: the block and its cleanup failed, or the cleanup failed
            in several ways or under a cancellation.

    Cancellation: an ordinary exit; the cleanup is shielded, for the grace.
    """
    if devices is None:
        return _open_one(
            backend,
            grace=grace,
            max_streams=max_streams,
            max_in_flight=max_in_flight,
            observer=observer,
            debug=debug,
        )
    return _open_several(
        backend,
        devices,
        policy,
        grace=grace,
        max_streams=max_streams,
        max_in_flight=max_in_flight,
        observer=observer,
        debug=debug,
    )


@asynccontextmanager
async def _open_one(
    backend: str | Backend,
    *,
    grace: float | None,
    max_streams: int | None,
    max_in_flight: int,
    observer: Observer | None,
    debug: bool,
) -> AsyncIterator[Session]:
    _check_numbers(grace, max_streams, max_in_flight)
    told = harmless(observer)
    device = await open_device(backend, debug=debug)
    session = Session(
        device,
        is_owned=not isinstance(backend, Backend),
        grace_s=device.grace_s if grace is None else grace,
        max_streams=max_streams or device.capabilities.max_streams,
        max_in_flight=max_in_flight,
        observer=told,
    )
    async with _kept_open(session):
        yield session


@asynccontextmanager
async def _open_several(
    backend: str | Backend,
    devices: str | Iterable[str | int | Backend],
    policy: PlacingPolicy,
    *,
    grace: float | None,
    max_streams: int | None,
    max_in_flight: int,
    observer: Observer | None,
    debug: bool,
) -> AsyncIterator[MultiSession]:
    _check_numbers(grace, max_streams, max_in_flight)
    if backend != "auto":
        raise InvalidValue("open_session.backend", backend, "nothing beside devices")
    if not callable(policy):
        raise InvalidType("open_session.policy", policy, "a function")
    told = harmless(observer)
    opened = await open_devices(devices, debug=debug)
    grace_s = max(one.grace_s for one, _ in opened) if grace is None else grace
    seats = [
        Session(
            device,
            is_owned=is_owned,
            grace_s=grace_s,
            max_streams=max_streams or device.capabilities.max_streams,
            max_in_flight=max_in_flight,
            observer=told,
            title=f"the session on {device.device}",
        )
        for device, is_owned in opened
    ]
    session = MultiSession(
        seats,
        policy=policy,
        grace_s=grace_s,
        max_in_flight=max_in_flight,
        observer=told,
    )
    async with _kept_open(session):
        yield session


@uninterrupted
@asynccontextmanager
async def _kept_open(session: _SessionT) -> AsyncIterator[None]:
    """A block in which the session is open, and has a group for its runs."""
    primary: BaseException | None = None
    interrupt: BaseException | None = None
    cancelled: BaseException | None = None  # since the block ended
    was_ended = False  # whether the group was cancelled before the block ended
    tasks = anyio.create_task_group()
    cancels = native_cancels()
    try:
        async with tasks:
            session._begin(tasks)  # noqa: SLF001 - opened here, left here
            try:
                await anyio.lowlevel.checkpoint()
                yield
            except BaseException as error:  # noqa: BLE001 - _leave raises it
                primary = error
                was_ended = tasks.cancel_scope.cancel_called
            _, cancelled = await outlast(session._stop_runs)  # noqa: SLF001
    except BaseExceptionGroup as group:
        # Nothing but an interrupt ends the session's own group, in whatever depth.
        interrupt = next(leaves(group))
    except BaseException as error:  # noqa: BLE001 - as above
        primary = primary or error
    if was_ended and _is_lost(primary) and native_cancels() <= cancels:
        primary = SessionClosed(
            "the session ended: a task of one of its runs was cancelled from outside"
        )
    await session._leave(primary, interrupt or cancelled)  # noqa: SLF001


def _is_lost(primary: BaseException | None) -> bool:
    """True where none of the scopes around the session has cancelled its block.

    The session's own group does where asyncio cancels a task in it by itself. Where
    that is the block's own task somebody wants it to end, and has cancelled it before
    the group did, or is still counted.
    """
    return (
        isinstance(primary, anyio.get_cancelled_exc_class())
        and anyio.current_effective_deadline() > -math.inf
    )


def _check_numbers(
    grace: float | None, max_streams: int | None, max_in_flight: int
) -> None:
    if grace is not None:
        _check_number("grace", grace, (int, float), "a number of at least 0, or None")
    if max_streams is not None:
        expected = "an integer of at least 1, or None"
        _check_number("max_streams", max_streams, (int,), expected, 1)
    _check_number("max_in_flight", max_in_flight, (int,), "an integer of at least 1", 1)


def _check_number(
    name: str, value: float, kinds: tuple[type, ...], expected: str, minimum: int = 0
) -> None:
    field = f"open_session.{name}"
    if isinstance(value, bool) or not isinstance(value, kinds):
        raise InvalidType(field, value, expected)
    if not value >= minimum:
        raise InvalidValue(field, value, expected)
