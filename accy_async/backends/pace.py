"""How long waits take: learned, so that each is waited for in the cheapest good way.

A wait that will end within some ten microseconds is worth spinning for; one that will
end soon is worth taking turns with the loop's other tasks; for all others the task
sleeps, and the scanner has to know when to look. So each kind of wait (the work at the
end of it, and how many operations it covers) has a `Pace`.

Source: the estimator is that of TCP's retransmission timer (RFC 6298, 2): a running
mean and a running mean deviation, here both with a gain of 1/4, as kernels change
their length more suddenly than networks do.
"""

from __future__ import annotations

from collections.abc import Hashable

__all__ = ["QUICK_NS", "SPIN_NS", "Lag", "Pace", "Paces"]

SPIN_NS = 10_000
"""How long a task reads its word at a stretch, between two turns of its loop."""

QUICK_NS = 5_000
"""What ends so soon after a turn of the loop is asked for without a flag. Loops take 2
to 5 us for a turn, and an empty kernel some 5: without this, the quickest loop would be
the one that comes too early."""

_MOST_POLLED_NS = 200_000
"""Waits that take longer on average begin with sleep,"""

_MOST_POLLED_STEADY_NS = 1_000_000
"""and those that take about the same each time, from there on: to fall asleep and be
woken takes a good part of a millisecond on a virtual machine."""

_FIRST_POLLED_NS = 50_000
"""How long a task takes turns where nothing is known of its wait."""

_LEAST_LEAD_NS = 60_000
"""A sleeping thread is up again within that after the time it asked for."""

_SLACK_NS = 20_000
_LEAD_SHIFT = 8
"""For what is uncertain of a wait's end, 0.4 % of it is spent at the most."""

_FIRST_LAG_NS = 150_000
"""What a core of a virtual machine takes to wake up from idling (seen on one)."""

_MOST_LAG_NS = 500_000
_LAG_STEP_NS = 4_000
_LAG_UP = 3
"""Steps up for each down: as many as there are samples below for each above."""

_KEPT = 1024
"""Kinds of waits that are remembered; beyond, all are forgotten."""


class Pace:
    """How long waits of one kind took lately. Times are in nanoseconds."""

    __slots__ = ("count", "mean", "spread")

    def __init__(self) -> None:
        self.count = 0
        self.mean = 0
        self.spread = 0

    def learn(self, took: int) -> None:
        """Say how long a wait took."""
        if self.count == 0:
            self.mean, self.spread = took, took >> 3
        else:
            error = took - self.mean
            self.mean += error >> 2
            self.spread += (abs(error) - self.spread) >> 2
        self.count += 1

    def shorten(self, by: int) -> None:
        """Say that a wait took less, nobody saw how much."""
        self.mean = max(0, self.mean - by)

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
    def is_steady(self) -> bool:
        """Whether the next wait is worth a guess."""
        return self.count >= 3 and self.spread <= self.mean >> 4

    @property
    def earliest(self) -> int:
        """The shortest time after which such a wait may well end, if it is steady."""
        return self.mean - self._lead

    @property
    def latest(self) -> int:
        """The longest, before something else is going on."""
        return self.mean + self._lead + _SLACK_NS

    @property
    def _lead(self) -> int:
        return min(2 * self.spread, self.mean >> _LEAD_SHIFT)

    @property
    def window(self) -> tuple[int, int]:
        """From when to when after its beginning a wait's end is looked for hard.

        Where it may come at any time they are one: then it is looked for with pauses
        that grow.
        """
        if not self.is_steady:
            start = max(0, self.mean - 2 * self.spread - _LEAST_LEAD_NS)
            return start, start
        lead = _LEAST_LEAD_NS + self._lead
        return self.mean - lead, self.mean + lead


class Lag:
    """How long a loop takes to be up after it was rung, while it slept.

    Attributes:
        allowance: how much sooner than it is needed a loop should be rung: it is up in
            time three times of four. (What is above costs the loop's thread time, what
            is below makes waits late; single outliers must not move it far.)
    """

    __slots__ = ("allowance",)

    def __init__(self) -> None:
        self.allowance = _FIRST_LAG_NS

    def learn(self, took: int) -> None:
        """Say how long it took once."""
        if took > self.allowance:
            self.allowance = min(self.allowance + _LAG_UP * _LAG_STEP_NS, _MOST_LAG_NS)
        else:
            self.allowance = max(self.allowance - _LAG_STEP_NS, _LAG_STEP_NS)


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
        return pace
