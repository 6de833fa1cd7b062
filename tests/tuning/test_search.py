"""Searching on a scripted device: winners, budgets, rejections, going on."""

from __future__ import annotations

import attrs
import pytest

from accy_async.artifact import FixedLaunch
from accy_async.artifact.sealed import seal
from accy_async.errors import (
    CompilationError,
    InvalidArtifact,
    InvalidType,
    InvalidValue,
    SessionClosed,
    UnsupportedOperation,
)
from accy_async.session import open_session
from accy_async.tuning import (
    CandidateStatus,
    MeasureOptions,
    RaceRules,
    Standing,
    TimeSource,
    TuningBudget,
)
from accy_async.tuning.search import (
    Exhaustive,
    KeptSearch,
    RandomSearch,
    Schedule,
    SearchOptions,
    SearchSpace,
    SuccessiveHalving,
    Variant,
    open_search,
    search,
)
from tests.tuning.devices import ScriptedDevice
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


async def test_the_best_schedule_is_found_and_raced_at_the_end() -> None:
    device = device_of(valley)
    outcome = await search(
        device, SPACE, build_on(device), buffers_of(device), options=QUICK
    )
    assert str(outcome.winner) == "threads=256"
    assert str(outcome.baseline) == "threads=32"
    assert outcome.standing is Standing.FASTER
    assert outcome.speedup == pytest.approx(1.7, rel=0.02)
    assert outcome.is_storable
    assert outcome.is_exhausted
    assert outcome.final is not None
    assert outcome.final.candidate("threads=256").sample_count >= 8
    assert outcome.trials[0].schedule == outcome.winner
    assert outcome.trials[0].speedup == pytest.approx(1.7, rel=0.02)
    assert len(outcome.trials) == 12
    assert 0.0 < outcome.spent_s < 1.0
    assert device.left() == {}


async def test_where_nothing_is_better_the_baseline_stays() -> None:
    device = device_of(lambda number: 1e5)
    outcome = await search(
        device, SPACE, build_on(device), buffers_of(device), options=QUICK
    )
    assert (outcome.winner, outcome.standing) == (
        outcome.baseline,
        Standing.NO_DIFFERENCE,
    )
    assert outcome.speedup == 1.0
    assert outcome.is_storable


async def test_a_baseline_may_be_named_and_may_be_the_best() -> None:
    device = device_of(valley)
    best = SPACE.schedule(threads=256)
    outcome = await search(
        device,
        SPACE,
        build_on(device),
        buffers_of(device),
        baseline=best,
        strategy=Exhaustive(),
        options=QUICK,
    )
    assert outcome.winner == best
    assert outcome.standing is Standing.NO_DIFFERENCE
    assert outcome.final is not None
    assert len(outcome.final.candidates) == 2  # the best of the rest all the same


