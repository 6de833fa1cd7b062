"""Prepared plans with calls on the host: a device graph for each part, made once."""

from __future__ import annotations

from collections.abc import Callable

import anyio
import pytest

from accy_async.backends import RecordingBackend
from accy_async.dtypes import DType, ScalarArgument
from accy_async.errors import GraceExpired, GraphError, SessionClosed
from accy_async.graph import LaunchGraphBuilder, LaunchGraphPlan, LaunchOptions
from accy_async.graph.outcome import RunCancelled
from accy_async.session import open_session
from tests.graph.graphs import kernel_entry
from tests.graphs.parts import check_empty

U32 = DType.U32
ALWAYS = LaunchOptions(lowering="always")
ENTRY = kernel_entry(1, runtime_scalar_argument_count=1)

pytestmark = pytest.mark.anyio


def around(call: Callable[[], object], length: int = 8) -> LaunchGraphPlan:
    """So many kernels on ``x``, a call, and as many again; all take a run's scalar."""
    b = LaunchGraphBuilder()
    x, scalar = b.buffer("x", U32, 4), b.runtime_scalar()
    for number in range(length):
        b.kernel(ENTRY, [x.read_write], [scalar], name=f"a{number}")
    b.host_call(call, reads=[x], writes=[x], name="call")
    for number in range(length):
        b.kernel(ENTRY, [x.read_write], [scalar], name=f"b{number}")
    return b.build()


def scalar(value: int, lowering: str = "automatic") -> LaunchOptions:
    scalars = (ScalarArgument.u32(value),)
    return LaunchOptions(runtime_scalars=scalars, lowering=lowering)


async def test_its_graphs_are_made_once_and_each_run_launches_them() -> None:
    """From the first run on, and in place for other buffers and scalars."""
    called: list[int] = []
    device, plan = RecordingBackend(), around(lambda: called.append(len(called)))
    async with open_session(device) as session:
        x, other = session.allocate(4, U32), session.allocate(4, U32)
        async with await session.prepare(plan, {"x": x}, scalar(1)) as prepared:
            assert prepared.is_lowered
            assert not prepared.obstacles
            assert (prepared.made, prepared.stream) == (2, None)
            start = len(device.calls)
            for _ in range(3):
                await prepared.run()
            await prepared.rebind({"x": other}, [ScalarArgument.u32(2)])
            await prepared.run()
            kinds = [call.kind for call in device.calls[start:]]
            assert kinds.count("launch_graph") == 8
            assert kinds.count("update_graph") == 2
            assert kinds.count("create_graph") == kinds.count("launch") == 0
            assert called == [0, 1, 2, 3]
            last = device.launches[-1]
            assert last.buffer_ids == (other.handle.id,)
            assert last.scalars == (ScalarArgument.u32(2),)
            assert prepared.made == 2
            with pytest.raises(GraphError, match="calls on the host"):
                prepared.submit()
        assert session.live_objects()["graphs"] == 0
        with pytest.raises(SessionClosed):
            await prepared.run()
    check_empty(device)


async def test_small_parts_are_made_graphs_of_where_it_is_said() -> None:
    device, plan = RecordingBackend(), around(lambda: None, 2)
    async with open_session(device) as session:
        x = {"x": session.allocate(4, U32)}
        prepared = await session.prepare(plan, x, scalar(1))
        assert "too small" in str(prepared.obstacles[0])
        await prepared.run()
        with pytest.raises(GraphError, match="too small"):
            prepared.submit()
        prepared = await session.prepare(plan, x, scalar(1, "always"))
        assert prepared.is_lowered
        await prepared.run()
    check_empty(device)


async def test_runs_at_once_come_one_after_the_other() -> None:
    """What they use is theirs alone meanwhile, and changes wait for them."""
    going, most, gate = 0, 0, anyio.Event()

    async def call() -> None:
        nonlocal going, most
        going += 1
        most = max(most, going)
        await gate.wait()
        await anyio.lowlevel.checkpoint()
        going -= 1

    device, plan = RecordingBackend(), around(call)
    async with open_session(device) as session:
        x, other = session.allocate(4, U32), session.allocate(4, U32)
        prepared = await session.prepare(plan, {"x": x}, scalar(1))

        async def rebind() -> None:
            await prepared.rebind({"x": other})

        async with anyio.create_task_group() as group:
            for ask in (*3 * [prepared.run], rebind, prepared.run):
                group.start_soon(ask)
                await anyio.wait_all_tasks_blocked()
            gate.set()
        used = [launch.buffer_ids[0] for launch in device.launches]
        assert used == 48 * [x.handle.id] + 16 * [other.handle.id]
        assert most == 1
    check_empty(device)


async def test_a_call_that_fails_or_is_cancelled_leaves_it_as_it_was() -> None:
    """The failure is raised, the cancellation goes on; the next run is whole."""
    does: list[Callable[[], object]] = []

    async def call() -> None:
        if does:
            await does.pop()()  # type: ignore[misc]

    async def fail() -> None:
        raise ValueError("no")

    device, plan = RecordingBackend(), around(call)
    async with open_session(device) as session:
        prepared = await session.prepare(
            plan, {"x": session.allocate(4, U32)}, scalar(1)
        )
        does.append(fail)
        with pytest.RaisesGroup(pytest.RaisesExc(ValueError, match="no")):
            await prepared.run()
        does.append(anyio.sleep_forever)
        async with anyio.create_task_group() as group:
            group.start_soon(prepared.run)
            await anyio.wait_all_tasks_blocked()
            group.cancel_scope.cancel()
        before = device.launch_count
        await prepared.run()
        assert device.launch_count == before + 16
        assert prepared.made == 2
    check_empty(device)


async def test_what_does_not_end_within_the_grace_closes_it() -> None:
    device, plan = RecordingBackend(), around(lambda: None)
    async with open_session(device, grace=0.01) as session:
        prepared = await session.prepare(
            plan, {"x": session.allocate(4, U32)}, scalar(1)
        )
        device.hold_all()
        late = pytest.RaisesGroup(
            GraceExpired, flatten_subgroups=True, allow_unwrapped=True
        )
        with late:
            async with anyio.create_task_group() as group:
                group.start_soon(prepared.run)
                await anyio.wait_all_tasks_blocked()
                group.cancel_scope.cancel()
        device.release_all()
        with pytest.raises(SessionClosed):
            await prepared.run()
    check_empty(device)


async def test_closing_waits_for_a_run_and_leaving_ends_it() -> None:
    """Closed by another task; and the session left while it runs."""
    device = RecordingBackend()
    event = anyio.Event()
    outcomes: list[str] = []
    plan = around(event.wait)

    async with anyio.create_task_group() as group, open_session(device) as session:
        x = {"x": session.allocate(4, U32)}
        prepared = await session.prepare(plan, x, scalar(1))
        group.start_soon(prepared.run)
        await anyio.wait_all_tasks_blocked()
        async with anyio.create_task_group() as closing:
            closing.start_soon(prepared.aclose)
            await anyio.wait_all_tasks_blocked()
            assert session.live_objects()["graphs"] == 2
            event.set()
        assert session.live_objects()["graphs"] == 0
        forever = await session.prepare(around(anyio.sleep_forever), x, scalar(1))

        async def run() -> None:
            try:
                await forever.run()
            except RunCancelled as error:
                outcomes.append(str(error))

        group.start_soon(run)
        await anyio.wait_all_tasks_blocked()
    assert outcomes == ["run 'plan of 17 nodes' was cancelled"]
    check_empty(device)
