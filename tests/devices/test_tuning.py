"""Tuning on several devices: a tuner, a cache and records of each, one store."""

from __future__ import annotations

from pathlib import Path

import anyio
import numpy as np
import pytest

from accy_async.artifact.store import ArtifactStore
from accy_async.backends import BufferBinding, RecordingBackend
from accy_async.errors import (
    InvalidType,
    InvalidValue,
    LaunchArgumentMismatch,
    SessionClosed,
)
from accy_async.session import open_session
from accy_async.tuning import MeasureOptions, RaceRules, TuningStore
from accy_async.tuning.pacing import TuningBudget
from tests.devices.parts import ring
from tests.fragment.plans import ADD
from tests.tuning.devices import ScriptedDevice, candidates, noisy
from tests.tuning.samples import kernel

pytestmark = pytest.mark.anyio

FAST = MeasureOptions(
    rules=RaceRules(min_rounds=4, max_rounds=4, repeats=0), warmup=0, check=None
)


def devices() -> list[ScriptedDevice]:
    """Two of one kind, on which other candidates are fastest."""
    times = [[900.0, 400.0, 0.0, 700.0], [900.0, 700.0, 0.0, 300.0]]
    return [
        ScriptedDevice(noisy(one, noise=0.0), index=index)
        for index, one in enumerate(times)
    ]


def buffers(device: ScriptedDevice) -> list[BufferBinding]:
    return [
        BufferBinding(handle=device.target, access="write_only"),
        BufferBinding(handle=device.source, access="read_only"),
        BufferBinding(handle=device.source, access="read_only"),
    ]


async def test_each_device_has_winners_of_its_own(tmp_path: Path) -> None:
    """Found by where the kernel is loaded; the store has one for each kind."""
    store = TuningStore(ArtifactStore(tmp_path))
    both = devices()
    planned = kernel()
    async with open_session(devices=both) as session:
        async with session.tuning(store=store) as tuner:
            for number, device in enumerate(both):
                loaded = device.load_artifact(planned.artifact)
                outcome = await tuner.tune_launch(
                    planned, loaded, buffers(device), options=FAST
                )
                (record,) = outcome.records
                assert record.candidate_index == number + 1
                device.destroy(loaded)
            chosen = {
                name: cache.selection(planned) for name, cache in tuner.caches.items()
            }
            assert {n: c and c.candidate_index for n, c in chosen.items()} == {
                "cuda:0": 1,
                "cuda:1": 2,
            }
            assert tuner.on(1) is tuner.on("cuda:1")
        with pytest.raises(SessionClosed, match="tuning"):
            await tuner.on(0).measure(candidates(both[0], 2), FAST)
    assert len(store.load("launch_tuning")) == 1  # of one kind the faster one
    async with (
        open_session(devices=both) as session,
        session.tuning(store=store) as tuner,
    ):
        known = [cache.selection(planned) for cache in tuner.caches.values()]
        assert [one and one.candidate_index for one in known] == [2, 2]
    assert all(not device.left() for device in both)


async def test_candidates_are_measured_where_they_are_loaded() -> None:
    both = devices()
    async with (
        open_session(devices=both) as session,
        session.tuning(store=None) as tuner,
    ):
        found = await tuner.measure(candidates(both[1], 2), FAST)
        assert found.winner == "c1"
        assert both[0].launch_count == 0
    assert all(not device.left() for device in both)


async def test_fragments_are_tuned_on_each_device_that_has_them() -> None:
    """In the background, with the arguments of the first call there."""
    both = [
        ScriptedDevice(lambda request: float(request.geometry.grid[0]), index=index)
        for index in range(3)
    ]
    x = np.arange(8, dtype=np.float32)
    async with open_session(devices=both) as session:
        fragment = await session.load_fragment(ADD, tuning=None)
        await fragment.on(0)
        await fragment.on(1)
        budget = TuningBudget(share=1.0, most_wait_s=0.0)
        async with session.tuning(
            fragment, store=None, options=FAST, budget=budget
        ) as tuner:
            assert not tuner.is_complete
            for number in range(2):
                await fragment(await session.upload(x, device=number), x)
            await tuner.wait()
            assert tuner.is_complete
            results = tuner.results
            assert tuner.skipped["cuda:0"] == tuner.skipped["cuda:1"] == {}
            assert "not loaded there" in tuner.skipped["cuda:2"][fragment.name]
        assert {name: len(found) for name, found in results.items()} == {
            "cuda:0": 1,
            "cuda:1": 1,
            "cuda:2": 0,
        }
        with pytest.raises(InvalidType, match=r"fragments\[0\].*a MultiFragment"):
            async with session.tuning(await fragment.on(0)):
                pytest.fail("it is one device's")
        async with open_session(devices=[RecordingBackend(index=9)]) as other:
            with pytest.raises(InvalidValue, match="that this session loaded"):
                async with other.tuning(fragment):
                    pytest.fail("it is another session's")


async def test_what_is_on_two_devices_or_on_none_is_refused() -> None:
    both = devices()
    stranger = ScriptedDevice(noisy([1.0]), index=5)
    async with (
        open_session(devices=both) as session,
        session.tuning(store=None) as tuner,
    ):
        mixed = [candidates(both[0], 1)[0], candidates(both[1], 2)[1]]
        with pytest.raises(
            LaunchArgumentMismatch,
            match=r"'c0' is loaded on cuda:0 and 'c1' on cuda:1: times of two",
        ):
            await tuner.measure(mixed, FAST)
        with pytest.raises(
            LaunchArgumentMismatch,
            match=r"candidates\[0\]: it .*cuda:5.*cuda:0, cuda:1",
        ):
            await tuner.measure(candidates(stranger, 1), FAST)
        with pytest.raises(LaunchArgumentMismatch, match=r"cuda:5"):
            await tuner.tune_launch(kernel(), stranger.loaded, buffers(both[0]))
        with pytest.raises(InvalidType, match="a LoadedArtifact"):
            await tuner.tune_launch(kernel(), "k", [])  # type: ignore[arg-type]
        with pytest.raises(InvalidType, match="a Candidate"):
            await tuner.measure(["c"])  # type: ignore[list-item]
        with pytest.raises(InvalidValue, match="at least one"):
            await tuner.measure([])
        with pytest.raises(InvalidValue, match="one of cuda:0, cuda:1"):
            tuner.on("cuda:2")
    assert [device.launch_count for device in (*both, stranger)] == [0, 0, 0]
    with pytest.raises(SessionClosed, match="tuning"):
        async with session.tuning(store=None):
            pytest.fail("the session is closed")


async def test_a_run_over_both_devices_is_work_of_each() -> None:
    """What an exclusive tuner measures beside it on either is not to be stored."""
    both = devices()
    async with (
        open_session(devices=both) as session,
        session.tuning(exclusive=True, store=None) as tuner,
    ):
        both[1].hold_all()
        run = session.start(ring(session.devices), {"out": np.zeros(4, np.uint32)})
        await anyio.wait_all_tasks_blocked()
        found = await tuner.measure(candidates(both[0], 2), FAST)
        assert found.why_not.startswith("not alone")
        both[1].release_all()
        await run
        found = await tuner.measure(candidates(both[0], 2), FAST)
        assert found.is_storable
    assert all(not device.left() for device in both)
