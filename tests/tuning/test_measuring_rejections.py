"""Candidates that fail, take too long, or take the device with them."""

from __future__ import annotations

import attrs
import pytest

from accy_async.backends import LaunchRequest
from accy_async.errors import DeviceLost, TuningStopped
from accy_async.tuning import (
    CandidateStatus,
    MeasureOptions,
    RaceRules,
    measure,
    open_measurement,
)
from tests.tuning.devices import Durations, ScriptedDevice, candidates, noisy, number_of

pytestmark = pytest.mark.anyio

QUICK = MeasureOptions(rules=RaceRules(min_rounds=8, max_rounds=48, repeats=0))


async def test_a_candidate_that_fails_is_rejected_and_the_others_go_on() -> None:
    device = ScriptedDevice(noisy([1e5, 0.5e5, 0.9e5]))
    device.fail_execution(2, message="misaligned address")
    outcome = await measure(device, candidates(device, 3), QUICK)
    failed = outcome.candidate("c1")
    assert failed.status is CandidateStatus.FAILED
    assert "misaligned address" in failed.reason
    assert failed.median_ns is None
    assert outcome.winner == "c2"
    assert device.left() == {}


async def test_one_that_cannot_be_launched_is_rejected() -> None:
    device = ScriptedDevice(noisy([1e5, 1e5, 0.9e5]))
    given = candidates(device, 3)
    too_wide = attrs.evolve(
        given[1].request,
        geometry=attrs.evolve(given[1].request.geometry, threadgroup=(1025, 1, 1)),
    )
    given[1] = attrs.evolve(given[1], request=too_wide)
    outcome = await measure(device, given, QUICK)
    assert outcome.candidate("c1").status is CandidateStatus.FAILED
    assert "1025" in outcome.candidate("c1").reason
    assert outcome.winner == "c2"


async def test_the_baseline_is_the_first_that_works() -> None:
    device = ScriptedDevice(noisy([0.1e5, 1e5, 0.9e5]))
    device.fail_execution(1)
    outcome = await measure(device, candidates(device, 3), QUICK)
    assert outcome.baseline == "c1"
    assert outcome.winner == "c2"


async def test_a_baseline_that_fails_later_hands_over() -> None:
    device = ScriptedDevice(noisy([1e5, 0.9e5, 1.2e5]))
    async with open_measurement(device, candidates(device, 3), QUICK) as measuring:
        async for progress in measuring:
            if progress.step == "round" and progress.rounds == 3:
                device.durations = failing_once(device, 0)
        outcome = measuring.outcome()
    assert outcome.candidate("c0").status is CandidateStatus.FAILED
    assert outcome.baseline == "c1"
    assert outcome.winner == "c1"
    assert device.left() == {}


def failing_once(device: ScriptedDevice, number: int) -> Durations:
    """The same durations; and the candidate's next launch fails."""
    before = device.durations
    has_failed = False

    def duration(request: LaunchRequest) -> float:
        nonlocal has_failed
        if number_of(request) == number and not has_failed:
            has_failed = True
            device.fail_next_launch()
        return before(request)

    return duration


async def test_when_nothing_works_nothing_wins() -> None:
    device = ScriptedDevice(noisy([1e5, 1e5]))
    device.fail_execution(1)
    device.fail_execution(2)
    outcome = await measure(device, candidates(device, 2), QUICK)
    assert outcome.winner is None
    assert outcome.baseline is None
    assert outcome.why_not == "no candidate works"
    assert device.left() == {}


@pytest.mark.parametrize("is_silent", [False, True])
async def test_one_that_takes_the_device_with_it_stops_tuning(is_silent: bool) -> None:
    device = ScriptedDevice(noisy([1e5, 1e5, 1e5]))
    device.fail_execution(2, sticky=not is_silent, silent=is_silent)
    given = candidates(device, 3)
    options = attrs.evolve(QUICK, time_limit_s=0.2)
    with pytest.raises(TuningStopped, match="'c1'") as caught:
        async with open_measurement(device, given, options) as measuring:
            try:
                async for _ in measuring:
                    if is_silent and "c1" in measuring._hung:
                        device.find_fault()
            finally:
                outcome = measuring.outcome()
    if not is_silent:
        assert caught.value.candidate == "c1"
        assert caught.value.not_tried == ("c2",)
        assert outcome.candidate("c2").status is CandidateStatus.NOT_TRIED
    assert not outcome.is_storable
    assert device.left() == {} or not device.is_healthy


async def test_one_that_takes_the_device_with_it_by_and_by_is_named_too() -> None:
    """Its sample only times out; that the device is gone shows afterwards."""
    device = ScriptedDevice(noisy([1e5, 1e5, 1e5]))
    hold_at(device, 1)
    device.fail("create_stream", 2, DeviceLost("the device is lost: it hung"))
    options = attrs.evolve(QUICK, time_limit_s=0.05)
    with pytest.raises(TuningStopped, match="'c1'") as caught:
        await measure(device, candidates(device, 3), options)
    assert caught.value.candidate == "c1"
    assert caught.value.not_tried == ("c2",)
    device.release_all()
    assert device.left() == {}


async def test_one_that_never_ends_is_given_up_and_the_others_go_on() -> None:
    """C35: a run has its time limit."""
    device = ScriptedDevice(noisy([1e5, 1e5, 0.9e5]))
    options = attrs.evolve(QUICK, time_limit_s=0.05)
    hold_at(device, 1)
    outcome = await measure(device, candidates(device, 3), options)
    hung = outcome.candidate("c1")
    assert hung.status is CandidateStatus.TIMED_OUT
    assert "0.05 s" in hung.reason
    assert outcome.winner == "c2"
    assert not outcome.is_storable
    assert "'c1', which never ended" in outcome.why_not
    device.release_all()
    assert device.left() == {}


async def test_where_the_device_is_held_no_more_are_tried() -> None:
    device = ScriptedDevice(noisy([1e5] * 5))
    options = attrs.evolve(QUICK, time_limit_s=0.05)
    hold_at(device, 1, 2)
    outcome = await measure(device, candidates(device, 5), options)
    assert [one.status for one in outcome.candidates] == [
        CandidateStatus.MEASURED,
        CandidateStatus.TIMED_OUT,
        CandidateStatus.TIMED_OUT,
        CandidateStatus.NOT_TRIED,
        CandidateStatus.NOT_TRIED,
    ]
    assert outcome.candidate("c3").reason == "the device is held by 'c1'"
    device.release_all()
    assert device.left() == {}


def hold_at(device: ScriptedDevice, *numbers: int) -> None:
    """Hold the stream of these candidates' launches for ever."""
    before = device.durations

    def duration(request: LaunchRequest) -> float:
        if number_of(request) in numbers:
            for stream in device._streams:
                if stream.id is not None and stream.timeline.submitted:
                    stream.is_held = True
        return before(request)

    device.durations = duration
