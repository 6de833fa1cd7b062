"""Loops that reach their limit, node by node: what fails with them, and what is left.

Those of lowered plans are in tests/cuda.
"""

from __future__ import annotations

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accy_async.backends import RecordingBackend
from accy_async.backends.replay import Replay
from accy_async.errors import GraphError
from accy_async.graph import LaunchGraphBuilder, LaunchOptions
from accy_async.graph.outcome import NodeSkipped, NodeState
from accy_async.session import open_session
from tests.graphs.limits import (
    LIMIT,
    around_calls,
    bound,
    nested,
    outcome,
    side_by_side,
)
from tests.graphs.parts import KERNEL, check_empty
from tests.graphs.programs import cpu_kernels, named_kernels

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("outer", ["counted", "while"])
@pytest.mark.parametrize("first", [LIMIT, LIMIT + 1])
async def test_the_loop_around_fails_with_it(outer: str, first: int) -> None:
    """What comes after it in the turn is skipped, also what had turns before."""
    async with open_session("cpu", max_streams=1) as session:
        plan = nested(cpu_kernels(), outer, 5, first)
        found, run = await outcome(session, plan, LaunchOptions(lowering="never"))
        with pytest.RaisesGroup(pytest.RaisesExc(GraphError, match="'bounded'")):
            await run
        for name in ("bounded", "outer"):
            with pytest.raises(GraphError, match="max_iterations=3"):
                await run[name]
        with pytest.raises(NodeSkipped) as skipped:
            await run["late"]
        assert isinstance(skipped.value.__cause__, GraphError)
    skipped_names = {n for n, state in found.states.items() if state == "skipped"}
    outs = {"total to host", "beside to host", "go to host", "after"}
    assert skipped_names == {"sum", "late", "later", *outs}
    for name in ("early", "earlier", "twice", "in the turn", "longer"):
        assert found.states[name] == "finished"


async def test_of_two_side_by_side_one_fails() -> None:
    """It ends the other, whose turns are not counted any more."""
    async with open_session("cpu", max_streams=1) as session:
        plan = side_by_side(cpu_kernels(), (9, 9), (2, 3))
        for _ in range(5):
            found, _ = await outcome(session, plan, LaunchOptions(lowering="never"))
            (failed,) = found.errors
            (other,) = {"one", "other"} - {failed}
            assert found.states[failed] == found.states["outer"] == "failed"
            assert found.states[other] == found.states[f"after {other}"] == "skipped"
            assert found.states[f"after {failed}"] == "skipped"


@pytest.mark.parametrize("count", [0, 2])
async def test_a_loop_behind_a_failure_is_skipped_with_what_it_has(count: int) -> None:
    """One without turns, too; and one of calls alone, on no stream."""

    def fail() -> None:
        raise ValueError("it failed")

    for with_device in (False, True):
        b = LaunchGraphBuilder(edges="explicit")
        with b.loop(count=2, name="around"):
            with b.loop(count=1, name="before"):
                b.host_call(lambda: None, name="good")
            b.host_call(fail, name="bad", after="good")
            with b.loop(count=count, name="behind"):
                if with_device:
                    b.kernel(KERNEL, name="never", after="bad")
                else:
                    b.host_call(anyio.sleep_forever, name="never", after="bad")
        async with open_session(RecordingBackend()) as session:
            run = session.start(b.build())
            with pytest.RaisesGroup(ValueError):
                await run
        states = {name: run[name].state for name in ("around", "bad")}
        assert set(states.values()) == {NodeState.FAILED}
        assert run["before"].state is run["good"].state is NodeState.FINISHED
        assert run["behind"].state is run["never"].state is NodeState.SKIPPED


@pytest.mark.parametrize("with_calls", [False, True])
async def test_each_call_failing_once_leaves_nothing(with_calls: bool) -> None:
    """Of making graphs with loops that have limits, and the words that they leave."""
    kernels, options = named_kernels(), LaunchOptions(lowering="always")

    async def act(device: RecordingBackend) -> int:
        done = 0
        if with_calls:
            plan = around_calls(kernels, (1, 1), lambda _: lambda: None)
        else:
            plan = nested(kernels, "counted", 2, 1)
        async with open_session(device) as session:
            given = bound(session, plan)
            for _ in range(2):
                try:
                    await session.run(plan, given, options)
                    done += 1
                except ExceptionGroup:
                    continue
        return done

    device = RecordingBackend()
    assert await act(device) == 2
    check_empty(device)
    for nth in range(1, len(device.calls) + 1):
        failing = RecordingBackend()
        failing.fail("*", nth)
        error: Exception | None = None
        try:
            assert await act(failing) <= 2
        except Exception as raised:  # noqa: BLE001 - of the session's own end
            error = raised
        assert error is None or "told to fail" in repr(error), error
        check_empty(failing)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(step=st.integers(0, 2**32 - 1), with_calls=st.booleans())
def test_runs_cut_short_anywhere_leave_nothing(step: int, with_calls: bool) -> None:
    """Cancelled, calls and launches failing, beside the ends of parts too."""
    device, kernels = RecordingBackend(), named_kernels()
    replay = Replay(
        device, step, burst=3, cancels=0.05, failures=0.05, host_failures=0.2
    )
    if with_calls:
        plan = around_calls(kernels, (1, 1), replay.call)
    else:
        plan = nested(kernels, "counted", 2, 1)

    async def work() -> None:
        async with open_session(device) as session:
            arrays = bound(session, plan)
            for _ in range(3):
                run = session.start(plan, arrays, LaunchOptions(lowering="always"))
                replay.cancellable("run", run)
                await run.wait_over()
                run.cancel()

    async def main() -> None:
        await replay.drive(work)
        check_empty(device)

    anyio.run(main)
