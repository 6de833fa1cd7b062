"""Turning the completion of device work into the wake-up of a task.

Each event loop has one *bell*: a file descriptor that the loop watches and a
queue of waiters to wake. Whoever finds that work has completed, on whatever
thread, queues the waiters and rings once; however many complete before the loop
looks, it wakes once, for all of them. No task or thread exists per wait.
(docs/performance.md compares it with the loops' own calls.)

This is the one module that knows trio from asyncio; everything above it uses
`Completion` and anyio.

A bell outlives its loop harmlessly: what completes after the loop has ended is
dropped without a word, as there is nobody left to wake.
"""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import anyio.lowlevel
import sniffio
import trio

__all__ = ["Completion", "run_abandonable", "threads_awaited"]

_T = TypeVar("_T")


class Completion:
    """A one-shot signal: set once from any thread, awaited by one task at a time.

    Cancellation: only the wait stops; the signal stays as it is and can be
    waited for again.
    """

    __slots__ = ("_is_set", "_lock", "_waiter")

    def __init__(self) -> None:
        self._is_set = False
        self._lock = threading.Lock()
        self._waiter: _Waiter | None = None

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
        if self._is_set:
            await anyio.lowlevel.checkpoint()
            return
        if sniffio.current_async_library() == "trio":
            await self._wait_trio()
        else:
            await self._wait_asyncio()

    def on_set(self, callback: Callable[[], object]) -> Callable[[], None]:
        """Call back on this event loop's thread once the signal is set.

        At once if it is set already. It takes the place of a waiting task.

        Returns:
            A function that forgets the callback; to be called on this thread.

        Raises:
            RuntimeError: a task or another callback is waiting already.
        """

        def wake() -> None:
            callback()

        if sniffio.current_async_library() == "trio":
            bell = _trio_bell()
        else:
            bell = _asyncio_bell(asyncio.get_running_loop())
        waiter = _Waiter(bell, wake)

        def forget() -> None:
            if waiter.is_waiting:
                waiter.is_waiting = False
                self._unsubscribe()

        if not self._subscribe(waiter):
            waiter.is_waiting = False
            callback()
        return forget

    def _subscribe(self, waiter: _Waiter) -> bool:
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

    async def _wait_trio(self) -> None:
        task = trio.lowlevel.current_task()
        waiter = _Waiter(_trio_bell(), lambda: trio.lowlevel.reschedule(task))
        if not self._subscribe(waiter):
            await trio.lowlevel.checkpoint()
            return

        def abort(_: object) -> trio.lowlevel.Abort:
            waiter.is_waiting = False
            self._unsubscribe()
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)

    async def _wait_asyncio(self) -> None:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()

        def wake() -> None:
            if not future.done() and not loop.is_closed():
                future.set_result(None)

        waiter = _Waiter(_asyncio_bell(loop), wake)
        if not self._subscribe(waiter):
            await anyio.lowlevel.checkpoint()
            return
        try:
            await future
        finally:
            if waiter.is_waiting:
                waiter.is_waiting = False
                self._unsubscribe()


class _Waiter:
    """A parked task. ``is_waiting`` is read and written on its loop's thread only."""

    __slots__ = ("bell", "is_waiting", "wake")

    def __init__(self, bell: _Bell, wake: Callable[[], None]) -> None:
        self.bell = bell
        self.wake = wake
        self.is_waiting = True


class _Bell:
    """The way into one event loop from any thread."""

    __slots__ = (
        "__weakref__",
        "_is_closed",
        "_is_rung",
        "_lock",
        "_queue",
        "_ring",
        "_thread",
    )

    def __init__(self, ring: Callable[[], None]) -> None:
        self._ring = ring
        self._queue: deque[_Waiter] = deque()
        self._lock = threading.Lock()
        self._is_rung = False
        self._is_closed = False
        self._thread = threading.get_ident()

    def move_here(self) -> None:
        """Say that the loop runs on this thread, which asyncio's may change."""
        self._thread = threading.get_ident()

    def post(self, waiter: _Waiter) -> None:
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

    def answer(self) -> None:
        """Wake everybody queued; on the loop's thread."""
        with self._lock:
            self._is_rung = False
            waiters = list(self._queue)
            self._queue.clear()
        for waiter in waiters:
            _wake(waiter)

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            self._queue.clear()


def _wake(waiter: _Waiter) -> None:
    if waiter.is_waiting:
        waiter.is_waiting = False
        waiter.wake()


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


_TRIO_BELL: trio.lowlevel.RunVar[_Bell] = trio.lowlevel.RunVar("accy_async bell")


def _trio_bell() -> _Bell:
    try:
        return _TRIO_BELL.get()
    except LookupError:
        signal = _Signal()
        bell = _Bell(signal.raise_)
        _TRIO_BELL.set(bell)
        trio.lowlevel.spawn_system_task(_answer_trio_bell, bell, signal)
        return bell


async def _answer_trio_bell(bell: _Bell, signal: _Signal) -> None:
    try:
        while True:
            await trio.lowlevel.wait_readable(signal.fileno())
            signal.lower()
            bell.answer()
    finally:
        bell.close()
        trio.lowlevel.notify_closing(signal.fileno())
        signal.close()


_ASYNCIO_BELLS: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Bell] = (
    weakref.WeakKeyDictionary()
)


def _asyncio_bell(loop: asyncio.AbstractEventLoop) -> _Bell:
    bell = _ASYNCIO_BELLS.get(loop)
    if bell is None:
        bell = _ASYNCIO_BELLS[loop] = _open_asyncio_bell(loop)
    bell.move_here()
    return bell


def _open_asyncio_bell(loop: asyncio.AbstractEventLoop) -> _Bell:
    signal = _Signal()
    bell = _Bell(signal.raise_)

    def answer() -> None:
        signal.lower()
        bell.answer()

    try:
        loop.add_reader(signal.fileno(), answer)
    except NotImplementedError:  # Windows' proactor loop watches no descriptors
        signal.close()
        return _open_threadsafe_bell(weakref.ref(loop))

    def close() -> None:
        bell.close()
        signal.close()

    weakref.finalize(loop, close)
    return bell


def _open_threadsafe_bell(loop: weakref.ref[asyncio.AbstractEventLoop]) -> _Bell:
    def ring() -> None:
        target = loop()
        if target is None or target.is_closed():
            return
        try:
            target.call_soon_threadsafe(bell.answer)
        except RuntimeError:
            return  # closed between the question and the call

    bell = _Bell(ring)
    return bell


async def run_abandonable(
    work: Callable[[], _T], discard: Callable[[_T], None], *, name: str
) -> _T:
    """Run blocking work on a thread of its own, and await its result.

    Raises:
        Exception: whatever the work raised; StopIteration arrives as the cause
            of a RuntimeError, since a coroutine cannot raise it.

    Cancellation: returns at once. The work goes on, and ``discard`` gets its
        result when there is one, on the work's thread; what the work raises then
        is dropped, as there is nobody to tell.
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
                self._discard(result)
        self.completion.set()

    def abandon(self) -> None:
        with self._lock:
            self._is_abandoned = True
            unclaimed = self._results[:]
            self._results.clear()
        for result in unclaimed:
            self._discard(result)

    def take(self) -> _T:
        if isinstance(self._error, StopIteration):
            raise RuntimeError("the work raised StopIteration") from self._error
        if self._error is not None:
            raise self._error
        return self._results.pop()


_AWAITED: set[_Job[Any]] = set()
