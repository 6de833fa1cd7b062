"""How far a stream has come, who waits for it, and where it failed."""

from __future__ import annotations

import threading

import attrs

from accy_async.backends.completion import Completion
from accy_async.errors import (
    DeviceError,
)

__all__ = ["Mark", "Timeline"]

_FAILURES_KEPT = 64


class Timeline:
    """How far one stream has come, who waits for it, and where it failed.

    Failure: when the operation at position f fails, it and every operation
    submitted until somebody is told form a failed range: those not yet run are
    skipped, and every wait for a position in the range raises the error. The
    first wait that raises it ends the range; what is submitted afterwards runs
    normally. (A device that cannot recover is lost instead: see `lose`.)
    """

    __slots__ = (
        "_failure",
        "_failures",
        "_lock",
        "_lost",
        "_lost_after",
        "_skip_until",
        "_vain",
        "_waiters",
        "completed",
        "has_failed",
        "name",
        "submitted",
    )

    def __init__(self, name: str) -> None:
        self.name = name
        self.submitted = 0
        self.completed = 0
        self.has_failed = False  # and True for good after the first failure
        self._lock = threading.Lock()
        self._waiters: dict[Completion, int] = {}
        self._failure: tuple[int, DeviceError] | None = None
        self._failures: list[tuple[int, int, DeviceError]] = []
        self._skip_until = 0
        self._lost: DeviceError | None = None
        self._lost_after = 0
        self._vain = (0, 0.0)  # see `give_up`

    def __repr__(self) -> str:
        return f"<Timeline {self.name}: {self.completed} of {self.submitted}>"

    @property
    def is_idle(self) -> bool:
        """True where everything submitted has completed."""
        return self.completed >= self.submitted

    @property
    def reached(self) -> int:
        """The position up to which the device is known to have come."""
        return self.completed

    def has_reached(self, position: int) -> bool:
        """True where everything up to ``position`` is done."""
        return self.completed >= position

    def give_up(self, position: int, waited_s: float) -> None:
        """A cleanup has waited so long, in vain, for all up to ``position``."""
        if position >= self._vain[0]:
            self._vain = position, waited_s

    def waited_in_vain(self, position: int) -> float:
        """The seconds that a cleanup has spent on what is up to there, in vain."""
        up_to, waited_s = self._vain
        return waited_s if position <= up_to else 0.0

    def request(self, position: int) -> None:
        """Somebody will want to know when ``position`` is done.

        For a device that says so only where it is asked to beforehand.
        """

    def oversee(self, position: int) -> None:
        """See to it that ``position`` is noticed when it is done, if nobody looks."""
        self.request(position)

    def advance(self) -> int:
        """Submit an operation; returns its position, counting from 1.

        The caller makes sure that operations reach the device in this order.
        """
        self.submitted += 1
        return self.submitted

    def complete(self, position: int) -> None:
        """Say that every operation up to ``position`` is done; any thread."""
        with self._lock:
            if position <= self.completed:
                return
            self.completed = position
            if not self._waiters:
                return
            reached = self._take_reached(position)
        for completion in reached:
            completion.set()

    def fail(self, position: int, error: DeviceError) -> None:
        """Say that the operation at ``position`` failed; call before `complete`."""
        with self._lock:
            self.has_failed = True
            if self._failure is None and position > self._skip_until:
                self._failure = (position, error)

    def lose(self, error: DeviceError) -> None:
        """The device is gone: every wait, now and later, raises ``error``."""
        with self._lock:
            self.has_failed = True
            if self._lost is None:
                self._lost = error
                self._lost_after = self.completed
            self.completed = self.submitted
            waiters, self._waiters = self._waiters, {}
        for completion in waiters:
            completion.set()

    def error_at(self, position: int) -> DeviceError | None:
        """The error whose failed range holds ``position``, without telling it.

        What was done before the device was lost stays done. An operation that finds
        one here, at its own position, is to be skipped.
        """
        if not self.has_failed:
            return None
        with self._lock:
            return self._error_at(position)

    def _error_at(self, position: int) -> DeviceError | None:
        if self._lost is not None and position > self._lost_after:
            return self._lost
        if self._failure is not None and position >= self._failure[0]:
            return self._failure[1]
        for first, last, error in reversed(self._failures):
            if first <= position <= last:
                return error
        return None

    def raise_at(self, position: int) -> None:
        """Raise the error whose failed range holds ``position``, if any does.

        Raises:
            DeviceError: a fresh copy each time, with the first as its cause.
        """
        with self._lock:
            error = self._lost or self._error_at(position)
            if self._failure is not None and error is self._failure[1]:
                self._skip_until = self.submitted
                self._failures.append((self._failure[0], self.submitted, error))
                del self._failures[:-_FAILURES_KEPT]
                self._failure = None
        if error is not None:
            raise error.copy() from error.__cause__

    async def wait(self, position: int) -> None:
        """Return once every operation up to ``position`` is done.

        Raises:
            DeviceError: the operation at ``position``, or one before it in the
                same failed range, failed.

        Cancellation: only the wait stops.
        """
        await self.wait_reached(position)
        if self.has_failed:
            self.raise_at(position)

    def raise_untold(self, position: int) -> None:
        """`raise_at`, but silent about a failure that some wait has raised already.

        Raises:
            DeviceError: the device is lost, or nobody was told yet what failed.
        """
        with self._lock:
            untold = self._failure
            is_told = self._lost is None and (untold is None or position < untold[0])
        if not is_told:
            self.raise_at(position)

    async def wait_reached(self, position: int) -> None:
        """Return once every operation up to ``position`` has ended, in any way.

        Cancellation: only the wait stops.
        """
        await self.wait_signal(position, Completion())

    async def wait_signal(self, position: int, completion: Completion) -> None:
        """`watch`, and return once the signal is set, by the device or another.

        Cancellation: only the wait stops.
        """
        self.watch(position, completion)
        try:
            await completion.wait()
        except GeneratorExit:  # see `unwatch`
            raise
        except BaseException:
            self.unwatch(completion)
            raise

    def watch(self, position: int, completion: Completion) -> None:
        """Have the signal set once every operation up to ``position`` has ended."""
        with self._lock:
            if self.completed < position and self._lost is None:
                self._waiters[completion] = position
                return
        completion.set()

    def unwatch(self, completion: Completion) -> None:
        """Forget a signal given to `watch`.

        Not for a coroutine that is closed without having ended: the collector does that
        to one that was dropped, wherever it happens to run, and there the thread may
        hold this very lock. The signal is forgotten with the position then.
        """
        with self._lock:
            self._waiters.pop(completion, None)

    def _take_reached(self, position: int) -> list[Completion]:
        """The signals of what is done by ``position``, forgotten; under the lock."""
        reached = [one for one, at in self._waiters.items() if at <= position]
        for completion in reached:
            del self._waiters[completion]
        return reached


@attrs.frozen
class Mark:
    """A point in a stream's work."""

    timeline: Timeline
    position: int

    @property
    def is_reached(self) -> bool:
        """True where the stream has come this far."""
        return self.timeline.has_reached(self.position)

    async def wait(self) -> None:
        """Return once the stream has come this far; see `Timeline.wait`."""
        await self.timeline.wait(self.position)

    async def wait_reached(self) -> None:
        """The same, without raising what failed; see `Timeline.wait_reached`."""
        await self.timeline.wait_reached(self.position)
