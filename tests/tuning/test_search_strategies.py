"""Strategies on landscapes whose optimum is known, told by hand, from seeds."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping

import pytest

from accy_async.errors import InvalidValue, RuntimeUnavailable
from accy_async.tuning.measuring import CandidateStatus
from accy_async.tuning.search import (
    Exhaustive,
    Explorer,
    ModelSearch,
    RandomSearch,
    Schedule,
    SearchSpace,
    Strategy,
    SuccessiveHalving,
    Trial,
)
from benchmarks.search_landscapes import LANDSCAPES, found_by, regret

SMALL = SearchSpace({"a": (1, 2, 3, 4), "b": (1, 2, 3)})


def run(
    explorer: Explorer, true: Mapping[Schedule, float], heats: int = 1000
) -> list[tuple[Schedule, ...]]:
    """Tell an explorer what a machine without noise takes; the heats it asked for."""
    asked: list[tuple[Schedule, ...]] = []
    base = true[explorer.baseline]
    while len(asked) < heats:
        explorer.fill(2)
        heat = explorer.next_heat()
        if heat is None:
            break
        asked.append(heat.schedules)
        for one in heat.schedules:
            explorer.tell(one, [math.log(true[one] / base)] * heat.rounds)
    return asked


def small(strategy: Strategy, size: int = 4) -> tuple[Explorer, dict[Schedule, float]]:
    """An explorer of 12 schedules, of which a=3 b=2 is the best."""
    true = {
        one: 100.0 + 10.0 * abs(one["a"] - 3) + 5.0 * abs(one["b"] - 2)
        for one in SMALL.schedules()
    }
    return Explorer(SMALL, strategy, next(SMALL.schedules()), size=size), true


STRATEGIES: list[Strategy] = [
    Exhaustive(),
    RandomSearch(seed=3),
    SuccessiveHalving(population=5, seed=3),
    ModelSearch(startup=9, seed=3),
]


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda one: type(one).__name__)
def test_each_strategy_finds_the_best_of_few_and_measures_none_for_nothing(
    strategy: Strategy,
) -> None:
    explorer, true = small(strategy)
    heats = run(explorer, true)
    assert explorer.is_exhausted
    assert str(explorer.best().schedule) == "a=3 b=2"
    assert {one.schedule for one in explorer.trials} == set(true) - {explorer.baseline}
    assert all(explorer.baseline not in heat for heat in heats)
    assert all(1 <= len(heat) <= 4 for heat in heats)
    assert explorer.finalists(2)[0] == explorer.best().schedule


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda one: type(one).__name__)
def test_the_same_seed_asks_for_the_same_heats(strategy: Strategy) -> None:
    first, second = (run(*small(strategy)) for _ in range(2))
    assert first == second


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda one: type(one).__name__)
def test_what_is_known_is_not_measured_again(strategy: Strategy) -> None:
    explorer, true = small(strategy)
    run(explorer, true, heats=2)
    known = {one.schedule for one in explorer.trials}
    assert known
    after = Explorer(SMALL, strategy, explorer.baseline, size=4, trials=explorer.trials)
    again = {one for heat in run(after, true) for one in heat}
    rounds = {one.schedule: one.rounds for one in after.trials}
    if not isinstance(strategy, SuccessiveHalving):  # which looks longer at some
        assert not again & known
        assert set(rounds.values()) == {4}
    assert known | again == set(rounds)


def test_rejected_schedules_are_not_proposed_again_and_never_the_best() -> None:
    for strategy in STRATEGIES:
        explorer, true = small(strategy)
        best = SMALL.schedule(a=3, b=2)
        explorer.reject(best, CandidateStatus.WRONG_RESULT, "it is wrong")
        assert all(best not in heat for heat in run(explorer, true))
        assert explorer.best().schedule != best
        assert best not in explorer.finalists(12)
        (trial,) = [one for one in explorer.trials if one.is_rejected]
        assert trial.reason == "it is wrong"


def test_trials_of_another_space_are_left_out() -> None:
    other = Schedule((("a", 1), ("b", 9)))
    trials = [Trial(schedule=other, status=CandidateStatus.MEASURED)]
    explorer = Explorer(SMALL, Exhaustive(), next(SMALL.schedules()), trials=trials)
    assert explorer.trials == ()


def test_a_heat_that_was_broken_off_goes_on() -> None:
    explorer, _ = small(Exhaustive())
    explorer.fill(1)
    heat = explorer.next_heat()
    assert heat is not None
    for one in heat.schedules[:2]:
        explorer.tell(one, [0.0] * 4)
    rest = explorer.next_heat()
    assert rest is not None
    assert rest.schedules == heat.schedules[2:]


def test_halving_drops_who_is_slower_and_nobody_who_may_be_the_best() -> None:
    strategy = SuccessiveHalving(population=6, keep=1, most_rounds=16, seed=1)
    space = SearchSpace({"a": tuple(range(6))})
    explorer = Explorer(space, strategy, space.schedule(a=0), size=8)
    noise = [-0.02, 0.02, -0.01, 0.01]
    # Of equal ones nobody is dropped by chance; a=5 is 50 % slower.
    level = {1: 0.0, 2: 0.003, 3: -0.002, 4: 0.001, 5: 0.4}
    asked: list[set[int]] = []
    while True:
        explorer.fill(1)
        heat = explorer.next_heat()
        if heat is None:
            break
        asked.append({one["a"] for one in heat.schedules})
        for one in heat.schedules:
            shift = level[one["a"]]
            told = [shift + noise[n % 4] for n in range(heat.rounds)]
            explorer.tell(one, told)
    assert asked[0] == {1, 2, 3, 4, 5}
    assert asked[1] == {1, 2, 3, 4}
    rounds = {one.schedule["a"]: one.rounds for one in explorer.trials}
    assert rounds[5] == 4
    assert rounds[3] == 16


def test_halving_waits_for_a_rung_before_it_climbs() -> None:
    explorer, true = small(SuccessiveHalving(population=12), size=4)
    explorer.fill(10)
    assert len(explorer.queued) == 3
    assert not explorer.is_exhausted
    run(explorer, true)
    assert explorer.is_exhausted


def test_halving_refuses_rounds_that_shrink() -> None:
    with pytest.raises(InvalidValue, match="at least rounds=8"):
        SuccessiveHalving(rounds=8, most_rounds=4)


@pytest.mark.parametrize("name", ["smooth", "rugged", "cliffs"])
def test_the_model_comes_nearer_than_chance(name: str) -> None:
    """Of 300 measurements, on landscapes of some thousand schedules."""
    landscape = LANDSCAPES[name]
    optimum = landscape.optimum_ns()
    ways: dict[str, Strategy] = {
        "model": ModelSearch(seed=1),
        "random": RandomSearch(seed=1),
    }
    by = {
        way: regret(found_by(one, landscape, 300, seed=1), landscape, optimum)
        for way, one in ways.items()
    }
    assert by["model"] <= 0.1
    assert by["model"] <= by["random"] + 0.01


def test_halving_is_less_taken_in_by_noise_than_a_single_look() -> None:
    """Samples vary by 20 %: who looks best after four rounds seldom is."""
    landscape = LANDSCAPES["flat"]
    optimum = landscape.optimum_ns()
    means = {}
    for make in (SuccessiveHalving, RandomSearch):
        found = [
            found_by(
                make(seed=seed), landscape, 1000, seed=seed, conditions="very noisy"
            )
            for seed in range(4)
        ]
        means[make] = sum(regret(one, landscape, optimum) for one in found)
    assert means[SuccessiveHalving] < means[RandomSearch]


def test_without_optuna_it_is_said_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(RuntimeUnavailable, match=r"accy-async\[search\]"):
        ModelSearch().begin(SMALL)


def test_optuna_says_nothing_on_the_terminal(capfd: pytest.CaptureFixture) -> None:
    run(*small(ModelSearch(startup=2)))
    assert capfd.readouterr() == ("", "")
