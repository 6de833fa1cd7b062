"""Launch candidates measured plainly, and thoroughly; what is kept of it."""

from __future__ import annotations

from typing import Any

import anyio
import attrs
import pytest

from accy_async.artifact import PlannedArgument
from accy_async.backends import BufferBinding
from accy_async.backends.recording.records import SyncScope
from accy_async.errors import DeviceError, TuningStopped
from accy_async.graph.options import LaunchOptions
from accy_async.tuning import (
    LaunchCandidateBenchmarkOptions,
    LaunchTuningCache,
    MeasureOptions,
    RaceRules,
    Standing,
    measure_launch_candidates,
    tune_launch,
)
from accy_async.tuning.launches import LaunchTuningOutcome
from tests.tuning.devices import ScriptedDevice, cancelling_at
from tests.tuning.samples import kernel

pytestmark = pytest.mark.anyio

QUICK = MeasureOptions(rules=RaceRules(min_rounds=8, max_rounds=48, repeats=0))


class Scene:
    """A kernel of three candidates on a device, and what it takes."""

    def __init__(self, times: dict[int, float] | None = None, **more: Any) -> None:
        taken = times or {32: 5e5, 64: 3e5, 128: 4e5}
        self.device = ScriptedDevice(
            lambda request: taken[request.geometry.threadgroup[0]]
        )
        self.kernel = kernel(**more)
        self.loaded = self.device.load_artifact(self.kernel.artifact)
        self.buffers = tuple(
            BufferBinding(
                handle=self.device.allocate_buffer(32), access=argument.access
            )
            for argument in self.kernel.arguments
        )
        self.live = self.device.live_objects()
        self.device.launches.clear()

    async def plainly(self, **more: Any) -> Any:
        return await measure_launch_candidates(
            self.device,
            self.kernel,
            self.loaded,
            self.buffers,
            options=LaunchCandidateBenchmarkOptions(**more),
        )

    async def tune(self) -> LaunchTuningOutcome:
        return await tune_launch(
            self.device, self.kernel, self.loaded, self.buffers, options=QUICK
        )


async def test_plain_measuring_launches_and_waits_exactly_so_often() -> None:
    scene = Scene()
    stream = scene.device.create_stream()
    syncs = scene.device.sync_count
    found = await scene.plainly(
        warmup=1, samples=2, base_options=LaunchOptions(stream=stream)
    )
    assert scene.device.launch_count == 3 * 3
    assert scene.device.sync_count - syncs == 3 * 3
    assert scene.device.last_sync_scope is SyncScope.STREAM
    assert scene.device.last_sync_stream is not None
    assert scene.device.last_sync_stream.id == stream.id
    assert [one.median_ns for one in found] == [500_000, 300_000, 400_000]
    assert [one.candidate_index for one in found] == [0, 1, 2]
    assert {one.sample_count for one in found} == {2}
    assert {launch.stream for launch in scene.device.launches} == {stream}


@pytest.mark.parametrize(
    ("synchronize", "scope"),
    [("stream", SyncScope.DEFAULT_STREAM), ("device", SyncScope.DEVICE)],
)
async def test_what_is_waited_for_is_chosen(synchronize: str, scope: SyncScope) -> None:
    scene = Scene()
    await scene.plainly(warmup=0, samples=1, synchronize=synchronize)
    assert scene.device.last_sync_scope is scope
    assert scene.device.live_objects() == scene.live


async def test_devices_without_a_clock_are_timed_from_the_host() -> None:
    scene = Scene()
    scene.device._capabilities = attrs.evolve(
        scene.device.capabilities, timing_resolution_ns=0.0
    )
    found = await scene.plainly(warmup=0, samples=3)
    assert all(one.median_ns > 0 for one in found)
    assert not any(str(one).startswith("create_event") for one in scene.device.calls)


async def test_buffers_that_are_updated_are_restored_before_each_launch() -> None:
    scene = Scene(arguments=(PlannedArgument(slot_id=0, access="read_write"),))
    await scene.plainly(warmup=1, samples=1)
    kinds = [call.kind for call in scene.device.calls]
    first = kinds.index("copy_buffer")  # the caller's, saved
    launches = [place for place, kind in enumerate(kinds) if kind == "launch"]
    assert all("copy_buffer" in kinds[place - 2 : place] for place in launches)
    assert first < launches[0]
    assert "copy_buffer" in kinds[launches[-1] :]  # and given back at the end
    assert scene.device.live_objects() == scene.live


async def test_fixed_kernels_and_those_without_work_are_skipped() -> None:
    scene = Scene(widths=(32,))
    assert await scene.plainly(warmup=1, samples=1) == ()
    assert (await scene.tune()).measured is None
    assert scene.device.launch_count == 0


async def test_plain_measuring_tells_failures_and_leaves_nothing() -> None:
    scene = Scene()
    scene.device.fail_execution(2)
    with pytest.raises(DeviceError, match="add_0 candidate 1"):
        await scene.plainly(warmup=1, samples=1)
    assert scene.device.live_objects() == scene.live


async def test_plain_measuring_may_be_cancelled_at_every_sample() -> None:
    place = 0
    while True:
        scene = Scene(arguments=(PlannedArgument(slot_id=0, access="read_write"),))
        with anyio.CancelScope() as scope:
            scene.device.on_call = cancelling_at(place, scope, "wait_")
            await scene.plainly(warmup=1, samples=1)
        scene.device.on_call = None
        assert scene.device.live_objects() == scene.live
        if not scope.cancelled_caught:
            break
        place += 1
    assert place == 6


async def test_the_tuned_winner_is_found_again() -> None:
    scene = Scene()
    outcome = await scene.tune()
    assert outcome.measured is not None
    assert outcome.measured.standing is Standing.FASTER
    (record,) = outcome.records
    assert record.candidate_index == 1
    assert record.median_ns == 300_000
    cache = LaunchTuningCache(scene.device.capabilities)
    cache.record_all([scene.kernel], outcome.records)
    selection = cache.selection(scene.kernel)
    assert selection is not None
    assert selection.candidate_index == 1
    assert scene.device.live_objects() == scene.live


async def test_equals_are_recorded_as_the_first() -> None:
    scene = Scene({32: 5e5, 64: 5e5, 128: 5e5})
    outcome = await scene.tune()
    assert outcome.measured is not None
    assert outcome.measured.standing is Standing.NO_DIFFERENCE
    assert [record.candidate_index for record in outcome.records] == [0]


async def test_what_was_measured_under_bad_conditions_is_not_kept() -> None:
    scene = Scene()
    before, turns = scene.device.durations, iter(range(10**9))
    scene.device.durations = lambda request: before(request) * (1.0 + next(turns) / 100)
    outcome = await scene.tune()
    assert outcome.measured is not None
    assert outcome.measured.winner == "1"
    assert "the clock drifts" in outcome.measured.why_not
    assert outcome.records == ()


async def test_a_lost_device_keeps_nothing() -> None:
    scene = Scene()
    scene.device.fail_execution(2, sticky=True)
    with pytest.raises(TuningStopped, match="'1' took the device"):
        await scene.tune()
