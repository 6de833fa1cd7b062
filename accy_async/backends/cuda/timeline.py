"""How far a CUDA stream has come, read from a word in host memory.

Each stream has a 64-bit word in pinned memory. A *flag* is an operation of the
stream that writes a position into the word (``cuStreamWriteValue64``); the word
then says that everything up to that position is done, to whoever reads it, with
no call to the driver. Flags are submitted only where somebody will look: a wait
for a position that no flag covers yet submits one at the end of the stream.

A *finisher* is what is to be done on the host at a position: a copy out of pinned
memory, mostly. A position counts as complete only once its finishers have run. One
that takes long is the hub's to run; any other is run by whoever looks first.
"""

from __future__ import annotations

import ctypes
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Hashable
from time import monotonic_ns
from typing import TYPE_CHECKING

from accy_async.backends.arrival import arrive
from accy_async.backends.completion import Completion
from accy_async.backends.cuda.arrival import Arrival, sleep
from accy_async.backends.journal import JOURNAL_MASK, Journal, Label
from accy_async.backends.loops import current_bell
from accy_async.backends.pace import QUICK_NS
from accy_async.backends.refusals import is_interrupt
from accy_async.backends.timeline import Timeline
from accy_async.errors import DeviceError

if TYPE_CHECKING:
    from accy_async.backends.bell import Bell
    from accy_async.backends.cuda.hub import Hub
    from accy_async.backends.pace import Pace, Paces

__all__ = ["CudaTimeline"]

_LONG_COPY_BYTES = 256 * 1024
"""What is copied on the host from there on takes longer than a loop should stand."""

_Finisher = tuple[int, Callable[[], None], bool]


def _position(waiter: tuple[Completion, int]) -> int:
    return waiter[1]


