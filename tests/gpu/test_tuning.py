"""Tuning on a GPU: beside calls, cut short, of kernels that never end, kept on disk."""

from __future__ import annotations

from pathlib import Path

import anyio
import anyio.lowlevel
import numpy as np
import pytest

from accy_async import ScalarArgument, Session, open_session
from accy_async.artifact import FixedLaunch
from accy_async.artifact.store import ArtifactStore
from accy_async.backends import LaunchRequest
from accy_async.fragment import LoadedFragment
from accy_async.tuning import (
    MeasureOptions,
    RaceRules,
    Standing,
    TuningBudget,
    TuningStore,
)
from accy_async.tuning.measuring import (
    Candidate,
    CandidateStatus,
    TimeSource,
    measure,
)
from benchmarks.tuning_beside import GPU_LENGTH, load
from tests.gpu import native

pytestmark = [pytest.mark.gpu, pytest.mark.anyio]

QUICK = MeasureOptions(rules=RaceRules(min_rounds=8, max_rounds=48, repeats=0))
BUDGET = TuningBudget(share=0.5, calls_met=1.0)
X = np.linspace(0, 1, GPU_LENGTH, dtype=np.float32)


async def until_tuned(
    session: Session, fragment: LoadedFragment, store: TuningStore | None
) -> tuple[int, ...]:
    """Call it until it is tuned; returns the candidates that the calls had."""
    expected = await fragment(X)
    used = [0]
    async with session.tuning(
        fragment, budget=BUDGET, store=store, options=QUICK
    ) as tuner:
        with anyio.fail_after(60):
            while not tuner.is_complete:
                found = await fragment(X)
                np.testing.assert_array_equal(found, expected)
                used.append(fragment.graph.nodes[0].tuning_candidate or 0)
                await anyio.sleep(0.001)
            await tuner.wait()
        (result,) = tuner.results
        assert result.is_swapped
        assert result.outcome is not None
        assert result.outcome.standing is Standing.FASTER
        assert result.outcome.source is TimeSource.DEVICE
        np.testing.assert_array_equal(await fragment(X), expected)
    used.append(fragment.graph.nodes[0].tuning_candidate or 0)
    return tuple(dict.fromkeys(used))


async def test_a_poor_default_is_replaced_between_two_calls(tmp_path: Path) -> None:
    """The next session knows; one on another device does not."""
    store = TuningStore(ArtifactStore(tmp_path))
    async with open_session("cuda") as session:
        fragment = await load(session, tuning=store)
        used = await until_tuned(session, fragment, store)
        assert len(used) == 2  # the default, then the winner
        await fragment.aclose()
    assert not any(session.live_objects().values())
    kept = len(store.load("launch_tuning"))
    async with open_session("cuda") as session:
        fragment = await load(session, tuning=store)
        assert fragment.tuning_record_count == kept
        if kept:  # the device may not have held still
            assert fragment.graph.nodes[0].tuning_candidate == used[-1]
    async with open_session("cpu") as session:
        fragment = await load(session, tuning=store)
        assert fragment.tuning_record_count == 0


async def test_cut_short_it_leaves_nothing_and_goes_on() -> None:
    async with open_session("cuda") as session, await load(session) as fragment:
        await fragment(X)
        for _ in range(3):
            async with session.tuning(
                fragment, budget=BUDGET, store=None, inputs=[X], options=QUICK
            ) as tuner:
                with anyio.fail_after(30):
                    while not (tuner.progress and tuner.progress.step):
                        await anyio.lowlevel.checkpoint()
            assert not tuner.is_complete
        await until_tuned(session, fragment, None)
    assert not any(session.live_objects().values())


async def test_a_kernel_that_does_not_end_is_rejected_and_the_others_go_on() -> None:
    native.host_words()
    async with open_session("cuda", grace=5.0) as session:
        backend = session.backend
        artifact = native.artifact("spin")
        loaded = backend.load_artifact(artifact)

        def spinning(nanoseconds: int) -> Candidate:
            return Candidate(
                name=f"{nanoseconds} ns",
                request=LaunchRequest(
                    artifact=artifact,
                    loaded=loaded,
                    geometry=FixedLaunch(grid=(1, 1, 1), threadgroup=(1, 1, 1)),
                    scalars=(ScalarArgument.u64(nanoseconds),),
                ),
            )

        options = MeasureOptions(rules=QUICK.rules, time_limit_s=0.3, check=None)
        times = (60_000, 1_500_000_000, 30_000)
        outcome = await measure(backend, [spinning(one) for one in times], options)
        slow, endless, fast = outcome.candidates
        assert endless.status is CandidateStatus.TIMED_OUT
        assert "0.3 s" in endless.reason
        assert outcome.winner == fast.name
        assert slow.median_ns is not None
        assert fast.median_ns is not None
        assert slow.median_ns >= 60_000
        assert fast.median_ns >= 30_000
        with anyio.fail_after(10):
            await backend.wait_device()  # it ends some time
        backend.destroy(loaded)
    with anyio.fail_after(10):
        while any(session.live_objects().values()):  # noqa: ASYNC110 - nobody tells
            await anyio.sleep(0.001)


async def test_short_kernels_are_timed_in_graphs_of_the_device() -> None:
    native.host_words()
    async with open_session("cuda") as session:
        backend = session.backend
        artifact = native.artifact("empty")
        loaded = backend.load_artifact(artifact)
        candidates = [
            Candidate(
                name=f"{threads}",
                request=LaunchRequest(
                    artifact=artifact,
                    loaded=loaded,
                    geometry=FixedLaunch(grid=(1, 1, 1), threadgroup=(threads, 1, 1)),
                ),
            )
            for threads in (32, 64)
        ]
        outcome = await measure(backend, candidates, QUICK)
        assert outcome.source is TimeSource.DEVICE
        assert outcome.launches > 1
        assert all(one.sample_count >= 8 for one in outcome.candidates)
        backend.destroy(loaded)
    assert not any(session.live_objects().values())
