"""Alarms call back when they should, on every loop, and end with it."""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import random
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from time import monotonic_ns

import anyio
import anyio.lowlevel
import pytest

from accy_async.backends import alarm as module
from accy_async.backends import bell as bells
from accy_async.backends.alarm import Alarm, Lag, Timer
from accy_async.backends.bell import Bell
from accy_async.backends.loops import current_bell
from tests.backends.loops import LOOPS, PATIENCE_S, Options, run
from tests.backends.words import Clock, FakeTimer

pytestmark = pytest.mark.anyio


@pytest.fixture(params=LOOPS)
def anyio_backend(request: pytest.FixtureRequest) -> Options:
    """The loops of every test here, uvloop's among them."""
    options: Options = request.param
    return options


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def timer() -> FakeTimer:
    return FakeTimer()


@pytest.fixture
def alarm(timer: FakeTimer, clock: Clock) -> Iterator[Alarm]:
    made = Alarm(timer, clock)
    yield made
    made.close()
    assert timer.is_closed


def test_calls_come_in_the_order_of_their_times(
    alarm: Alarm, timer: FakeTimer, clock: Clock
) -> None:
    called: list[int] = []
    start = clock.now
    for at in (500_000, 100_000, 300_000):
        alarm.call_at(start + at, partial(called.append, at))
    assert timer.times == [start + 500_000, start + 100_000]
    for at in (100_000, 300_000, 500_000):
        assert timer.at_ns == start + at
        clock.now = start + at
        alarm.answer()
        assert called[-1] == at
    assert len(called) == 3
    assert timer.at_ns == 0
    assert len(alarm) == 0


def test_what_is_due_at_about_the_same_time_is_called_together(
    alarm: Alarm, timer: FakeTimer, clock: Clock
) -> None:
    called: list[int] = []
    start = clock.now
    for at in (0, 5_000, 200_000):
        alarm.call_at(start + at, partial(called.append, at))
    alarm.answer()
    assert called == [0, 5_000]
    assert timer.at_ns == start + 200_000


def test_what_is_cancelled_is_not_called(
    alarm: Alarm, timer: FakeTimer, clock: Clock
) -> None:
    """And nobody is woken for it."""
    called: list[int] = []
    start = clock.now
    first, second, third = (
        alarm.call_at(start + 1_000_000 * at, partial(called.append, at))
        for at in (1, 2, 3)
    )
    alarm.cancel(second)
    assert timer.at_ns == start + 1_000_000
    assert len(alarm) == 2
    alarm.cancel(first)
    alarm.cancel(first)
    assert timer.at_ns == start + 3_000_000
    clock.now = start + 5_000_000
    alarm.answer()
    assert called == [3]
    alarm.cancel(third)
    assert timer.at_ns == 0
    alarm.call_at(start + 9_000_000, partial(called.append, 9))
    assert timer.at_ns == start + 9_000_000


def test_a_call_may_set_and_cancel_alarms(alarm: Alarm, clock: Clock) -> None:
    called: list[str] = []
    start = clock.now

    def first() -> None:
        called.append("first")
        alarm.cancel(other)
        alarm.call_at(start, lambda: called.append("new"))

    alarm.call_at(start, first)
    other = alarm.call_at(start + 1, lambda: called.append("other"))
    alarm.answer()
    assert called == ["first", "new"]


@pytest.mark.parametrize("wrong_by", [-30_000, 0, 30_000])
def test_a_loop_is_up_in_time_every_other_time(wrong_by: int) -> None:
    """Whatever it takes, and by however much the ends that it is told are wrong."""
    lag, chance = Lag(), random.Random(1)
    assert lag.allowance == module._FIRST_LAG_NS
    in_time = 0
    for number in range(2000):
        took = chance.randint(80_000, 120_000)
        is_late = took > lag.allowance - wrong_by
        in_time += number >= 1000 and not is_late
        lag.learn(took, is_late=is_late)
    assert 480 <= in_time <= 520


