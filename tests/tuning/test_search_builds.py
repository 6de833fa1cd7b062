"""What a search builds: ahead of time, never twice, and given up if it does not end."""

from __future__ import annotations

import threading

import anyio
import attrs
import pytest

from accy_async.tuning.search import Exhaustive, Schedule, Variant, open_search, search
from tests.tuning.searching import QUICK, SPACE, buffers_of, build_on, device_of, valley

pytestmark = pytest.mark.anyio


async def test_others_are_built_while_some_are_measured() -> None:
    device = device_of(valley)
    build = build_on(device)
    begun: list[int] = []
    threads = set()

    def watched(schedule: Schedule) -> Variant:
        threads.add(threading.current_thread())
        begun.append(schedule["threads"])
        return build(schedule)

    async with open_search(
        device,
        SPACE,
        watched,
        buffers_of(device),
        strategy=Exhaustive(),
        options=QUICK,
    ) as searching:
        await anext(searching)
        # The second heat's are built, or being built, before it is begun.
        with anyio.fail_after(60):
            while len(begun) < 8:  # noqa: ASYNC110 - by threads
                await anyio.sleep(0.001)
        launched = len(device.launches)
        await anext(searching)
        assert len(device.launches) > launched
    assert threading.main_thread() not in threads
    assert all(name.name == "build a candidate" for name in threads)


async def test_builds_that_never_return_are_given_up_and_others_go_on() -> None:
    """C35: a build has its time limit, and holds up neither search nor its end."""
    device = device_of(valley)
    build = build_on(device)
    gate = threading.Event()

    def stuck(schedule: Schedule) -> Variant:
        if schedule["threads"] in (64, 160, 384):  # more than there are threads
            gate.wait(60.0)
        return build(schedule)

    options = attrs.evolve(QUICK, workers=2, build_limit_s=0.05)
    try:
        outcome = await search(
            device, SPACE, stuck, buffers_of(device), options=options
        )
    finally:
        gate.set()
    assert str(outcome.winner) == "threads=256"
    rejected = {
        one.schedule["threads"]: one.reason for one in outcome.trials if one.is_rejected
    }
    assert rejected == dict.fromkeys(
        (64, 160, 384), "not built: TimeoutError: not done after 0.05 s"
    )
    assert device.left() == {}


async def test_equal_artifacts_are_loaded_once() -> None:
    device = device_of(valley)
    before = device.load_count
    await search(device, SPACE, build_on(device), buffers_of(device), options=QUICK)
    assert device.load_count == before + 1
