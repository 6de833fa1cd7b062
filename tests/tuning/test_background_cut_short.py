"""Tuning beside real work that is left, fails, or loses its device, at every moment."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager

import anyio
import anyio.lowlevel
import pytest

from accy_async import Session, open_session
from accy_async.backends import RecordingBackend
from accy_async.errors import AccyError, DeviceError, DeviceLost, TuningStopped
from accy_async.fragment import LoadedFragment
from accy_async.session.background import BackgroundTuning
from accy_async.session.tuner import Tuner
from accy_async.tuning import MeasureOptions, RaceRules
from tests.fragment.plans import ADD
from tests.harness.enumeration import (
    Operation,
    act,
    cancel_each_await,
    cancel_each_await_by_asyncio,
    interrupt_each_await,
    without_grace,
)
from tests.tuning.background import ALL, ONES, QUICK, candidate_of, scripted
from tests.tuning.devices import cancelling_at

pytestmark = pytest.mark.anyio


async def test_cut_short_at_any_sample_it_leaves_nothing_and_goes_on() -> None:
    """The next block begins with the samples of the one before."""
    place = 0
    while True:
        device = scripted()
        async with open_session(device) as session:
            fragment = await session.load_fragment(ADD, tuning=None)
            before = device.left()
            with anyio.CancelScope() as scope:
                device.on_call = cancelling_at(place, scope)
                async with tuned(session, fragment) as tuner:
                    await tuner.wait()
            device.on_call = None
            assert device.left() == before, place
            if not scope.cancelled_caught:
                break
            assert candidate_of(fragment) is None
            assert not tuner.is_complete
            kept = sum(len(one.rounds) for one in session._kept_rounds.values())
            launches = device.launch_count
            async with tuned(session, fragment) as tuner:
                await tuner.wait()
            assert candidate_of(fragment) == 1
            # Two are checked, and warmed up twice, if there are still rounds to come.
            rounds = 8 - kept
            assert device.launch_count - launches == 2 + (rounds > 0) * 4 + 2 * rounds
            assert not session._kept_rounds
        place += 1
    assert place >= 6 + 2 * 8


def tuned(
    session: Session, fragment: LoadedFragment
) -> AbstractAsyncContextManager[Tuner]:
    return session.tuning(
        fragment, budget=ALL, store=None, inputs=[ONES, ONES], options=QUICK
    )


async def test_a_block_that_is_left_while_nobody_calls_leaves_nothing() -> None:
    device = scripted()
    async with open_session(device) as session:
        fragment = await session.load_fragment(ADD, tuning=None)
        before = device.left()
        with pytest.raises(ZeroDivisionError):
            async with session.tuning(fragment, store=None) as tuner:
                await anyio.lowlevel.checkpoint()
                raise ZeroDivisionError
        assert device.left() == before
        assert not tuner.is_complete
        assert [result async for result in tuner] == []
        await fragment(ONES, ONES)  # nobody listens any more
        assert device.launch_count == 1


async def test_a_lost_device_is_told_once() -> None:
    """To who waits, or else where the block is left."""
    for waits in (True, False):
        device = scripted()
        stopped: BaseException | None = None
        with pytest.raises((DeviceLost, ExceptionGroup)):
            async with open_session(device) as session:
                fragment = await session.load_fragment(ADD, tuning=None)
                try:
                    async with tuned(session, fragment) as tuner:
                        device.fail_execution(9, sticky=True)
                        if waits:
                            with pytest.raises(TuningStopped):
                                await tuner.wait()
                        else:
                            await until(tuner)
                except TuningStopped as error:
                    stopped = error
                    raise
                await fragment(ONES, ONES)
        assert (stopped is None) is waits


async def until(tuner: Tuner) -> None:
    """Return when the background has ended, asking for nothing."""
    with anyio.fail_after(60):
        while tuner._background is not None and not tuner._background.is_done:
            await anyio.lowlevel.checkpoint()


async def test_a_call_that_is_cut_short_serves_as_well() -> None:
    """Its arguments are copied, whatever becomes of it."""
    device = scripted()
    async with open_session(device, grace=0.01) as session:
        fragment = await session.load_fragment(ADD, tuning=None)
        await fragment(ONES, ONES)
        async with session.tuning(
            fragment, budget=ALL, store=None, options=QUICK
        ) as tuner:
            device.hold_all()
            with pytest.raises(ExceptionGroup), anyio.move_on_after(0.001):
                await fragment(ONES, ONES)
            device.release_all()
            await tuner.wait()
        assert candidate_of(fragment) == 1


async def test_a_copy_that_fails_is_told_to_who_tunes_and_not_to_who_calls() -> None:
    device = scripted()
    async with open_session(device) as session:
        fragment = await session.load_fragment(ADD, tuning=None)
        served = [await fragment(ONES, ONES)]
        before = device.left()
        with pytest.raises(DeviceError):
            async with session.tuning(fragment, store=None) as tuner:
                device.fail("write_buffer", 1)
                served.append(await fragment(ONES, ONES))
                await until(tuner)
        assert len(served) == 2
        assert device.left() == before


async def tune_a_call(backend: RecordingBackend) -> None:
    """A block of tuning with one call in it, as short as can be."""
    options = MeasureOptions(
        rules=RaceRules(min_rounds=4, max_rounds=4, repeats=0),
        warmup=0,
        most_launches=1,
    )
    async with (
        open_session(backend, grace=4.0) as session,
        await session.load_fragment(ADD, tuning=None) as fragment,
        session.tuning(fragment, budget=ALL, store=None, options=options) as tuner,
    ):
        await fragment(ONES, ONES)
        await tuner.wait()


async def check_nothing_left(backend: RecordingBackend, operation: Operation) -> None:
    """Nothing is alive, and tuning works again."""
    backend.release_all()
    assert not any(backend.live_objects().values()), backend.live_objects()
    await operation(backend)
    assert not any(backend.live_objects().values())


async def test_each_backend_call_failing_once_leaves_nothing() -> None:
    """Where a candidate's call failed, it is rejected and the block ends well."""
    whole, outcome = await act(tune_a_call, is_held=False)
    assert outcome.is_success
    for nth, call in enumerate(whole.calls, 1):
        backend, outcome = await act(tune_a_call, is_held=False, failures={nth: None})
        for error in without_grace(outcome.error):
            assert isinstance(error, AccyError), call
        await check_nothing_left(backend, tune_a_call)


