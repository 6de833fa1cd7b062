"""Whether two tunings of one kernel agree, and the tally of many such pairs."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from accy_async.tuning import RaceRules, Standing

if TYPE_CHECKING:
    from accy_async.fragment.tuning import KernelTuning

__all__ = ["DIFFERENT", "UNDECIDED", "Tally"]

UNDECIDED = "one of them told that it cannot say"
DIFFERENT = "they differ"
_TOLERANCE = RaceRules().tolerance


class Tally:
    """What pairs of tunings came to, each made from nothing.

    Attributes:
        agreed: pairs that both decided, and alike.
        decided: pairs that both decided.
        total: all pairs.
    """

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def add(self, one: KernelTuning, other: KernelTuning) -> str:
        """Count two findings about one kernel; returns how they agree."""
        verdict = _compared(one, other)
        self._counts[verdict] += 1
        return verdict

    @property
    def total(self) -> int:
        return self._counts.total()

    @property
    def decided(self) -> int:
        return self.total - self._counts[UNDECIDED]

    @property
    def agreed(self) -> int:
        return self.decided - self._counts[DIFFERENT]

    def show(self, where: str = "") -> None:
        """Print how many pairs came to what."""
        print(f"{self.total} kernels{where}, each tuned twice, from nothing:")
        for verdict, count in self._counts.most_common():
            print(f"  {verdict:52} {count:3}")
        print(f"  agreed: {self.agreed} of the {self.decided} that both decided")


def _compared(one: KernelTuning, other: KernelTuning) -> str:
    if one.record is None or other.record is None:
        return UNDECIDED
    first, second = (
        found.selection.candidate_index for found in (one.record, other.record)
    )
    if first == second:
        assert one.outcome is not None
        if one.outcome.standing is Standing.NO_DIFFERENCE:
            return "the same: no candidate is faster than the default"
        return "the same winner"
    # Between winners that are equally fast, either is right.
    if _is_close(one, first, second) or _is_close(other, first, second):
        return "winners that do not differ"
    return DIFFERENT


def _is_close(result: KernelTuning, first: int, second: int) -> bool:
    """Whether two candidates are as fast as each other, as far as a finding tells."""
    assert result.outcome is not None
    distance = width = 0.0
    for index, sign in ((first, 1.0), (second, -1.0)):
        comparison = result.outcome.candidates[index].comparison
        if comparison is not None:  # else it is what others are compared with
            distance += sign * comparison.interval.estimate
            width += comparison.interval.half_width
    return abs(distance) <= max(width, float(np.log1p(_TOLERANCE)))
