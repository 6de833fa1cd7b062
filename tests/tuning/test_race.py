"""Races: orders, verdicts, rejections, repeats; told what to believe by hand."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accy_async.errors import InvalidValue
from accy_async.tuning.race import (
    Conditions,
    Race,
    RaceRules,
    Standing,
    judge_conditions,
)

QUICK = RaceRules(min_rounds=8, max_rounds=64)


def run(
    race: Race, true_ns: list[float], noise: float = 0.002, seed: int = 1
) -> list[tuple[int, ...]]:
    """Tell a race what a steady machine takes; the orders that it asked for."""
    random = np.random.default_rng(seed)
    orders = []
    while not race.is_over:
        order = race.next_order()
        orders.append(order)
        race.tell({n: true_ns[n] * math.exp(random.normal(0, noise)) for n in order})
    return orders


def test_the_faster_candidate_wins_and_the_slow_one_leaves_early() -> None:
    race = Race(3, QUICK)
    orders = run(race, [100.0, 97.0, 130.0])
    verdict = race.verdict()
    assert (verdict.standing, verdict.winner) == (Standing.FASTER, 1)
    assert verdict.conditions.are_steady
    standings = {one.candidate: one.standing for one in verdict.comparisons}
    assert standings == {1: Standing.FASTER, 2: Standing.SLOWER}
    assert verdict.comparisons[0].speedup == pytest.approx(100 / 97, rel=0.005)
    assert all(0 in order for order in orders)
    assert race.next_order() == ()
    assert race.contestants == frozenset()


def test_equal_candidates_are_called_equal_and_the_baseline_stays() -> None:
    race = Race(3, QUICK, baseline=2)
    run(race, [100.0, 100.0, 100.0])
    verdict = race.verdict()
    assert (verdict.standing, verdict.winner) == (Standing.NO_DIFFERENCE, 2)
    assert {one.standing for one in verdict.comparisons} == {Standing.NO_DIFFERENCE}


def test_what_is_too_wild_stays_undecided() -> None:
    race = Race(2, QUICK)
    run(race, [100.0, 100.5], noise=0.3)
    verdict = race.verdict()
    assert (verdict.standing, verdict.winner) == (Standing.UNDECIDED, 0)
    assert verdict.rounds == QUICK.max_rounds


def test_orders_are_random_and_run_backwards_every_other_round() -> None:
    race = Race(5, RaceRules(min_rounds=200, max_rounds=200))
    orders = run(race, [100.0] * 5)
    assert all(sorted(order) == [0, 1, 2, 3, 4] for order in orders)
    assert all(
        there == back[::-1]
        for there, back in zip(orders[::2], orders[1::2], strict=True)
    )
    firsts = Counter(order[0] for order in orders)
    assert min(firsts.values()) > 20


def test_the_same_seed_asks_for_the_same_orders() -> None:
    first, second = (run(Race(4, QUICK), [100.0] * 4) for _ in range(2))
    assert first == second


def test_a_race_of_one_is_over_before_it_begins() -> None:
    race = Race(1)
    assert race.is_over
    assert race.verdict().standing is Standing.NO_DIFFERENCE


def test_a_rejected_candidate_cannot_win() -> None:
    race = Race(3, QUICK)
    race.tell({0: 100.0, 1: 10.0, 2: 95.0})
    race.reject(1)
    assert race.contestants == {0, 2}
    run(race, [100.0, 10.0, 95.0])
    verdict = race.verdict()
    assert verdict.winner == 2
    assert {one.candidate for one in verdict.comparisons} == {2}


def test_when_all_are_rejected_the_race_is_over() -> None:
    race = Race(2, QUICK)
    race.reject(1)
    assert race.is_over
    assert race.verdict().winner == 0
    with pytest.raises(InvalidValue, match="no baseline"):
        race.reject(0)


def test_a_race_goes_on_from_what_was_kept() -> None:
    whole = Race(3, QUICK)
    orders = run(whole, [100.0, 97.0, 130.0])
    kept = whole.rounds[:5]
    resumed = Race(3, QUICK, rounds=kept)
    assert len(run(resumed, [100.0, 97.0, 130.0])) <= len(orders) - 5 + 4
    assert resumed.rounds[:5] == kept
    assert resumed.verdict().winner == 1
    assert resumed.verdict().rounds >= 5


def test_a_clock_that_ramps_makes_it_begin_again() -> None:
    race = Race(2, QUICK)
    told = 0
    while not race.is_over:
        speed = 1.0 + 0.5 * math.exp(-told / 2)
        race.tell({0: 100.0 * speed, 1: 90.0 * speed})
        told += 1
    verdict = race.verdict()
    assert verdict.is_repeated
    assert verdict.rounds == told
    assert (verdict.standing, verdict.winner) == (Standing.FASTER, 1)
    assert verdict.conditions.are_steady


def test_a_neighbour_that_stays_is_reported() -> None:
    """C30: the better one still wins, and the verdict says that it was contended."""
    race = Race(2, QUICK)
    random = np.random.default_rng(2)
    while not race.is_over:
        noise = np.exp(random.normal(0, 0.004, 2))
        noise *= np.where(random.random(2) < 0.2, 1.5, 1.0)
        race.tell({0: 100.0 * noise[0], 1: 90.0 * noise[1]})
    verdict = race.verdict()
    assert verdict.is_repeated
    assert verdict.conditions.is_contended
    assert "contended: " in str(verdict.conditions)
    assert verdict.winner == 1


def test_attempts_that_disagree_leave_it_undecided() -> None:
    """C30: a neighbour slows one, then the other: neither is to be believed."""
    race = Race(3, QUICK)
    drift = 0
    while not race.is_over:
        drift += 1
        slow = 1.0 + drift / 100
        first, second = (95.0, 90.0) if not race.verdict().is_repeated else (90.0, 95.0)
        race.tell({0: 100.0 * slow, 1: first * slow, 2: second * slow})
    verdict = race.verdict()
    assert verdict.is_repeated
    assert verdict.conditions.is_drifting
    assert (verdict.standing, verdict.winner) == (Standing.UNDECIDED, 0)


@pytest.mark.parametrize(
    ("samples", "field"),
    [
        ({1: 5.0}, "the baseline too"),
        ({0: 0.0, 1: 5.0}, "above 0"),
        ({0: math.nan, 1: 5.0}, "above 0"),
        ({0: 5.0, 1: math.inf}, "above 0"),
        ({0: 5.0, 7: 5.0}, "candidates from 0 to 1"),
    ],
)
def test_rounds_that_are_none_are_refused_and_change_nothing(
    samples: dict[int, float], field: str
) -> None:
    race = Race(2)
    with pytest.raises(InvalidValue, match=field):
        race.tell(samples)
    assert race.rounds == ()


def test_races_and_rules_that_make_no_sense_are_refused() -> None:
    with pytest.raises(InvalidValue, match="count"):
        Race(0)
    with pytest.raises(InvalidValue, match="baseline"):
        Race(2, baseline=2)
    with pytest.raises(InvalidValue, match="max_rounds"):
        RaceRules(min_rounds=20, max_rounds=10)
    with pytest.raises(InvalidValue, match="tolerance"):
        RaceRules(tolerance=0.0)


def test_looks_become_seldom() -> None:
    rules = RaceRules(min_rounds=16, max_rounds=400)
    looks = [rounds for rounds in range(1, 401) if rules.is_look(rounds)]
    assert looks[0] == 16
    assert looks[-1] == 400
    assert len(looks) < 12


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(1.0, 1e9), min_size=1, max_size=8), st.integers(0, 100))
def test_every_race_ends_with_a_candidate_of_its_own(
    times: list[float], seed: int
) -> None:
    rules = RaceRules(min_rounds=4, max_rounds=32, resamples=100, seed=seed)
    race = Race(len(times), rules)
    orders = run(race, times, noise=0.05, seed=seed)
    verdict = race.verdict()
    assert len(orders) == verdict.rounds <= 64
    assert 0 <= verdict.winner < len(times)
    assert math.log(times[verdict.winner]) <= math.log(times[0]) + 0.05


def test_conditions_of_few_rounds_are_not_judged() -> None:
    assert judge_conditions(np.log([[1.0, 2.0], [1.0, 9.0]])) == Conditions()


def test_a_drift_is_told_with_its_direction() -> None:
    rounds = np.linspace(1.0, 1.3, 30)[:, None] * np.array([[100.0, 200.0]])
    slower = judge_conditions(np.log(rounds))
    assert slower.is_drifting
    assert slower.drift == pytest.approx(0.2, abs=0.03)
    assert "slower at the end" in str(slower)
    faster = judge_conditions(np.log(rounds[::-1]))
    assert "faster at the end" in str(faster)
    assert str(judge_conditions(np.zeros((30, 2)))) == "steady"


def test_a_fixed_race_measures_everyone_to_the_end_and_one_alone_too() -> None:
    rules = RaceRules(min_rounds=8, max_rounds=20, repeats=0, fixed=True)
    race = Race(3, rules)
    orders = run(race, [100.0, 97.0, 200.0])
    assert all(sorted(order) == [0, 1, 2] for order in orders)
    assert len(orders) == 20
    verdict = race.verdict()
    assert (verdict.standing, verdict.winner) == (Standing.FASTER, 1)
    alone = Race(1, rules)
    assert len(run(alone, [100.0])) == 20
    assert len(alone.samples(0)) == 20
    pair = Race(2, rules)
    pair.reject(1)
    assert len(run(pair, [100.0, 100.0])) == 20
