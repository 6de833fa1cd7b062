"""Waking an event loop at a moment, to some microseconds.

The loops' own timers count in milliseconds, as ``epoll_wait`` does, and the system lets
them come another 0.05 ms late. Linux has timers that are descriptors, which are exact
and which a loop can watch (``timerfd_create``). An `Alarm` is one of those, for
everybody on the loop.

A processor that slept takes its time to be up, and so does a loop whose code has left
its caches: 0.05 to 0.3 ms. How long is learned, and who sets an alarm can set it that
much earlier.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable
from functools import cache
from heapq import heapify, heappop, heappush
from time import monotonic_ns
from typing import Any

__all__ = ["Alarm", "Entry", "Lag", "Timer", "open_timer"]

_FIRST_LAG_NS = 150_000
"""Before anything is learned: what a core of a virtual machine took (seen on one)."""

_MOST_LAG_NS = 500_000
_MOST_ERROR_NS = 40_000
"""By which one time may differ from the mean as far as that is learned: some come late
by whole time slices of other programs."""

_MOST_MARGIN_NS = 100_000
_STEP_NS = 2_000
"""The mean comes to what a loop takes within some alarms. The margin is to be slower:
else it would make up for what the mean is about to."""

_TOGETHER_NS = 10_000
"""What is due so soon after something else is called together with it: to sleep again
would take longer."""


class Lag:
    """How long a loop takes to be up after the time that an alarm was set to.

    Attributes:
        allowance: how much sooner than it is needed an alarm should be set, so that the
            loop is up in time every other time. What is above costs processor time,
            what is below is late. It is the running mean of what the loop took, and a
            *margin* that each alarm moves: up where the loop was late, down where it
            was not. So whatever else an expected end is wrong by is in it.
    """

    __slots__ = ("_margin", "_mean", "allowance")

    def __init__(self) -> None:
        self.allowance = self._mean = _FIRST_LAG_NS
        self._margin = 0

    def learn(self, took_ns: int, *, is_late: bool) -> None:
        """Say how long it took once, and whether the loop was up too late by that."""
        error = took_ns - self._mean
        if not -_MOST_ERROR_NS <= error <= _MOST_ERROR_NS:
            error = _MOST_ERROR_NS if error > 0 else -_MOST_ERROR_NS
        self._mean += error >> 2
        margin = self._margin + (_STEP_NS if is_late else -_STEP_NS)
        if -_MOST_MARGIN_NS <= margin <= _MOST_MARGIN_NS:
            self._margin = margin
        allowance = self._mean + self._margin
        if not 0 <= allowance <= _MOST_LAG_NS:
            allowance = 0 if allowance < 0 else _MOST_LAG_NS
        self.allowance = allowance


class Entry:
    """What is to be called, and when; it is ordered by that.

    Attributes:
        at_ns: when, on the monotonic clock.
        call: what; None once it was called or cancelled.
    """

    __slots__ = ("at_ns", "call")

    def __init__(self, at_ns: int, call: Callable[[], object]) -> None:
        self.at_ns = at_ns
        self.call: Callable[[], object] | None = call

    def __lt__(self, other: Entry) -> bool:
        return self.at_ns < other.at_ns


class _TimerSpec(ctypes.Structure):
    """A ``struct itimerspec``."""

    _fields_ = (
        ("interval_s", ctypes.c_long),
        ("interval_ns", ctypes.c_long),
        ("value_s", ctypes.c_long),
        ("value_ns", ctypes.c_long),
    )


class _Functions:
    """The C library's, which Python has from 3.13 on only; they never block."""

    def __init__(self) -> None:
        library = ctypes.PyDLL(None, use_errno=True)
        self.create: Any = library.timerfd_create
        self.create.argtypes = (ctypes.c_int, ctypes.c_int)
        self.settime: Any = library.timerfd_settime
        self.settime.argtypes = (
            ctypes.c_int,
            ctypes.c_int,
            ctypes.c_void_p,
            ctypes.c_void_p,
        )


@cache
def _functions() -> _Functions:
    return _Functions()


_CLOCK_MONOTONIC = 1
_ABSOLUTE = 1


class Timer:
    """A descriptor that becomes readable at a time; of Linux.

    Raises:
        OSError: the system has none to give.
    """

    def __init__(self) -> None:
        functions = _functions()
        flags = os.O_NONBLOCK | os.O_CLOEXEC  # TFD_NONBLOCK, TFD_CLOEXEC
        self._descriptor = int(functions.create(_CLOCK_MONOTONIC, flags))
        if self._descriptor < 0:
            code = ctypes.get_errno()
            raise OSError(code, f"timerfd_create: {os.strerror(code)}")
        self._settime = functions.settime
        self._spec = _TimerSpec()
        self._address = ctypes.addressof(self._spec)

    def fileno(self) -> int:
        """What the loop watches."""
        return self._descriptor

    def set(self, at_ns: int) -> None:
        """Become readable then, on the monotonic clock, and not before; 0 for never."""
        spec = self._spec
        spec.value_s, spec.value_ns = at_ns // 1_000_000_000, at_ns % 1_000_000_000
        self._settime(self._descriptor, _ABSOLUTE, self._address, None)

    def lower(self) -> None:
        """Be readable no more."""
        try:
            os.read(self._descriptor, 8)
        except BlockingIOError:
            return  # it was set anew since it rang

    def close(self) -> None:
        """Close the descriptor; idempotent."""
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            os.close(descriptor)


def open_timer() -> Timer | None:
    """A timer; None where the system has none."""
    if not sys.platform.startswith("linux"):
        return None
    try:
        return Timer()
    except (OSError, AttributeError):  # too many descriptors; another C library
        return None


class Alarm:
    """The alarm of one event loop; to be used on its thread alone.

    Args:
        timer: what the loop watches; closed with the alarm.
        clock: the monotonic clock.

    Attributes:
        lag: how late the loop is.
    """

    def __init__(self, timer: Timer, clock: Callable[[], int] = monotonic_ns) -> None:
        self.timer = timer
        self.lag = Lag()
        self._clock = clock
        self._entries: list[Entry] = []
        self._set_ns = 0

    def __len__(self) -> int:
        """How many calls are due, now or later."""
        return len(self._entries)

    def call_at(self, at_ns: int, call: Callable[[], object]) -> Entry:
        """Have something called on the loop's thread at a time; it must not raise."""
        entry = Entry(at_ns, call)
        heappush(self._entries, entry)
        self._set()
        return entry

    def cancel(self, entry: Entry) -> None:
        """Have it not called; harmless if it was, or is cancelled already."""
        if entry.call is not None:
            entry.call = None
            self._entries.remove(entry)
            heapify(self._entries)
            self._set()

    def answer(self) -> None:
        """Call what is due: the timer is readable."""
        self.timer.lower()
        self._set_ns = 0
        until = self._clock() + _TOGETHER_NS
        entries = self._entries
        while entries and entries[0].at_ns <= until:
            entry = heappop(entries)
            call, entry.call = entry.call, None
            if call is not None:
                call()
        self._set()

    def close(self) -> None:
        """Call nothing any more; idempotent."""
        for entry in self._entries:
            entry.call = None
        self._entries.clear()
        self.timer.close()

    def _set(self) -> None:
        """Set the timer to what is due first."""
        entries = self._entries
        first = max(1, entries[0].at_ns) if entries else 0
        if first != self._set_ns:
            self._set_ns = first
            self.timer.set(first)
