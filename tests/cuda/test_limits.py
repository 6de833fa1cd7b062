"""Loops with a limit within CUDA graphs: what reaching it comes to, as node by node."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import anyio
import attrs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accy_async.backends.cuda import context
from accy_async.dtypes import DType, ScalarArgument
from accy_async.errors import GraphError
from accy_async.graph import LaunchGraphBuilder, LaunchGraphPlan
from accy_async.graph.outcome import NodeSkipped
from accy_async.graph.replaying import PreparedPlan
from accy_async.session import Session, open_session
from tests.cuda.comparing import ALWAYS, compare
from tests.cuda.playing import PlayingDriver, words
from tests.cuda.test_loops import BODIES, KERNELS, run_twice
from tests.graphs.limits import LIMIT, countdown, limited, outcome
from tests.graphs.programs import Program

U32, ONE = DType.U32, ScalarArgument.u32(1)


@pytest.fixture(autouse=True)
def driver(monkeypatch: pytest.MonkeyPatch) -> PlayingDriver:
    """What CUDA backends find."""
    made = PlayingDriver(BODIES)
    monkeypatch.setattr(context, "load_driver", lambda: made)
    return made


@pytest.mark.parametrize("carries", [False, True])
@pytest.mark.parametrize("turns", [0, 1, LIMIT, LIMIT + 1, LIMIT + 4])
def test_it_is_what_it_is_node_by_node(turns: int, carries: bool) -> None:
    """Errors, what is skipped, and what is in the host's arrays."""
    found = compare(lambda kernels: limited(kernels, turns, carries=carries))
    fails = turns > LIMIT
    assert set(found.errors) == ({"bounded"} if fails else set())
    assert found.states["x to host"] == ("skipped" if fails else "finished")
    assert found.arrays["aside out"] == [7] * 3


@pytest.mark.parametrize("turns", [LIMIT, LIMIT + 1])
@pytest.mark.parametrize("second", [LIMIT, LIMIT + 1])
def test_what_comes_after_two_is_skipped_if_either_fails(
    turns: int, second: int
) -> None:
    """And what comes after one of them only if that one does."""
    found = compare(lambda kernels: limited(kernels, turns, second=second))
    fails = {"bounded": turns > LIMIT, "second": second > LIMIT}
    assert set(found.errors) == {name for name, failed in fails.items() if failed}
    skipped = {name for name, state in found.states.items() if state == "skipped"}
    assert ("both to host" in skipped) == any(fails.values())
    assert ("more to host" in skipped) == fails["second"]
    assert ("x to host" in skipped) == fails["bounded"]


def chained(turns: int, following: int) -> LaunchGraphPlan:
    """A loop with a limit that runs only where one before it has not failed."""
    b = LaunchGraphBuilder()
    left, minus = countdown(b, turns)
    more = b.scratch("more", U32, 1)
    add = KERNELS.add
    with b.loop(while_=left, max_iterations=LIMIT, name="first"):
        b.kernel(add, [left.read_write, left.read_write, minus.read], [ONE])
    b.fill(more, following, name="between", after=("first",))
    with b.loop(while_=more, max_iterations=LIMIT, name="second"):
        b.kernel(add, [more.read_write, more.read_write, minus.read], [ONE])
    b.copy_out(more, b.host("more out", U32, 1), name="to host")
    return b.build()


@pytest.mark.parametrize("turns", [LIMIT, LIMIT + 1])
@pytest.mark.parametrize("following", [LIMIT, LIMIT + 1])
def test_one_within_the_branch_of_another(turns: int, following: int) -> None:
    """It says nothing where it did not run."""

    async def main() -> None:
        async with open_session("cuda") as session:
            for number in range(3):
                plan = chained(turns, following)
                found, _ = await outcome(session, plan, ALWAYS)
                first = turns > LIMIT
                second = not first and following > LIMIT
                expected = {"first"} if first else {"second"} if second else set()
                assert set(found.errors) == expected, number
                assert found.arrays["more out"] == [9 if first or second else 0]
                assert found.states["second"] == (
                    "skipped" if first else "failed" if second else "finished"
                )

    anyio.run(main)


@pytest.mark.anyio
async def test_a_node_that_is_awaited_by_itself_is_told_of() -> None:
    """The first who looks finds out; the loop fails, what follows is skipped."""
    plan = limited(KERNELS, LIMIT + 1)
    arrays = {name: np.zeros(3, np.uint32) for name in ("x out", "aside out")}
    async with open_session("cuda") as session:
        for _ in range(3):
            run = session.start(plan, arrays, ALWAYS)
            with pytest.raises(NodeSkipped) as skipped:
                await run["after"]
            assert isinstance(skipped.value.__cause__, GraphError)
            with pytest.raises(GraphError, match="after max_iterations=3"):
                await run["bounded"]
            await run["aside to host"]
            with pytest.raises(ExceptionGroup):
                await run


