"""The memory that the scanner shares with Python: what is awaited, and by whom.

A *slot* stands for one word of pinned memory, the one with the same index: which
value is awaited there, when it is expected, and the bell to ring once it is reached.
A *board* is a header and its slots. The scanner's machine code is compiled for these
layouts (``python -m tools.scanner``); both belong to one version of the package.
"""

from __future__ import annotations

import ctypes
from typing import ClassVar

__all__ = ["BUSY", "IDLE", "NO_BELL", "NO_STREAM", "Board", "NativeLaunch", "Slot"]

IDLE = 2**64 - 1
"""What a slot awaits where nobody waits: no word ever reaches it."""

NO_BELL = -1
"""The bell of what Python itself has to see to."""

NO_STREAM = 0
"""A slot's stream where nobody may ask about one. It is the driver's default stream,
which no slot is for."""

BUSY = 600
"""What the driver answers of a stream that is not done: CUDA_ERROR_NOT_READY (CUDA
Driver API, enum CUresult)."""


class _Layout(ctypes.Structure):
    """A structure that can say where its fields are."""

    @classmethod
    def offsets(cls) -> dict[str, int]:
        """The offset of each field, in bytes."""
        names = [name for name, *_ in cls._fields_ if not name.startswith("_")]
        return {name: getattr(cls, name).offset for name in names}

    @classmethod
    def byte_size(cls) -> int:
        """The size of the whole."""
        return ctypes.sizeof(cls)


class Slot(_Layout):
    """One word's; a cache line of its own. Times are monotonic, in nanoseconds."""

    _fields_ = (
        ("awaited", ctypes.c_uint64),  # or IDLE
        ("near", ctypes.c_int64),  # from then on it is looked for without a pause
        ("late", ctypes.c_int64),  # and from then on with growing pauses
        ("reached", ctypes.c_int64),  # when the scanner saw the last one reached
        ("unreached", ctypes.c_int64),  # and when it had looked before that
        ("bell", ctypes.c_int32),  # a descriptor, or NO_BELL
        ("askers", ctypes.c_uint32),  # who is asking the driver about the stream now
        ("stream", ctypes.c_uint64),  # the driver's handle, or NO_STREAM
        ("_unused", ctypes.c_uint8 * 8),
    )


class Board(_Layout):
    """The header, in the order of who writes what; the slots follow."""

    OVERDUE_SHIFT: ClassVar[int] = 3
    """A pause is the eighth part of the time since a slot was late."""

    _fields_ = (
        ("kicks", ctypes.c_uint32),  # must be the first: the scanner sleeps on it
        ("is_asleep", ctypes.c_uint32),
        ("is_scanning", ctypes.c_uint32),
        ("must_end", ctypes.c_uint32),
        ("must_return", ctypes.c_uint32),
        ("slot_count", ctypes.c_uint32),  # slots from there on are not looked at
        ("words", ctypes.c_uint64),
        ("write", ctypes.c_uint64),  # the C library's, as the next two
        ("syscall", ctypes.c_uint64),
        ("clock_gettime", ctypes.c_uint64),
        ("looks", ctypes.c_uint64),  # how often the scanner looked at all slots
        ("looked", ctypes.c_int64),  # when it did last
        ("furthest", ctypes.c_int64),  # sleep, in nanoseconds
        ("longest", ctypes.c_int64),  # sleep once a slot is late
        ("shortest", ctypes.c_int64),  # sleep; below, it reads on
        ("quick", ctypes.c_int64),  # how long to ask the driver again and again
        ("_unused", ctypes.c_uint8 * 24),
        ("slots", Slot * 0),
    )


class NativeLaunch(_Layout):
    """A launch that is made again and again, with a flag behind it where one is due."""

    _fields_ = (
        ("launch", ctypes.c_uint64),  # the address of the driver's function,
        ("first", ctypes.c_uint64),  # and what it is called with; its fourth is 0
        ("second", ctypes.c_uint64),
        ("third", ctypes.c_uint64),
        ("write_value", ctypes.c_uint64),  # the address of cuStreamWriteValue64
        ("on", ctypes.c_uint64),  # the driver's handle of the stream,
        ("word", ctypes.c_uint64),  # the address of its word,
        ("position", ctypes.c_uint64),  # and what the next one writes there; 0 if none
        ("leave", ctypes.c_uint64),  # the address of PyEval_SaveThread,
        ("enter", ctypes.c_uint64),  # of PyEval_RestoreThread,
        ("number", ctypes.c_uint64),  # and of PyLong_FromLong
    )
