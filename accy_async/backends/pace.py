"""How long waits take: learned, so that each is waited for in the cheapest good way.

A wait that will end within some ten microseconds is worth spinning for; one that will
end soon is worth taking turns with the loop's other tasks; for all others the task
sleeps, and the scanner has to know when to look. So each kind of wait (the work at the
end of it, and how many operations it covers) has a `Pace`.

Source: the estimator is that of TCP's retransmission timer (RFC 6298, 2): a running
mean and a running mean deviation, here both with a gain of 1/4, as kernels change
their length more suddenly than networks do; single outliers are left out.
"""

from __future__ import annotations

from collections.abc import Hashable

__all__ = ["QUICK_NS", "SOON_NS", "SPIN_NS", "Pace", "Paces"]

SPIN_NS = 10_000
"""How long a task reads its word at a stretch, between two turns of its loop."""

QUICK_NS = 10_000
"""What ends so soon after a turn of the loop is asked for without a flag, which takes
the device 1 to 3 us more. Loops take 2 to 5 us for a turn, and an empty kernel some 5:
without this, the quickest loop would be the one that comes too early."""

SOON_NS = 6_000
"""What ends so soon after a turn, with a flag, ends within `QUICK_NS` without one: to
submit a flag takes the host some 3 us."""

_MOST_POLLED_NS = 200_000
"""Waits that take longer on average begin with sleep,"""

_MOST_POLLED_STEADY_NS = 1_000_000
"""and those that take about the same each time, from there on: to fall asleep and be
woken takes a good part of a millisecond on a virtual machine."""

_FIRST_POLLED_NS = 50_000
"""How long a task takes turns where nothing is known of its wait."""

_LEAST_LEAD_NS = 150_000
"""A sleeping thread is up again within that after the time it asked for."""

_SLACK_NS = 100_000
"""What does not come when it should is polled for so much longer: to fall asleep and be
woken takes as long."""

_NEAR_NS = 2_000
"""An end is looked for at least so much before it is expected: about by how much the
turns of a loop differ."""

_KNOWN = 3
"""So many waits have to be seen before anything is expected of the next."""

_EXACT_NS = 50_000
"""A wait's end is known well enough if it is known to that."""

_LEAD_SHIFT = 8
"""For what is uncertain of a wait's end, 0.4 % of it is spent at the most."""

_ODD_SHIFT = 7
"""What differs from a steady mean by 0.8 % more than is usual is odd."""

_MOST_ODD = 3
"""So many odd waits in a row make a new length; fewer are a busy host's."""

_KEPT = 1024
"""Kinds of waits that are remembered; beyond, all are forgotten."""