@pytest.mark.anyio
async def test_runs_that_are_repeated_fail_and_go_well_by_turns() -> None:
    """`Session.run` from the third on is a launch and a wait, and yet tells."""
    b = LaunchGraphBuilder()
    given, minus = b.buffer("given", U32, 1), b.scratch("minus", U32, 1)
    left = b.scratch("left", U32, 1)
    b.fill(minus, 2**32 - 1)
    b.copy(given, left)
    with b.loop(while_=left, max_iterations=LIMIT, name="bounded"):
        down = [left.read_write, left.read_write, minus.read]
        b.kernel(KERNELS.add, down, [ONE])
    b.copy_out(left, b.host("out", U32, 1))
    plan = b.build()
    out = np.zeros(1, np.uint32)
    async with open_session("cuda") as session:
        turns = session.allocate(1, U32)
        prepared = await session.prepare(plan, {"given": turns, "out": out}, ALWAYS)
        assert prepared.is_lowered
        for count in (2, 4, 3, 5, 5, 1):
            words(session.backend.buffer_address(turns.handle))[0] = count
            for way in ("run", "prepared", "submitted"):
                out[0] = 9
                failed = await _fails(way, session, plan, prepared, turns, out)
                assert failed == (count > LIMIT), (count, way)
                assert out[0] == (9 if failed else 0)


@pytest.fixture
def counted() -> LaunchGraphPlan:
    """A loop with a limit in another one of as many turns as the caller says."""
    b = LaunchGraphBuilder()
    left, minus = countdown(b, 0)
    with b.loop(count=b.runtime_scalar(), name="outer"):
        b.fill(left, LIMIT + 1)
        with b.loop(while_=left, max_iterations=LIMIT, name="bounded"):
            down = [left.read_write, left.read_write, minus.read]
            b.kernel(KERNELS.add, down, [ONE])
    return b.build()


def turns(count: int) -> list[ScalarArgument]:
    return [ScalarArgument.u32(count)]


@pytest.mark.anyio
async def test_a_plan_changed_to_have_no_limits_fails_by_none(
    counted: LaunchGraphPlan,
) -> None:
    """And who has the mark of the run before is told of that one."""
    options = attrs.evolve(ALWAYS, runtime_scalars=tuple(turns(2)))
    async with open_session("cuda") as session:
        prepared = await session.prepare(counted, {}, options)
        with pytest.RaisesGroup(GraphError):
            await prepared.run()
        before = prepared.submit()
        await prepared.rebind(runtime_scalars=turns(0))
        await prepared.run()
        mark = prepared.submit()
        assert mark.position == before.position + 2
        await mark.wait()
        with pytest.RaisesGroup(GraphError):
            await before.wait()


@pytest.mark.anyio
async def test_a_plan_changed_to_have_limits_has_one_run_at_a_time(
    counted: LaunchGraphPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the next one's verdict would be taken for that of the run before."""
    options = attrs.evolve(ALWAYS, runtime_scalars=tuple(turns(0)))
    async with open_session("cuda") as session:
        prepared = await session.prepare(counted, {}, options)
        await prepared.run()
        await prepared.rebind(runtime_scalars=turns(1))
        mark = prepared.submit()
        with monkeypatch.context() as patch:
            patch.setattr(PreparedPlan, "_has_ended", False)
            with pytest.raises(GraphError, match="still in use"):
                prepared.submit()
        with pytest.RaisesGroup(GraphError):
            await mark.wait()


async def _fails(
    way: str,
    session: Session,
    plan: LaunchGraphPlan,
    prepared: Any,
    turns: object,
    out: np.ndarray,
) -> bool:
    bindings: Mapping[str, Any] = {"given": turns, "out": out}
    try:
        if way == "run":
            await session.run(plan, bindings, ALWAYS)
        elif way == "prepared":
            await prepared.run()
        else:
            await prepared.submit().wait()
    except ExceptionGroup as group:
        (error,) = group.exceptions
        assert isinstance(error, GraphError)
        assert "'bounded'" in str(error)
        return True
    return False


@settings(max_examples=40, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**32 - 1), length=st.integers(1, 40))
def test_random_graphs_within_their_limits(seed: int, length: int) -> None:
    """Branches keep the order that the plan's edges say."""
    program = Program(seed, length, KERNELS, has_hosts=False)
    if program.has_external or "can be lowered" not in program.plan.explain():
        return

    run_twice(program)
