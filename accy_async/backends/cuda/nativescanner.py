"""The scanner that is machine code, made by `tools/scanner.py`; see `scanner`."""

from __future__ import annotations

import ctypes
import mmap
import sys
import time
from collections.abc import Callable
from functools import cache, partial
from typing import Any

from accy_async.artifact.native.elf_model import EM_AARCH64, EM_X86_64
from accy_async.artifact.native.host import host_architecture
from accy_async.artifact.native.image import MachineImage
from accy_async.artifact.native.memory import map_image
from accy_async.backends.cuda.board import IDLE, NO_BELL, Board, NativeLaunch, Slot
from accy_async.backends.cuda.plainscanner import PlainScanner
from accy_async.backends.cuda.scanner import (
    FURTHEST_NS,
    LONGEST_NS,
    SHORTEST_NS,
    Found,
    Scanner,
)
from accy_async.backends.cuda.scanner_code import ENTRIES, TEXT
from accy_async.backends.cuda.thunks import make_method, make_thunk, python_calls
from accy_async.backends.pace import QUICK_NS
from accy_async.errors import OutOfMemory, RuntimeUnavailable

__all__ = ["NativeScanner", "open_scanner"]

_ANSWER_S = 1e-6
"""About what the driver takes to answer a question."""


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
        board.furthest, board.longest = FURTHEST_NS, LONGEST_NS
        board.shortest = SHORTEST_NS
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
