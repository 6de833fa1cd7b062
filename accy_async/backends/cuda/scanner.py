"""What notices that a word has reached an awaited value, and rings for it.

`Scanner` is the interface; docs/waiting.md has the reasons. `NativeScanner` runs
machine code on its thread, which takes no interpreter lock; `PlainScanner` does the
same in Python, where machine code cannot run: on systems that have no eventfd, or let
no memory become executable.

One thread scans; any thread arms. Whoever arms a slot again puts something new in the
place of what was awaited there.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from enum import IntEnum
from functools import cache, partial
from queue import Empty, SimpleQueue
from typing import Any

from accy_async.artifact.native.elf_model import EM_AARCH64, EM_X86_64
from accy_async.artifact.native.host import host_architecture
from accy_async.artifact.native.image import MachineImage
from accy_async.artifact.native.memory import map_image
from accy_async.backends.cuda.board import IDLE, NO_BELL, Board, NativeLaunch, Slot
from accy_async.backends.cuda.scanner_code import ENTRIES, TEXT
from accy_async.backends.cuda.thunks import make_method, make_thunk, python_calls
from accy_async.backends.pace import QUICK_NS
from accy_async.errors import OutOfMemory, RuntimeUnavailable

__all__ = ["Found", "NativeScanner", "PlainScanner", "Scanner", "open_scanner"]

_FURTHEST_NS = 5_000_000
"""The longest pause: how late a value is seen that comes before it is expected."""

_LONGEST_NS = 1_000_000
"""The longest pause once a value is late. A look costs some 12 us of a core in a
virtual machine, so that this keeps below 1.5 % of one."""

_SHORTEST_NS = 15_000
"""The shortest: below, a pause would cost more than reading on."""


_ANSWER_S = 1e-6
"""About what the driver takes to answer a question."""


class Found(IntEnum):
    """Why a scan returned."""

    TOLD = 0
    OURS = 1
    """A value was reached that has no bell."""
    LATE = 2
    """Something was awaited for all of the time that the scan was given."""


class Scanner(ABC):
    """Awaits values in words of memory that others write to.

    Args:
        words: the address of the first word; they are 64 bits each.
        count: how many there are, and so how many slots.

    Attributes:
        spin: reads a word, whose address it gets, until it has reached a value, for so
            many nanoseconds; true if it has. It keeps the interpreter lock, so the
            limit must be short. False, without reading, once the scanner has ended.
    """

    spin: Callable[[int, int, int], int]

    def __init__(self, words: int, count: int) -> None:
        self.words = words
        self.count = count

    @abstractmethod
    def arm(
        self, index: int, awaited: int, near_ns: int, late_ns: int, bell: int
    ) -> None:
        """Have the bell rung once, when a word has reached a value; any thread.

        Args:
            index: of the word, and its slot.
            awaited: the value.
            near_ns: from then on, on the monotonic clock, the word is read without a
                pause,
            late_ns: and from then on with pauses that grow.
            bell: the descriptor that eight bytes are written to; `NO_BELL` has the
                scan return instead.
        """

    def disarm(self, index: int) -> None:
        """Await nothing any more; a ring that is under way still comes."""
        self.arm(index, IDLE, 0, 0, NO_BELL)

    @abstractmethod
    def sighting(self, index: int) -> tuple[int, int]:
        """When it had looked last before, and when it saw the value awaited last.

        Zeros where none was there yet.
        """

    def reached_ns(self, index: int) -> int:
        """When the value awaited last was seen to be there; 0 where none was yet."""
        return self.sighting(index)[1]

    def begin(self) -> None:  # noqa: B027 - only one has something to prepare
        """Prepare the thread that will scan."""

    @abstractmethod
    def scan(self, timeout_ns: int) -> Found:
        """Watch the words until there is something for Python to do.

        Returns only for what `Found` says: sleeps for as long as nothing is awaited.
        """

    @abstractmethod
    def interrupt(self) -> None:
        """Have the scan return, or the next one; any thread, and takes no lock."""

    @abstractmethod
    def resume(self) -> None:
        """Forget the interrupts so far; on the scanning thread, before it scans."""

    @abstractmethod
    def end(self) -> None:
        """Have no word read any more once this returns; any thread, idempotent."""

    def admit(self, index: int, stream: int) -> None:  # noqa: B027 - as `begin`
        """Let the driver be asked about the slot's stream, which has this handle."""

    def bar(self, index: int) -> None:  # noqa: B027 - as `begin`
        """Have nobody ask about the slot's stream, which may then be destroyed.

        Nobody does any more once this returns, in some microseconds at the most.
        """

    def asking(self, index: int, query: int) -> Callable[[], int] | None:
        """What asks the driver about a slot's stream, again and again for `QUICK_NS`.

        Args:
            index: the slot's.
            query: the address of ``cuStreamQuery``.

        Returns:
            A function that returns the driver's last answer, at once if it is not
            `BUSY`; without the interpreter lock meanwhile. It answers `BUSY` unasked
            where the stream is not, or no more, to be asked about. None where machine
            code cannot run.
        """
        return None

    def launching(self, launch: NativeLaunch, keep: object) -> Callable[[], int] | None:
        """What makes a launch, and submits a flag behind it if the record has one.

        Args:
            launch: the record. Its ``position`` is 0 again after each call.
            keep: whose memory the launch reads; kept alive with the function.

        Returns:
            A function that returns the driver's answer to the launch, without the
            interpreter lock meanwhile, or the answer to the flag, negated, if only
            that was refused. None where machine code cannot run.
        """
        return None


