"""Searches that are cancelled, fail, or lose their device: nothing is left."""

from __future__ import annotations

import anyio
import pytest

from accy_async.errors import (
    DeviceError,
    DeviceLost,
    OutOfMemory,
    TuningStopped,
    UnsupportedOperation,
)
from accy_async.tuning.search import (
    Exhaustive,
    KeptSearch,
    SearchOptions,
    SuccessiveHalving,
    open_search,
    search,
)
from tests.tuning.searching import (
    MEASURE,
    QUICK,
    SPACE,
    buffers_of,
    build_on,
    device_of,
    valley,
)

pytestmark = pytest.mark.anyio


async def test_one_that_takes_the_device_with_it_is_known_the_next_time() -> None:
    def times(number: int) -> float:
        if number == 5:
            device.fail_execution(1, sticky=True)
        return valley(number)

    device = device_of(times)
    kept = None
    with pytest.raises(TuningStopped) as caught:
        async with open_search(
            device,
            SPACE,
            build_on(device),
            buffers_of(device),
            strategy=Exhaustive(),
            options=QUICK,
        ) as searching:
            try:
                async for _ in searching:
                    pass
            finally:
                kept = searching.kept
    assert caught.value.candidate == "threads=192"
    assert isinstance(caught.value, DeviceLost)
    assert kept is not None
    (bad,) = [one for one in kept.trials if one.is_rejected]
    assert bad.schedule["threads"] == 192


async def test_cancelled_at_any_sample_it_goes_on_from_there() -> None:
    """C75: a search too keeps what it had measured."""
    device = device_of(valley)
    scope = anyio.CancelScope()
    kept = None

    async def stop_later(_: float) -> None:
        if len(device.launches) == 40:
            scope.cancel()

    with scope:
        async with open_search(
            device,
            SPACE,
            build_on(device),
            buffers_of(device),
            strategy=Exhaustive(),
            options=QUICK,
            pace=stop_later,
        ) as searching:
            try:
                async for _ in searching:
                    pass
            finally:
                kept = searching.kept
    assert scope.cancelled_caught
    assert device.left() == {}
    assert kept is not None
    known = {one.schedule: one.rounds for one in kept.trials}
    assert 3 < len(known) < 11
    again = KeptSearch.from_bytes(kept.to_bytes())
    assert again == kept
    before = len(device.launches)
    outcome = await search(
        device,
        SPACE,
        build_on(device),
        buffers_of(device),
        strategy=Exhaustive(),
        options=QUICK,
        kept=again,
    )
    assert str(outcome.winner) == "threads=256"
    heats = [launch.threadgroup[0] for launch in device.launches[before:]]
    done = {
        one for one, rounds in known.items() if rounds >= 4 and one["threads"] == 64
    }
    assert done
    assert 64 not in heats


async def test_cancelled_within_a_heat_the_same_search_goes_on() -> None:
    device = device_of(valley)
    scope = anyio.CancelScope()

    async def stop_later(_: float) -> None:
        if len(device.launches) == 25:
            scope.cancel()

    async with open_search(
        device,
        SPACE,
        build_on(device),
        buffers_of(device),
        options=QUICK,
        pace=stop_later,
    ) as searching:
        with scope:
            async for _ in searching:
                pass
        assert scope.cancelled_caught
        assert searching.outcome().why_not == "not searched to the end"
        async for _ in searching:
            pass
        assert str(searching.outcome().winner) == "threads=256"
    assert device.left() == {}


async def test_cancelling_at_any_await_leaves_nothing() -> None:
    """Some awaits of a short search in turn are where it is cancelled."""
    place = 1
    options = SearchOptions(budget_s=0.01, workers=1, heat=4, measure=MEASURE)
    while True:
        device = device_of(valley)
        calls = 0
        with anyio.CancelScope() as scope:

            def count(_: object, scope: anyio.CancelScope = scope) -> None:
                nonlocal calls
                calls += 1
                if calls == place:  # noqa: B023 - of this turn
                    scope.cancel()

            device.on_call = count
            await search(
                device,
                SPACE,
                build_on(device),
                buffers_of(device),
                strategy=SuccessiveHalving(population=3),
                options=options,
            )
        device.on_call = None
        assert device.left() == {}
        if not scope.cancelled_caught:
            break
        place += 17


async def test_failing_calls_leave_nothing_and_are_told() -> None:
    """Some backend calls of a search fail in turn, once."""
    options = SearchOptions(budget_s=0.01, workers=0, heat=4, measure=MEASURE)
    nth = 1
    while True:
        device = device_of(valley)
        device.fail("*", nth)
        try:
            await search(
                device,
                SPACE,
                build_on(device),
                buffers_of(device),
                strategy=SuccessiveHalving(population=3),
                options=options,
            )
        except (OutOfMemory, DeviceError, UnsupportedOperation, ExceptionGroup):
            pass
        else:
            if device.has_planned_failures:  # there are no more calls
                break
        assert device.left() == {}, nth
        nth += 13 if nth > 10 else 1
    assert nth > 100
