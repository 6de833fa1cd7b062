"""Polling: no turn of the loop is under way when the end is expected."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, cast

import pytest

from accy_async.backends import arrival
from accy_async.backends.arrival import arrive, poll
from accy_async.backends.bell import Bell
from accy_async.backends.pace import SPIN_NS, Pace, Paces
from tests.backends.words import Clock


class Loop:
    """A loop whose turns take a while, and whatever else comes in between."""

    def __init__(self, clock: Clock, turn_ns: int) -> None:
        self.pollers = 0
        self.turn_ns = 0
        self.turns = 0
        self.takes_ns = turn_ns
        self._clock = clock

    async def turn(self) -> None:
        self.turns += 1
        self._clock.now += self.takes_ns


class Line:
    """A stream that comes to its end at a time."""

    can_poll = True

    def __init__(self, clock: Clock, end: int) -> None:
        self.end = end
        self.is_quick = False
        self.paces = Paces()
        self.longest_spin = 0
        self._clock = clock

    def kind_at(self, position: int) -> int:
        return position

    def has_come(self, position: int) -> bool:
        return self._clock.now >= self.end

    def spin(self, position: int, limit_ns: int) -> None:
        self.longest_spin = max(self.longest_spin, limit_ns)
        now = self._clock.now
        self._clock.now = max(now, min(self.end, now + limit_ns))

    async def sleep(
        self, position: int, bell: Bell, begun: int, pace: Pace
    ) -> tuple[int, int]:
        self._clock.now = self.end + 40_000
        return self.end, self.end


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(arrival, "monotonic_ns", clock)
    return clock


def ended(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """What a coroutine that waits for nothing returns."""
    with pytest.raises(StopIteration) as stopped:
        coroutine.send(None)
    return stopped.value.value


@pytest.mark.parametrize("turn_ns", [500, 2_600, 4_700, 9_900])
@pytest.mark.parametrize("length_ns", [1, 9_000, 14_000, 27_000, 80_500, 187_000])
@pytest.mark.parametrize("early_ns", [1, 2_000])
def test_an_expected_end_is_seen_at_once(
    clock: Clock, turn_ns: int, length_ns: int, early_ns: int
) -> None:
    """However it falls among the turns; none comes later than before."""
    loop, begun = Loop(clock, turn_ns), clock.now
    loop.turn_ns = turn_ns
    line = Line(clock, begun + length_ns)
    until, near = begun + 10**9, line.end - early_ns
    assert ended(poll(line, 1, cast("Bell", loop), until, near)) == 0
    assert clock.now == line.end
    assert line.longest_spin <= SPIN_NS
    assert loop.turns >= length_ns // (SPIN_NS + turn_ns) - 1
    assert loop.pollers == 0


def test_an_unknown_end_is_seen_after_the_turn_that_it_falls_into(clock: Clock) -> None:
    """And it is told how long nobody had looked."""
    loop, begun = Loop(clock, 4_000), clock.now
    line = Line(clock, begun + SPIN_NS + 1_000)
    assert ended(poll(line, 1, cast("Bell", loop), begun + 10**9)) == 4_000
    assert clock.now == begun + SPIN_NS + 4_000


def test_what_does_not_come_is_given_up(clock: Clock) -> None:
    loop, begun = Loop(clock, 4_000), clock.now
    line = Line(clock, begun + 10**9)
    near = begun + 5_000
    assert ended(poll(line, 1, cast("Bell", loop), begun + 50_000, near)) == -1
    assert 50_000 <= clock.now - begun <= 50_000 + SPIN_NS + 4_000


def test_how_long_turns_take_is_learned(clock: Clock) -> None:
    """Others' turns, which can be of any length, are not expected to go on."""
    loop = Loop(clock, 4_000)
    for _ in range(3):
        line = Line(clock, clock.now + 200_000)
        ended(poll(line, 1, cast("Bell", loop), clock.now + 10**9))
    assert 3_900 <= loop.turn_ns <= 4_000
    loop.takes_ns = 10**8
    ended(poll(Line(clock, clock.now + 2 * 10**8), 1, cast("Bell", loop), 10**15))
    assert loop.turn_ns < SPIN_NS


def test_an_end_is_near_once_some_were_seen() -> None:
    pace = Pace()
    nears = []
    for _ in range(6):
        pace.learn(50_000)
        nears.append(pace.near)
    assert nears[:2] == [0, 0]
    assert nears == sorted(nears)
    assert 45_000 <= nears[2] <= nears[-1] < 50_000
    pace = Pace()
    for took in (20_000, 80_000, 20_000, 80_000):
        pace.learn(took)
    assert pace.mean - pace.near == SPIN_NS // 2, "no more than a stretch covers"


def test_what_is_noted_is_learned_before_the_next_wait() -> None:
    paces = Paces()
    pace = paces.of("work", 1)
    pace.note(1_000)
    assert (pace.count, pace.mean) == (0, 0)
    assert paces.of("work", 1) is pace
    assert (pace.count, pace.mean, pace.noted) == (1, 1_000, None)
    pace.note(2_000)
    pace.note(3_000)
    assert pace.count == 2, "the one before, at the latest"
    assert pace.noted == (3_000, 0)


def test_an_end_within_a_turn_is_learned_from_by_half_the_turn(clock: Clock) -> None:
    """So an end that is seen late is not expected late the next time."""
    loop = Loop(clock, 4_000)
    line = Line(clock, clock.now + 4_000 + SPIN_NS + 1_000)
    ended(arrive(line, 1, cast("Bell", loop), 0))
    pace = line.paces.of(1, 1)
    assert pace.mean == 4_000 + SPIN_NS + 4_000 - 2_000
    assert not line.is_quick


@pytest.mark.parametrize(("length_ns", "is_quick"), [(3, True), (8_000, True), (13, 1)])
def test_what_ends_soon_after_a_turn_is_quick(
    clock: Clock, length_ns: int, is_quick: bool
) -> None:
    loop = Loop(clock, 4_000)
    line = Line(clock, clock.now + length_ns)
    ended(arrive(line, 1, cast("Bell", loop), 0))
    assert line.is_quick == is_quick
    assert loop.turns == 1


def test_who_has_had_a_turn_gets_no_other_before_looking(clock: Clock) -> None:
    """What was asked for in vain: and it is quick no more."""
    loop, begun = Loop(clock, 4_000), clock.now
    clock.now += 14_000
    line = Line(clock, begun + 15_000)
    ended(arrive(line, 1, cast("Bell", loop), 0, begun))
    assert (loop.turns, clock.now) == (0, line.end)
    assert not line.is_quick
    assert line.paces.of(1, 1).mean == 15_000
