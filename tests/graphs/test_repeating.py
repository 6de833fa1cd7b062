"""Runs that repeat one before them: shorter, and told as any other is."""

from __future__ import annotations

import anyio
import numpy as np
import pytest

from accy_async.backends import RecordingBackend
from accy_async.dtypes import DType, ScalarArgument
from accy_async.errors import (
    DeviceError,
    GraceExpired,
    InvalidBuffer,
    LaunchArgumentMismatch,
    SessionClosed,
)
from accy_async.graph import LaunchGraphBuilder, LaunchGraphPlan, LaunchOptions
from accy_async.graph.outcome import NodeState, RunCancelled
from accy_async.session import Session, open_session
from tests.graph.graphs import kernel_entry
from tests.graphs.parts import chains, check_empty, diamond

U32 = DType.U32
pytestmark = pytest.mark.anyio


async def warm(
    session: Session, plan: LaunchGraphPlan, bindings: object = None
) -> None:
    """Run a plan until the next run repeats one."""
    for _ in range(2):
        await session.run(plan, bindings)  # type: ignore[arg-type]


def copied() -> LaunchGraphPlan:
    """A host array goes in, and what it is plus a kernel's comes out."""
    b = LaunchGraphBuilder()
    x, given = b.buffer("x", U32, 4), b.host("given", U32, 4)
    b.copy_in(given, x)
    b.kernel(kernel_entry(1), [x.read_write], name="one")
    return b.build()


async def test_a_repeated_run_makes_no_task(monkeypatch: pytest.MonkeyPatch) -> None:
    """And counts as a run while it goes on."""
    device, plan = RecordingBackend(), diamond()
    async with open_session(device) as session:
        await warm(session, plan)
        monkeypatch.setattr(session._group, "start_soon", None)
        for _ in range(3):
            statistics = await session.run(plan)
            assert statistics.nodes == {NodeState.FINISHED: 4}
            assert statistics.is_lowered
        monkeypatch.undo()
        device.hold_all()
        async with anyio.create_task_group() as group:
            group.start_soon(session.run, plan)
            await anyio.wait_all_tasks_blocked()
            assert session.statistics().runs == 1
            assert session.load >= 2
            device.release_all()
        assert session.load == session.statistics().runs == 0
    check_empty(device)


async def test_a_node_that_fails_is_told_as_in_the_first_run() -> None:
    device, plan = RecordingBackend(), diamond()
    failing = pytest.RaisesGroup(
        pytest.RaisesExc(DeviceError, match="node=left"),
        match="run 'mine' failed",
    )
    async with open_session(device) as session:
        for _ in range(4):
            device.fail_execution(2)
            with failing:
                await session.run(plan, options=LaunchOptions(name="mine"))
            assert (await session.run(plan)).nodes == {NodeState.FINISHED: 4}
    check_empty(device)


async def test_a_launch_that_is_refused_is_told_and_loses_nothing() -> None:
    device, plan = RecordingBackend(), diamond()
    async with open_session(device) as session:
        await warm(session, plan)
        device.fail("launch_graph")
        with pytest.RaisesGroup(DeviceError):
            await session.run(plan)
        assert (await session.run(plan)).is_lowered
        assert session.statistics().streams_leased == 0
    check_empty(device)


async def test_two_at_once_do_not_share_what_is_in_use() -> None:
    device, plan = RecordingBackend(), diamond()
    async with open_session(device) as session:
        await warm(session, plan)
        async with anyio.create_task_group() as group:
            for _ in range(3):
                group.start_soon(session.run, plan)
        assert device.launch_count == 5 * 4
    check_empty(device)


async def test_what_does_not_fit_any_more_is_checked_as_ever() -> None:
    device, plan = RecordingBackend(), copied()
    async with open_session(device) as session:
        x, given = session.allocate(4, U32), np.zeros(4, np.uint32)
        bindings = {"x": x, "given": given}
        await warm(session, plan, bindings)
        with pytest.raises(LaunchArgumentMismatch, match="no slot or external"):
            await session.run(plan, bindings | {"other": x})
        with pytest.raises(LaunchArgumentMismatch, match="'x' is not bound"):
            await session.run(plan, {"given": given})
        given.shape = (2, 2)
        with pytest.raises(LaunchArgumentMismatch, match="shape"):
            await session.run(plan, bindings)
        given.shape = (4,)
        with pytest.raises(LaunchArgumentMismatch, match="1 were given"):
            scalars = LaunchOptions(runtime_scalars=(ScalarArgument.u32(1),))
            await session.run(plan, bindings, scalars)
        other = session.allocate(4, U32)
        assert not (await session.run(plan, bindings | {"x": other})).is_lowered
        assert (await session.run(plan, bindings)).is_lowered
        x.free()
        with pytest.raises(InvalidBuffer, match="freed"):
            await session.run(plan, bindings)
    with pytest.raises(SessionClosed):
        await session.run(plan, bindings)
    check_empty(device)


async def test_scalars_are_those_of_the_run() -> None:
    device, b = RecordingBackend(), LaunchGraphBuilder()
    entry = kernel_entry(0, runtime_scalar_argument_count=1)
    b.kernel(entry, [], [b.runtime_scalar()])
    plan = b.build()
    async with open_session(device) as session:
        for value in (1, 1, 1, 2, 1, 2, 2, 1):
            scalars = (ScalarArgument.u32(value),)
            await session.run(plan, options=LaunchOptions(runtime_scalars=scalars))
            assert device.launches[-1].scalars == scalars


async def test_cancelling_drops_what_has_not_begun() -> None:
    device, plan = RecordingBackend(), chains(1, 5)
    async with open_session(device) as session:
        await warm(session, plan)
        device.hold_all()
        async with anyio.create_task_group() as group:
            group.start_soon(session.run, plan)
            await anyio.wait_all_tasks_blocked()
            (stream,) = device.ready_streams()
            device.step(stream, 2)
            group.cancel_scope.cancel()
            device.release_all()
        assert session.statistics().runs == 0
        assert (await session.run(plan)).is_lowered
    check_empty(device)


async def test_a_device_that_does_not_end_is_left_within_the_grace() -> None:
    device, plan = RecordingBackend(), diamond()
    async with open_session(device, grace=0.01) as session:
        await warm(session, plan)
        device.hold_all()
        late = pytest.RaisesGroup(
            GraceExpired, flatten_subgroups=True, allow_unwrapped=True
        )
        with late, anyio.CancelScope() as scope:
            scope.cancel()
            await session.run(plan)
        device.release_all()
        await session.run(plan)
    check_empty(device)


async def test_leaving_the_session_cancels_what_others_repeat() -> None:
    device, plan = RecordingBackend(), diamond()
    outcomes: list[str] = []

    async def repeat(session: Session) -> None:
        try:
            await session.run(plan)
        except RunCancelled as error:
            outcomes.append(str(error))

    async def release() -> None:
        await anyio.wait_all_tasks_blocked()
        device.release_all()

    async with anyio.create_task_group() as group, open_session(device) as session:
        await warm(session, plan)
        device.hold_all()
        group.start_soon(repeat, session)
        await anyio.wait_all_tasks_blocked()
        group.start_soon(release)
    assert outcomes == ["run 'plan of 4 nodes' was cancelled"]
    check_empty(device)
