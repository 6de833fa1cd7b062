"""Loops with a limit in other loops, and beside calls on the host, as CUDA graphs."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accy_async.backends.cuda import context
from accy_async.dtypes import DType
from accy_async.errors import GraphError
from accy_async.graph import LaunchOptions
from accy_async.graph.outcome import NodeSkipped
from accy_async.session import Session, open_session
from tests.cuda.comparing import ALWAYS, compare
from tests.cuda.playing import PlayingDriver, words
from tests.cuda.test_loops import BODIES, KERNELS
from tests.graphs.limits import (
    LIMIT,
    around_calls,
    bound,
    nested,
    outcome,
    random_outcome,
    random_program,
    side_by_side,
)
from tests.graphs.programs import Kernels, cpu_kernels

U32 = DType.U32


@pytest.fixture(autouse=True)
def driver(monkeypatch: pytest.MonkeyPatch) -> PlayingDriver:
    """What CUDA backends find."""
    made = PlayingDriver(BODIES)
    monkeypatch.setattr(context, "load_driver", lambda: made)
    return made


@pytest.mark.parametrize("deep", [False, True])
@pytest.mark.parametrize("outer", ["counted", "while", 2, 3])
@pytest.mark.parametrize(
    ("turns", "first"), [(0, 1), (2, LIMIT - 1), (3, LIMIT - 1), (5, LIMIT), (1, 9)]
)
def test_a_turn_that_fails_is_the_last(
    outer: str | int, turns: int, first: int, deep: bool
) -> None:
    """Errors, what is skipped, and all arrays, those that turns have swapped too."""
    found = compare(lambda k: nested(k, outer, turns, first, deep=deep))
    limit = outer if isinstance(outer, int) else turns
    enough = max(0, LIMIT + 1 - first)  # turns that the inner loop ends by itself in
    if min(limit, turns) > enough:
        assert set(found.errors) == {"bounded"}
        assert found.states["outer"] == "failed"
        assert {found.states[name] for name in ("sum", "late", "later")} == {"skipped"}
        assert {found.states[name] for name in ("early", "earlier")} == {"finished"}
        assert found.arrays["total out"] == [9] * 3
    elif limit < turns:
        assert set(found.errors) == {"outer"}
        assert found.states["bounded"] == found.states["later"] == "finished"
    else:
        assert not found.errors
        assert found.arrays["go out"] == [0]
    assert found.arrays["ones out"] == [1] * 3


@pytest.mark.parametrize("turns", [(1, 1), (9, 1), (1, 9), (9, 9)])
@pytest.mark.parametrize("limits", [(2, 3), (3, 2)])
def test_of_two_side_by_side_one_fails(
    turns: tuple[int, int], limits: tuple[int, int]
) -> None:
    """What is left of the turn is not the other's failure; as node by node, by luck."""

    async def main() -> None:
        plan = side_by_side(KERNELS, turns, limits)
        async with open_session("cuda") as session:
            for _ in range(2):
                found, run = await outcome(session, plan, ALWAYS)
                assert run.statistics().is_lowered
                expected = {"one": "finished", "other": "finished"}
                failed = [n for n, t in zip(expected, turns, strict=True) if t > 3]
                if len(failed) == 2:
                    expected = dict.fromkeys(expected, "skipped")
                    failed = ["one" if limits[0] < limits[1] else "other"]
                assert list(found.errors) == failed
                for name, state in expected.items():
                    has_failed = name in failed
                    assert found.states[name] == ("failed" if has_failed else state)
                    behind = found.states[f"after {name}"]
                    assert behind == ("skipped" if has_failed else state)

    anyio.run(main)


class Calls:
    """What plans call, and which of it was called."""

    def __init__(self) -> None:
        self.made: list[str] = []

    def __call__(self, name: str) -> Callable[[], object]:
        async def call() -> None:
            await anyio.lowlevel.checkpoint()
            self.made.append(name)

        return call


@pytest.mark.parametrize("first", [LIMIT, LIMIT + 1])
@pytest.mark.parametrize("second", [LIMIT, LIMIT + 1])
def test_calls_and_parts_behind_a_failure_are_skipped(first: int, second: int) -> None:
    """And what depends on none of it is done, of the same part too."""
    made = []

    def make(kernels: Kernels) -> object:
        calls = Calls()
        made.append(calls)
        return around_calls(kernels, (first, second), calls)

    found = compare(make, times=1)  # type: ignore[arg-type]
    plain, lowered = made
    assert sorted(plain.made) == sorted(lowered.made)
    fails = {"first": first > LIMIT, "second": second > LIMIT}
    assert set(found.errors) == {name for name, failed in fails.items() if failed}
    skipped = {name for name, state in found.states.items() if state == "skipped"}
    assert ("behind" in skipped) == ("left to host" in skipped) == fails["first"]
    assert ("both" in skipped) == ("last" in skipped) == any(fails.values())
    assert not skipped & {"aside", "n", "other", "aside to host"}
    assert ("behind" in lowered.made) == (not fails["first"])