async def test_the_budget_of_device_time_is_kept() -> None:
    device = device_of(valley)
    options = SearchOptions(budget_s=0.01, workers=0, heat=4, measure=MEASURE)
    outcome = await search(
        device,
        SPACE,
        build_on(device),
        buffers_of(device),
        strategy=RandomSearch(),
        options=options,
    )
    taken = sum(valley(launch.threadgroup[0] // 32 - 1) for launch in device.launches)
    assert taken * 1e-9 <= 0.01 + 0.0002  # and a sample that came out longer
    assert outcome.spent_s == pytest.approx(taken * 1e-9, rel=0.01)
    assert sum(one.is_measured for one in outcome.trials) < 12
    assert outcome.standing is Standing.FASTER  # as fewer finalists fit better


async def test_a_budget_too_small_to_decide_says_so() -> None:
    device = device_of(valley)
    outcome = await search(
        device,
        SPACE,
        build_on(device),
        buffers_of(device),
        options=attrs.evolve(QUICK, budget_s=0.003, workers=0),
    )
    assert (outcome.winner, outcome.standing) == (
        outcome.baseline,
        Standing.UNDECIDED,
    )
    assert not outcome.is_storable
    assert outcome.why_not == "the budget was spent"


async def test_the_wall_clock_can_be_a_budget_too() -> None:
    device = device_of(valley)
    options = SearchOptions(budget_s=1e3, wall_s=1e-6, workers=0, measure=MEASURE)
    outcome = await search(
        device, SPACE, build_on(device), buffers_of(device), options=options
    )
    assert outcome.final is None
    assert outcome.winner == outcome.baseline
    assert device.launches == []


async def test_what_comes_is_told_turn_by_turn() -> None:
    device = device_of(valley)
    async with open_search(
        device,
        SPACE,
        build_on(device),
        buffers_of(device),
        strategy=Exhaustive(),
        options=QUICK,
    ) as searching:
        turns = [turn async for turn in searching]
        assert searching.is_over
    assert [turn.step for turn in turns] == ["heat", "heat", "heat", "final"]
    assert [len(turn.trials) for turn in turns] == [4, 4, 3, 4]
    assert [turn.measured for turn in turns] == [4, 8, 11, 11]
    assert str(turns[1].best.schedule) == "threads=256"
    assert turns[0].spent_s < turns[1].spent_s < turns[3].spent_s <= turns[3].budget_s


async def test_what_cannot_be_built_launched_or_believed_is_rejected() -> None:
    device = device_of(valley)
    build = build_on(device)

    def sometimes(schedule: Schedule) -> Variant:
        if schedule["threads"] == 64:
            raise CompilationError("no registers left")
        if schedule["threads"] == 96:
            return "a kernel"  # type: ignore[return-value]
        if schedule["threads"] == 128:
            return Variant(
                artifact=device.artifact,
                geometry=FixedLaunch(grid=(1, 1, 1), threadgroup=(4096, 1, 1)),
            )
        return build(schedule)

    outcome = await search(device, SPACE, sometimes, buffers_of(device), options=QUICK)
    assert str(outcome.winner) == "threads=256"
    rejected = {
        str(one.schedule): (one.status, one.reason)
        for one in outcome.trials
        if one.is_rejected
    }
    assert rejected["threads=64"] == (
        CandidateStatus.FAILED,
        "not built: CompilationError: no registers left",
    )
    assert "a Variant" in rejected["threads=96"][1]
    assert "4096 threads" in rejected["threads=128"][1]
    assert len(rejected) == 3
    assert device.left() == {}


async def test_without_a_baseline_nothing_is_searched() -> None:
    device = device_of(valley)

    def never(schedule: Schedule) -> Variant:
        raise CompilationError("no")

    with pytest.raises(UnsupportedOperation, match="threads=32 cannot be built"):
        await search(device, SPACE, never, buffers_of(device), options=QUICK)
    too_large = SearchSpace({"threads": (4096, 32)})
    with pytest.raises(UnsupportedOperation, match="4096 cannot be measured"):
        await search(
            device, too_large, build_on(device), buffers_of(device), options=QUICK
        )
    assert device.left() == {}


async def test_without_a_clock_the_budget_is_of_waiting() -> None:
    device = ScriptedDevice(lambda _: 0.0)
    options = SearchOptions(
        budget_s=30.0,
        workers=0,
        measure=MeasureOptions(
            rules=RaceRules(min_rounds=4, max_rounds=4, repeats=0), most_launches=4
        ),
    )
    few = SearchSpace({"threads": (32, 64, 96)})
    outcome = await search(
        device,
        few,
        build_on(device),
        buffers_of(device),
        strategy=Exhaustive(),
        options=options,
    )
    assert outcome.source is TimeSource.HOST
    assert 0.0 < outcome.spent_s < 30.0
    assert all(one.is_measured for one in outcome.trials)


async def test_what_makes_no_sense_is_refused_before_anything() -> None:
    device = device_of(valley)
    build, buffers = build_on(device), buffers_of(device)
    other = Schedule((("threads", 33),))
    with pytest.raises(InvalidValue, match="a schedule of the space"):
        await search(device, SPACE, build, buffers, baseline=other)
    with pytest.raises(InvalidValue, match="compared with threads=32"):
        await search(
            device,
            SPACE,
            build,
            buffers,
            kept=KeptSearch(baseline=SPACE.schedule(threads=64)),
        )
    with pytest.raises(InvalidType, match="a SearchSpace"):
        await search(device, [1], build, buffers)  # type: ignore[arg-type]
    with pytest.raises(InvalidType, match="a function"):
        await search(device, SPACE, 3, buffers)  # type: ignore[arg-type]
    for strategy in ("model", SuccessiveHalving):
        with pytest.raises(InvalidType, match=r"such as SuccessiveHalving\(\)"):
            await search(device, SPACE, build, buffers, strategy=strategy)  # type: ignore[arg-type]
    with pytest.raises(InvalidValue, match="a geometry"):
        Variant(artifact=device.artifact)
    assert device.launches == []


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"{}", "cut short"),
        (seal("kept_search", "2", b"{}"), "this is kept_search of version 2"),
        (seal("kept_search", "1", b"{}"), "kept search: .*missing.* `baseline`"),
        (seal("kept_search", "1", b'{"baseline":' * 100_000), "kept search: "),
    ],
    ids=["none", "newer", "empty", "deep"],
)
async def test_bytes_of_something_else_are_refused(data: bytes, words: str) -> None:
    with pytest.raises(InvalidArtifact, match=words):
        KeptSearch.from_bytes(data)
    with pytest.raises(InvalidType, match="bytes"):
        KeptSearch.from_bytes("text")  # type: ignore[arg-type]