class Pace:
    """How long waits of one kind took lately. Times are in nanoseconds.

    Attributes:
        count: of how many waits it knows.
        mean: what they took.
        spread: by how much they differ from that, on average.
        blur: how long nobody had looked when the last one was seen to be over.
        odd: how many in a row took something else.
        noted: what the last one took, and how long nobody had looked, where that is
            still to be learned.
    """

    __slots__ = ("blur", "count", "mean", "noted", "odd", "spread")

    def __init__(self) -> None:
        self.count = 0
        self.mean = 0
        self.spread = 0
        self.blur = 0
        self.odd = 0
        self.noted: tuple[int, int] | None = None

    def note(self, took: int, blur: int = 0) -> None:
        """Have it learned before the next wait, while the device is at work.

        What is done between the end of a wait and the task that runs on makes it late.
        """
        if self.noted is not None:
            self.catch_up()
        self.noted = took, blur

    def catch_up(self) -> None:
        """Learn what was noted."""
        noted = self.noted
        if noted is not None:
            self.noted = None
            self.learn(*noted)

    def learn(self, took: int, blur: int = 0) -> None:
        """Say how long a wait took, or so much less: nobody had looked meanwhile."""
        took -= blur >> 1
        mean, spread = self.mean, self.spread
        error = took - mean
        size = error if error >= 0 else -error
        is_odd = size > 4 * spread + (mean >> _ODD_SHIFT)
        if (is_odd or blur or self.blur) and self._decide(took, size, blur, is_odd):
            return
        self.mean = mean + (error >> 2)
        self.spread = spread + ((size - spread) >> 2)
        self.blur = blur
        self.odd = 0
        self.count += 1

    def _decide(self, took: int, size: int, blur: int, is_odd: bool) -> bool:
        """What to do about a sample that is not like the others; True if it is done."""
        if self.is_steady:
            if size <= blur >> 1:  # as it was, for all that anybody knows
                self.odd = 0
                return True
            if is_odd:
                self.odd += 1
                if self.odd < _MOST_ODD:
                    return True
                self.count = 0
        if self.count == 0:
            spread = max(blur, took >> 5)
        elif blur < self.blur >> 2:  # what was known was not worth much
            spread = took >> 6
        else:
            return False
        self.mean, self.spread, self.blur, self.odd = took, spread, blur, 0
        self.count += 1
        return True

    def overlook(self) -> None:
        """Say that a wait took less than is usual, nobody saw how much."""
        self.odd += 1
        if self.odd >= _MOST_ODD:
            self.count = self.mean = self.spread = self.blur = self.odd = 0

    @property
    def patience(self) -> int:
        """How long to take turns before sleeping; 0 where it is not worth it."""
        if self.count == 0:
            return _FIRST_POLLED_NS
        most = _MOST_POLLED_STEADY_NS if self.is_steady else _MOST_POLLED_NS
        if self.mean > most:
            return 0
        return self.mean + min(2 * self.spread, self.mean) + _SLACK_NS

    @property
    def is_long(self) -> bool:
        """Whether the next wait is known to be one that begins with sleep."""
        return self.mean > _MOST_POLLED_STEADY_NS and self.is_steady

    @property
    def is_steady(self) -> bool:
        """Whether the next wait is worth a guess."""
        mean = self.mean
        return (
            self.count >= _KNOWN
            and self.spread <= mean >> 4
            and (self.blur <= _EXACT_NS or self.blur <= mean >> _LEAD_SHIFT)
        )

    @property
    def near(self) -> int:
        """How long after its beginning a wait's end is near; 0 if nobody can say."""
        if self.count < _KNOWN:
            return 0
        return max(0, self.mean - min(2 * self.spread + _NEAR_NS, SPIN_NS >> 1))

    @property
    def limits(self) -> tuple[int, int]:
        """The shortest time after which such a wait may well end, if it is steady.

        And the longest, before something else is going on.
        """
        lead = self._lead
        return self.mean - lead, self.mean + lead + _SLACK_NS

    @property
    def window(self) -> tuple[int, int]:
        """From when to when after its beginning a wait's end is looked for hard.

        Where the last one was not seen exactly, that is to happen now. Where the end
        may come at any time they are one: then it is looked for with pauses that grow.
        """
        if self.count == 0:
            return 0, 0
        if self.spread > self.mean >> (3 if self.count == 1 else 4):
            start = max(0, self.mean - 2 * self.spread - _LEAST_LEAD_NS)
            return start, start
        is_exact = self.blur <= max(_EXACT_NS, self.mean >> _LEAD_SHIFT)
        lead = _LEAST_LEAD_NS + (self._lead if is_exact else self.spread)
        return self.mean - lead, self.mean + lead

    @property
    def _lead(self) -> int:
        return min(2 * self.spread, self.mean >> _LEAD_SHIFT)


class Paces:
    """The paces of one device, by kind of wait."""

    def __init__(self) -> None:
        self._paces: dict[tuple[Hashable, int], Pace] = {}

    def of(self, work: Hashable, operations: int) -> Pace:
        """The pace of waits for so many operations, the last of which is that work.

        From eight operations on, what is of one order of magnitude is of one kind.
        """
        if operations >= 8:
            operations = 8 + operations.bit_length()
        pace = self._paces.get((work, operations))
        if pace is None:
            if len(self._paces) >= _KEPT:
                self._paces.clear()
            pace = self._paces[work, operations] = Pace()
        elif pace.noted is not None:
            pace.catch_up()
        return pace
