"""A measurement that is cancelled, or fails, and goes on from what was kept."""

from __future__ import annotations

import anyio
import anyio.lowlevel
import attrs
import pytest

from accy_async.errors import DeviceError, OutOfMemory
from accy_async.tuning import (
    CandidateStatus,
    KeptRounds,
    MeasureOptions,
    RaceRules,
    measure,
    open_measurement,
)
from tests.tuning.devices import ScriptedDevice, cancelling_at, candidates, noisy

pytestmark = pytest.mark.anyio

QUICK = MeasureOptions(rules=RaceRules(min_rounds=8, max_rounds=48, repeats=0))


async def test_cancelling_at_any_await_leaves_nothing() -> None:
    """Each await of a measurement in turn is where it is cancelled."""
    options = attrs.evolve(
        QUICK, rules=RaceRules(min_rounds=4, max_rounds=4, repeats=0), warmup=1
    )
    places = 0
    while True:
        device = ScriptedDevice(noisy([1e5, 0.9e5]))
        with anyio.CancelScope() as scope:
            device.on_call = cancelling_at(places, scope)
            await measure(device, candidates(device, 2, "read_write"), options)
        device.on_call = None
        assert device.left() == {}
        written = {launch.buffer_ids[0] for launch in device.launches}
        assert device.target.id not in written
        if not scope.cancelled_caught:
            break
        places += 1
    assert places >= 2 + 2 + 8


async def test_a_cancelled_measurement_goes_on_from_what_was_kept() -> None:
    """C75: what was measured before the cancel is not measured again."""
    device = ScriptedDevice(noisy([3e5, 2.7e5, 3e5]))
    kept: KeptRounds | None = None
    with anyio.CancelScope() as scope:
        async with open_measurement(device, candidates(device, 3), QUICK) as measuring:
            async for progress in measuring:
                kept = measuring.kept
                partial = measuring.outcome()
                if progress.rounds == 5:
                    scope.cancel()
                    await anyio.lowlevel.checkpoint()
    assert kept is not None
    assert len(kept.rounds) == 5
    assert not partial.is_storable
    assert partial.why_not == "not measured to the end"
    before = device.launch_count
    outcome = await measure(device, candidates(device, 3), QUICK, kept=kept)
    assert outcome.winner == "c1"
    assert outcome.verdict is not None
    fresh = (device.launch_count - before - 3 - 2 * 3) / 3
    assert fresh <= outcome.verdict.rounds - 5
    assert outcome.is_storable


async def test_failing_calls_leave_nothing_and_are_told() -> None:
    """Every backend call of a measurement fails in turn, once."""
    options = attrs.evolve(
        QUICK, rules=RaceRules(min_rounds=4, max_rounds=4, repeats=0), warmup=0
    )
    nth = 1
    while True:
        device = ScriptedDevice(noisy([1e5, 0.9e5]))
        device.fail("*", nth)
        try:
            outcome = await measure(device, candidates(device, 2), options)
        except (OutOfMemory, DeviceError, ExceptionGroup):
            pass
        else:
            statuses = {one.status for one in outcome.candidates}
            if device.has_planned_failures:  # there are no more calls
                assert statuses == {CandidateStatus.MEASURED}
                break
        assert device.left() == {}, nth
        nth += 1
    assert nth > 20
