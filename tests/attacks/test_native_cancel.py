"""asyncio's own cancellation, which drops unstarted tasks and knows no shield."""

from __future__ import annotations

import asyncio
import gc

import anyio
import pytest

import accy_async
from accy_async import DType
from accy_async.backends import RecordingBackend
from accy_async.graph import LaunchGraphBuilder, LaunchGraphPlan

GIVE_UP_S = 20.0


def small_plan() -> LaunchGraphPlan:
    g = LaunchGraphBuilder()
    x = g.scratch("x", DType.F32, 4)
    g.fill(x, 1.0)
    return g.build()


def cancel_all_others() -> None:
    """What many programs do when they are told to end."""
    for task in asyncio.all_tasks():
        if task is not asyncio.current_task():
            task.cancel()


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
def test_a_run_that_never_began_does_not_keep_its_session() -> None:
    async def main() -> None:
        with anyio.fail_after(GIVE_UP_S):
            async with accy_async.open_session(RecordingBackend()) as session:
                run = session.start(small_plan())
                cancel_all_others()
        assert run.is_done
        assert run.state == "cancelled"
        assert not any(session.live_objects().values())

    accy_async.run(main)
    gc.collect()  # the coroutine that asyncio dropped, while its warning is ignored


def test_a_run_cancelled_again_while_it_cleans_up_still_ends() -> None:
    async def main() -> None:
        device = RecordingBackend()
        with anyio.fail_after(GIVE_UP_S):
            async with accy_async.open_session(device) as session:
                device.hold_all()
                run = session.start(small_plan())
                await anyio.wait_all_tasks_blocked()
                for _ in range(3):
                    cancel_all_others()
                    await anyio.wait_all_tasks_blocked()
                assert not run.is_done  # what has begun is awaited for the grace
                device.release_all()
                await run.wait_over()
                assert session.statistics().streams_leased == 0
        assert not any(session.live_objects().values())

    accy_async.run(main)


def test_a_task_cancelled_again_while_its_runs_stop_ends_as_cancelled() -> None:
    """Not as lost: anyio takes back more cancellations than its own of such a task."""
    g = LaunchGraphBuilder()
    g.host_call(anyio.sleep_forever)
    plan = g.build()

    async def main() -> None:
        async with accy_async.open_session(RecordingBackend()) as session:
            run = session.start(plan)
            await anyio.wait_all_tasks_blocked()
            task = asyncio.current_task()
            assert task is not None
            loop = asyncio.get_running_loop()
            loop.call_soon(task.cancel)
            loop.call_soon(lambda: loop.call_soon(task.cancel))
            await run

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(main())