# In a session


async def test_a_session_searches_beside_its_work_and_no_longer_than_its_block() -> (
    None
):
    device = device_of(valley)
    build, buffers = build_on(device), buffers_of(device)
    budget = TuningBudget(share=1.0)
    async with open_session(device) as session:
        async with session.tuning(budget=budget, store=None) as tuner:
            outcome = await tuner.search(SPACE, build, buffers, options=QUICK)
            assert str(outcome.winner) == "threads=256"
            assert outcome.is_storable
        with pytest.raises(SessionClosed, match="search: the block"):
            await tuner.search(SPACE, build, buffers)
        async with session.tuning(exclusive=True) as tuner:
            tuner.pace._is_busy = lambda: True
            outcome = await tuner.search(SPACE, build, buffers, options=QUICK)
        assert not outcome.is_storable
        assert "not alone" in outcome.why_not


async def test_a_sessions_budget_ends_the_search_and_rejects_who_holds_the_device() -> (
    None
):
    device = device_of(lambda number: 5e6 if number == 3 else valley(number))
    build, buffers = build_on(device), buffers_of(device)
    async with open_session(device) as session:
        budget = TuningBudget(share=1.0, most_delay_s=0.002)
        async with session.tuning(budget=budget) as tuner:
            outcome = await tuner.search(SPACE, build, buffers, options=QUICK)
        assert str(outcome.winner) == "threads=256"
        (rejected,) = [one for one in outcome.trials if one.is_rejected]
        assert rejected.schedule["threads"] == 128
        assert rejected.status is CandidateStatus.TIMED_OUT
        assert "most_delay_s" in rejected.reason
        budget = TuningBudget(share=1.0, total_s=0.004)
        async with session.tuning(budget=budget) as tuner:
            outcome = await tuner.search(SPACE, build, buffers, options=QUICK)
        assert outcome.why_not == "the budget was spent"
        budget = TuningBudget(share=1.0, most_delay_s=1e-5)
        async with session.tuning(budget=budget) as tuner:
            with pytest.raises(UnsupportedOperation, match="the baseline"):
                await tuner.search(SPACE, build, buffers, options=QUICK)
