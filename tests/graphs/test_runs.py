"""Runs and their nodes: what awaiting, iterating and cancelling say and do."""

from __future__ import annotations

import gc

import anyio
import anyio.lowlevel
import pytest

from accy_async.backends import RecordingBackend
from accy_async.dtypes import DType
from accy_async.errors import (
    DeviceError,
    GraphError,
    OutOfMemory,
    SessionClosed,
)
from accy_async.graph.builder import LaunchGraphBuilder
from accy_async.graph.options import LaunchOptions, OnError
from accy_async.graph.outcome import NodeSkipped, NodeState, RunCancelled
from accy_async.graph.plan import LaunchGraphPlan
from accy_async.session import open_session
from tests.graph.graphs import kernel_entry
from tests.graphs.parts import KERNEL, chains, check_empty, diamond

pytestmark = pytest.mark.anyio

U32 = DType.U32


def held() -> RecordingBackend:
    return RecordingBackend(is_holding=True)


def states(run: object, plan: LaunchGraphPlan) -> list[str]:
    return [str(run[node.name].state) for node in plan.nodes]  # type: ignore[index]


async def submitted() -> None:
    await anyio.wait_all_tasks_blocked()


# Awaiting


async def test_a_node_goes_from_waiting_to_finished() -> None:
    """Waiting when started, submitted with the rest, finished when its stream is."""
    device, plan = held(), chains(1, 2)
    async with open_session(device) as session:
        run = session.start(plan)
        assert states(run, plan) == ["waiting", "waiting"]
        assert (run.state, run.is_done) == ("running", False)
        await submitted()
        assert states(run, plan) == ["submitted", "submitted"]
        device.step(device.launches[0].stream)
        assert states(run, plan) == ["finished", "submitted"]
        await run["c0_0"]
        device.release_all()
        statistics = await run
        assert (run.state, run.is_done) == ("finished", True)
    assert statistics.nodes == {NodeState.FINISHED: 2}
    assert (statistics.submissions, statistics.in_flight) == (2, 0)
    assert (statistics.streams, statistics.event_waits) == (1, 0)
    assert run.errors == {}
    assert run.cleanup_errors() == []


async def test_many_await_one_node_and_the_run() -> None:
    """Before it is submitted and after; all are woken, in a session or behind it."""
    device, plan = held(), diamond()
    woken: list[str] = []
    async with open_session(device) as session:
        run = session.start(plan)

        async def waiter(name: str) -> None:
            await run[name]
            woken.append(name)

        async def whole() -> None:
            await run
            woken.append("run")

        async with anyio.create_task_group() as group:
            for _ in range(20):
                for node in plan.nodes:
                    group.start_soon(waiter, node.name)
                group.start_soon(whole)
            await submitted()
            for node in plan.nodes:
                group.start_soon(waiter, node.name)
            await submitted()
            assert woken == []
            device.release_all()
    assert sorted(woken) == sorted([n.name for n in plan.nodes] * 21 + ["run"] * 20)
    await run
    await run["top"]


async def test_unknown_names_are_refused() -> None:
    """With the run's name in the message."""
    async with open_session(RecordingBackend()) as session:
        run = session.start(diamond(), options=LaunchOptions(name="mine"))
        with pytest.raises(GraphError, match=r"'mine'.*'nosuch'"):
            run["nosuch"]
        await run


async def test_a_failure_is_raised_where_it_is_awaited() -> None:
    """The node raises its error, those behind it a NodeSkipped because of it."""
    device, plan = held(), diamond()
    device.fail_execution(2)
    async with open_session(device) as session:
        run = session.start(plan)
        await submitted()
        device.release_all()
        with pytest.RaisesGroup(DeviceError) as caught:
            await run
        (error,) = caught.value.exceptions
        assert isinstance(error, DeviceError)
        failed = error.node
        assert failed in ("left", "right")
        with pytest.raises(DeviceError) as own:
            await run[failed]
        assert own.value is error is run[failed].error is run.errors[failed]
        with pytest.raises(NodeSkipped, match="'bottom'") as skipped:
            await run["bottom"]
        assert skipped.value.__cause__ is error
        await run["top"]
        assert run.state == "failed"
        assert sorted(states(run, plan)) == [
            "failed",
            "finished",
            "finished",
            "skipped",
        ]
    check_empty(device)


@pytest.mark.parametrize("on_error", OnError)
async def test_independent_nodes_finish_or_are_cancelled(on_error: OnError) -> None:
    """As asked; what had not begun, that is."""
    device, plan = held(), chains(2, 3)
    device.fail_execution(1)
    async with open_session(device) as session:
        run = session.start(plan, options=LaunchOptions(on_error=on_error))
        await submitted()
        device.step(device.launches[0].stream)
        await submitted()
        device.release_all()
        with pytest.RaisesGroup(DeviceError):
            await run
    first = device.launches[0].diagnostic_id
    other = "c1" if first == "c0_0" else "c0"
    expected = "finished" if on_error is OnError.FINISH else "cancelled"
    assert {str(run[f"{other}_{i}"].state) for i in range(3)} == {expected}


async def test_an_error_that_nobody_awaits_ends_the_session_once() -> None:
    """Leaving raises it; one that was awaited, or cancelled, is not told again."""
    device = RecordingBackend()
    device.fail_execution(1)
    device.fail_execution(2)
    with pytest.raises(ExceptionGroup, match="run 'lost' failed") as caught:
        async with open_session(device) as session:
            seen = session.start(chains(1, 1), options=LaunchOptions(name="seen"))
            with pytest.RaisesGroup(DeviceError):
                await seen
            lost = session.start(chains(1, 1), options=LaunchOptions(name="lost"))
            await lost.wait_over()
    assert [type(error) for error in caught.value.exceptions] == [DeviceError]
    check_empty(device)