class CudaTimeline(Timeline):
    """The timeline of one stream.

    Args:
        name: the stream's name.
        slot: which of the hub's words is its own; the word holds 0.
        flag: submits the writing of all that was submitted, and says so in `flagged`,
            where that is not up to the position yet; it takes the submission lock.
        query: asks the driver whether the stream is idle.
        hub: wakes those who sleep.

    Attributes:
        hub: as given.
        word_address: where the word is.
        journal: what was submitted last, to tell waits of different lengths apart.
        is_quick: whether the last wait ended within a turn of its loop, or soon after.
        expected: the position that is likely to be waited for once something is there,
            as the one before it was; 0 if none is.
        ask: asks the driver again and again for a moment, and returns its last answer;
            None until somebody needs it. The backend's.
        write: has the stream write a position, and returns the driver's code; as above.
        armed: the position that the hub watches for; the hub's.
        bell: whose loop is rung then; the hub's.
        begun: since when its end is waited for already, for the next who waits; or 0.
        flagged: up to where the word will say what is done.
    """

    __slots__ = (
        "_completed",
        "_copied",
        "_finishers",
        "_finishing",
        "_flag",
        "_long_finishers",
        "_query",
        "_spin",
        "_word",
        "armed",
        "ask",
        "begun",
        "bell",
        "expected",
        "flagged",
        "hub",
        "is_detached",
        "is_quick",
        "journal",
        "slot",
        "word_address",
        "write",
    )

    def __init__(
        self,
        name: str,
        slot: int,
        flag: Callable[[CudaTimeline, int], None],
        query: Callable[[CudaTimeline], bool],
        hub: Hub,
    ) -> None:
        self.slot = slot
        self.journal = Journal()
        self._copied = 0
        self.armed: int | None = None
        self.bell: Bell | None = None
        self.is_detached = False
        self.word_address = hub.scanner.words + 8 * slot
        self._word = ctypes.c_uint64.from_address(self.word_address)
        self._spin = hub.scanner.spin
        self._flag = flag
        self._query = query
        self.hub = hub
        self._completed = 0
        self.flagged = 0
        self.is_quick = False
        self.expected = 0
        self.begun = 0
        self.ask: Callable[[], int] | None = None
        self.write: Callable[[int], int] | None = None
        self._finishers: deque[_Finisher] = deque()
        self._long_finishers = 0
        self._finishing = threading.Lock()
        super().__init__(name)

    @property
    def completed(self) -> int:
        """The position up to which everything is known to be done."""
        reached = self._word.value
        if reached > self._completed:
            if self._finishers:
                reached = self._finish_short(reached)
            if reached > self._completed:
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

    @property
    def can_poll(self) -> bool:
        """False where something is to be done on the host that takes long."""
        return not self._long_finishers

    @property
    def has_finishers(self) -> bool:
        """True where something is to be done on the host."""
        return bool(self._finishers)

    @property
    def paces(self) -> Paces:
        """How long waits for the device take."""
        return self.hub.paces

    @property
    def has_reached_target(self) -> bool:
        """True where the word says what the hub watches for."""
        armed = self.armed
        return armed is not None and self._word.value >= armed

    def finish_with(
        self, position: int, finisher: Callable[[], None], byte_size: int = 0
    ) -> None:
        """Have something done on the host once ``position`` is reached.

        It is done before anybody is told that the position is complete.

        Args:
            position: of the operation before it.
            finisher: what to do.
            byte_size: how much it copies.
        """
        is_long = byte_size >= _LONG_COPY_BYTES
        self._copied = byte_size.bit_length()
        with self._lock:
            self._long_finishers += is_long
            self._finishers.append((position, finisher, is_long))
        self.request(position)
        if is_long or self.armed is None:
            self.hub.expect(self)

    def has_reached(self, position: int) -> bool:
        """True where everything up to ``position`` is done."""
        if self.completed >= position:
            return True
        self.request(position)
        return self.completed >= position

    def request(self, position: int) -> None:
        """See to it that the word will say when ``position`` is done."""
        if position > self.flagged and self._lost is None:
            self._flag(self, position)

    def kind_at(self, position: int) -> Hashable:
        """What waits for such work as there is at a position have in common."""
        work = self.journal.work[position & JOURNAL_MASK]
        if work is None:
            return self._copied
        return work if isinstance(work, Label) else id(work)  # a device graph

    def complete_unwatched(self, position: int) -> bool:
        """`complete`, where nobody else has to be told; else False, and nothing is."""
        if self._finishers or self._waiters:
            return False
        if position > self._completed:
            self._completed = position
        return True

    def detach(self) -> None:
        """Leave the word to others: everything that was submitted is done."""
        self._word = ctypes.c_uint64(self.submitted)
        self.word_address = ctypes.addressof(self._word)
        self.is_detached = True
        self.hub.forget(self)

    def complete(self, position: int) -> None:
        """Say that every operation up to ``position`` is done; any thread."""
        self._finish(position)
        self._wake(position)

    def poll(self) -> None:
        """Read the word and wake who waits for what it says."""
        self.complete(self._word.value)

    def demand(self) -> tuple[int, Bell | None, int, int] | None:
        """What the hub is to watch for; None if there is nothing.

        Returns:
            The position, the bell to ring, if ringing one is all there is to do, and
            from when to when it is expected.
        """
        with self._lock:
            watched = {
                one: at for one, at in self._waiters.items() if not one.looks_itself
            }
            if not watched:
                if not self._finishers or self._is_covered():
                    return None
                # The last one: until somebody asks, they can be done together.
                first = self._finishers[0] if self._long_finishers else None
                position = (first or self._finishers[-1])[0]
                return position, None, 0, monotonic_ns()
            completion, position = min(watched.items(), key=_position)
            bell = completion.bell
            if bell is not None and len(watched) > 1:
                bells = {one.bell for one in watched}
                bell = bell if len(bells) == 1 else None
            near, late = 0, monotonic_ns()
            if isinstance(completion, Arrival):
                near, late = completion.near_ns, completion.late_ns
            if self._long_finishers:
                return min(position, self._finishers[0][0]), None, near, late
            return position, bell, near, late

    def watch(self, position: int, completion: Completion) -> None:
        """Have the signal set once every operation up to ``position`` has ended."""
        if position > self.flagged:
            self.request(position)
        if self.completed < position:
            with self._lock:
                is_lost = self._lost is not None
                if not is_lost:
                    self._waiters[completion] = position
            if not is_lost:
                if not completion.looks_itself:
                    self._have_awaited(position, completion)
                return
        completion.set()

    def unwatch(self, completion: Completion) -> None:
        """Forget a signal given to `watch`."""
        super().unwatch(completion)
        if self._finishers:
            if completion.looks_itself:
                self.hub.expect(self)  # what it would have seen to
        elif not self._waiters and self.armed is not None:
            self.hub.expect(self)

    def lose(self, error: DeviceError) -> None:
        """The device is gone: every wait, now and later, raises ``error``."""
        with self._lock:
            self._finishers.clear()
            self._long_finishers = 0
        super().lose(error)
        self.hub.expect(self)

    # Waiting

    async def wait_reached(self, position: int) -> None:
        """Return once every operation up to ``position`` has ended, in any way.

        `backends.arrival.arrive` says how. Always a checkpoint.

        Cancellation: only the wait stops.
        """
        before = self._completed
        begun, self.begun = self.begun, 0
        if position > self.flagged:
            self.request(position)
        bell = current_bell()
        if self.completed >= position:
            await bell.turn()
            return
        await arrive(self, position, bell, before, begun)

    def has_come(self, position: int) -> bool:
        """Read the word."""
        return self.completed >= position

    def spin(self, position: int, limit_ns: int) -> None:
        """Read the word until it has the position, no longer than that."""
        self._spin(self.word_address, position, limit_ns)

    def comes_soon(self, position: int) -> bool:
        """Whether the position, which has a flag, is reached within `QUICK_NS`.

        `spin` and `has_come` in one piece, as what follows the end makes a wait late.
        """
        if self._word.value < position and not self._spin(
            self.word_address, position, QUICK_NS
        ):
            return False
        if self._finishers:
            return self.completed >= position
        if position > self._completed:
            self._completed = position
        return True

    def sleep(
        self, position: int, bell: Bell, begun: int, pace: Pace
    ) -> Coroutine[object, object, tuple[int, int]]:
        """Sleep until the position is reached; as `Awaited.sleep`."""
        return sleep(self, position, bell, begun, pace)

    # Within

    def _have_awaited(self, position: int, completion: Completion) -> None:
        try:
            self.hub.expect_also(self, position, completion.bell)
        except BaseException:  # there is nobody to set it
            super().unwatch(completion)
            raise

    def _is_covered(self) -> bool:
        """Whether a waiter looks itself, and so sees to every finisher; locked."""
        if self._long_finishers:
            return False
        last = self._finishers[-1][0]
        return any(at >= last for at in self._waiters.values())

    def _wake(self, reached: int) -> None:
        with self._lock:
            self._completed = max(self._completed, reached)
            done = self._take_reached(reached)
        for completion in done:
            completion.set()

    def _finish_short(self, reached: int) -> int:
        """Run what takes no time; how far everything is done then."""
        if self._finishing.locked():
            return self._completed  # somebody is at it
        with self._finishing:  # no `acquire`: an interrupt could come right behind it
            try:
                while self._finishers:
                    position, finisher, is_long = self._finishers[0]
                    if position > reached:
                        break
                    if is_long:
                        return position - 1
                    self._run(position, finisher)
            except IndexError:  # the device was lost between two looks
                return reached
        return reached

    def _finish(self, reached: int) -> None:
        """Do what was to be done on the host up to here, once, in order."""
        if not self._finishers:
            return
        with self._finishing:
            for position, finisher, _ in list(self._finishers):
                if position > reached:
                    return
                self._run(position, finisher)

    def _run(self, position: int, finisher: Callable[[], None]) -> None:
        """Run the first finisher, and forget it."""
        try:
            finisher()
        except BaseException as error:
            if is_interrupt(error):
                raise
            failed = DeviceError(f"a copy on the host failed: {error}")
            failed.__cause__ = error
            self.fail(position, failed)
        with self._lock:
            if self._finishers:  # unless the device was lost meanwhile
                self._long_finishers -= self._finishers.popleft()[2]
