"""The device's times in the host's: in order, whatever the device's answers take."""

from __future__ import annotations

import random
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, cast

import pytest

from accy_async.graph import clock as clock_module
from accy_async.graph.clock import DeviceClock, Stamp, continued
from accy_async.observe.protocol import ClockAlignment


class Simulated:
    """A device with a clock of its own, which drifts, and answers that take time."""

    def __init__(self, *, drift: float, seed: int = 0) -> None:
        self.now = 5_000_000_000
        self.drift = drift
        self.slow_ns = 0
        self.rng = random.Random(seed)
        self.done: dict[Any, int] = {}
        self.ends: dict[Any, int] = {}
        self.destroyed: list[Any] = []

    def host_ns(self) -> int:
        self.now += 200
        return self.now

    def create_stream(self) -> Any:
        return SimpleNamespace(id=0)

    def create_event(self, *, timing: bool) -> Any:
        assert timing
        return object()

    def record_event(self, event: Any, stream: Any) -> int:
        """When the stream is idle, after a while, which is longer now and then."""
        self.now += 1_000
        late = self.rng.randrange(500, 2_000) + self.rng.randrange(self.slow_ns + 1)
        start = max(self.now + late, self.ends.get(stream.id, 0))
        self.done[event] = self.ends[stream.id] = start
        return 1

    def work(self, stream: Any, ns: int, after: int = 0) -> None:
        self.ends[stream.id] = max(self.now, after, self.ends.get(stream.id, 0)) + ns

    def is_event_complete(self, event: Any) -> bool:
        self.now += 500
        return self.now >= self.done[event]

    def elapsed_ns(self, first: Any, second: Any) -> float:
        return (self.done[second] - self.done[first]) * (1 + self.drift)

    def is_alive(self, event: Any) -> bool:
        return event not in self.destroyed

    def discard(self, event: Any) -> None:
        self.destroyed.append(event)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Simulated:
    device = Simulated(drift=20e-6)
    fake = SimpleNamespace(perf_counter_ns=device.host_ns)
    monkeypatch.setattr(clock_module, "time", fake)
    return device


def stamped(device: Simulated, clock: DeviceClock, stream: Any, ns: int) -> Stamp:
    """An operation of so many ns, not before the one ahead has ended."""
    device.ends[stream.id] = max(device.ends.values(), default=0) + 500
    stamp = clock.begin(stream)
    device.work(stream, ns)
    clock.end(stamp, stream)
    return stamp


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("slow_ns", [0, 400_000, 3_000_000])
def test_what_comes_after_another_is_told_to(
    device: Simulated, seed: int, slow_ns: int
) -> None:
    """Across streams and anchors, also where answers take up to a millisecond."""
    device.rng.seed(seed)
    device.slow_ns = slow_ns
    clock = DeviceClock(cast("Any", device))
    streams = [SimpleNamespace(id=number) for number in range(1, 4)]
    told: list[tuple[int, int]] = []
    for number in range(200):
        stamp = stamped(device, clock, streams[number % 3], 30_000)
        submitted, began = stamp.submitted_ns, device.done[stamp.start]
        device.now = max(device.now, device.done[stamp.end])
        start, end = clock.read(stamp)
        told.append((start, end))
        assert start >= submitted
        assert abs(start - began) <= 30_000 + 2 * slow_ns
        device.now += device.rng.randrange(60_000_000)  # some anchors pass
    for (_, end), (start, _) in pairwise(told):
        assert start >= end


def test_an_anchor_that_was_too_early_is_put_right_for_all() -> None:
    """What one operation shows of it holds for what comes after it as well."""
    anchor = clock_module._Anchor(
        cast("Any", None), ClockAlignment(device_ns=0, host_ns=1_000)
    )
    assert anchor.moment(500, not_before=1_200) == 1_500
    assert anchor.moment(600, not_before=1_850) == 1_850
    assert anchor.moment(700, not_before=0) == 1_950


def test_a_new_anchor_goes_on_from_the_old_one() -> None:
    old = ClockAlignment(device_ns=0, host_ns=10_000)
    exact = ClockAlignment(device_ns=0, host_ns=1_010_003, uncertainty_ns=5)
    new = continued(old, 1_000_000, exact)
    assert (new.to_host_ns(0), new.uncertainty_ns) == (1_010_000, 5)
    assert new.to_host_ns(700) - new.to_host_ns(0) == 700
    measured = ClockAlignment(device_ns=50, host_ns=1_010_350, uncertainty_ns=100)
    new = continued(old, 1_000_000, measured)  # 300 later, which is 200 too much
    assert new.to_host_ns(0) == 1_010_200
    assert new.to_host_ns(1_000_000) == 2_010_400  # and at the rate that says so
    again = continued(new, 1_000_000, ClockAlignment(device_ns=0, host_ns=2_010_400))
    assert again.to_host_ns(0) == 2_010_400


def test_a_device_too_busy_to_be_asked_keeps_the_anchor_it_has(
    device: Simulated,
) -> None:
    clock = DeviceClock(cast("Any", device))
    stream = cast("Any", SimpleNamespace(id=1))
    first = stamped(device, clock, stream, 1_000)
    device.slow_ns = 100_000_000
    device.now += 2_000_000_000
    second = stamped(device, clock, stream, 1_000)
    assert second.anchor is first.anchor
    third = stamped(device, clock, stream, 1_000)
    assert third.anchor is first.anchor
    assert len(device.destroyed) == 2  # it asked once, and waits a second to ask again
    device.slow_ns = 0
    device.now += 2_000_000_000
    fourth = stamped(device, clock, stream, 1_000)
    assert fourth.anchor is not first.anchor
    device.now = max(device.done.values()) + 1
    told = [clock.read(stamp) for stamp in (first, second, third, fourth)]
    assert told == sorted(told)
