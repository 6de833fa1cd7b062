"""Figures that a few wild samples cannot move, and how sure one can be of them.

Times are compared as *paired differences of logarithms*: what a candidate took in a
round against what the baseline took in the same round. Whatever slows a whole round
down, a lower clock or a busy neighbour, slows both alike and cancels out; and the
difference of logarithms is the ratio, so that 1 % is 1 % of any kernel.

The difference is estimated by the *midmean*, the mean of the middle half: a quarter
of the samples may be arbitrarily wrong on either side. How sure that is comes from
the bootstrap (B. Efron, "Bootstrap Methods: Another Look at the Jackknife", Annals of
Statistics 7, 1979): the rounds are drawn again with replacement, some hundred times,
and the deviation of the estimates is the estimate's own. The interval is as wide as
Student's t says for so many rounds; quantiles of the estimates themselves would need
many thousands of them at the confidences that tuning asks for.
"""

from __future__ import annotations

import math
from statistics import NormalDist

import attrs
import numpy as np
from numpy.typing import NDArray

__all__ = [
    "MAD_TO_SIGMA",
    "Floats",
    "Interval",
    "mad",
    "median",
    "median_interval",
    "midmean",
    "paired_intervals",
    "ratio_interval",
    "student_t",
]

Floats = NDArray[np.float64]

MAD_TO_SIGMA = 1.4826
"""The MAD of normal samples, times this, is their standard deviation: 1/Phi^-1(3/4)."""


@attrs.frozen
class Interval:
    """An estimate, and the bounds that it is between at the confidence asked for."""

    low: float
    estimate: float
    high: float

    @property
    def half_width(self) -> float:
        """How far the farther bound is from the estimate."""
        return max(self.high - self.estimate, self.estimate - self.low)

    @property
    def as_percent(self) -> tuple[float, float, float]:
        """Low, estimate and high of differences of logarithms, in percent."""
        low, estimate, high = (
            100.0 * math.expm1(value) for value in (self.low, self.estimate, self.high)
        )
        return low, estimate, high


def median(samples: Floats) -> float:
    """The median; not a number where there are no samples."""
    return float(np.median(samples)) if len(samples) else math.nan


def mad(samples: Floats) -> float:
    """The median absolute deviation from the median."""
    return median(np.abs(samples - median(samples))) if len(samples) else math.nan


def median_interval(samples: Floats, confidence: float) -> Interval:
    """The median, and bounds that hold whatever the samples' distribution is.

    The bounds are two of the samples: so many of them are below the true median as
    heads come up in as many throws of a coin, so that its quantiles say which two
    (H. A. David, H. N. Nagaraja, "Order Statistics", 3rd edition, 7.1). Of few samples
    the smallest and the greatest, whose confidence may be less than asked for.

    Args:
        samples: in any order; independent of each other.
        confidence: of the interval, below 1.
    """
    count = len(samples)
    if not count:
        return Interval(math.nan, math.nan, math.nan)
    ordered = np.sort(samples)
    # How likely fewer than k heads are must stay within half of what is left over.
    spare, below, heads = (1.0 - confidence) / 2.0, 0.0, 0
    throw = 0.5**count if count < 1000 else 0.0
    while throw and below + throw <= spare:
        below += throw
        throw *= (count - heads) / (heads + 1)
        heads += 1
    if not throw:  # so many that the normal curve is the same
        z = NormalDist().inv_cdf(1.0 - spare)
        heads = max(1, math.floor(count / 2.0 - z * math.sqrt(count) / 2.0))
    place = max(0, heads - 1)
    return Interval(
        float(ordered[place]), median(ordered), float(ordered[count - 1 - place])
    )


def ratio_interval(
    times: Floats,
    against: Floats,
    *,
    confidence: float,
    resamples: int,
    generator: np.random.Generator,
) -> Interval:
    """The difference of the logarithms of two series that were not measured together.

    Of the midmeans, by the bootstrap, each series drawn on its own; boundless where one
    has fewer than two samples.
    """
    first, second = np.log(times), np.log(against)
    if not (len(first) and len(second)):
        return Interval(-math.inf, math.nan, math.inf)
    estimate = float(midmean(first)) - float(midmean(second))
    fewest = min(len(first), len(second))
    if fewest < 2:
        return Interval(-math.inf, estimate, math.inf)
    drawn = [
        midmean(row[generator.integers(len(row), size=(resamples, len(row)))])
        for row in (first, second)
    ]
    margin = student_t(confidence, fewest - 1) * float(
        (drawn[0] - drawn[1]).std(ddof=1)
    )
    return Interval(estimate - margin, estimate, estimate + margin)


def midmean(samples: Floats) -> Floats:
    """The mean of the middle half along the last axis.

    Of fewer than four samples it is the mean; a quarter is rounded down, so that
    more than half is kept of odd counts.
    """
    count = samples.shape[-1]
    cut = count // 4
    if not cut:
        mean: Floats = samples.mean(axis=-1)
        return mean
    # Sorting whole rows is vectorised, and several times faster than np.partition.
    ordered = np.sort(samples, axis=-1)
    middle: Floats = ordered[..., cut : count - cut].mean(axis=-1)
    return middle


def student_t(confidence: float, freedom: int) -> float:
    """Student's two-sided t, by its expansion around the normal quantile.

    Source: M. Abramowitz, I. Stegun, Handbook of Mathematical Functions, 26.7.5, two
    terms of it: within 1 % from 15 degrees of freedom on, at up to 99.9 %.
    """
    z = NormalDist().inv_cdf((1.0 + confidence) / 2.0)
    first = (z**3 + z) / (4.0 * freedom)
    second = (5.0 * z**5 + 16.0 * z**3 + 3.0 * z) / (96.0 * freedom**2)
    return z + first + second


def paired_intervals(
    differences: Floats,
    *,
    confidence: float,
    resamples: int,
    generator: np.random.Generator,
) -> tuple[Interval, ...]:
    """The interval of each row's midmean.

    Args:
        differences: one row for each candidate, one column for each round.
        confidence: of each interval, below 1.
        resamples: how often the rounds are drawn.
        generator: draws them; the same one gives the same intervals.

    Returns:
        One for each row; boundless ones where there are fewer than two rounds.
    """
    rounds = differences.shape[1]
    if rounds < 2:
        return tuple(
            Interval(-math.inf, float(row[0]) if rounds else 0.0, math.inf)
            for row in differences
        )
    drawn = generator.integers(rounds, size=(resamples, rounds))
    # A resample varies less than the samples do, by (n - 1) / n.
    factor = student_t(confidence, rounds - 1) * math.sqrt(rounds / (rounds - 1))
    found = []
    for row in differences:
        estimate = float(midmean(row))
        margin = factor * float(midmean(row[drawn]).std(ddof=1))
        found.append(Interval(estimate - margin, estimate, estimate + margin))
    return tuple(found)
