"""The event loops' own primitives behind one interface: the way in, a turn, a nap.

Each event loop has one *bell*: a descriptor that the loop watches and a queue of
waiters to wake. Whoever finds that work has completed, on whatever thread, queues
the waiters and rings once; however many complete before the loop looks, it wakes
once, for all of them. No task or thread exists per wait. What has no interpreter,
as the CUDA backend's scanner, rings by writing to the descriptor; whoever listens to
the bell is asked then what that was about.

This is the one module that knows trio from asyncio; everything above it uses bells,
`Completion` and anyio.

A bell outlives its loop harmlessly: what completes after the loop has ended is
dropped without a word, as there is nobody left to wake.
"""

from __future__ import annotations

import asyncio
import os
import threading
import types
import weakref
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable, Generator
from typing import Any

import sniffio
import trio

from accy_async.backends.alarm import Alarm, open_timer

__all__ = ["Bell", "Waiter", "current_bell"]


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
    """

    turn: Callable[[], Awaitable[object]]

    def __init__(self) -> None:
        self.pollers = 0
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

        None where the loop has ended, or watches no descriptors.
        """
        with self._lock:
            descriptor = None if self._is_closed else self._fileno()
            return None if descriptor is None else os.dup(descriptor)

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
        for listener in self._listeners:
            listener()
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


def current_bell() -> Bell:
    """The bell of the event loop that this code runs on.

    Raises:
        sniffio.AsyncLibraryNotFoundError: it runs on none.
    """
    bell = _HERE.bell
    if bell is not None and bell.is_here():
        return bell
    if sniffio.current_async_library() == "trio":
        bell = _trio_bell()
    else:
        bell = _asyncio_bell(asyncio.get_running_loop())
    _HERE.bell = bell
    return bell


class _Here(threading.local):
    """The bell that was found last on this thread: finding it takes longer."""

    bell: Bell | None = None


_HERE = _Here()
_LIBRARY = sniffio.thread_local
_running_loop = asyncio.get_running_loop


class _Signal:
    """A descriptor pair that one side writes and an event loop watches."""

    __slots__ = ("_read", "_write")

    def __init__(self) -> None:
        if hasattr(os, "eventfd"):
            self._read = self._write = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        else:
            self._read, self._write = os.pipe()
            os.set_blocking(self._read, False)
            os.set_blocking(self._write, False)

    def fileno(self) -> int:
        return self._read

    def write_end(self) -> int:
        return self._write

    def raise_(self) -> None:
        try:
            os.write(self._write, b"\1\0\0\0\0\0\0\0")
        except BlockingIOError:
            return  # full: the loop has plenty of reason to look already

    def lower(self) -> None:
        try:
            os.read(self._read, 8)
        except BlockingIOError:
            return  # a wake-up without a cause

    def close(self) -> None:
        os.close(self._read)
        if self._write != self._read:
            os.close(self._write)


class _TrioBell(Bell):
    """One run's; a system task answers it, and closes it when the run ends."""

    turn = staticmethod(trio.lowlevel.checkpoint)

    def __init__(self) -> None:
        super().__init__()
        self._signal = _Signal()

    def is_here(self) -> bool:
        return not self._is_closed and _LIBRARY.name == "trio"

    async def park(
        self, subscribe: Callable[[Waiter], bool], unsubscribe: Callable[[], None]
    ) -> None:
        task = trio.lowlevel.current_task()
        waiter = Waiter(self, lambda: trio.lowlevel.reschedule(task))
        if not subscribe(waiter):
            await trio.lowlevel.checkpoint()
            return

        def abort(_: object) -> trio.lowlevel.Abort:
            waiter.is_waiting = False
            unsubscribe()
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)

    def _fileno(self) -> int | None:
        return self._signal.write_end()

    def _ring(self) -> None:
        self._signal.raise_()

    def _watch(self, alarm: Alarm) -> None:
        trio.lowlevel.spawn_system_task(self._serve_alarm, alarm)

    async def serve(self) -> None:
        """Answer until the run ends."""
        try:
            while True:
                await trio.lowlevel.wait_readable(self._signal.fileno())
                self._signal.lower()
                self.answer()
        finally:
            self.close()
            trio.lowlevel.notify_closing(self._signal.fileno())
            self._signal.close()

    async def _serve_alarm(self, alarm: Alarm) -> None:
        descriptor, wait = alarm.timer.fileno(), trio.lowlevel.wait_readable
        try:
            while True:
                await wait(descriptor)
                alarm.answer()
        finally:
            self._alarm, self._has_alarm = None, False
            trio.lowlevel.notify_closing(descriptor)
            alarm.close()


