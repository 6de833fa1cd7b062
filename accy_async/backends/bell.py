"""The way into an event loop from any thread, whichever loop it is.

Each event loop has one *bell*: a descriptor that the loop watches and a queue of
waiters to wake. Whoever finds that work has completed, on whatever thread, queues
the waiters and rings once; however many complete before the loop looks, it wakes
once, for all of them. No task or thread exists per wait. What has no interpreter,
as the CUDA backend's scanner, rings by writing to the descriptor; whoever listens to
the bell is asked then what that was about.

A bell outlives its loop harmlessly: what completes after the loop has ended is
dropped without a word, as there is nobody left to wake.
"""

from __future__ import annotations

import os
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable, Collection

from accy_async.backends.alarm import Alarm, open_timer

__all__ = ["Bell", "Waiter"]


class Waiter:
    """Who is to be woken. ``is_waiting`` is used on the loop's thread only.

    Args:
        bell: of the loop.
        wake: called on the loop's thread, once.
    """

    __slots__ = ("bell", "is_waiting", "wake")

    def __init__(self, bell: Bell, wake: Callable[[], object]) -> None:
        self.bell = bell
        self.wake = wake
        self.is_waiting = True


class Bell(ABC):
    """The way into one event loop from any thread.

    Attributes:
        turn: the loop's cheapest checkpoint: others get their turn, and a
            cancellation is raised.
        pollers: how many of the loop's tasks take turns at the moment instead of
            sleeping; for those who do to count.
        turn_ns: about how long a turn takes them; likewise.
        ready: answers what the loop is to run next, or None once it is gone; None if it
            does not let that be known.
        look_ns: until when it need not look for input, output and timers before quick
            waits; for `loops.due_turn`.
    """

    turn: Callable[[], Awaitable[object]]
    ready: Callable[[], Collection[object] | None] | None = None

    def __init__(self) -> None:
        self.pollers = 0
        self.turn_ns = 0
        self.look_ns = 0
        self._queue: deque[Waiter] = deque()
        # Reentrant, as the collector may close a bell wherever it likes to.
        self._lock = threading.RLock()
        self._is_rung = False
        self._is_closed = False
        self._thread = threading.get_ident()
        self._alarm: Alarm | None = None
        self._has_alarm = True  # unless it is found that there is none to be had
        self._listeners: tuple[Callable[[], object], ...] = ()
        self._heirs: tuple[Callable[[], object], ...] = ()

    @abstractmethod
    def is_here(self) -> bool:
        """True where this code runs on the bell's loop.

        Asked of a bell that was found on this thread before; on the way of every wait.
        """

    @abstractmethod
    async def park(
        self, subscribe: Callable[[Waiter], bool], unsubscribe: Callable[[], None]
    ) -> None:
        """Sleep until a waiter is woken; always a checkpoint.

        Args:
            subscribe: gets the waiter; False where there is nothing to wait for.
            unsubscribe: called if the sleep is cancelled before.
        """

    @abstractmethod
    def _fileno(self) -> int | None:
        """What rings when eight bytes are written to it; None where nothing does."""

    @abstractmethod
    def _ring(self) -> None:
        """Make the loop call `answer`; any thread."""

    @abstractmethod
    def _watch(self, alarm: Alarm) -> None:
        """Make the loop call the alarm's `answer`; on its thread.

        Raises:
            NotImplementedError: it watches no descriptors.
        """

    @property
    def alarm(self) -> Alarm | None:
        """What calls back at a time, on the loop's thread, where it is to be used.

        None where there is no such thing, or the loop has ended.
        """
        if self._alarm is None and self._has_alarm and not self._is_closed:
            timer = open_timer()
            if timer is not None:
                alarm = Alarm(timer)
                try:
                    self._watch(alarm)
                    self._alarm = alarm
                except NotImplementedError:
                    alarm.close()
            self._has_alarm = self._alarm is not None
        return self._alarm

    @property
    def is_closed(self) -> bool:
        """True once the loop has ended."""
        return self._is_closed

    def duplicate(self) -> int | None:
        """A descriptor of the caller's own that rings when eight bytes are written.

        None where the loop has ended, or watches no descriptors, or the process has as
        many open as it may: then `post` is the way in.
        """
        with self._lock:
            descriptor = None if self._is_closed else self._fileno()
            if descriptor is None:
                return None
            try:
                return os.dup(descriptor)
            except OSError:
                return None

    def post(self, waiter: Waiter) -> None:
        """Wake somebody: at once on the loop's thread, else by ringing."""
        if threading.get_ident() == self._thread and not self._is_closed:
            _wake(waiter)
            return
        with self._lock:
            if self._is_closed:
                return
            self._queue.append(waiter)
            if self._is_rung:
                return
            self._is_rung = True
            self._ring()

    def listen(self, answer: Callable[[], object], end: Callable[[], object]) -> None:
        """Have ``answer`` called whenever the bell was rung, on the loop's thread.

        And ``end`` once the loop has ended, wherever that is noticed, be it in a
        finalizer: it must take no lock.
        """
        with self._lock:
            if not self._is_closed:
                self._listeners += (answer,)
                self._heirs += (end,)
                return
        end()

    def unlisten(self, answer: Callable[[], object], end: Callable[[], object]) -> None:
        """Undo `listen`; harmless when repeated."""
        with self._lock:
            self._listeners = tuple(one for one in self._listeners if one != answer)
            self._heirs = tuple(one for one in self._heirs if one != end)

    def answer(self) -> None:
        """Wake everybody queued; on the loop's thread."""
        with self._lock:
            self._is_rung = False
            waiters = list(self._queue)
            self._queue.clear()
        try:
            for listener in self._listeners:
                listener()
        finally:
            for waiter in waiters:
                _wake(waiter)

    def close(self) -> None:
        """Wake nobody any more; idempotent."""
        with self._lock:
            self._is_closed = True
            self._queue.clear()
            heirs, self._heirs, self._listeners = self._heirs, (), ()
        for end in heirs:
            end()


def _wake(waiter: Waiter) -> None:
    if waiter.is_waiting:
        waiter.is_waiting = False
        waiter.wake()
