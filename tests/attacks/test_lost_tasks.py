"""asyncio cancels tasks of ours by themselves: what they were for ends all the same."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Coroutine

import anyio
import anyio.lowlevel
import pytest

import accy_async
from accy_async.backends import RecordingBackend
from accy_async.errors import SessionClosed
from accy_async.graph.builder import LaunchGraphBuilder
from accy_async.graph.outcome import HostCallFailed, NodeState, RunCancelled
from accy_async.graph.plan import LaunchGraphPlan
from accy_async.graph.run import Run
from accy_async.session import Session
from tests.graphs.parts import KERNEL, check_empty, diamond

Main = Callable[[RecordingBackend, Session], Coroutine[None, None, None]]
GIVE_UP_S = 20.0
DROPPED = pytest.mark.filterwarnings(
    "ignore:coroutine .* was never awaited:RuntimeWarning"
)
"""What asyncio says of a coroutine whose task it drops before its first step."""


def on_asyncio(main: Main) -> None:
    """Run a program with a session, and see that nothing is left of it."""
    device = RecordingBackend(is_holding=True)

    async def program() -> None:
        with anyio.fail_after(GIVE_UP_S):
            async with accy_async.open_session(device) as session:
                await main(device, session)

    try:
        accy_async.run(program)
    finally:
        gc.collect()
        check_empty(device)


def plan_of_calls(called: list[str]) -> LaunchGraphPlan:
    """A call behind a kernel, another behind the call, and one beside them."""
    b = LaunchGraphBuilder(edges="explicit")
    b.kernel(KERNEL, name="kernel")
    b.host_call(lambda: called.append("call"), name="call", after="kernel")
    b.host_call(lambda: called.append("behind"), name="behind", after="call")
    b.host_call(lambda: called.append("beside"), name="beside")
    return b.build()


def new_tasks(before: set[asyncio.Task[object]]) -> set[asyncio.Task[object]]:
    return asyncio.all_tasks() - before


async def check_lost(session_run: object, called: list[str]) -> None:
    """The call failed, what depends on it was skipped, the other one was made."""
    run = session_run
    with pytest.raises(ExceptionGroup) as caught:
        await run  # type: ignore[misc]
    (error,) = caught.value.exceptions
    assert isinstance(error, HostCallFailed)
    assert "task that it ran in was cancelled" in str(error)
    assert error.__notes__ == ["in node 'call'"]
    assert called == ["beside"]
    assert run["call"].state is NodeState.FAILED  # type: ignore[index]
    assert run["behind"].state is NodeState.SKIPPED  # type: ignore[index]


def test_a_host_items_task_that_is_cancelled_while_it_waits_fails_its_node() -> None:
    """It waits for the device when the program cancels its task, and no other."""

    async def main(device: RecordingBackend, session: Session) -> None:
        called: list[str] = []
        before = asyncio.all_tasks()
        run = session.start(plan_of_calls(called))
        await anyio.wait_all_tasks_blocked()
        waiting = [t for t in new_tasks(before) if "serve" in t.get_name()]
        assert len(waiting) == 1
        waiting[0].cancel()
        await anyio.wait_all_tasks_blocked()
        device.release_all()
        await check_lost(run, called)

    on_asyncio(main)


@DROPPED
def test_a_host_items_task_that_is_dropped_before_it_begins_fails_its_node() -> None:
    """Nothing of it ever ran: not its end either."""

    async def main(device: RecordingBackend, session: Session) -> None:
        called: list[str] = []
        device.release_all()
        before = asyncio.all_tasks()
        run = session.start(plan_of_calls(called))
        while not any("serve" in task.get_name() for task in new_tasks(before)):
            await anyio.lowlevel.checkpoint()
        first = [t for t in new_tasks(before) if "serve" in t.get_name()]
        for task in first:
            task.cancel()
        await anyio.lowlevel.checkpoint()
        with pytest.raises(ExceptionGroup) as caught:
            await run
        assert all(isinstance(one, HostCallFailed) for one in caught.value.exceptions)
        assert "behind" not in called
        assert run.is_done

    on_asyncio(main)


def test_a_loop_whose_task_is_cancelled_fails() -> None:
    """A loop that the host steps has a task as well; what is behind it is skipped."""

    async def main(device: RecordingBackend, session: Session) -> None:
        b = LaunchGraphBuilder(edges="explicit")
        with b.loop(count=3, name="loop") as loop:
            b.kernel(KERNEL, name="kernel")
            b.host_call(lambda: None, name="call", after="kernel")
        b.kernel(KERNEL, name="behind", after=loop)
        before = asyncio.all_tasks()
        run = session.start(b.build())
        await anyio.wait_all_tasks_blocked()
        for task in new_tasks(before):
            if "serve" in task.get_name():
                task.cancel()
        await anyio.wait_all_tasks_blocked()
        device.release_all()
        with pytest.raises(ExceptionGroup):
            await run
        assert run["loop"].state is NodeState.FAILED
        assert run["behind"].state is NodeState.SKIPPED

    on_asyncio(main)


@DROPPED
@pytest.mark.parametrize("how", ["run", "node", "nodes"])
def test_awaiting_a_run_whose_task_was_dropped_ends_at_once(how: str) -> None:
    """It never took a step. The session ends too: anyio sees to that."""
    runs: list[Run] = []

    async def main(device: RecordingBackend, session: Session) -> None:
        before = asyncio.all_tasks()
        runs.append(run := session.start(diamond()))
        (task,) = new_tasks(before)
        task.cancel()
        try:
            if how == "run":
                await run
            elif how == "node":
                await run["top"]
            else:
                assert len([node async for node in run]) == 4
        except RunCancelled:
            pass
        await anyio.sleep_forever()

    with pytest.raises(SessionClosed, match="a task of one of its runs was cancelled"):
        on_asyncio(main)
    assert runs[0].state == "cancelled"
    assert runs[0]["top"].state is NodeState.CANCELLED
