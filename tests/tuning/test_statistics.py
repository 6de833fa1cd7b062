"""Figures that a few wild samples cannot move, and intervals that hold the truth."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accy_async.tuning.statistics import (
    MAD_TO_SIGMA,
    Interval,
    mad,
    median,
    median_interval,
    midmean,
    paired_intervals,
    ratio_interval,
    student_t,
)

floats = st.floats(-1e6, 1e6)


def test_median_and_mad_of_known_samples() -> None:
    samples = np.array([1.0, 2.0, 3.0, 4.0, 100.0])
    assert median(samples) == 3.0
    assert mad(samples) == 1.0
    assert math.isnan(median(np.array([])))
    assert math.isnan(mad(np.array([])))


def test_the_mad_of_normal_samples_is_their_deviation() -> None:
    samples = np.random.default_rng(1).normal(5.0, 2.0, 100_000)
    assert MAD_TO_SIGMA * mad(samples) == pytest.approx(2.0, rel=0.02)


@settings(deadline=None)
@given(st.lists(floats, min_size=1, max_size=40))
def test_the_midmean_is_the_mean_of_the_middle_half(values: list[float]) -> None:
    cut = len(values) // 4
    middle = sorted(values)[cut : len(values) - cut]
    assert float(midmean(np.array(values))) == pytest.approx(
        sum(middle) / len(middle), abs=1e-6
    )


@settings(deadline=None)
@given(st.lists(floats, min_size=8, max_size=40), st.data())
def test_a_quarter_of_wild_samples_stays_within_the_others(
    values: list[float], data: st.DataObject
) -> None:
    wild = data.draw(st.integers(0, len(values) // 4))
    for index in range(wild):
        values[index] = data.draw(st.sampled_from([-1e300, 1e300]))
    rest = values[wild:]
    assert min(rest) <= float(midmean(np.array(values))) <= max(rest)


def test_intervals_hold_the_truth_as_often_as_they_say() -> None:
    """1000 experiments of known difference: 95 % intervals hold it, nearly always."""
    random = np.random.default_rng(3)
    samples = random.normal(0.02, 0.01, (1000, 30))
    found = paired_intervals(
        samples, confidence=0.95, resamples=400, generator=np.random.default_rng(4)
    )
    held = sum(one.low <= 0.02 <= one.high for one in found)
    assert 925 <= held <= 975


@pytest.mark.parametrize(
    ("confidence", "freedom", "tabled"),
    # Tables of Student's t, two-sided.
    [(0.95, 15, 2.131), (0.99, 15, 2.947), (0.999, 15, 4.073), (0.99, 120, 2.617)],
)
def test_students_t_is_as_tabled(
    confidence: float, freedom: int, tabled: float
) -> None:
    assert student_t(confidence, freedom) == pytest.approx(tabled, rel=0.01)


def test_the_same_seed_gives_the_same_intervals() -> None:
    samples = np.random.default_rng(3).normal(0.0, 1.0, (2, 20))
    first, second = (
        paired_intervals(
            samples, confidence=0.9, resamples=200, generator=np.random.default_rng(9)
        )
        for _ in range(2)
    )
    assert first == second
    assert all(one.low < one.estimate < one.high for one in first)


def test_one_round_tells_nothing() -> None:
    generator = np.random.default_rng(0)
    (one,) = paired_intervals(
        np.array([[0.5]]), confidence=0.9, resamples=100, generator=generator
    )
    assert one == Interval(-math.inf, 0.5, math.inf)
    (none,) = paired_intervals(
        np.empty((1, 0)), confidence=0.9, resamples=100, generator=generator
    )
    assert none.half_width == math.inf


def test_differences_of_logarithms_read_as_percent() -> None:
    low, estimate, high = Interval(math.log(0.9), 0.0, math.log(1.2)).as_percent
    assert (low, estimate, high) == pytest.approx((-10.0, 0.0, 20.0))


def test_the_medians_bounds_are_the_samples_that_binomial_tables_say() -> None:
    """Conover, Practical Nonparametric Statistics: of 16 at 95 % the 4th and 13th."""
    samples = np.arange(16.0)
    np.random.default_rng(0).shuffle(samples)
    found = median_interval(samples, 0.95)
    assert (found.low, found.estimate, found.high) == (3.0, 7.5, 12.0)
    few = median_interval(np.array([3.0, 1.0, 2.0]), 0.99)
    assert (few.low, few.estimate, few.high) == (1.0, 2.0, 3.0)
    many = median_interval(np.arange(10_000.0), 0.95)
    assert many.low == pytest.approx(4901, abs=2)
    assert many.high == pytest.approx(5098, abs=2)
    assert math.isnan(median_interval(np.array([]), 0.9).estimate)


def test_the_medians_bounds_hold_the_median_as_often_as_they_say() -> None:
    random = np.random.default_rng(2)
    held = 0
    for _ in range(400):
        found = median_interval(random.exponential(size=25), 0.95)
        held += found.low <= math.log(2.0) <= found.high
    assert held >= 374  # 95 %, three standard deviations below the 97.5 % that 25 give


def test_two_series_apart_differ_by_their_ratio() -> None:
    random = np.random.default_rng(3)
    times = 97.0 * np.exp(random.normal(0, 0.01, 60))
    against = 100.0 * np.exp(random.normal(0, 0.01, 40))
    found = ratio_interval(
        times,
        against,
        confidence=0.99,
        resamples=200,
        generator=np.random.default_rng(1),
    )
    assert found.low < math.log(0.97) < found.high
    assert found.half_width < 0.01
    one = ratio_interval(
        times[:1],
        against,
        confidence=0.99,
        resamples=100,
        generator=np.random.default_rng(1),
    )
    assert one.half_width == math.inf
