"""Tuning beside real work: it lets that go first, and stays within its share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import anyio
import anyio.lowlevel
import attrs
import pytest

from accy_async import open_session
from accy_async.artifact.store import ArtifactStore
from accy_async.backends import BufferBinding
from accy_async.dtypes import DType
from accy_async.errors import InvalidType, InvalidValue, SessionClosed
from accy_async.fragment.streams import FragmentStreams
from accy_async.graph import LaunchGraphBuilder
from accy_async.tuning import MeasureOptions, RaceRules, TuningStore
from accy_async.tuning.measuring import measure
from accy_async.tuning.pacing import SharedPace, TuningBudget
from tests.tuning.devices import ScriptedDevice, candidates, noisy
from tests.tuning.samples import kernel

pytestmark = pytest.mark.anyio

ALL = TuningBudget(share=1.0)
QUICK = MeasureOptions(rules=RaceRules(min_rounds=8, max_rounds=48, repeats=0))


async def test_samples_take_their_share_of_the_time() -> None:
    """10 samples of 10 ms each, a quarter of the time: at least 300 ms of rest."""
    pace = SharedPace(TuningBudget(share=0.25), lambda: False)
    begun = anyio.current_time()
    for _ in range(10):
        await pace(10e6)
    assert anyio.current_time() - begun >= 0.3
    assert pace.waited_s >= 0.3
    assert pace.samples_beside_work == 0


async def test_real_work_goes_first_but_not_for_ever() -> None:
    busy = iter([True, True, True, False, False])
    pace = SharedPace(TuningBudget(share=1.0), lambda: next(busy))
    await pace(0.0)
    assert pace.samples_beside_work == 0
    always = SharedPace(TuningBudget(share=1.0, most_wait_s=0.01), lambda: True)
    await always(0.0)
    assert always.samples_beside_work == 1


class Scripted:
    """Pauses that begin as a script says, and what was asked of them."""

    def __init__(self, begun: list[int]) -> None:
        self.script = begun
        self.calls = 0
        self.asked: list[float] = []

    @property
    def begun(self) -> int:
        return self.script.pop(0)

    async def wait_next(self, longest_s: float, look_s: float) -> None:
        self.asked.append(longest_s)
        await anyio.lowlevel.checkpoint()


async def test_a_sample_begins_with_a_pause_where_work_comes_and_goes() -> None:
    """Not in the middle of one; but at once where nothing came meanwhile."""
    some, none = Scripted([3, 5]), Scripted([3, 3])
    await SharedPace(ALL, lambda: False, some)(0.0)
    await SharedPace(ALL, lambda: False, none)(0.0)
    assert len(some.asked) == 1
    assert none.asked == []
    impatient = Scripted([3, 5])
    budget = TuningBudget(share=1.0, most_wait_s=0.0)
    await SharedPace(budget, lambda: True, impatient)(0.0)
    assert impatient.asked == [0.0]


class Counted(Scripted):
    """Calls that are counted, and pauses that nobody waits for."""

    @property
    def begun(self) -> int:
        return 0


async def test_samples_are_put_off_until_few_of_the_calls_have_met_one() -> None:
    calls = Counted([])
    budget = TuningBudget(share=1.0, calls_met=0.25, most_wait_s=0.01)
    pace = SharedPace(budget, lambda: False, calls)
    await pace(0.0)
    await pace(1.0)  # nothing met the first
    assert pace.calls_met == 0
    pace._begun_at -= 1.0
    calls.calls = 8  # in a second, while the second sample is on the device
    waited_s = pace.waited_s
    await pace(1.0)  # 24 more would have to come
    assert pace.waited_s - waited_s >= 0.009
    assert pace.calls_met == 8
    calls.calls = pace._calls_at_sample = 40  # these met none
    assert pace._put_off_s(40, anyio.current_time()) == 0.0
    busy = SharedPace(attrs.evolve(budget, most_wait_s=0.0), lambda: True, calls)
    await busy(0.0)
    assert busy.calls_met == 1  # what was in flight


async def test_a_pause_of_calls_is_told_to_all_who_wait() -> None:
    device = ScriptedDevice(noisy([1e5]))
    streams = FragmentStreams(device, 2)
    told: list[int] = []

    async def listen(number: int) -> None:
        await streams.wait_pause()
        told.append(number)

    async with anyio.create_task_group() as tasks:
        for number in range(3):
            tasks.start_soon(listen, number)
        first, second = streams.take(), streams.take()
        await anyio.wait_all_tasks_blocked()
        streams.give_back(first)
        await anyio.wait_all_tasks_blocked()
        assert told == []
        assert streams.pauses == 0
        with anyio.move_on_after(0) as scope:
            await streams.wait_pause()
        assert scope.cancelled_caught
        streams.give_back(second)
    assert sorted(told) == [0, 1, 2]
    assert streams.pauses == 1


async def test_waiting_for_real_work_may_be_cancelled() -> None:
    pace = SharedPace(TuningBudget(share=1.0, most_wait_s=60.0), lambda: True)
    with anyio.move_on_after(0.02) as scope:
        await pace(0.0)
    assert scope.cancelled_caught


@pytest.mark.parametrize("share", [0.0, -1.0, 1.5, float("nan")])
def test_shares_that_are_none_are_refused(share: float) -> None:
    with pytest.raises(InvalidValue, match="share"):
        TuningBudget(share=share)
    with pytest.raises(InvalidType, match="share"):
        TuningBudget(share="all")  # type: ignore[arg-type]
    with pytest.raises(InvalidValue, match="calls_met"):
        TuningBudget(calls_met=0.0)
    with pytest.raises(InvalidValue, match="most_wait_s"):
        TuningBudget(most_wait_s=-1.0)


# In a session


def planned(device: ScriptedDevice) -> tuple[object, ...]:
    """A kernel of three candidates, loaded, and buffers for it."""
    of = kernel()
    loaded = device.load_artifact(of.artifact)
    buffers = tuple(
        BufferBinding(handle=device.allocate_buffer(32), access=argument.access)
        for argument in of.arguments
    )
    return of, loaded, buffers


def by_threads(times: dict[int, float]) -> Callable[[object], float]:
    return lambda request: times[request.geometry.threadgroup[0]]  # type: ignore[attr-defined]


async def test_a_session_tunes_and_the_next_one_knows(tmp_path: Path) -> None:
    store = TuningStore(ArtifactStore(tmp_path))
    device = ScriptedDevice(by_threads({32: 5e5, 64: 3e5, 128: 4e5}))
    of, loaded, buffers = planned(device)
    async with open_session(device) as session:
        async with session.tuning(budget=ALL, store=store) as tuner:
            assert tuner.cache.selection(of) is None  # type: ignore[arg-type]
            outcome = await tuner.tune_launch(of, loaded, buffers, options=QUICK)  # type: ignore[arg-type]
            assert outcome.measured is not None
            assert outcome.measured.is_storable
        async with session.tuning(store=store) as tuner:
            found = tuner.cache.selection(of)  # type: ignore[arg-type]
            assert found is not None
            assert found.candidate_index == 1
        assert len(store.load("launch_tuning")) == 1
        assert session.live_objects() == dict.fromkeys(session.live_objects(), 0)


async def test_a_tuner_ends_with_its_block() -> None:
    """However that is left; what it knows can still be asked."""
    device = ScriptedDevice(by_threads({32: 5e5, 64: 3e5, 128: 4e5}))
    of, loaded, buffers = planned(device)
    async with open_session(device) as session:
        with pytest.raises(ZeroDivisionError):
            async with session.tuning(budget=ALL, store=None) as tuner:
                raise ZeroDivisionError
        with pytest.raises(SessionClosed, match="measure: the block of session"):
            await tuner.measure(candidates(device, 2), QUICK)
        with pytest.raises(SessionClosed, match="tune_launch: the block of session"):
            await tuner.tune_launch(of, loaded, buffers)  # type: ignore[arg-type]
        assert device.launch_count == 0
        assert tuner.cache.selection(of) is None  # type: ignore[arg-type]


async def test_what_is_no_kernel_and_no_store_is_refused() -> None:
    device = ScriptedDevice(noisy([1e4]))
    _, loaded, _ = planned(device)
    async with open_session(device) as session:
        with pytest.raises(InvalidType, match=r"tuning\.store.*'/tmp/x'.*TuningStore"):
            async with session.tuning(store="/tmp/x"):  # type: ignore[arg-type]
                pass
        async with session.tuning() as tuner:
            with pytest.raises(InvalidType, match=r"fragment\.planned_kernel\(i\)"):
                await tuner.tune_launch("axpy", loaded, ())  # type: ignore[arg-type]


async def test_samples_are_taken_between_runs() -> None:
    """While the session's runs are in flight no sample is submitted."""
    device = ScriptedDevice(noisy([1e4, 0.9e4]))
    builder = LaunchGraphBuilder()
    source, target = (
        builder.buffer(name, DType.F32, 16) for name in ("source", "target")
    )
    builder.copy(source, target)
    plan = builder.build()
    async with open_session(device) as session:
        patient = attrs.evolve(ALL, most_wait_s=30.0)
        async with session.tuning(budget=patient, store=None) as tuner:
            device.hold_all()
            run = session.start(
                plan, {"source": device.source, "target": device.target}
            )
            async with anyio.create_task_group() as tasks:

                async def tune() -> None:
                    outcome = await tuner.measure(candidates(device, 2), QUICK)
                    assert outcome.winner == "c1"

                await anyio.sleep(0.01)  # the copy is in flight
                launches = device.launch_count
                tasks.start_soon(tune)
                await anyio.sleep(0.02)
                # The checks are not samples, and their stream is held too.
                assert device.launch_count - launches <= 1
                device.release_all()
                await run
        assert tuner.pace.samples_beside_work == 0


