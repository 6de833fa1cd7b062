"""The benchmarks of tuning say what they find, on a device whose times are known."""

from __future__ import annotations

from typing import TYPE_CHECKING

import accy_async
from accy_async.tuning import MeasureOptions, RaceRules
from benchmarks.gpu import tuning_agree, tuning_best
from benchmarks.gpu.tunables import PROGRAMS
from benchmarks.gpu.tuning_repeat import _line
from benchmarks.gpu.tuning_ways import Answer, _by_time
from tests.tuning.devices import ScriptedDevice

if TYPE_CHECKING:
    import pytest

PATIENCE_S = 100.0
"""The benchmarks give a busy host less; the answer is what counts here."""

QUICK = MeasureOptions(rules=RaceRules(min_rounds=8, max_rounds=16, repeats=0))


def device() -> ScriptedDevice:
    """One on which fewer blocks are faster, by much."""
    return ScriptedDevice(lambda request: 2e5 + 10.0 * request.geometry.grid[0])


def test_what_was_chosen_stands_beside_the_best(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    programs = {"sum": PROGRAMS["sum"], "chain": PROGRAMS["chain"]}
    monkeypatch.setattr(tuning_best, "PROGRAMS", programs)
    monkeypatch.setattr(tuning_best, "BESIDE", QUICK)
    monkeypatch.setattr(tuning_best, "LIMIT_S", PATIENCE_S)
    monkeypatch.setattr(tuning_best, "MOST_S", PATIENCE_S)
    accy_async.run(tuning_best.compare, device())
    told = capsys.readouterr().out
    assert "within 3 % of the best: 3 of 3, met" in told
    assert "sum, 2" in told


def test_two_tunings_that_agree_are_counted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tuning_agree, "PROGRAMS", {"scale": PROGRAMS["scale"]})
    monkeypatch.setattr(tuning_agree, "OPTIONS", QUICK)
    monkeypatch.setattr(tuning_agree, "LIMIT_S", PATIENCE_S)
    accy_async.run(tuning_agree.compare, device())
    told = capsys.readouterr().out
    assert "the same winner" in told
    assert "agreed, of all: 2 of 2, 100 %" in told


def test_what_knows_no_difference_is_taken_to_say_it_below_a_hundredth() -> None:
    assert _by_time(1.009, 1.0).says == "the same"
    assert _by_time(1.03, 1.0).says == "faster"
    assert _by_time(1.0, 1.03).says == "slower"


def test_an_answer_that_is_unsure_is_neither_right_nor_wrong() -> None:
    answers = [
        Answer(1.03, "faster"),
        Answer(1.01, "unsure", True),
        Answer(1, "slower"),
    ]
    right, wrong, *_ = _line("", answers, "faster", 0.01).split()
    assert (right, wrong) == ("1", "1")
    assert "1 not to be kept" in _line("", answers, "faster", 0.01)
