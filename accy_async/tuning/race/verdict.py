"""What a race comes to."""

from __future__ import annotations

from enum import Enum

import attrs

from accy_async.tuning.race.conditions import Conditions
from accy_async.tuning.statistics import Interval

__all__ = ["Comparison", "RaceVerdict", "Standing"]


class Standing(str, Enum):
    """How one candidate compares with another."""

    FASTER = "faster"
    """By more than the tolerance, and not by chance."""

    SLOWER = "slower"
    """By more than the tolerance, and not by chance."""

    NO_DIFFERENCE = "no difference"
    """Within the tolerance, as far as the interval tells."""

    UNDECIDED = "undecided"
    """Too few samples, or too wild ones, to say."""

    def __str__(self) -> str:
        return self.value


@attrs.frozen
class Comparison:
    """A candidate against the baseline.

    Attributes:
        candidate: its number.
        standing: how it compares.
        interval: of the difference of the logarithms of their times, below 0 where
            the candidate is faster.
        rounds: that both were measured in.
    """

    candidate: int
    standing: Standing
    interval: Interval
    rounds: int

    @property
    def speedup(self) -> float:
        """The baseline's time over the candidate's, as estimated."""
        import math

        return math.exp(-self.interval.estimate)


@attrs.frozen(kw_only=True)
class RaceVerdict:
    """What a race found.

    Attributes:
        standing: `FASTER` where a candidate beat the baseline, `NO_DIFFERENCE` where
            none did, `UNDECIDED` where that cannot be said.
        winner: the candidate to use: the baseline's number unless one is faster.
        comparisons: every candidate against the baseline, itself left out.
        conditions: what the samples say of the machine.
        rounds: in all, those of attempts given up included.
        is_repeated: True where a first attempt was given up for its conditions.
    """

    standing: Standing
    winner: int
    comparisons: tuple[Comparison, ...]
    conditions: Conditions
    rounds: int
    is_repeated: bool
