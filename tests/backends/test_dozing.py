"""Waits whose length is known sleep by the loop's alarm, and look themselves.

The clock stands still and the alarm's timer rings by hand, so that each step is seen.
"""

from __future__ import annotations

from collections.abc import Iterator

import anyio
import anyio.lowlevel
import pytest
from anyio import wait_all_tasks_blocked

from accy_async.backends import arrival as polling
from accy_async.backends.alarm import Alarm
from accy_async.backends.bell import Bell
from accy_async.backends.cuda import arrival, timeline
from accy_async.backends.cuda.nativescanner import NativeScanner
from accy_async.backends.loops import current_bell
from accy_async.backends.pace import Pace
from accy_async.errors import DeviceError
from tests.backends.loops import LOOPS, PATIENCE_S, Options
from tests.backends.words import Clock, FakeTimer, WordsDevice, open_device

pytestmark = pytest.mark.anyio

LONG_NS = 10_000_000


@pytest.fixture(params=LOOPS)
def anyio_backend(request: pytest.FixtureRequest) -> Options:
    """The loops of every test here, uvloop's among them."""
    options: Options = request.param
    return options


class Scene:
    """A stream whose operations took 10 ms each so far, and the loop's alarm."""

    def __init__(self, device: WordsDevice, monkeypatch: pytest.MonkeyPatch) -> None:
        self.device = device
        self.clock = Clock()
        for module in (polling, arrival, timeline):
            monkeypatch.setattr(module, "monotonic_ns", self.clock)
        self.timer = FakeTimer()
        self.alarm = Alarm(self.timer, self.clock)
        self.begun = self.clock.now
        self.line = device.line(0)
        self.pace = self.learned(LONG_NS)
        self._monkeypatch = monkeypatch

    def learned(self, took_ns: int) -> Pace:
        """The pace of all waits here, as if they had been taking so long."""
        pace = self.device.hub.paces.of(0, 1)
        pace.count = 0
        for _ in range(8):
            pace.learn(took_ns)
        pace.spread = 0
        return pace

    def enter(self) -> Bell:
        """Give the loop that runs the alarm."""
        bell = current_bell()
        self._monkeypatch.setattr(bell, "_alarm", self.alarm)
        return bell

    def submit(self) -> int:
        self.line.advance()
        return self.line.submitted

    async def ring(self, lag_ns: int = 0) -> None:
        """The timer rings when it was set to, or so much later."""
        assert self.timer.at_ns
        self.clock.now = self.timer.at_ns + lag_ns
        self.alarm.answer()
        for _ in range(5):
            await anyio.lowlevel.checkpoint()

    def check_clean(self) -> None:
        """Nothing is left of any wait."""
        assert len(self.alarm) == 0
        assert not self.line._waiters
        assert self.line.armed is None


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    with open_device(NativeScanner) as device:
        yield Scene(device, monkeypatch)