async def test_each_await_cancelled_once_leaves_nothing() -> None:
    await cancel_each_await(tune_a_call, False, check_nothing_left)


async def test_each_await_interrupted_leaves_nothing() -> None:
    await interrupt_each_await(tune_a_call, False, check_nothing_left)


@pytest.mark.parametrize("anyio_backend", [("asyncio", {"use_uvloop": False})])
async def test_each_await_cancelled_by_asyncio_itself_leaves_nothing() -> None:
    """``Task.cancel`` at any await, and again at any of the exit's."""
    await cancel_each_await_by_asyncio(tune_a_call, False, check_nothing_left)


@pytest.mark.parametrize("anyio_backend", [("asyncio", {"use_uvloop": False})])
async def test_a_blocks_error_outlives_a_cancellation_while_tuning_stops(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What tunes in the background is waited for, however often that is cancelled."""
    may_end = asyncio.Event()

    async def run(tuning: BackgroundTuning) -> None:
        tuning._listening.set()
        with anyio.CancelScope(shield=True):
            await may_end.wait()
        tuning._done.set()

    monkeypatch.setattr(BackgroundTuning, "run", run)

    async def main() -> None:
        async with open_session(RecordingBackend(), grace=4.0) as session:
            fragment = await session.load_fragment(ADD, tuning=None)
            async with session.tuning(fragment, budget=ALL, store=None):
                raise ValueError("the block's")

    task = asyncio.create_task(main())
    for _ in range(3):
        await anyio.wait_all_tasks_blocked()
        task.cancel()
    await anyio.wait_all_tasks_blocked()
    assert not task.done()
    may_end.set()
    with pytest.RaisesGroup(pytest.RaisesExc(ValueError, match="block's")) as caught:
        await task
    assert isinstance(caught.value.__cause__, asyncio.CancelledError)
