"""Who measures what, decided without a loop: whatever is lost, each candidate once."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accy_async.fleet.board import Board, Job
from accy_async.tuning import CandidateStatus, Standing
from tests.fleet.kit import device, found

HERE = device("cuda:0")
FAILED = CandidateStatus.FAILED


def board(*names: str, **more: Any) -> Board:
    made = Board(names, {HERE.kind: {}}, **more)
    made.join("w", HERE.kind)
    return made


def run_to_the_end(
    made: Board, worker: str = "w", **results: Any
) -> list[tuple[str, ...]]:
    """One worker does all there is, and finds ``results``; the jobs it had."""
    jobs = []
    while (job := made.next(worker, HERE)) is not None:
        jobs.append(job.names)
        made.done(job, found(job.names, **results))
    return jobs


def test_each_candidate_is_measured_once_beside_the_baseline() -> None:
    made = board("a", "b", "c")
    assert run_to_the_end(made) == [("a", "b"), ("a", "c")]
    assert made.is_over
    (outcome,) = made.outcomes()
    assert [one.name for one in outcome.measurements] == ["a", "b", "c"]
    assert all(one.outcome.median_ns for one in outcome.measurements)
    assert (outcome.winner, outcome.standing) == ("a", Standing.NO_DIFFERENCE)
    assert outcome.is_storable


def test_single_candidate_is_tried_alone() -> None:
    made = board("a")
    assert run_to_the_end(made) == [("a",)]
    assert made.outcomes()[0].winner == "a"


def test_fastest_wins_with_no_final_where_it_is_far_ahead() -> None:
    made = board("a", "b", "c")
    jobs = run_to_the_end(made, effects={"b": -0.1, "c": -0.3})
    assert len(jobs) == 2
    (outcome,) = made.outcomes()
    assert (outcome.winner, outcome.standing, outcome.final) == (
        "c",
        Standing.FASTER,
        None,
    )


def test_those_too_near_each_other_meet_in_a_final_on_one_device() -> None:
    made = board("a", "b", "c", "d")
    effects = {"b": -0.3, "c": -0.301, "d": -0.1}
    jobs = run_to_the_end(made, effects=effects, half_width=0.01)
    assert sorted(jobs[-1]) == ["a", "b", "c"]
    (outcome,) = made.outcomes()
    assert outcome.winner == "c"
    assert outcome.final is not None
    assert len(outcome.measurements) == 4


def test_final_that_is_lost_twice_is_given_up_and_says_so() -> None:
    made = board("a", "b", "c")
    for _ in range(2):
        job = made.next("w", HERE)
        assert job is not None
        effects = {"b": -0.3, "c": -0.301}
        made.done(job, found(job.names, effects, half_width=0.01))
    for _ in range(2):
        job = made.next("w", HERE)
        assert job is not None
        assert job.is_final
        assert not made.is_over
        made.lost(job, "killed")
    assert made.is_over
    (outcome,) = made.outcomes()
    assert outcome.winner == "c"
    assert outcome.why_not == "the final: worker w was lost with it: killed"


def test_next_one_is_the_baseline_where_the_first_does_not_work() -> None:
    made = board("a", "b", "c")
    jobs = run_to_the_end(made, statuses={"a": FAILED})
    assert jobs == [("a", "b"), ("b", "c")]
    (outcome,) = made.outcomes()
    assert outcome.baseline == "b"
    assert outcome.measurement("a").status is FAILED


def test_nothing_wins_where_nothing_works() -> None:
    made = board("a", "b")
    run_to_the_end(made, statuses={"a": FAILED, "b": FAILED})
    assert made.is_over
    (outcome,) = made.outcomes()
    assert (outcome.winner, outcome.why_not) == (None, "no candidate works")


def test_what_a_worker_had_goes_to_another() -> None:
    made = board("a", "b", "c")
    made.join("v", HERE.kind)
    lost = made.next("w", HERE)
    assert lost is not None
    other = made.next("v", HERE)
    assert other is not None
    made.done(other, found(other.names))
    made.lost(lost, "killed")
    made.leave("w")
    assert run_to_the_end(made, "v") == [lost.names]
    assert made.is_over


def test_candidate_that_takes_two_workers_along_is_out() -> None:
    made = board("a", "b", "c")
    first = made.next("w", HERE)
    assert first is not None
    made.done(first, found(first.names))  # the baseline is known to work
    for _ in range(2):
        job = made.next("w", HERE)
        assert job is not None
        assert job.names == ("a", "c")
        made.lost(job, "killed")
    assert made.is_over
    out = made.outcomes()[0].measurement("c")
    assert (out.status, out.outcome.reason) == (
        FAILED,
        "worker w was lost with it: killed",
    )


def test_baseline_that_takes_workers_along_is_found_out_alone() -> None:
    made = board("a", "b")
    seen = []
    while (job := made.next("w", HERE)) is not None:
        seen.append(job.names)
        if "a" in job.names:
            made.lost(job, "killed")
        else:
            made.done(job, found(job.names))
    assert seen == [("a", "b"), ("a",), ("a",), ("b",)]
    (outcome,) = made.outcomes()
    assert (outcome.winner, outcome.measurement("a").status) == ("b", FAILED)


@pytest.mark.parametrize("culprit", ["a", "b"])
def test_whoever_is_known_to_have_done_it_is_out_at_once(culprit: str) -> None:
    made = board("a", "b", "c")
    job = made.next("w", HERE)
    assert job is not None
    made.lost(job, "gone", culprit)
    run_to_the_end(made)
    (outcome,) = made.outcomes()
    statuses = {one.name: one.status for one in outcome.measurements}
    assert [name for name, status in statuses.items() if status is FAILED] == [culprit]


def test_what_nobody_is_left_for_is_told() -> None:
    made = board("a", "b", "c")
    job = made.next("w", HERE)
    assert job is not None
    made.lost(job, "killed")
    made.leave("w")
    assert made.is_over
    (outcome,) = made.outcomes()
    reasons = {one.outcome.reason for one in outcome.measurements}
    assert reasons == {"no worker was left for it"}
    assert not outcome.is_storable


def test_each_kind_of_device_goes_through_the_list_once() -> None:
    there = device("cuda:1", kind=2)
    made = Board(("a", "b"), {HERE.kind: {}, there.kind: {"b": "not for it"}})
    made.join("w", HERE.kind)
    made.join("v", there.kind)
    here, elsewhere = made.next("w", HERE), made.next("v", there)
    assert here is not None
    assert elsewhere is not None
    assert (here.names, elsewhere.names) == (("a", "b"), ("a",))
    made.done(here, found(here.names))
    assert not made.is_over
    made.done(elsewhere, found(elsewhere.names))
    assert made.is_over
    mine, theirs = made.outcomes()
    assert (mine.kind, theirs.kind) == (HERE.kind, there.kind)
    assert theirs.measurement("b").outcome.reason == "not for it"


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_whatever_is_lost_or_fails_each_candidate_is_found_once(
    data: st.DataObject,
) -> None:
    """Random workers, losses and failures, in any order of completion."""
    names = tuple("abcdef"[: data.draw(st.integers(1, 6))])
    workers = {f"w{i}": HERE for i in range(data.draw(st.integers(1, 3)))}
    killers = set(data.draw(st.lists(st.sampled_from(names), max_size=2)))
    broken = set(data.draw(st.lists(st.sampled_from(names), max_size=2)))
    made = Board(names, {HERE.kind: {}})
    for name in workers:
        made.join(name, HERE.kind)
    running: list[Job] = []
    chances = data.draw(st.integers(0, 3))  # losses that are nobody's fault
    for _ in range(400):
        busy = {job.worker for job in running}
        asked = [made.next(name, HERE) for name in workers if name not in busy]
        running += [job for job in asked if job is not None]
        if not running:
            break
        job = running.pop(data.draw(st.integers(0, len(running) - 1)))
        is_chance = chances > 0 and data.draw(st.booleans())
        if is_chance or killers & set(job.names):
            chances -= is_chance
            made.lost(job, "killed")
        else:
            statuses = {name: FAILED for name in job.names if name in broken}
            made.done(job, found(job.names, statuses=statuses))
    assert made.is_over
    (outcome,) = made.outcomes()
    assert [one.name for one in outcome.measurements] == list(names)
    assert sorted(one.name for one in made.news) == sorted(names)
    for one in outcome.measurements:
        if one.name in killers | broken:
            assert one.status is FAILED
        elif not one.outcome.reason.startswith("worker"):
            assert one.status is CandidateStatus.MEASURED
