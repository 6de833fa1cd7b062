"""A device that is nothing but words in host memory, for the CUDA backend's waits."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from accy_async.backends.alarm import Timer
from accy_async.backends.cuda import hub as hub_module
from accy_async.backends.cuda.hub import Hub
from accy_async.backends.cuda.nativescanner import NativeScanner
from accy_async.backends.cuda.plainscanner import PlainScanner
from accy_async.backends.cuda.scanner import Scanner
from accy_async.backends.cuda.timeline import CudaTimeline
from tests.backends.loops import PATIENCE_S

__all__ = ["SCANNERS", "Clock", "FakeTimer", "Words", "WordsDevice", "open_device"]

SCANNERS = (
    pytest.param(NativeScanner, id="native"),
    pytest.param(PlainScanner, id="plain"),
)


class Clock:
    """A monotonic clock that stands still until a test moves it."""

    def __init__(self) -> None:
        self.now = 10**12

    def __call__(self) -> int:
        return self.now


class FakeTimer(Timer):
    """A timer that never rings by itself.

    Attributes:
        at_ns: what it is set to; 0 for never.
        times: whatever it was set to.
    """

    def __init__(self) -> None:
        self.at_ns = 0
        self.times: list[int] = []
        self.is_closed = False

    def set(self, at_ns: int) -> None:
        self.at_ns = at_ns
        self.times.append(at_ns)

    def lower(self) -> None:
        self.at_ns = 0

    def close(self) -> None:
        self.is_closed = True


class Words:
    """So many words of 64 bits."""

    def __init__(self, count: int) -> None:
        self.values = (ctypes.c_uint64 * count)()
        self.address = ctypes.addressof(self.values)


class WordsDevice:
    """Streams whose operations are done when a test says so."""

    def __init__(self, make: type[Scanner], count: int = 64) -> None:
        self.words = Words(count)
        self.flagged: dict[CudaTimeline, list[int]] = {}
        self.idle: set[CudaTimeline] = set()
        self.afters = 0
        self.hub = Hub(self.words.address, count, self._after, lambda: True)
        self.hub.scanner = make(self.words.address, count)

    def line(self, slot: int) -> CudaTimeline:
        """A stream."""
        name = f"stream {slot}"
        line = CudaTimeline(name, slot, self._flag, self.idle.__contains__, self.hub)
        self.flagged[line] = []
        return line

    def do(self, line: CudaTimeline, position: int | None = None) -> None:
        """Everything up to the position is done, all that was submitted if None."""
        position = line.submitted if position is None else position
        flags = [at for at in self.flagged[line] if at <= position]
        if flags:
            self.words.values[line.slot] = flags[-1]

    def _flag(self, line: CudaTimeline, position: int) -> None:
        assert position <= line.submitted
        line.flagged = line.submitted
        self.flagged[line].append(line.flagged)

    def _after(self) -> None:
        self.afters += 1

    def threads(self) -> list[threading.Thread]:
        """Those of the hub."""
        return [
            t for t in threading.enumerate() if t.name.startswith("accy_async cuda")
        ]


@contextmanager
def open_device(make: type[Scanner], count: int = 64) -> Iterator[WordsDevice]:
    """A device; its threads have ended afterwards."""
    device = WordsDevice(make, count)
    try:
        yield device
    finally:
        device.hub.close()
        for thread in device.threads():
            thread.join(PATIENCE_S)
            assert not thread.is_alive()
        assert device.hub not in hub_module._HUBS or device.hub._is_closed