def test_a_loop_that_is_held_up_once_is_expected_no_later() -> None:
    lag = Lag()
    for _ in range(20):
        lag.learn(100_000, is_late=True)
        lag.learn(100_000, is_late=False)
    before = lag.allowance
    lag.learn(10**9, is_late=True)
    assert lag.allowance - before < 15_000
    for _ in range(1000):
        lag.learn(10**9, is_late=True)
    assert lag.allowance == module._MOST_LAG_NS
    for _ in range(100_000):
        lag.learn(0, is_late=False)
    assert lag.allowance == 0


linux = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="only Linux has timers to watch"
)


def alarm_of(bell: Bell) -> Alarm:
    alarm = bell.alarm
    assert alarm is not None
    return alarm


@linux
async def test_the_loop_calls_at_the_time() -> None:
    alarm = alarm_of(current_bell())
    assert current_bell().alarm is alarm
    called = anyio.Event()
    begun, seen = monotonic_ns(), 0

    def call() -> None:
        nonlocal seen
        seen = monotonic_ns()
        called.set()

    never = alarm.call_at(begun + 500_000, lambda: pytest.fail("it was cancelled"))
    alarm.cancel(never)
    with anyio.fail_after(PATIENCE_S):
        for _ in range(2):
            alarm.call_at(begun + 1_000_000, call)
            await called.wait()
            called = anyio.Event()
    assert seen >= begun + 1_000_000 - module._TOGETHER_NS


@linux
async def test_a_timer_set_anew_does_not_ring_for_what_it_was_set_to() -> None:
    timer = Timer()
    timer.set(1)
    timer.set(monotonic_ns() + 10**12)
    timer.lower()
    timer.set(0)
    timer.lower()
    timer.close()
    timer.close()
    timer.set(5)  # of a loop that has ended


DESCRIPTORS = Path("/proc/self/fd")


@linux
def test_alarms_end_with_their_loops(anyio_backend: Options) -> None:
    """Whatever they were set to; and no descriptor is left."""
    alarms: list[Alarm] = []

    async def main() -> None:
        alarms.append(alarm_of(current_bell()))
        alarms[-1].call_at(monotonic_ns() + 10**12, lambda: None)
        await anyio.lowlevel.checkpoint()

    run(anyio_backend, main)
    gc.collect()
    before = len(os.listdir(DESCRIPTORS))
    for _ in range(5):
        run(anyio_backend, main)
        gc.collect()
    assert len(os.listdir(DESCRIPTORS)) <= before
    assert all(alarm.timer._descriptor == -1 for alarm in alarms)
    alarms[0].cancel(alarms[0].call_at(1, lambda: None))


async def test_without_timers_there_is_no_alarm(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bells, "open_timer", lambda: None)
    bell = current_bell()
    monkeypatch.setattr(bell, "_alarm", None)
    monkeypatch.setattr(bell, "_has_alarm", True)
    assert bell.alarm is None
    assert not bell._has_alarm


async def test_a_loop_that_watches_nothing_has_no_alarm(
    monkeypatch: pytest.MonkeyPatch, timer: FakeTimer
) -> None:
    def refuse(self: Bell, alarm: Alarm) -> None:
        raise NotImplementedError

    bell = current_bell()
    monkeypatch.setattr(bells, "open_timer", lambda: timer)
    monkeypatch.setattr(type(bell), "_watch", refuse)
    monkeypatch.setattr(bell, "_alarm", None)
    monkeypatch.setattr(bell, "_has_alarm", True)
    assert bell.alarm is None
    assert timer.is_closed


def test_no_timer_where_the_system_has_none_to_give(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse() -> Timer:
        raise OSError(errno.EMFILE, "too many open files")

    monkeypatch.setattr(module, "Timer", refuse)
    assert module.open_timer() is None
    monkeypatch.setattr(sys, "platform", "win32")
    assert module.open_timer() is None


def test_a_closed_loop_gets_no_alarm() -> None:
    loop = asyncio.new_event_loop()

    async def find() -> Bell:
        return current_bell()

    bell = loop.run_until_complete(find())
    loop.close()
    assert bell.alarm is None
