"""Turning the completion of device work into the wake-up of a task.

A `Completion` is what a wait comes down to; the bell of its event loop wakes it
(`accy_async.backends.bell`). (docs/performance.md compares it with the loops' own
calls.)
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from accy_async.backends.bell import Bell, Waiter
from accy_async.backends.loops import current_bell

__all__ = ["Completion", "run_abandonable", "threads_awaited"]

_T = TypeVar("_T")
_log = logging.getLogger("accy_async.backends")


class Completion:
    """A one-shot signal: set once from any thread, awaited by one task at a time.

    Cancellation: only the wait stops; the signal stays as it is and can be
    waited for again.

    Args:
        bell: of the loop on which it will be awaited, where that is known: who
            sets the signal may then prefer to do it there.

    Attributes:
        looks_itself: whether its task will look in time, even if nobody sets it.
    """

    __slots__ = ("_is_set", "_lock", "_waiter", "bell")

    looks_itself = False

    def __init__(self, bell: Bell | None = None) -> None:
        self.bell = bell
        self._is_set = False
        self._lock = threading.Lock()
        self._waiter: Waiter | None = None

    @property
    def is_set(self) -> bool:
        """True once `set` has been called."""
        return self._is_set

    def set(self) -> None:
        """Set the signal and wake its waiter. Never blocks; any thread."""
        with self._lock:
            self._is_set = True
            waiter, self._waiter = self._waiter, None
        if waiter is not None:
            waiter.bell.post(waiter)

    async def wait(self) -> None:
        """Return once the signal is set; always a checkpoint.

        Raises:
            RuntimeError: another task is waiting already.
        """
        bell = self.bell or current_bell()
        if self._is_set:
            await bell.turn()
            return
        await bell.park(self._subscribe, self._unsubscribe)

    def on_set(self, callback: Callable[[], object]) -> Callable[[], None]:
        """Call back on this event loop's thread once the signal is set.

        At once if it is set already. It takes the place of a waiting task.

        Returns:
            A function that forgets the callback; to be called on this thread.

        Raises:
            RuntimeError: a task or another callback is waiting already.
        """
        waiter = Waiter(current_bell(), callback)

        def forget() -> None:
            if waiter.is_waiting:
                waiter.is_waiting = False
                self._unsubscribe()

        if not self._subscribe(waiter):
            waiter.is_waiting = False
            callback()
        return forget

    def _subscribe(self, waiter: Waiter) -> bool:
        """Register the waiter; False if the signal is set already."""
        with self._lock:
            if self._waiter is not None:
                raise RuntimeError("another task is waiting for this Completion")
            if not self._is_set:
                self._waiter = waiter
            return not self._is_set

    def _unsubscribe(self) -> None:
        with self._lock:
            self._waiter = None


async def run_abandonable(
    work: Callable[[], _T], discard: Callable[[_T], None], *, name: str
) -> _T:
    """Run blocking work on a thread of its own, and await its result.

    Raises:
        Exception: whatever the work raised; StopIteration arrives as the cause
            of a RuntimeError, since a coroutine cannot raise it.

    Cancellation: returns at once. The work goes on, and ``discard`` gets its
        result when there is one, on the work's thread; what the work raises then
        is dropped, as there is nobody to tell. What ``discard`` raises is in the log
        ``accy_async.backends``.
    """
    job = _Job(work, discard)
    _AWAITED.add(job)
    try:
        threading.Thread(target=job.run, name=name, daemon=True).start()
        await job.completion.wait()
    except BaseException:
        job.abandon()
        raise
    finally:
        _AWAITED.discard(job)
    return job.take()


def threads_awaited() -> int:
    """How many tasks, on any loop, wait for their work on a thread."""
    return len(_AWAITED)


class _Job(Generic[_T]):
    """Work on a thread; its result goes to whoever comes first to claim it."""

    def __init__(self, work: Callable[[], _T], discard: Callable[[_T], None]) -> None:
        self.completion = Completion()
        self._work = work
        self._discard = discard
        self._lock = threading.Lock()
        self._results: list[_T] = []
        self._error: BaseException | None = None
        self._is_abandoned = False

    def run(self) -> None:
        try:
            result = self._work()
        except BaseException as error:  # noqa: BLE001 - take() raises it
            self._error = error
        else:
            with self._lock:
                is_late = self._is_abandoned
                if not is_late:
                    self._results.append(result)
            if is_late:
                self._put_away(result)
        self.completion.set()

    def abandon(self) -> None:
        with self._lock:
            self._is_abandoned = True
            unclaimed = self._results[:]
            self._results.clear()
        for result in unclaimed:
            self._put_away(result)

    def _put_away(self, result: _T) -> None:
        """Discard what nobody waits for; the cancellation that did it goes on."""
        try:
            self._discard(result)
        except Exception:  # noqa: BLE001 - logged
            _log.exception("what came when nobody waited any more was not put away")

    def take(self) -> _T:
        if isinstance(self._error, StopIteration):
            raise RuntimeError("the work raised StopIteration") from self._error
        if self._error is not None:
            raise self._error
        return self._results.pop()


_AWAITED: set[_Job[Any]] = set()
