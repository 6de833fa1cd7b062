"""Whether the machine held still: clocks that ramp or drift, neighbours that disturb.

Comparisons within rounds bear all of that. Times do not: a median from a machine that
was half as fast is no figure to keep beside others. So a measurement says under what
conditions it was made, and tuning keeps none that was made under bad ones.
"""

from __future__ import annotations

import attrs
import numpy as np

from accy_async.tuning.statistics import MAD_TO_SIGMA, Floats, mad

__all__ = ["Conditions", "judge_conditions"]

MOST_DRIFT = 0.04
"""Relative change of the machine's speed from the first third to the last."""

MOST_DISTURBED = 0.08
"""Part of the samples that something else has slowed down."""

_OUTLIER_SIGMAS = 5.0
_LEAST_OUTLIER = 0.03
_TREND_ROUNDS = 9
_LEAST_ROUNDS = 6


@attrs.frozen(kw_only=True)
class Conditions:
    """What the samples say of the machine.

    Attributes:
        drift: relative change of its speed from the first third of the rounds to the
            last; above 0 where it became slower.
        disturbed: the part of the samples that are far too slow, from 0 to 1.
        spread: the relative standard deviation of a sample otherwise.
    """

    drift: float = 0.0
    disturbed: float = 0.0
    spread: float = 0.0

    @property
    def is_drifting(self) -> bool:
        """True where the machine became faster or slower meanwhile."""
        return abs(self.drift) > MOST_DRIFT

    @property
    def is_contended(self) -> bool:
        """True where something else used it meanwhile."""
        return self.disturbed > MOST_DISTURBED

    @property
    def are_steady(self) -> bool:
        """True where times measured so are worth keeping."""
        return not (self.is_drifting or self.is_contended)

    def __str__(self) -> str:
        found = []
        if self.is_drifting:
            word = "slower" if self.drift > 0 else "faster"
            found.append(f"the clock drifts: {abs(self.drift):.0%} {word} at the end")
        if self.is_contended:
            found.append(f"contended: {self.disturbed:.0%} of the samples disturbed")
        return "; ".join(found) or "steady"


def judge_conditions(logarithms: Floats) -> Conditions:
    """Look at all samples of a race.

    Args:
        logarithms: of the times: a row for each round, a column for each candidate,
            not a number where one was not measured.
    """
    logarithms = logarithms[:, ~np.isnan(logarithms).all(axis=0)]
    rounds = len(logarithms)
    if rounds < _LEAST_ROUNDS or not logarithms.shape[1]:
        return Conditions()
    levels = np.nanmedian(logarithms, axis=0)
    residuals = logarithms - levels
    by_round = np.nanmedian(residuals, axis=1)
    third = rounds // 3
    drift = float(np.median(by_round[-third:]) - np.median(by_round[:third]))
    residuals = residuals - _trend(by_round)[:, None]
    known = residuals[~np.isnan(residuals)]
    sigma = MAD_TO_SIGMA * mad(known)
    bound = max(_OUTLIER_SIGMAS * sigma, _LEAST_OUTLIER)
    disturbed = float(np.mean(known > bound))
    return Conditions(drift=float(np.expm1(drift)), disturbed=disturbed, spread=sigma)


def _trend(by_round: Floats) -> Floats:
    """The slow part of the machine's speed: a running median."""
    half = min(_TREND_ROUNDS, len(by_round)) // 2
    padded = np.pad(by_round, half, mode="edge")
    windows = np.lib.stride_tricks.sliding_window_view(padded, 2 * half + 1)
    trend: Floats = np.median(windows, axis=-1)
    return trend