def set_word(session: Session, array: Any, value: int) -> None:
    """Write to the device that plays."""
    words(session.backend.buffer_address(array.handle))[0] = value


@pytest.mark.anyio
async def test_a_failure_at_a_parts_end_gives_the_run_up() -> None:
    """A call beside it that never ends is cancelled, if errors are to cancel."""

    def call(name: str) -> Callable[[], object]:
        return anyio.sleep_forever if name == "aside" else Calls()(name)

    plan = around_calls(KERNELS, (LIMIT + 1, 0), call)
    options = LaunchOptions(lowering="always", on_error="cancel")
    async with open_session("cuda") as session:
        for _ in range(2):
            found, _ = await outcome(session, plan, options)
            assert set(found.errors) == {"first"}
            assert found.states["behind"] == found.states["aside"] == "cancelled"


@pytest.mark.anyio
@pytest.mark.parametrize("with_calls", [False, True])
async def test_a_node_that_is_awaited_by_itself_is_told_of(with_calls: bool) -> None:
    """The loop around fails with the one that did."""
    if with_calls:
        plan = around_calls(KERNELS, (LIMIT + 1, 1), Calls())
        loops, behind = ("first", "around first"), ("behind", "both", "left")
        beside = "aside to host"
    else:
        plan = nested(KERNELS, "counted", 3, LIMIT)
        loops, behind = ("bounded", "outer"), ("sum", "late", "total to host")
        beside = "ones to host"
    async with open_session("cuda") as session:
        given = bound(session, plan)
        for _ in range(3):
            run = session.start(plan, given, ALWAYS)
            for name in behind:
                with pytest.raises(NodeSkipped) as skipped:
                    await run[name]
                assert isinstance(skipped.value.__cause__, GraphError)
            for name in loops:
                with pytest.raises(GraphError, match="after max_iterations=3"):
                    await run[name]
            await run[beside]
            with pytest.RaisesGroup(GraphError):
                await run


async def fails(way: Callable[[], Awaitable[object]]) -> set[str]:
    """The loops that a run fails by."""
    try:
        await way()
    except ExceptionGroup as group:
        return {str(error).split("'")[1] for error in group.exceptions}
    return set()


@pytest.mark.anyio
@pytest.mark.parametrize("outer", ["counted", "while", 2])
async def test_runs_of_one_graph_fail_and_go_well_by_turns(outer: str | int) -> None:
    """In each way to run it; a failure leaves nothing for the next run."""
    plan = nested(KERNELS, outer, 2, None)
    async with open_session("cuda") as session:
        given = bound(session, plan)
        prepared = await session.prepare(plan, given, ALWAYS)
        assert prepared.is_lowered

        async def submit() -> None:
            await prepared.submit().wait()

        again = functools.partial(session.run, plan, given, ALWAYS)
        for first in (0, LIMIT, LIMIT - 1, LIMIT + 1, LIMIT + 1, 1):
            for way in (again, prepared.run, submit):
                set_word(session, given["first"], first)
                given["ones out"][:] = 9
                given["total out"][:] = 9
                expected = {"bounded"} if first >= LIMIT else set()
                assert await fails(way) == expected
                assert (given["total out"] == 9).all() == bool(expected)
                assert (given["ones out"] == 1).all()


@pytest.mark.anyio
async def test_runs_of_parts_fail_and_go_well_by_turns() -> None:
    """What was skipped in one is called in the next."""
    calls = Calls()
    plan = around_calls(KERNELS, None, calls)
    async with open_session("cuda") as session:
        given = bound(session, plan)
        prepared = await session.prepare(plan, given, ALWAYS)
        assert prepared.is_lowered
        again = functools.partial(session.run, plan, given, ALWAYS)
        for first, other in ((1, 9), (9, 9), (0, 0), (9, 1), (LIMIT, LIMIT)):
            for way in (again, prepared.run):
                calls.made.clear()
                set_word(session, given["first"], first)
                set_word(session, given["other"], other)
                counts = {"first": first, "second": other}
                expected = {name for name, count in counts.items() if count > LIMIT}
                assert await fails(way) == expected
                made = {"aside", "other"}
                made.update(() if first > LIMIT else {"behind"})
                made.update(() if expected else {"last"})
                assert set(calls.made) == made


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 2**32 - 1), length=st.integers(1, 40), has_hosts=st.booleans()
)
def test_random_graphs_beyond_their_limits(
    seed: int, length: int, has_hosts: bool
) -> None:
    """In loops of any kind within each other; as they are node by node."""
    program = random_program(seed, length, KERNELS, has_hosts=has_hosts)
    plain = random_program(seed, length, cpu_kernels(), has_hosts=has_hosts)
    if program is None or plain is None:
        return

    async def main() -> None:
        async with open_session("cpu") as session:
            expected = await random_outcome(session, plain, "never")
        async with open_session("cuda") as session:
            for _ in range(2):
                assert await random_outcome(session, program, "always") == expected

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(context, "load_driver", lambda: PlayingDriver(BODIES))
        anyio.run(main)