async def test_up_in_time_it_polls_and_nobody_else_looks(scene: Scene) -> None:
    bell = scene.enter()
    lag = scene.alarm.lag.allowance
    with anyio.fail_after(PATIENCE_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(scene.line.wait_reached, scene.submit())
            await wait_all_tasks_blocked()
            assert scene.timer.at_ns == scene.begun + LONG_NS - lag
            assert bell.pollers == 0
            await scene.ring(lag_ns=lag // 5)
            assert bell.pollers == 1
            assert scene.line.armed is None
            scene.clock.now = scene.begun + LONG_NS + 7
            scene.device.do(scene.line)
    assert not scene.device.threads()
    scene.check_clean()
    assert scene.alarm.lag.allowance < lag
    assert scene.pace.noted == (LONG_NS + 7, 0), "learned before the next wait"
    assert bell.pollers == 0


async def test_many_that_sleep_burn_no_core(scene: Scene) -> None:
    """C42: sixteen waits on four streams: no look, no poll and no thread meanwhile."""
    bell = scene.enter()
    lines = [scene.line, *(scene.device.line(slot) for slot in (1, 2, 3))]
    scanner = scene.device.hub.scanner
    assert isinstance(scanner, NativeScanner)
    with anyio.fail_after(PATIENCE_S):
        async with anyio.create_task_group() as tasks:
            for line in lines:
                line.advance()
                for _ in range(4):
                    tasks.start_soon(line.wait_reached, line.submitted)
            await wait_all_tasks_blocked()
            assert len(scene.alarm) == 16
            assert bell.pollers == 0
            assert scanner.looks == 0
            assert not scene.device.threads()
            for line in lines:
                scene.device.do(line)
            await scene.ring()
    for line in lines:
        assert not line._waiters
        assert line.armed is None
    scene.check_clean()


async def test_without_much_time_left_it_does_not_sleep(scene: Scene) -> None:
    bell = scene.enter()
    scene.alarm.lag.allowance = LONG_NS - 10_000
    with anyio.fail_after(PATIENCE_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(scene.line.wait_reached, scene.submit())
            for _ in range(5):
                await anyio.lowlevel.checkpoint()
            assert bell.pollers == 1
            assert not scene.timer.times
            scene.device.do(scene.line)
    scene.check_clean()


async def test_up_too_late_it_learns_nothing_of_the_end(scene: Scene) -> None:
    scene.enter()
    lag = scene.alarm.lag.allowance
    with anyio.fail_after(PATIENCE_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(scene.line.wait_reached, scene.submit())
            await wait_all_tasks_blocked()
            scene.device.do(scene.line)
            await scene.ring(lag_ns=400_000)
    scene.check_clean()
    assert scene.pace.mean == LONG_NS
    assert scene.alarm.lag.allowance > lag


async def test_what_is_over_before_its_time_is_soon_learned_anew(scene: Scene) -> None:
    """Not at once: this wait may have begun late."""
    scene.enter()
    means = []
    with anyio.fail_after(PATIENCE_S):
        for _ in range(3):
            scene.alarm.lag.allowance = 150_000
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(scene.line.wait_reached, scene.submit())
                await wait_all_tasks_blocked()
                scene.device.do(scene.line)
                await scene.ring()
            scene.check_clean()
            means.append(scene.pace.mean)
            assert scene.pace.is_steady == (len(means) < 3)
    assert means == [LONG_NS, LONG_NS, 0]


async def test_what_does_not_come_is_left_to_the_hub(scene: Scene) -> None:
    bell = scene.enter()
    with anyio.fail_after(PATIENCE_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(scene.line.wait_reached, scene.submit())
            await wait_all_tasks_blocked()
            await scene.ring(400_000)
            scene.clock.now = scene.begun + 2 * LONG_NS
            await wait_all_tasks_blocked()
            assert bell.pollers == 0
            assert scene.line.armed == 1
            scene.device.do(scene.line)
    scene.check_clean()


@pytest.mark.parametrize("rings", [0, 1])
@pytest.mark.parametrize("has_finisher", [False, True])
async def test_cancelled_at_each_await(
    scene: Scene, rings: int, has_finisher: bool
) -> None:
    """And what is to be done on the host is then seen to by the hub."""
    bell = scene.enter()
    position = scene.submit()
    done: list[bool] = []
    with anyio.fail_after(PATIENCE_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(scene.line.wait_reached, position)
            await wait_all_tasks_blocked()
            if has_finisher:
                scene.line.finish_with(position, lambda: done.append(True))
                assert scene.line.armed is None
            for _ in range(rings):
                await scene.ring()
            tasks.cancel_scope.cancel()
        assert len(scene.alarm) == 0
        assert not scene.line._waiters
        assert bell.pollers == 0
        assert scene.line.armed == (position if has_finisher else None)
        scene.device.do(scene.line)
        await scene.line.wait_reached(position)
    assert len(done) == has_finisher


async def test_a_finisher_of_later_work_is_the_hub_s(scene: Scene) -> None:
    scene.enter()
    with anyio.fail_after(PATIENCE_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(scene.line.wait_reached, scene.submit())
            await wait_all_tasks_blocked()
            scene.line.finish_with(scene.submit(), lambda: None)
            assert scene.line.armed == 2
            scene.device.do(scene.line)


async def test_a_lost_device_ends_it(scene: Scene) -> None:
    scene.enter()
    position = scene.submit()
    with anyio.fail_after(PATIENCE_S), pytest.raises(DeviceError, match="gone"):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(scene.line.wait_reached, position)
            await wait_all_tasks_blocked()
            scene.line.lose(DeviceError("gone"))
        await scene.line.wait(position)
    scene.check_clean()


async def test_a_closed_stream_ends_it(scene: Scene) -> None:
    scene.enter()
    with anyio.fail_after(PATIENCE_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(scene.line.wait_reached, scene.submit())
            await wait_all_tasks_blocked()
            scene.line.detach()
    scene.check_clean()


async def test_beside_one_who_does_not_know(scene: Scene) -> None:
    """The hub watches for that one, and wakes both."""
    scene.enter()
    first, last = scene.submit(), scene.submit()
    with anyio.fail_after(PATIENCE_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(scene.line.wait_reached, first)
            await wait_all_tasks_blocked()
            assert scene.line.armed is None
            signal = arrival.Arrival(current_bell(), 0, scene.clock.now)
            scene.line.watch(last, signal)
            assert scene.line.armed == last
            scene.device.do(scene.line)
            await signal.wait()
    scene.check_clean()


async def test_what_is_far_is_watched_as_well(scene: Scene) -> None:
    """It might come sooner, and the scanner tells when."""
    scene.enter()
    scene.learned(100 * LONG_NS)
    with anyio.fail_after(PATIENCE_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(scene.line.wait_reached, scene.submit())
            await wait_all_tasks_blocked()
            assert scene.timer.at_ns > scene.begun + 99 * LONG_NS
            assert scene.line.armed == 1
            scene.device.do(scene.line)
    scene.check_clean()


async def test_the_hub_has_what_is_too_much_for_an_alarm(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.enter()
    monkeypatch.setattr(arrival, "_MOST_ALARMS", 1)
    position = scene.submit()
    with anyio.fail_after(PATIENCE_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(scene.line.wait_reached, position)
            await wait_all_tasks_blocked()
            assert scene.line.armed is None
            tasks.start_soon(scene.line.wait_reached, position)
            await wait_all_tasks_blocked()
            assert len(scene.alarm) == 1
            assert scene.line.armed == position
            scene.device.do(scene.line)
    scene.check_clean()


async def test_without_an_alarm_the_hub_has_it_all(scene: Scene) -> None:
    bell = scene.enter()
    bell._alarm, bell._has_alarm = None, False
    position = scene.submit()
    with anyio.fail_after(PATIENCE_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(scene.line.wait_reached, position)
            await wait_all_tasks_blocked()
            assert scene.line.armed == position
            scene.device.do(scene.line)
    bell._has_alarm = True
    scene.check_clean()


async def test_few_of_many_that_are_woken_poll(scene: Scene) -> None:
    """The others go back to sleep."""
    bell = scene.enter()
    position = scene.submit()
    with anyio.fail_after(PATIENCE_S):
        async with anyio.create_task_group() as tasks:
            for _ in range(20):
                tasks.start_soon(scene.line.wait_reached, position)
            await wait_all_tasks_blocked()
            assert len(scene.alarm) == 20
            await scene.ring(120_000)
            assert bell.pollers == polling.MOST_POLLERS
            assert scene.line.armed == position
            scene.device.do(scene.line)
    scene.check_clean()