def open_scanner(words: int, count: int) -> Scanner:
    """The best scanner that this system can run."""
    try:
        return NativeScanner(words, count)
    except (RuntimeUnavailable, OutOfMemory):
        return PlainScanner(words, count)


class _Functions:
    """The machine code, ready to be called; mapped once for the process."""

    def __init__(self) -> None:
        architecture = host_architecture()
        if not sys.platform.startswith("linux") or architecture not in TEXT:
            raise RuntimeUnavailable(
                f"the scanner runs on Linux, on {' and '.join(TEXT)}; this is "
                f"{sys.platform} on {architecture}"
            )
        image = MachineImage(
            machine={"x86_64": EM_X86_64, "aarch64": EM_AARCH64}[architecture],
            text=TEXT[architecture],
        )
        base = map_image(image)
        entries = ENTRIES[architecture]
        pointer, u64, i64 = ctypes.c_void_p, ctypes.c_uint64, ctypes.c_int64
        i32 = ctypes.c_int32
        # Those that keep the interpreter lock return within microseconds.
        held = ctypes.PYFUNCTYPE
        self.kick: Any = held(None, pointer)(base + entries["kick"])
        self.arm: Any = held(None, pointer, u64, u64, i64, i64, i32)(
            base + entries["arm"]
        )
        self.end: Any = held(i32, pointer)(base + entries["end"])
        self.spin: Any = held(i32, pointer, pointer, u64, i64)(base + entries["spin"])
        self.bar: Any = held(i32, pointer, u64)(base + entries["bar"])
        self.ask = base + entries["ask"]
        self.launch = base + entries["launch"]
        self.scan: Any = ctypes.CFUNCTYPE(i32, pointer, i64)(base + entries["scan"])
        libc = ctypes.CDLL(None)
        self.callees = {
            name: ctypes.cast(getattr(libc, name), pointer).value
            for name in ("write", "syscall", "clock_gettime")
        }
        self.prctl: Any = libc.prctl


@cache
def _functions() -> _Functions:
    return _Functions()


class NativeScanner(Scanner):
    """Machine code, which `tools/scanner.py` has the source of.

    Raises:
        RuntimeUnavailable: this system cannot run it.
        OutOfMemory: there is no memory for it.
    """

    def __init__(self, words: int, count: int) -> None:
        super().__init__(words, count)
        functions = _functions()
        size = ctypes.sizeof(Board) + count * ctypes.sizeof(Slot)
        # Of this process alone: a forked child must not end its parent's scans.
        self._memory = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._board = board = Board.from_buffer(self._memory)
        self._slots = (Slot * count).from_buffer(self._memory, ctypes.sizeof(Board))
        idle = bytes(Slot(awaited=IDLE, bell=NO_BELL))
        self._memory[ctypes.sizeof(Board) : size] = idle * count
        board.words = words
        board.furthest, board.longest = _FURTHEST_NS, _LONGEST_NS
        board.shortest = _SHORTEST_NS
        board.quick = QUICK_NS
        for name, address in functions.callees.items():
            setattr(board, name, address)
        self._address = ctypes.addressof(board)
        self._native = functions
        self._arm = functions.arm
        self.spin = partial(functions.spin, self._address)

    @property
    def looks(self) -> int:
        """How often it has looked at all words."""
        return int(self._board.looks)

    def arm(
        self, index: int, awaited: int, near_ns: int, late_ns: int, bell: int
    ) -> None:
        if index >= self._board.slot_count:
            self._board.slot_count = index + 1
        self._arm(self._address, index, awaited, near_ns, late_ns, bell)

    def disarm(self, index: int) -> None:
        self._slots[index].awaited = IDLE  # no reason to wake up

    def sighting(self, index: int) -> tuple[int, int]:
        slot = self._slots[index]
        return int(slot.unreached), int(slot.reached)

    def begin(self) -> None:
        # PR_SET_TIMERSLACK: pauses end when they should, not up to 50 us later.
        self._native.prctl(29, 1, 0, 0, 0)

    def scan(self, timeout_ns: int) -> Found:
        return Found(self._native.scan(self._address, timeout_ns))

    def interrupt(self) -> None:
        self._board.must_return = 1
        self._native.kick(self._address)

    def resume(self) -> None:
        self._board.must_return = 0

    def end(self) -> None:
        while self._native.end(self._address):
            time.sleep(20e-6)

    def admit(self, index: int, stream: int) -> None:
        self._slots[index].stream = stream

    def bar(self, index: int) -> None:
        while self._native.bar(self._address, index):
            time.sleep(_ANSWER_S)

    def asking(self, index: int, query: int) -> Callable[[], int] | None:
        return make_thunk(self._native.ask, self._address, index, query, self._board)

    def launching(self, launch: NativeLaunch, keep: object) -> Callable[[], int] | None:
        python = python_calls()
        if python is None:
            return None
        launch.leave, launch.enter, launch.number = python
        address = ctypes.addressof(launch)
        return make_method(self._native.launch, address, (launch, keep))


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
        soonest = now + _FURTHEST_NS
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
                soonest = min(soonest, now + min(overdue, _LONGEST_NS))
        for bell in bells:
            try:
                os.write(bell, b"\1\0\0\0\0\0\0\0")
            except BlockingIOError:
                continue  # full: the loop has plenty of reason to look already
        return is_ours, soonest

    def _pause(self, pause_ns: int) -> None:
        if pause_ns < _SHORTEST_NS:
            time.sleep(0)
            return
        try:
            self._kicks.get(timeout=pause_ns / 1e9)
        except Empty:
            return
