"""Sharing a session's room for work in flight among its runs, by weight.

Each run may have so many operations in flight: its share, by weight, of what the
session allows. So the shares of all runs keep to the session's bound together, a
run that starts later finds its share free, and a device that is never full of one
run's work gets to another's soon.
"""

from __future__ import annotations

from typing import Protocol

__all__ = ["MIN_SHARE", "Governor"]

MIN_SHARE = 8
"""What every run may have in flight, however many there are."""


class Draining(Protocol):
    """A run that only waits for the device."""

    def in_flight(self) -> int:
        """How many operations it has in flight."""


class Governor:
    """Divides room for ``limit`` operations among the runs that are going on."""

    __slots__ = ("_draining", "_total", "_weights", "limit")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._weights: dict[object, float] = {}
        self._total = 0.0
        self._draining: list[Draining] = []

    def enter(self, run: object, weight: float) -> None:
        """A run begins to submit."""
        self._weights[run] = weight
        self._total += weight

    def drain(self, run: Draining) -> None:
        """A run has submitted everything: it takes room, but shares in none."""
        self.leave(run)
        self._draining.append(run)

    def leave(self, run: object) -> None:
        """A run has ended."""
        self._total -= self._weights.pop(run, 0.0)
        if run in self._draining:
            self._draining.remove(run)

    def share(self, run: object) -> int:
        """How many operations the run may have in flight now."""
        part = self._weights[run] / self._total
        room = self.limit
        for one in self._draining:
            room -= one.in_flight()
        return max(MIN_SHARE, int(room * part))

    def slice_part(self, run: object) -> float:
        """The run's part of a turn at submitting: its weight over the greatest."""
        return self._weights[run] / max(self._weights.values())