async def test_a_run_that_cannot_be_prepared_says_why() -> None:
    """No room for scratch: the run raises that, and its nodes are skipped for it."""
    device = RecordingBackend(fail_buffer_allocate_after_count=0)
    b = LaunchGraphBuilder()
    b.kernel(kernel_entry(1), [b.scratch("x", U32, 4)], name="node")
    async with open_session(device) as session:
        run = session.start(b.build())
        with pytest.RaisesGroup(OutOfMemory):
            await run
        with pytest.raises(NodeSkipped) as skipped:
            await run["node"]
        assert isinstance(skipped.value.__cause__, OutOfMemory)
    assert device.launch_count == 0
    check_empty(device)


# Iterating


async def test_iteration_gives_each_node_once_as_it_gets_done() -> None:
    """In the order of completion; a loop at its end; late iterations get all."""
    device = held()
    b = LaunchGraphBuilder(edges="explicit")
    b.kernel(KERNEL, name="before")
    with b.loop(count=3, name="loop"):
        b.kernel(KERNEL, name="within", after="before")
    b.kernel(KERNEL, name="behind", after="within")
    seen: list[str] = []
    async with open_session(device) as session:
        run = session.start(b.build())

        async def follow() -> None:
            async for node in run:
                assert node.state.is_final
                seen.append(node.name)

        async with anyio.create_task_group() as group:
            group.start_soon(follow)
            await submitted()
            stream = device.launches[0].stream
            counts = []
            for _ in range(5):
                device.step(stream)
                await submitted()
                counts.append(len(seen))
            assert counts == [1, 1, 1, 3, 4]
            device.release_all()
        assert seen[0] == "before"
        assert sorted(seen[1:3]) == ["loop", "within"]
        assert seen[3:] == ["behind"]
        assert sorted([node.name async for node in run]) == sorted(seen)


async def test_iteration_may_be_left_in_the_middle() -> None:
    """By break or by a cancel: the run goes on, and nothing complains."""
    async with open_session(RecordingBackend()) as session:
        run = session.start(chains(2, 5))
        async for _ in run:
            break
        with anyio.CancelScope() as scope:
            async for _ in run:
                scope.cancel()
        gc.collect()
        assert (await run).nodes == {NodeState.FINISHED: 10}
        assert not run._progress._trackers


# Cancelling: each does what it says, and no more


async def test_cancelling_a_waiter_stops_only_the_wait() -> None:
    """Of the run, of a node submitted or not, and of the iteration."""
    device, plan = held(), diamond()
    async with open_session(device) as session:
        run = session.start(plan)

        async def iterate() -> None:
            async for _ in run:
                pass

        for submit_first in (False, True):
            with anyio.CancelScope() as scope:
                async with anyio.create_task_group() as group:
                    group.start_soon(run.wait)
                    group.start_soon(run["bottom"].wait)
                    group.start_soon(iterate)
                    if submit_first:
                        await submitted()
                    scope.cancel()
            assert scope.cancelled_caught
            assert run.state == "running"
        device.release_all()
        assert (await run).nodes == {NodeState.FINISHED: 4}


async def test_cancelling_a_run_stops_that_run() -> None:
    """What has not begun is dropped, what has is awaited; others are left alone."""
    device, plan = held(), chains(1, 4)
    async with open_session(device) as session:
        run, other = session.start(plan), session.start(plan)
        await submitted()
        first = device.launches[0].stream
        device.step(first)
        run.cancel()
        run.cancel()
        await submitted()
        assert run.state == "running"
        device.release_all()
        with pytest.raises(RunCancelled):
            await run
        cancelled = run["c0_3"]
        with pytest.raises(RunCancelled):
            await cancelled
        assert run.state == "cancelled"
        assert states(run, plan).count("finished") <= 1
        assert (await other).nodes == {NodeState.FINISHED: 4}
        run.cancel()
        other.cancel()
        assert other.state == "finished"
    check_empty(device)


async def test_cancelling_before_the_first_node_makes_nothing() -> None:
    """A run cancelled where it was started makes no call on the device."""
    device = RecordingBackend()
    async with open_session(device) as session:
        run = session.start(diamond())
        run.cancel()
        with pytest.raises(RunCancelled):
            await run
        assert device.launch_count == 0
        assert states(run, diamond()) == ["cancelled"] * 4


@pytest.mark.parametrize("how", ["fail_after", "move_on_after"])
async def test_deadlines_around_a_run_stop_it(how: str) -> None:
    """`session.run` ends with its scope: the run is over when the scope is left."""
    device = held()
    async with open_session(device) as session, anyio.create_task_group() as group:

        async def release() -> None:
            await submitted()
            device.release_all()

        async def run() -> None:
            await session.run(diamond())

        if how == "fail_after":
            with pytest.raises(TimeoutError), anyio.fail_after(0):
                group.start_soon(release)
                await run()
        else:
            with anyio.move_on_after(0) as scope:
                group.start_soon(release)
                await run()
            assert scope.cancelled_caught
        assert session.statistics().runs == 0
        await session.run(diamond())
    check_empty(device)


async def test_leaving_the_session_cancels_its_runs() -> None:
    """Normally, too: who wants them done awaits them. Then nothing is taken."""
    device, plan = held(), diamond()
    runs = []
    async with anyio.create_task_group() as group:

        async def program() -> None:
            async with open_session(device) as session:
                runs.append(session.start(plan))
                await anyio.lowlevel.checkpoint()
            with pytest.raises(SessionClosed):
                session.start(plan)

        group.start_soon(program)
        await submitted()
        device.release_all()
    assert runs[0].state == "cancelled"
    check_empty(device)