async def test_samples_are_longer_where_nothing_waits_for_them() -> None:
    """Of kernels that take 2 us."""
    found = {}
    for exclusive in (True, False):
        device = ScriptedDevice(noisy([2e3, 1e3]))
        async with (
            open_session(device) as session,
            session.tuning(budget=ALL, exclusive=exclusive, store=None) as tuner,
        ):
            outcome = await tuner.measure(candidates(device, 2), QUICK)
        found[exclusive] = outcome.launches
    device = ScriptedDevice(noisy([2e3, 1e3]))
    outcome = await measure(device, candidates(device, 2), QUICK)
    assert outcome.launches == found[True] > 90
    assert found[False] < 60


async def test_an_exclusive_tuner_tells_when_it_was_not_alone() -> None:
    device = ScriptedDevice(noisy([1e5, 0.9e5]))
    async with (
        open_session(device) as session,
        session.tuning(exclusive=True) as tuner,
    ):
        outcome = await tuner.measure(candidates(device, 2), QUICK)
        assert outcome.is_storable
        tuner.pace._is_busy = lambda: True
        outcome = await tuner.measure(candidates(device, 2), QUICK)
    assert outcome.winner == "c1"
    assert not outcome.is_storable
    assert outcome.why_not.startswith("not alone: ")


async def test_after_the_session_nothing_is_tuned() -> None:
    device = ScriptedDevice(noisy([1e5, 0.9e5]))
    async with open_session(device) as session, session.tuning() as tuner:
        pass
    with pytest.raises(SessionClosed):
        await tuner.measure(candidates(device, 2), QUICK)
    with pytest.raises(SessionClosed):
        async with session.tuning():
            pass


async def test_a_cancelled_tuner_keeps_nothing(tmp_path: Path) -> None:
    store = TuningStore(ArtifactStore(tmp_path))
    device = ScriptedDevice(by_threads({32: 5e5, 64: 3e5, 128: 4e5}))
    of, loaded, buffers = planned(device)
    async with open_session(device) as session:
        with anyio.CancelScope() as scope:
            async with session.tuning(budget=ALL, store=store) as tuner:
                launches = 0

                def on_call(call: object) -> None:
                    nonlocal launches
                    launches += str(call).startswith("launch")
                    if launches == 12:
                        scope.cancel()

                device.on_call = on_call
                await tuner.tune_launch(of, loaded, buffers, options=QUICK)  # type: ignore[arg-type]
        device.on_call = None
        assert scope.cancelled_caught
        assert len(tuner.cache) == 0
    assert store.load("launch_tuning") == ()
