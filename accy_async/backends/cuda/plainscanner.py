"""The scanner where machine code cannot run; see `scanner`."""

from __future__ import annotations

import ctypes
import os
import threading
import time
from queue import Empty, SimpleQueue

from accy_async.backends.cuda.board import IDLE, NO_BELL, Board
from accy_async.backends.cuda.scanner import (
    FURTHEST_NS,
    LONGEST_NS,
    SHORTEST_NS,
    Found,
    Scanner,
)

__all__ = ["PlainScanner"]


class PlainScanner(Scanner):
    """The same in Python: it takes the interpreter lock for each look."""

    def __init__(self, words: int, count: int) -> None:
        super().__init__(words, count)
        self._values = (ctypes.c_uint64 * count).from_address(words)
        self._slots: dict[int, tuple[int, int, int, int]] = {}
        self._arming = threading.Lock()
        self._sightings: dict[int, tuple[int, int]] = {}
        self._looked = 0
        # Its put may interrupt anything, a finalizer in the middle of it included.
        self._kicks: SimpleQueue[None] = SimpleQueue()
        self._is_interrupted = False
        self._has_ended = False
        self._is_looking = False
        self.spin = self._spin

    def arm(
        self, index: int, awaited: int, near_ns: int, late_ns: int, bell: int
    ) -> None:
        with self._arming:
            if awaited == IDLE:
                self._slots.pop(index, None)
                return
            self._slots[index] = (awaited, near_ns, late_ns, bell)
        self._kicks.put(None)

    def sighting(self, index: int) -> tuple[int, int]:
        return self._sightings.get(index, (0, 0))

    def scan(self, timeout_ns: int) -> Found:
        deadline = time.monotonic_ns() + timeout_ns
        while not (self._is_interrupted or self._has_ended):
            self._is_looking = True
            is_ours, soonest = self._look()
            self._is_looking = False
            if is_ours:
                return Found.OURS
            now = time.monotonic_ns()
            if not self._slots:
                self._kicks.get()
                deadline = time.monotonic_ns() + timeout_ns
            elif now >= deadline:
                return Found.LATE
            else:
                self._pause(min(soonest, deadline) - now)
        return Found.TOLD

    def interrupt(self) -> None:
        self._is_interrupted = True
        self._kicks.put(None)

    def resume(self) -> None:
        self._is_interrupted = False

    def end(self) -> None:
        self._has_ended = True
        self._kicks.put(None)
        while self._is_looking:
            time.sleep(20e-6)

    def _spin(self, word: int, awaited: int, limit_ns: int) -> bool:
        value = ctypes.c_uint64.from_address(word)
        until = time.monotonic_ns() + limit_ns
        while not self._has_ended:
            if value.value >= awaited:
                return True
            if time.monotonic_ns() >= until:
                return False
        return False

    def _look(self) -> tuple[bool, int]:
        """Ring for what was reached: whether some of it has no bell, and when next."""
        is_ours = False
        bells = set()
        before, now = self._looked, time.monotonic_ns()
        self._looked = now
        soonest = now + FURTHEST_NS
        for index, slot in list(self._slots.items()):
            if self._has_ended:  # since the scan saw that it had not
                break
            awaited, near, late, bell = slot
            if self._values[index] >= awaited:
                self._sightings[index] = before, now
                with self._arming:  # else what is armed meanwhile could be forgotten
                    if self._slots.get(index) is slot:
                        del self._slots[index]
                if bell == NO_BELL:
                    is_ours = True
                else:
                    bells.add(bell)
            elif now < near:
                soonest = min(soonest, near)
            else:
                overdue = max(0, now - late >> Board.OVERDUE_SHIFT)
                soonest = min(soonest, now + min(overdue, LONGEST_NS))
        for bell in bells:
            try:
                os.write(bell, b"\1\0\0\0\0\0\0\0")
            except BlockingIOError:
                continue  # full: the loop has plenty of reason to look already
        return is_ours, soonest

    def _pause(self, pause_ns: int) -> None:
        if pause_ns < SHORTEST_NS:
            time.sleep(0)
            return
        try:
            self._kicks.get(timeout=pause_ns / 1e9)
        except Empty:
            return
