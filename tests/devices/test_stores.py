"""A session's tuning stores: opened once for all of its devices."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import anyio
import pytest

from accy_async.artifact.store import ArtifactStore
from accy_async.backends import BufferBinding
from accy_async.session import MultiSession, open_session
from accy_async.session.stores import OpenedStores
from accy_async.tuning import MeasureOptions, RaceRules, TuningStore
from accy_async.tuning.records import StoredRecords
from accy_async.tuning.store import CODECS
from tests.fragment.plans import ADD
from tests.tuning.devices import ScriptedDevice, noisy
from tests.tuning.samples import kernel

pytestmark = pytest.mark.anyio

FAST = MeasureOptions(
    rules=RaceRules(min_rounds=4, max_rounds=4, repeats=0), warmup=0, check=None
)


class CountingStore(TuningStore):
    """A store that counts how often it was opened; each time once for every kind."""

    def __init__(self, folder: Path) -> None:
        super().__init__(ArtifactStore(folder))
        self.kinds: list[str] = []

    @property
    def openings(self) -> int:
        assert sorted(self.kinds) == sorted(self.kinds[: len(CODECS)] * self._times)
        return self._times

    @property
    def _times(self) -> int:
        return len(self.kinds) // len(CODECS)

    def open(self, kind: str) -> StoredRecords[Any]:
        self.kinds.append(kind)
        return super().open(kind)


def doubled(x: Any) -> Any:
    return x + x


async def compile_on(session: MultiSession, device: int, store: TuningStore) -> None:
    """Compile something there, which looks for schedules in the store."""
    await session.on(device).compile_fragment(
        doubled, "f32[8]", tuning=store, cache=False
    )


async def test_devices_look_in_one_opening_of_a_store(tmp_path: Path) -> None:
    """Whichever asks first, at once or later; blocks of tuning open it anew, once."""
    store = CountingStore(tmp_path)
    again = CountingStore(tmp_path)  # as the user's own is another object each time
    async with open_session(devices=["cpu:0", "cpu:1"]) as session:
        async with anyio.create_task_group() as group:
            for device in (0, 1):
                group.start_soon(compile_on, session, device, store)
        assert store.openings == 1
        await compile_on(session, 1, again)
        assert again.openings == 0
        for times in (2, 3):
            async with session.tuning(store=store):
                assert store.openings == times
            await compile_on(session, 0, store)
            assert store.openings == times
        async with session.on(1).tuning(store=store):
            assert store.openings == 4
    async with open_session(devices=["cpu:0", "cpu:1"]) as session:
        await compile_on(session, 0, store)
        assert store.openings == 5  # what another session opened is its own


async def test_what_one_device_keeps_another_finds_that_looks_later(
    tmp_path: Path,
) -> None:
    """Devices of one kind have one winner: the store is opened again for it."""
    store = CountingStore(tmp_path)
    both = [
        ScriptedDevice(noisy([900.0, 400.0, 700.0, 800.0], noise=0.0), index=index)
        for index in range(2)
    ]
    planned = kernel()
    async with open_session(devices=both) as session:
        async with session.on(0).tuning(store=store) as tuner:
            device = both[0]
            loaded = device.load_artifact(planned.artifact)
            bound = [
                BufferBinding(handle=device.target, access="write_only"),
                BufferBinding(handle=device.source, access="read_only"),
                BufferBinding(handle=device.source, access="read_only"),
            ]
            outcome = await tuner.tune_launch(planned, loaded, bound, options=FAST)
            assert outcome.records
            device.destroy(loaded)
        assert store.openings == 1
        async with await session.on(1).load_fragment(ADD, tuning=store):
            assert store.openings == 2
        async with await session.on(0).load_fragment(ADD, tuning=store):
            assert store.openings == 2  # it knows what it learnt itself
    assert len(store.load("launch_tuning")) == 1
    assert all(not device.left() for device in both)


class HeldStore(CountingStore):
    """The first opening of which takes until it is let go."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.begun, self.go_on = threading.Event(), threading.Event()

    def open(self, kind: str) -> StoredRecords[Any]:
        if not self.kinds:
            self.kinds.append(kind)
            self.begun.set()
            assert self.go_on.wait(10)
        return super().open(kind)


async def test_whoever_waits_for_one_that_is_cancelled_opens_the_store(
    tmp_path: Path,
) -> None:
    """And what is read for nobody is dropped."""
    stores, store = OpenedStores(), HeldStore(tmp_path)
    found: list[Mapping[str, StoredRecords[Any]]] = []

    async def first(scope: anyio.CancelScope) -> None:
        with scope:
            await stores.open(store)
        assert scope.cancelled_caught

    async def second() -> None:
        found.append(await stores.open(store))

    scope = anyio.CancelScope()
    try:
        async with anyio.create_task_group() as group:
            group.start_soon(first, scope)
            await anyio.to_thread.run_sync(store.begun.wait, 10)
            group.start_soon(second)
            await anyio.wait_all_tasks_blocked()
            assert not found
            scope.cancel()
    finally:
        store.go_on.set()
    assert await stores.open(store) is found[0]
    assert set(found[0]) == set(CODECS)


async def test_what_was_opened_before_a_record_was_kept_is_not_given_out(
    tmp_path: Path,
) -> None:
    """Even where that was while it was being read."""
    stores, store = OpenedStores(), HeldStore(tmp_path)
    found: list[Mapping[str, StoredRecords[Any]]] = []

    async def look() -> None:
        found.append(await stores.open(store))

    async with anyio.create_task_group() as group:
        group.start_soon(look)
        await anyio.to_thread.run_sync(store.begun.wait, 10)
        stores.forget(store)
        store.go_on.set()
    await look()
    await look()
    assert found[1] is not found[0]
    assert found[2] is found[1]
    with stores.together():
        anew = await stores.open(store, anew=True)
        assert anew is not found[1]
        assert await stores.open(store, anew=True) is anew
        stores.forget(store)
        assert await stores.open(store, anew=True) is not anew
