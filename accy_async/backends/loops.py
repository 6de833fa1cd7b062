"""The event loops' own primitives behind one interface: trio's bell, and asyncio's.

This is the one module that knows trio from asyncio; everything above it uses bells,
`Completion` and anyio. What a bell is says `accy_async.backends.bell`.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import threading
import types
import weakref
from collections import deque
from collections.abc import Awaitable, Callable, Generator
from time import monotonic_ns
from typing import Any, TypeVar, cast

import sniffio
import trio

from accy_async.backends.alarm import Alarm
from accy_async.backends.bell import Bell, Waiter
from accy_async.errors import WrongEventLoop

__all__ = [
    "current_bell",
    "due_turn",
    "interruptible",
    "require_loop_of",
    "uninterrupted",
]

_Kind = TypeVar("_Kind")


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


def due_turn() -> Awaitable[object] | None:
    """The turn that is due to the loop's other tasks before a wait that is soon over.

    The cheapest checkpoint of the loop. On asyncio's own loop, a turn of which takes as
    long as an empty kernel, None where nobody is ready to run: no task, no callback, no
    cancellation by anybody else. Then what is due is only to look for input, output and
    timers, and that was done less than `_LOOK_NS` ago. (A task that cancels itself
    makes nobody ready by that: it is cancelled at the next look.)
    """
    if _LIBRARY.name == "trio":
        return _checkpoint()
    bell = _HERE.bell
    ready = None if bell is None else bell.ready
    if bell is None or ready is None:  # of another kind, or none is known here yet
        if bell is None:
            current_bell()
        return _turn()
    now = monotonic_ns()
    if not ready() and now < bell.look_ns:
        return None
    # The loop may be another one by now: the next look is that one's.
    current_bell().look_ns = now + _LOOK_NS
    return _turn()


def uninterrupted(what: _Kind) -> _Kind:
    """Have trio raise its KeyboardInterrupt at the awaits of a function, not within.

    Of a class: in all of its functions, its bases' among them. What they call is
    covered as well, but for what `interruptible` is within. In the middle of an
    operation that is given to a device an interrupt would leave a position on its
    stream that nothing ever comes to. (asyncio makes a cancellation of the first
    interrupt; for the second it has no such means.)
    """
    if not isinstance(what, type):
        _protect(what)
        return what
    for kind in what.__mro__:
        for function in vars(kind).values():
            if isinstance(function, types.FunctionType):
                _protect(function)
    return what


def interruptible(function: _Kind) -> _Kind:
    """Have trio raise its KeyboardInterrupt anywhere in a function, as in a user's."""
    trio.lowlevel.disable_ki_protection(cast("Callable[..., object]", function))
    return function


def _protect(function: object) -> None:
    # Helpers of contextlib share their code with all others: what they wrap is meant.
    trio.lowlevel.enable_ki_protection(
        inspect.unwrap(cast("Callable[..., object]", function))
    )


def require_loop_of(bell: Bell, call: str) -> None:
    """Refuse a call from anywhere but the event loop that a bell is of.

    Raises:
        WrongEventLoop: it runs on another, or on none.
    """
    try:
        is_there = current_bell() is bell
    except RuntimeError:  # on none, as sniffio and asyncio say
        is_there = False
    if not is_there:
        raise WrongEventLoop(
            f"{call}: the session was opened on another event loop and takes this only "
            "from there; anyio.from_thread.run gets there from a thread"
        )


class _Here(threading.local):
    """The bell that was found last on this thread: finding it takes longer."""

    bell: Bell | None = None


_HERE = _Here()
_LIBRARY = sniffio.thread_local
_running_loop = asyncio.get_running_loop
_checkpoint = trio.lowlevel.checkpoint

_LOOK_NS = 100_000
"""How long asyncio's loop may not look for input, output and timers while quick waits
follow each other and nobody else is ready. Its timers count in milliseconds."""


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
        # What BaseEventLoop is to run next. Others' loops keep that to themselves, and
        # some that inherit from it keep it elsewhere. It may hold the loop.
        ready = getattr(loop, "_ready", None)
        is_own = type(loop).call_soon is asyncio.BaseEventLoop.call_soon
        self.ready = weakref.ref(ready) if is_own and type(ready) is deque else None
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
