"""Fragments tuned in the background, beside the calls that they serve."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import attrs
import numpy as np
import pytest

from accy_async import open_session
from accy_async.artifact import FixedLaunch
from accy_async.artifact.store import ArtifactStore
from accy_async.backends.capabilities import Capabilities
from accy_async.errors import (
    InvalidType,
    InvalidValue,
    LaunchArgumentMismatch,
    SessionClosed,
)
from accy_async.observe.protocol import Observer, State
from accy_async.tuning import Standing, TuningStore
from tests.fragment.plans import ADD, CHAIN, SCALED
from tests.tuning.background import (
    ALL,
    FIRST,
    ONES,
    QUICK,
    SECOND,
    by_threads,
    candidate_of,
    scripted,
)
from tests.tuning.devices import ScriptedDevice

pytestmark = pytest.mark.anyio


class Another(ScriptedDevice):
    """A device of another architecture."""

    @property
    def capabilities(self) -> Capabilities:
        own = super().capabilities
        identity = attrs.evolve(own.identity, architecture="another")
        return attrs.evolve(own, identity=identity)


@pytest.fixture
def store(tmp_path: Path) -> TuningStore:
    return TuningStore(ArtifactStore(tmp_path))


async def test_what_there_is_nothing_to_tune_of_says_why(store: TuningStore) -> None:
    def twice(x: Any) -> Any:
        return x + x

    async with open_session("cpu") as session:
        function = await session.load_fragment(twice, tuning=None)
        async with session.tuning(function, store=store) as tuner:
            assert "nothing of it was loaded" in tuner.skipped["twice"]
        await function.specialise("f32[1]")
        async with session.tuning(function, store=store) as tuner:
            await tuner.wait()
            assert "launched in one way" in tuner.skipped["twice"]
            assert not tuner.results
    async with open_session(scripted()) as session:
        fragment = await session.load_fragment(ADD, tuning=store)
        how: Any = {
            "budget": ALL,
            "store": store,
            "options": QUICK,
            "inputs": [ONES, ONES],
        }
        async with session.tuning(fragment, **how) as tuner:
            assert not tuner.skipped
            await tuner.wait()
        async with session.tuning(fragment, **how) as tuner:
            assert "winners of its kernels are known" in tuner.skipped[fragment.name]


async def test_a_winner_is_swapped_in_between_two_calls(store: TuningStore) -> None:
    device = scripted()
    async with open_session(device) as session:
        fragment = await session.load_fragment(ADD, tuning=store)
        async with session.tuning(
            fragment, budget=ALL, store=store, options=QUICK
        ) as tuner:
            assert not tuner.is_complete
            await fragment(ONES, ONES)
            assert device.launches[-1].threadgroup[0] == FIRST
            async for result in tuner:
                assert result.is_swapped
                assert (result.before, result.now) == (0, 1)
                assert result.speedup == pytest.approx(5 / 3, rel=0.02)
                assert result.outcome is not None
                assert result.outcome.standing is Standing.FASTER
            assert tuner.is_complete
            await fragment(ONES, ONES)
            assert device.launches[-1].threadgroup[0] == SECOND
        assert [one.kernel for one in tuner.results] == ["kernel_0"]
        await fragment.aclose()
        assert device.left() in ({}, {"streams": 1})  # kept for calls
        # What is loaded later in the session begins with it.
        assert candidate_of(await session.load_fragment(ADD, tuning=store)) == 1
        assert candidate_of(await session.load_fragment(ADD, tuning=None)) is None
    assert len(store.load("launch_tuning")) == 1


async def test_a_fragment_that_is_closed_is_waited_for_no_more() -> None:
    """Nobody can call it any more; the others are tuned."""
    device = scripted()
    async with open_session(device) as session:
        closed = await session.load_fragment(CHAIN, tuning=None)
        fragment = await session.load_fragment(ADD, tuning=None)
        tuning = session.tuning(closed, fragment, budget=ALL, store=None, options=QUICK)
        async with tuning as tuner:
            await closed.aclose()
            await fragment(ONES, ONES)
            with anyio.fail_after(60):
                await tuner.wait()
            assert tuner.skipped == {"chain": "fragment 'chain' was closed"}
            assert [one.kernel for one in tuner.results] == ["kernel_0"]
    assert not device.left()


async def test_the_next_start_knows_and_another_device_does_not(
    store: TuningStore,
) -> None:
    async with open_session(scripted()) as session:
        fragment = await session.load_fragment(ADD, tuning=store)
        async with session.tuning(
            fragment, budget=ALL, store=store, inputs=[ONES, ONES], options=QUICK
        ) as tuner:
            await tuner.wait()
    device = scripted()
    async with open_session(device) as session:
        fragment = await session.load_fragment(ADD, tuning=store)
        assert fragment.tuning_record_count == 1
        await fragment(ONES, ONES)
        assert device.launches[-1].threadgroup[0] == SECOND
        launches = device.launch_count
        async with session.tuning(fragment, store=store) as tuner:
            await tuner.wait()
            assert tuner.is_complete  # at once
            assert tuner.results == ()
        assert device.launch_count == launches
    other = Another(by_threads({FIRST: 5e5, SECOND: 3e5}))
    async with open_session(other) as session:
        fragment = await session.load_fragment(ADD, tuning=store)
        assert fragment.tuning_record_count == 0
        await fragment(ONES, ONES)
        assert other.launches[-1].threadgroup[0] == FIRST


async def test_where_candidates_do_not_differ_the_first_one_is_kept() -> None:
    async with open_session(scripted(second=5e5)) as session:
        fragment = await session.load_fragment(ADD, tuning=None)
        async with session.tuning(
            fragment, budget=ALL, store=None, inputs=[ONES, ONES], options=QUICK
        ) as tuner:
            await tuner.wait()
        (result,) = tuner.results
        assert not result.is_swapped
        assert result.record is not None
        assert result.record.selection.candidate_index == 0
        assert result.speedup == 1.0


async def test_each_kernel_is_measured_on_what_those_before_it_left() -> None:
    """Kernels run in their order between the measurements, with their winners.

    Of the four kernels two are the same: what is known of one holds for the other.
    """
    device = scripted()
    async with open_session(device) as session:
        fragment = await session.load_fragment(CHAIN, tuning=None)
        async with session.tuning(
            fragment, budget=ALL, store=None, options=QUICK
        ) as tuner:
            await fragment(ONES)
            names = [(r.kernel_index, r.kernel) async for r in tuner]
        assert names == [(0, "kernel_0"), (1, "again"), (3, "kernel_3")]
        assert [candidate_of(fragment, index) for index in range(4)] == [1] * 4
        await fragment.aclose()
        assert device.left() in ({}, {"streams": 1})  # kept for calls


async def test_scalars_of_the_call_are_used() -> None:
    from accy_async.artifact import ScalarArgument

    device = scripted()
    async with open_session(device) as session:
        fragment = await session.load_fragment(SCALED, tuning=None)
        async with session.tuning(
            fragment, budget=ALL, store=None, options=QUICK
        ) as tuner:
            scalars = [ScalarArgument.u32(3)]
            await fragment.invoke([ONES, ONES], runtime_scalars=scalars)
            await tuner.wait()
        assert {launch.scalars[1] for launch in device.launches} == set(scalars)


async def test_no_call_waits_for_tuning_that_waits_for_the_device() -> None:
    """Calls end while a sample is in flight."""
    device = scripted()
    async with open_session(device, grace=0.1) as session:
        fragment = await session.load_fragment(ADD, tuning=None)
        await fragment(ONES, ONES)
        async with session.tuning(
            fragment, budget=ALL, store=None, inputs=[ONES, ONES], options=QUICK
        ) as tuner:
            with anyio.fail_after(60):
                while tuner.progress is None or tuner.progress.step is None:
                    await anyio.lowlevel.checkpoint()
            for _ in range(5):
                await fragment(ONES, ONES)
            await tuner.wait()
    assert tuner.is_complete


async def test_a_budget_ends_it() -> None:
    """After the device time that it allows; or for kernels that take too long."""
    device = scripted()
    async with open_session(device) as session:
        fragment = await session.load_fragment(ADD, tuning=None)
        spent = attrs.evolve(ALL, total_s=4e-3)
        async with session.tuning(
            fragment, budget=spent, store=None, inputs=[ONES, ONES], options=QUICK
        ) as tuner:
            await tuner.wait()
        assert not tuner.is_complete
        assert tuner.results == ()
        assert tuner.progress is not None
        assert 4e-3 <= tuner.progress.spent_s < 5e-3
        short = attrs.evolve(ALL, most_delay_s=1e-4)
        async with session.tuning(
            fragment, budget=short, store=None, inputs=[ONES, ONES], options=QUICK
        ) as tuner:
            await tuner.wait()
        assert tuner.is_complete
        (result,) = tuner.results
        assert result.why_not.startswith("a sample holds the device for 500 us")
        assert candidate_of(fragment) is None


async def test_samples_of_short_kernels_hold_the_device_no_longer_than_may_be() -> None:
    """They are of fewer launches then."""
    for most_delay_s, launches in ((None, 51), (1e-5, 3)):
        async with open_session(scripted(first=2e3, second=1e3)) as session:
            fragment = await session.load_fragment(ADD, tuning=None)
            budget = attrs.evolve(ALL, most_delay_s=most_delay_s)
            async with session.tuning(
                fragment, budget=budget, store=None, inputs=[ONES, ONES], options=QUICK
            ) as tuner:
                await tuner.wait()
        (result,) = tuner.results
        assert result.is_swapped
        assert result.outcome is not None
        assert result.outcome.launches == launches


async def test_a_fragment_that_is_closed_meanwhile_is_passed_over() -> None:
    device = scripted()
    async with open_session(device) as session:
        first = await session.load_fragment(ADD, tuning=None)
        second = await session.load_fragment(CHAIN, tuning=None)
        async with session.tuning(
            first, second, budget=ALL, store=None, options=QUICK
        ) as tuner:
            await first(ONES, ONES)
            await first.aclose()
            await second(ONES)
            await tuner.wait()
        assert list(tuner.skipped) == ["add"]
        assert "closed" in tuner.skipped["add"]
        assert candidate_of(second) == 1
        await second.aclose()
        assert device.left() in ({}, {"streams": 1})  # kept for calls


async def test_what_cannot_be_tuned_is_refused_at_once() -> None:
    async with open_session(scripted()) as other:
        stranger = await other.load_fragment(ADD, tuning=None)
        device = scripted()
        async with open_session(device) as session:
            fragment = await session.load_fragment(ADD, tuning=None)
            for given, error, words in (
                ((ADD,), InvalidType, "a LoadedFragment or a FragmentFunction"),
                ((stranger,), InvalidValue, "that this session loaded"),
            ):
                with pytest.raises(error, match=words):
                    async with session.tuning(*given):
                        pass
            with pytest.raises(InvalidType, match="a TuningBudget"):
                async with session.tuning(fragment, budget=0.1):  # type: ignore[arg-type]
                    pass
            with pytest.raises(InvalidValue, match="inputs"):
                async with session.tuning(inputs=[ONES]):
                    pass
            for inputs in ([ONES], [ONES, ONES[:7]], [ONES, ONES.view(np.int32)]):
                with pytest.raises(LaunchArgumentMismatch, match="input"):
                    async with session.tuning(fragment, inputs=inputs):
                        pass
            await fragment.aclose()
            with pytest.raises(SessionClosed):
                async with session.tuning(fragment):
                    pass


class Listening(Observer):
    """Writes down what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[object, ...]] = []

    def run_started(
        self, run_id: int, plan_name: str, node_count: int, time_ns: int
    ) -> None:
        self.told.append(("run", plan_name, node_count))

    def node_submitted(
        self,
        run_id: int,
        node_id: int,
        name: str,
        kind: str,
        stream_id: int,
        time_ns: int,
    ) -> None:
        self.told.append(("node", node_id, name, kind))

    def node_finished(
        self,
        run_id: int,
        node_id: int,
        time_ns: int,
        state: State,
        error: BaseException | None,
    ) -> None:
        self.told.append(("done", node_id, state))

    def run_finished(
        self, run_id: int, time_ns: int, state: State, error: BaseException | None
    ) -> None:
        self.told.append(("end", state))