_TRIO_BELL: trio.lowlevel.RunVar[_TrioBell] = trio.lowlevel.RunVar("accy_async bell")


def _trio_bell() -> _TrioBell:
    try:
        return _TRIO_BELL.get()
    except LookupError:
        bell = _TrioBell()
        _TRIO_BELL.set(bell)
        trio.lowlevel.spawn_system_task(bell.serve)
        return bell


@types.coroutine
def _turn() -> Generator[None, Any, None]:
    """What ``asyncio.sleep(0)`` comes down to."""
    yield


class _AsyncioBell(Bell):
    """One loop's, asyncio's own or uvloop's; it lives as long as the loop does."""

    turn = staticmethod(_turn)

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._loop = weakref.ref(loop)
        self._signal: _Signal | None = _Signal()
        try:
            loop.add_reader(self._signal.fileno(), _answer, weakref.ref(self))
        except NotImplementedError:  # Windows' proactor loop watches no descriptors
            self._signal.close()
            self._signal = None
        weakref.finalize(loop, self._end)

    def is_here(self) -> bool:
        return _LIBRARY.name != "trio" and _running_loop() is self._loop()

    def move_here(self) -> None:
        """Say that the loop runs on this thread, which asyncio's may change."""
        self._thread = threading.get_ident()

    async def park(
        self, subscribe: Callable[[Waiter], bool], unsubscribe: Callable[[], None]
    ) -> None:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()

        def wake() -> None:
            if not future.done() and not loop.is_closed():
                future.set_result(None)

        waiter = Waiter(self, wake)
        if not subscribe(waiter):
            await _turn()
            return
        try:
            await future
        finally:
            if waiter.is_waiting:
                waiter.is_waiting = False
                unsubscribe()

    def _fileno(self) -> int | None:
        return None if self._signal is None else self._signal.write_end()

    def _watch(self, alarm: Alarm) -> None:
        loop = self._loop()
        if loop is None or loop.is_closed():
            raise NotImplementedError
        loop.add_reader(alarm.timer.fileno(), alarm.answer)

    def lower(self) -> None:
        if self._signal is not None:
            self._signal.lower()

    def _ring(self) -> None:
        if self._signal is not None:
            self._signal.raise_()
            return
        loop = self._loop()
        if loop is None or loop.is_closed():
            return
        try:
            loop.call_soon_threadsafe(self.answer)
        except RuntimeError:
            return  # closed between the question and the call

    def _end(self) -> None:
        self.close()
        if self._signal is not None:
            self._signal.close()
        if self._alarm is not None:
            self._alarm.close()


def _answer(reference: weakref.ref[_AsyncioBell]) -> None:
    """What the loop calls; it holds its bell no more than the bell holds the loop."""
    bell = reference()
    if bell is not None:
        bell.lower()
        bell.answer()


_ASYNCIO_BELLS: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _AsyncioBell] = (
    weakref.WeakKeyDictionary()
)


def _asyncio_bell(loop: asyncio.AbstractEventLoop) -> _AsyncioBell:
    bell = _ASYNCIO_BELLS.get(loop)
    if bell is None:
        bell = _ASYNCIO_BELLS[loop] = _AsyncioBell(loop)
    bell.move_here()
    return bell
