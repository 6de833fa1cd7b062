"""Sharing a session's room for work in flight among its runs, by weight.

All runs together have no more operations in flight than the session allows. While
there is room, any run may use it: what one run leaves of its share, by weight, others
use. Where there is none, runs wait, and what the device finishes goes to the one that
has least in flight for its weight. Meanwhile a run that has its share waits too, one
that has less goes on; nobody does before one that has nothing in flight. So a run
that starts later gets its share as the device comes to it. A step that needs more
than there is in all is taken when nothing is in flight.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from accy_async.backends.completion import Completion

if TYPE_CHECKING:
    from collections.abc import Sequence

    from accy_async.backends.timeline import Timeline

__all__ = ["Governor"]


class Sharing(Protocol):
    """A run that shares the room."""

    @property
    def timelines(self) -> Sequence[Timeline]:
        """Those of its streams, which other runs may share."""

    def in_flight(self) -> int:
        """How many operations it has in flight."""


class Governor:
    """Divides room for ``limit`` operations among the runs that are going on."""

    __slots__ = (
        "_head",
        "_lines",
        "_ones",
        "_runs",
        "_total",
        "_waiting",
        "_weights",
        "limit",
    )

    def __init__(self, limit: int) -> None:
        self.limit = limit
        # The runs that submit, and all that are going on with their streams.
        self._weights: dict[Sharing, float] = {}
        self._total = 0.0
        self._runs: dict[Sharing, tuple[Timeline, ...]] = {}
        self._lines: tuple[Timeline, ...] = ()
        self._ones = 0  # runs of a single operation, which are not among those
        # What wakes each run that waits; the head alone watches the device.
        self._waiting: dict[Sharing, Completion] = {}
        self._head: Sharing | None = None

    def enter(self, run: Sharing, weight: float) -> None:
        """A run that has its streams begins to submit."""
        self._weights[run] = weight
        self._total += weight
        self._runs[run] = tuple(run.timelines)
        self._note_lines()

    def drain(self, run: Sharing) -> None:
        """A run has submitted everything: it takes room, but shares in none."""
        self._total -= self._weights.pop(run, 0.0)

    def leave(self, run: Sharing) -> None:
        """A run has ended."""
        self.drain(run)
        lines = self._runs.pop(run, ())
        self._note_lines()
        if any(line.submitted > line.completed for line in lines):
            self._wake_head()  # it would watch for what does not count any more

    def may_submit_one(self) -> bool:
        """True where a run of a single operation need not wait for room."""
        return self._head is None and self._has_room(1)

    def enter_one(self) -> None:
        """A run of a single operation submits it."""
        self._ones += 1

    def leave_one(self) -> None:
        """It has ended."""
        self._ones -= 1
        self._wake_head()

    def in_flight(self) -> int:
        """How many operations all runs have in flight."""
        total = self._ones
        for line in self._lines:
            total += line.submitted - line.completed
        return total

    def may_submit(self, run: Sharing, count: int) -> bool:
        """True where a run that does not wait may submit so many operations now."""
        if not self._has_room(count):
            return False
        head = self._head
        if head is None:
            return True
        return head.in_flight() > 0 and run.in_flight() + count <= self._share(run)

    def slice_part(self, run: Sharing) -> float:
        """The run's part of a turn at submitting: its weight over the greatest."""
        return self._weights[run] / max(self._weights.values())

    async def wait_for_room(self, run: Sharing, count: int) -> None:
        """Return when the run may submit so many operations.

        A run that has half of its share already is not woken for each operation that
        ends, but when there is room for the rest of it; one that has it all, for half.

        Cancellation: only the wait stops.
        """
        woken = self._waiting[run] = Completion()
        if self._head is None or self._load(run) < self._load(self._head):
            self._head = run
        try:
            while True:
                watched: list[Timeline] = []
                if self._head is run:
                    wanted = self._wanted(run, count)
                    if self._has_room(wanted):
                        return
                    watched = self._watch(wanted, woken)
                try:
                    await woken.wait()
                except GeneratorExit:  # see `Timeline.unwatch`
                    watched.clear()
                    raise
                finally:
                    for line in watched:
                        line.unwatch(woken)
                woken = self._waiting[run] = Completion()
        finally:
            del self._waiting[run]
            if self._head is run:
                self._head = min(self._waiting, key=self._load, default=None)
                self._wake_head()

    def _has_room(self, count: int) -> bool:
        total = self.in_flight()
        return not total or total + count <= self.limit

    def _share(self, run: Sharing) -> float:
        return self.limit * self._weights[run] / self._total

    def _load(self, run: Sharing) -> float:
        return run.in_flight() / self._weights[run]

    def _wanted(self, run: Sharing, count: int) -> int:
        share, own = self._share(run), run.in_flight()
        if not own or own + count <= share / 2:
            return count
        left = share - own
        return max(count, int(min(left, share / 2) if left > 0 else share / 2))

    def _watch(self, wanted: int, woken: Completion) -> list[Timeline]:
        """Have it woken when there may be so much room: never late, if too early."""
        busy = [line for line in self._lines if line.submitted > line.completed]
        missing = wanted - (self.limit - self.in_flight())
        each = max(1, -(-missing // max(1, len(busy))))
        for line in busy:
            line.watch(min(line.submitted, line.completed + each), woken)
        return busy

    def _wake_head(self) -> None:
        """Have the run whose turn it is look for room."""
        if self._head is not None:
            self._waiting[self._head].set()

    def _note_lines(self) -> None:
        every = (line for lines in self._runs.values() for line in lines)
        self._lines = tuple(dict.fromkeys(every))
