"""Leaving: one way to destroy what is owned, and to report what went wrong.

Rules, for every exit in the package:

1. Every object is destroyed, whatever happened before and whichever of the
   others refused.
2. An error of the cleanup never hides the one that began it, nor the other way
   round: several errors leave together in an ExceptionGroup, one leaves as it is.
3. A cancellation goes on by itself where the cleanup went well. Where it did
   not, the cleanup's errors leave in an ExceptionGroup whose ``__cause__`` is the
   cancellation; the cancelled scopes around see to the rest. (A cancellation
   never sits among a group's errors: asyncio would take it for one.)
4. An interrupt (KeyboardInterrupt, SystemExit) leaves as itself, with the errors
   attached as its ``__context__``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import TYPE_CHECKING, overload

from accy_async.backends.base import SettleTimeout
from accy_async.backends.loops import uninterrupted
from accy_async.errors import DeviceError, GraceExpired

if TYPE_CHECKING:
    from accy_async.backends.base import Backend
    from accy_async.backends.handles import Handle

__all__ = ["Cleanup", "destroy_all", "do_all", "leaves", "overtake", "raise_together"]


def raise_together(
    what: str, primary: BaseException | None, cleanup: list[Exception]
) -> None:
    """Raise what is to be raised after a cleanup, if anything; see the module.

    Args:
        what: the operation, for the group's message.
        primary: what ended the operation, None if it went well.
        cleanup: what went wrong in its cleanup.
    """
    if primary is None:
        if len(cleanup) == 1:
            raise cleanup[0]
        if cleanup:
            raise ExceptionGroup(f"{what}: cleanup failed", cleanup)
        return
    if not cleanup:
        raise primary
    if isinstance(primary, Exception):
        raise ExceptionGroup(
            f"{what} failed, and so did its cleanup", [primary, *cleanup]
        )
    group = ExceptionGroup(f"{what}: cleanup failed", cleanup)
    if not isinstance(primary, (KeyboardInterrupt, SystemExit)):
        raise group from primary
    context = primary.__context__
    try:
        raise group
    except ExceptionGroup:
        # Raised from here, the interrupt has the group as its context, whatever
        # the caller is handling; what it had before becomes the group's.
        if context is not None:
            group.__context__ = context
        raise primary  # noqa: B904 - the interrupt is no consequence of the group


@overload
def leaves(error: Exception) -> Iterator[Exception]: ...
@overload
def leaves(error: BaseException) -> Iterator[BaseException]: ...
def leaves(error: BaseException) -> Iterator[BaseException]:
    """What groups within groups are made of, interrupts first; itself for no group."""
    if not isinstance(error, BaseExceptionGroup):
        yield error
        return
    interrupts, others = error.split((KeyboardInterrupt, SystemExit))
    for part in (interrupts, others):
        for one in part.exceptions if part is not None else ():
            yield from leaves(one)


def destroy_all(
    backend: Backend, handles: Iterable[Handle], errors: list[Exception]
) -> list[str]:
    """Destroy the handles that are still alive, in this order.

    Args:
        backend: whose they are.
        handles: what to destroy.
        errors: gets what the device refused; the others are destroyed all the same.

    Returns:
        The names of those still in use, which the reaper holds now.

    Raises:
        BaseException: an interrupt that a destruction ended with, the first of
            several, once all are destroyed; with what was refused attached.
    """
    busy = []
    refused: list[Exception] = []
    interrupt: BaseException | None = None
    for handle in handles:
        if not backend.is_alive(handle):
            continue
        name = backend.object_name(handle)
        try:
            if not backend.discard(handle):
                busy.append(name)
        except Exception as error:  # noqa: BLE001 - reported by the caller
            refused.append(error)
        except BaseException as error:  # noqa: BLE001 - raised below
            interrupt = interrupt or error
    if interrupt is not None:
        raise_together("destroying", interrupt, refused)
    errors += refused
    return busy


def do_all(what: str, steps: Iterable[Callable[[], object]]) -> None:
    """Take every step, in this order, whichever of the others are refused.

    Args:
        what: the operation, for a group's message.
        steps: what destroys something each.

    Raises:
        Exception: what `raise_together` makes of what was refused.
    """
    refused: list[Exception] = []
    for step in steps:
        try:
            step()
        except Exception as error:  # noqa: BLE001 - raised below
            refused.append(error)
    raise_together(what, None, refused)


@uninterrupted
class Cleanup:
    """One exit: a bounded wait for the device, then destruction.

    Args:
        backend: whose objects they are.
        what: the operation, for messages.
        grace_s: the wait's deadline in seconds; the backend's own if None.
    """

    def __init__(self, backend: Backend, what: str, grace_s: float | None) -> None:
        self._backend = backend
        self._what = what
        self._grace_s = backend.grace_s if grace_s is None else grace_s

    async def leave(
        self,
        primary: BaseException | None,
        *,
        wait: Callable[[], Awaitable[object]] | None,
        handles: Iterable[Handle],
    ) -> None:
        """Wait if there is something to wait for, destroy, and raise what is due.

        Args:
            primary: what ended the operation, None if it went well.
            wait: waits for the device's uses of the handles; None if they ended.
            handles: what to destroy, in this order.

        Raises:
            BaseException: ``primary``, alone or with the cleanup's errors.
            GraceExpired: among them, if the wait took longer than the grace.

        Cancellation: shielded from it, for the grace at most.
        """
        errors: list[Exception] = []
        busy: list[str] = []
        settled: Exception | None = None
        cancelled: BaseException | None = None
        interrupt: BaseException | None = None
        try:
            if wait is not None:
                settled, cancelled = await self._backend.settle_whole(
                    wait, self._grace_s
                )
        except BaseException as error:  # noqa: BLE001 - raised below
            interrupt = error
        try:
            busy = destroy_all(self._backend, handles, errors)
        except BaseException as error:  # noqa: BLE001 - raised below
            interrupt = interrupt or error
        if isinstance(settled, SettleTimeout):
            if busy:
                errors.insert(0, GraceExpired(self._what, self._grace_s, busy))
                self._backend.reaper.give_up(busy, self._grace_s)
        elif settled is not None and not _repeats(settled, primary):
            if busy:
                settled.add_note(f"held by the reaper until idle: {', '.join(busy)}")
            errors.insert(0, settled)
        interrupt = interrupt or cancelled
        if interrupt is not None:
            primary = overtake(primary, interrupt, errors)
        raise_together(self._what, primary, errors)


def _repeats(settled: Exception, primary: BaseException | None) -> bool:
    """True where the wait told again of the very failure that ended the operation."""
    return (
        isinstance(settled, (DeviceError, ExceptionGroup))
        and type(settled) is type(primary)
        and repr(settled) == repr(primary)
    )


def overtake(
    primary: BaseException | None, interrupt: BaseException, errors: list[Exception]
) -> BaseException:
    """What leaves when the cleanup itself was interrupted; see rule 4."""
    if isinstance(primary, (KeyboardInterrupt, SystemExit)):
        return primary
    if isinstance(primary, Exception):
        errors.insert(0, primary)
    elif interrupt.__context__ is None:
        interrupt.__context__ = primary
    return interrupt
