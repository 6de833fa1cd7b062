"""Prepared plans in the hands of several tasks, and of tasks that are cancelled."""

from __future__ import annotations

import threading

import anyio
import numpy as np
import pytest

from accy_async.backends import RecordingBackend
from accy_async.dtypes import DType
from accy_async.errors import GraceExpired, OutOfMemory, SessionClosed
from accy_async.graph import LaunchGraphBuilder, LaunchGraphPlan, RunCancelled
from accy_async.graph.lowering.lowered import LoweredGraph
from accy_async.session import open_session
from tests.graph.graphs import kernel_entry
from tests.graphs.parts import chains, check_empty

U32 = DType.U32
pytestmark = pytest.mark.anyio


def copying() -> LaunchGraphPlan:
    b = LaunchGraphBuilder()
    x, y = b.buffer("x", U32, 4), b.buffer("y", U32, 4)
    b.kernel(kernel_entry(2), [x.read, y.write], name="one")
    return b.build()


def to_host() -> LaunchGraphPlan:
    b = LaunchGraphBuilder()
    x, out = b.scratch("x", U32, 4), b.host("out", U32, 4)
    b.fill(x, 1)
    b.copy_out(x, out)
    return b.build()


async def test_changes_at_the_same_time_are_all_made() -> None:
    """Each while the plan is at work: none undoes the other."""
    device = RecordingBackend()
    async with open_session(device) as session:
        x, y, other_x, other_y = (session.allocate(4, U32) for _ in range(4))
        prepared = await session.prepare(copying(), {"x": x, "y": y})
        device.hold_all()
        prepared.submit()
        async with anyio.create_task_group() as group:
            group.start_soon(prepared.rebind, {"x": other_x})
            group.start_soon(prepared.rebind, {"y": other_y})
            await anyio.wait_all_tasks_blocked()
            device.release_all()
        await prepared.run()
        ids = (other_x.handle.id, other_y.handle.id)
        assert device.launches[-1].buffer_ids == ids
    check_empty(device)


async def test_a_plan_that_is_closed_while_a_change_waits_stays_closed() -> None:
    """The change is refused, and makes nothing."""
    device = RecordingBackend()
    async with open_session(device, grace=0.01) as session:
        x, y, other = (session.allocate(4, U32) for _ in range(3))
        prepared = await session.prepare(copying(), {"x": x, "y": y})
        device.hold_all()
        prepared.submit()

        async def change() -> None:
            with pytest.raises(SessionClosed, match="closed"):
                await prepared.rebind({"x": other})

        async with anyio.create_task_group() as group:
            group.start_soon(change)
            await anyio.wait_all_tasks_blocked()
            with pytest.raises(GraceExpired):
                await prepared.aclose()
            device.release_all()
        assert session.live_objects()["graphs"] == 0
    check_empty(device)


async def test_runs_with_arrays_of_the_host_take_turns() -> None:
    """However many wait for the one before: only one is next."""
    device = RecordingBackend()
    out = np.zeros(4, np.uint32)
    async with open_session(device) as session:
        prepared = await session.prepare(to_host(), {"out": out})
        device.hold_all()
        async with anyio.create_task_group() as group:
            for _ in range(4):
                group.start_soon(prepared.run)
            for _ in range(4):
                await anyio.wait_all_tasks_blocked()
                device.release_all()
                device.hold_all()
            device.release_all()
        kinds = [call.kind for call in device.calls]
        assert kinds.count("launch_graph") == 4
    check_empty(device)


async def test_a_graph_that_is_made_too_late_is_nobodys(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its run was cancelled: the next run makes its own, and not that one is closed."""
    device, plan = RecordingBackend(), chains(1, 40)
    made, going_on, closed = (threading.Event() for _ in range(3))
    make, close = LoweredGraph.make, LoweredGraph.close

    def make_slowly(graph: LoweredGraph) -> None:
        make(graph)
        if not made.is_set():
            made.set()
            going_on.wait()

    def tell_of_close(graph: LoweredGraph) -> None:
        close(graph)
        closed.set()

    monkeypatch.setattr(LoweredGraph, "make", make_slowly)
    monkeypatch.setattr(LoweredGraph, "close", tell_of_close)
    async with open_session(device) as session:
        await session.run(plan)
        run = session.start(plan)
        await anyio.to_thread.run_sync(made.wait)
        run.cancel()
        with pytest.raises(RunCancelled):
            await run
        await session.run(plan)
        going_on.set()
        await anyio.to_thread.run_sync(closed.wait)
        assert session.live_objects()["graphs"] == 1
        await session.run(plan)
    check_empty(device)


@pytest.mark.parametrize("length", [4, 40])
async def test_a_plan_whose_graph_is_refused_runs_plainly(length: int) -> None:
    """Also where it is small enough to be made on the spot."""
    device = RecordingBackend()
    async with open_session(device) as session:
        device.fail("create_graph", error=OutOfMemory("no room"))
        async with await session.prepare(chains(1, length)) as prepared:
            assert not prepared.is_lowered
            assert "no room" in str(prepared.obstacles[0])
            await prepared.run()
            assert device.launch_count == length
    check_empty(device)


async def test_a_graph_that_cannot_be_made_leaves_no_events() -> None:
    """Those for nodes that were awaited by themselves go with it."""
    device, plan = RecordingBackend(), chains(1, 40)
    async with open_session(device) as session:
        run = session.start(plan)
        await run["c0_5"]
        await run
        before = session.live_objects()["events"]
        device.fail("create_graph", error=OutOfMemory("no room"))
        await session.run(plan)
        assert session.live_objects()["events"] == before
    check_empty(device)
