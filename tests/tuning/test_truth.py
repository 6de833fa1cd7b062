"""Truth trials: machines whose clocks lie, candidates whose truth is known."""

from __future__ import annotations

import pytest

from accy_async.tuning.race import Standing
from benchmarks import tuning_truth as truth

TRIALS = 100


@pytest.mark.parametrize("name", truth.MACHINES)
def test_the_better_candidate_is_found(name: str) -> None:
    """3 % better: the right one in at least 99 of 100 trials."""
    right = 0
    for seed in range(TRIALS):
        better = 1 + seed % 3
        winner, _, _ = truth.run_race(truth.machine(name, better, seed), seed)
        right += winner == better
    assert right >= 99


@pytest.mark.parametrize("name", truth.MACHINES)
def test_equals_are_called_equal(name: str) -> None:
    """No difference: said so in at least 95 of 100 trials."""
    right = 0
    for seed in range(TRIALS):
        _, verdict, _ = truth.run_race(truth.machine(name, None, seed), seed)
        right += verdict.standing is Standing.NO_DIFFERENCE
    assert right >= 95


def test_bad_clocks_are_noticed() -> None:
    """A steady machine is called steady; on one that is not the race is run again."""
    noticed = {
        name: sum(
            truth.run_race(truth.machine(name, None, seed), seed)[1].is_repeated
            for seed in range(20)
        )
        for name in ("steady", "noisy", "drift", "heavy tails", "everything")
    }
    assert noticed["steady"] == noticed["noisy"] == 0
    assert min(noticed["drift"], noticed["heavy tails"], noticed["everything"]) >= 18


def test_the_table_marks_every_way(capsys: pytest.CaptureFixture[str]) -> None:
    truth.main(["--trials", "1"])
    out = capsys.readouterr().out
    for way in ("rounds", *truth.PEERS, *truth.MACHINES):
        assert way in out
