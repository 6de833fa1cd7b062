"""What notices that a word has reached an awaited value, and rings for it.

`Scanner` is the interface; docs/waiting.md has the reasons. `NativeScanner` runs
machine code on its thread, which takes no interpreter lock; `PlainScanner` does the
same in Python, where machine code cannot run: on systems that have no eventfd, or let
no memory become executable.

One thread scans; any thread arms. Whoever arms a slot again puts something new in the
place of what was awaited there.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from enum import IntEnum

from accy_async.backends.cuda.board import IDLE, NO_BELL, NativeLaunch

__all__ = ["FURTHEST_NS", "LONGEST_NS", "SHORTEST_NS", "Found", "Scanner"]

FURTHEST_NS = 5_000_000
"""The longest pause: how late a value is seen that comes before it is expected."""

LONGEST_NS = 1_000_000
"""The longest pause once a value is late. A look costs some 12 us of a core in a
virtual machine, so that this keeps below 1.5 % of one."""

SHORTEST_NS = 15_000
"""The shortest: below, a pause would cost more than reading on."""


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
