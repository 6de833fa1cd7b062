"""How long waits take, as it is learned from those before them."""

from __future__ import annotations

import pytest

from accy_async.backends import pace as pace_module
from accy_async.backends.pace import Pace, Paces

pytestmark = pytest.mark.anyio


def test_waits_of_one_kind_are_learned() -> None:
    paces = Paces()
    pace = paces.of("kernel", 1)
    assert pace.patience == pace_module._FIRST_POLLED_NS
    for _ in range(20):
        pace.learn(10_000_000)
    assert pace.patience == 0
    near, late = pace.window
    assert 9_800_000 < near < 10_000_000 < late < 10_200_000
    for _ in range(40):
        pace.learn(30_000)
    assert 30_000 <= pace.patience < 150_000
    for _ in range(40):
        pace.learn(900_000)
    assert 900_000 <= pace.patience < 1_200_000  # they all take the same
    for number in range(40):
        pace.learn(500_000 + 800_000 * (number % 2))
    assert pace.patience == 0
    assert paces.of("kernel", 1) is pace
    assert paces.of("kernel", 2) is not pace
    assert paces.of("kernel", 1000) is paces.of("kernel", 600)


def test_single_waits_that_took_something_else_are_left_out() -> None:
    """Three in a row are the new length."""
    pace = Pace()
    for _ in range(8):
        pace.learn(10_000_000)
    mean, spread = pace.mean, pace.spread
    for odd in (14_000_000, 3_000_000):
        for _ in range(2):
            pace.learn(odd)
        assert (pace.mean, pace.spread) == (mean, spread)
        pace.learn(10_000_000)
        mean, spread = pace.mean, pace.spread
    for _ in range(3):
        pace.learn(5_000_000)
    assert pace.mean == 5_000_000
    assert not pace.is_steady
    for _ in range(4):
        pace.learn(5_000_000)
    assert pace.is_steady


def test_a_first_wait_seen_late_is_looked_for_hard_the_next_time() -> None:
    """The next end is within the window, whenever it was; and counts for itself."""
    pace = Pace()
    pace.learn(10_900_000, blur=1_000_000)
    assert not pace.is_steady
    near, late = pace.window
    assert 9_000_000 < near < 9_900_000
    assert late > 10_900_000
    pace.learn(9_970_000)
    assert pace.mean == 9_970_000
    pace.learn(9_970_000)
    assert pace.is_steady
    near, late = pace.window
    assert late - near < 500_000


def test_what_is_seen_late_changes_nothing_that_is_known_better() -> None:
    pace = Pace()
    for _ in range(8):
        pace.learn(10_000_000)
    before = pace.spread
    pace.learn(10_300_000, blur=5_000_000)
    assert (pace.mean, pace.spread) == (10_000_000, before)
    assert pace.is_steady
    for _ in range(2):
        pace.learn(12_000_000, blur=200_000)
    assert pace.is_steady
    pace.learn(12_000_000, blur=200_000)
    assert not pace.is_steady
    near, late = pace.window
    assert near < 11_800_000 < 12_000_000 < late


def test_what_was_never_seen_exactly_is_not_steady() -> None:
    """However little it seems to differ: it would be waited for at the wrong time."""
    pace = Pace()
    for _ in range(8):
        pace.learn(10_200_000, blur=200_000)
    assert not pace.is_steady
    near, late = pace.window
    assert near < 10_000_000 < 10_200_000 < late


def test_kinds_of_waits_are_forgotten_in_the_end() -> None:
    paces = Paces()
    for number in range(5 * pace_module._KEPT):
        paces.of(number, 1)
    assert len(paces._paces) <= pace_module._KEPT


def test_window_of_what_may_end_at_any_time_is_none() -> None:
    """It is looked for from the beginning on, with pauses that grow."""
    pace = Pace()
    assert pace.window == (0, 0)
    for took in (1_000_000, 20_000_000) * 10:
        pace.learn(took)
    near, late = pace.window
    assert not pace.is_steady
    assert near == late < 1_000_000
