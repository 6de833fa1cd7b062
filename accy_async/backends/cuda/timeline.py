"""How far a CUDA stream has come, read from a word in host memory.

Each stream has a 64-bit word in pinned memory. A *flag* is an operation of the
stream that writes a position into the word (``cuStreamWriteValue64``); the word
then says that everything up to that position is done, to whoever reads it, with
no call to the driver. Flags are submitted only where somebody will look: a wait
for a position that no flag covers yet submits one at the end of the stream.
"""

from __future__ import annotations

import ctypes
import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from accy_async.backends.timeline import Timeline

if TYPE_CHECKING:
    from accy_async.backends.completion import Completion
    from accy_async.errors import DeviceError

__all__ = ["CudaTimeline"]


class CudaTimeline(Timeline):
    """The timeline of one stream.

    Args:
        name: the stream's name.
        word: the address of its word, which holds 0.
        flag: submits the writing of a position; called under the submission lock.
        query: asks the driver whether the stream is idle.
        notice: tells the hub that somebody waits.
    """

    __slots__ = (
        "_completed",
        "_finishers",
        "_finishing",
        "_flag",
        "_flagged",
        "_notice",
        "_query",
        "_word",
        "word_address",
    )

    def __init__(
        self,
        name: str,
        word: int,
        flag: Callable[[CudaTimeline, int], None],
        query: Callable[[CudaTimeline], bool],
        notice: Callable[[CudaTimeline], None],
    ) -> None:
        self.word_address = word
        self._word = ctypes.c_uint64.from_address(word)
        self._flag = flag
        self._query = query
        self._notice = notice
        self._completed = 0
        self._flagged = 0
        self._finishers: deque[tuple[int, Callable[[], None]]] = deque()
        self._finishing = threading.Lock()
        super().__init__(name)

    @property
    def completed(self) -> int:
        """The position up to which everything is known to be done."""
        reached = self._word.value
        if reached > self._completed:
            if self._finishers and self._finishers[0][0] <= reached:
                # The host has its part to do first; the hub sees to it.
                reached = max(self._completed, self._finishers[0][0] - 1)
            self._completed = reached
        return self._completed

    @completed.setter
    def completed(self, position: int) -> None:
        self._completed = position

    @property
    def reached(self) -> int:
        """The position up to which the device has come, whatever the host has to do."""
        return max(self._completed, self._word.value)

    @property
    def is_idle(self) -> bool:
        """True where everything submitted has completed; asks the driver if need be."""
        submitted = self.submitted
        if self.completed >= submitted or self._lost is not None:
            return True
        if self._query(self):
            self.complete(submitted)
            return True
        return False

    def finish_with(self, position: int, finisher: Callable[[], None]) -> None:
        """Have something done on the host once ``position`` is reached.

        The hub does it, before anybody is told that the position is complete.
        """
        self._finishers.append((position, finisher))
        self.request(position)
        self._notice(self)

    def has_reached(self, position: int) -> bool:
        """True where everything up to ``position`` is done."""
        self.request(position)
        return self.completed >= position

    def request(self, position: int) -> None:
        """See to it that the word will say when ``position`` is done."""
        if position > self._flagged and self._lost is None:
            self._flagged = self.submitted
            self._flag(self, self._flagged)

    def detach(self) -> None:
        """Leave the word to others: everything that was submitted is done."""
        self._word = ctypes.c_uint64(self.submitted)

    def complete(self, position: int) -> None:
        """Say that every operation up to ``position`` is done; any thread."""
        self._finish(position)
        super().complete(position)

    def poll(self) -> bool:
        """Read the word and wake who waits for what it says; True if nobody is left."""
        reached = self._word.value
        if reached > self._completed or self._waiters or self._finishers:
            self._finish(reached)
            self._wake(reached)
        return not self._waiters and not self._finishers

    def next_target(self) -> int | None:
        """The least position that somebody waits for; None if nobody does."""
        with self._lock:
            targets = [at for at, _ in self._waiters]
        targets += [at for at, _ in list(self._finishers)[:1]]
        return min(targets, default=None)

    def watch(self, position: int, completion: Completion) -> None:
        """Have the signal set once every operation up to ``position`` has ended."""
        self.request(position)
        super().watch(position, completion)
        if not completion.is_set:
            self._notice(self)

    def lose(self, error: DeviceError) -> None:
        """The device is gone: every wait, now and later, raises ``error``."""
        self._finishers.clear()
        super().lose(error)

    def _wake(self, reached: int) -> None:
        self._completed = max(self._completed, reached)
        with self._lock:
            done = [c for at, c in self._waiters if at <= reached]
            self._waiters = [w for w in self._waiters if w[0] > reached]
        for completion in done:
            completion.set()

    def _finish(self, reached: int) -> None:
        """Do what was to be done on the host up to here, once, in order."""
        if not self._finishers:
            return
        with self._finishing:
            while self._finishers and self._finishers[0][0] <= reached:
                self._finishers[0][1]()
                self._finishers.popleft()