async def test_an_observer_sees_a_run_of_kernels() -> None:
    """So that a progress bar shows it as any other run."""
    listening = Listening()
    async with open_session(scripted(), observer=listening) as session:
        fragment = await session.load_fragment(CHAIN, tuning=None)
        async with session.tuning(
            fragment, budget=ALL, store=None, inputs=[ONES], options=QUICK
        ) as tuner:
            await tuner.wait()
    assert listening.told == [
        ("run", "tuning chain", 4),
        ("node", 0, "kernel_0", "tuning"),
        ("done", 0, "ok"),
        ("node", 1, "again", "tuning"),
        ("done", 1, "ok"),
        ("node", 3, "kernel_3", "tuning"),
        ("done", 3, "ok"),
        ("end", "ok"),
    ]


async def test_a_functions_fragments_are_tuned() -> None:
    """Those that are loaded when the block begins; compiled ones have candidates."""

    def program(x: Any) -> Any:
        return x * 2 + 1

    usual: list[FixedLaunch] = []
    device = ScriptedDevice(lambda request: 5e5 if request.geometry in usual else 3e5)
    async with open_session(device) as session:
        function = await session.load_fragment(program, tuning=None)
        async with session.tuning(function, store=None) as tuner:
            assert tuner.is_complete
        await function(ONES)
        (fragment,) = function.fragments
        usual.append(fragment.launch_resource_candidate(0, 0).geometry)
        async with session.tuning(
            function, budget=ALL, store=None, options=QUICK
        ) as tuner:
            await function(ONES)
            await tuner.wait()
        assert [result.is_swapped for result in tuner.results] == [True]
        before = len(device.launches)
        await function(ONES)
        (launch,) = device.launches[before:]
        assert (launch.grid, launch.threadgroup) != (
            usual[0].grid,
            usual[0].threadgroup,
        )
