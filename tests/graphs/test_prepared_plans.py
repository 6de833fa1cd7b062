"""Prepared plans: run again and again, rebound, closed, cut short."""

from __future__ import annotations

import anyio
import numpy as np
import pytest

from accy_async.backends import RecordingBackend
from accy_async.dtypes import DType, ScalarArgument
from accy_async.errors import (
    DeviceError,
    GraceExpired,
    GraphError,
    InvalidGraph,
    LaunchArgumentMismatch,
    SessionClosed,
)
from accy_async.graph import LaunchGraphBuilder, LaunchGraphPlan, LaunchOptions
from accy_async.session import open_session
from tests.graph.graphs import kernel_entry
from tests.graphs.parts import check_empty, diamond

U32 = DType.U32
pytestmark = pytest.mark.anyio


def scaled() -> LaunchGraphPlan:
    """Two kernels on a bound buffer and scratch, with a scalar of the run's."""
    b = LaunchGraphBuilder()
    x, y = b.buffer("x", U32, 4), b.scratch("y", U32, 4)
    entry = kernel_entry(2, runtime_scalar_argument_count=1)
    b.kernel(entry, [x.read, y.write], [b.runtime_scalar()], name="one")
    b.kernel(kernel_entry(1), [y.read_write], name="two")
    return b.build()


def scalar(value: int) -> LaunchOptions:
    return LaunchOptions(runtime_scalars=(ScalarArgument.u32(value),))


async def test_a_run_is_one_launch_and_one_wait() -> None:
    """Nothing is made for it, and leaving gives all back."""
    device = RecordingBackend()
    async with open_session(device) as session:
        async with await session.prepare(diamond()) as prepared:
            assert prepared.is_lowered
            assert not prepared.obstacles
            start = len(device.calls)
            for _ in range(5):
                await prepared.run()
            kinds = [call.kind for call in device.calls[start:]]
            assert kinds == 5 * ["launch_graph", "wait_stream"]
            assert device.launch_count == 20
            assert "lowered" in repr(prepared)
        assert session.live_objects()["graphs"] == 0
        assert session.live_objects()["streams"] == 0
        with pytest.raises(SessionClosed, match="closed"):
            await prepared.run()
    check_empty(device)


async def test_the_session_closes_what_is_left_open() -> None:
    """And runs of it are refused from then on."""
    device = RecordingBackend()
    async with open_session(device) as session:
        prepared = await session.prepare(diamond())
        await prepared.run()
    check_empty(device)
    with pytest.raises(SessionClosed):
        await prepared.run()
    with pytest.raises(SessionClosed):
        prepared.submit()
    with pytest.raises(SessionClosed):
        await prepared.rebind()
    await prepared.aclose()


async def test_rebinding_changes_what_it_is_for_and_no_more() -> None:
    """Buffers and scalars, in place; what does not fit changes nothing."""
    device = RecordingBackend()
    async with open_session(device) as session:
        arrays = [session.allocate(4 + i % 5, U32) for i in range(10)]
        prepared = await session.prepare(scaled(), {"x": arrays[0]}, scalar(0))
        scratch = device.allocated_buffer_ids[-1]
        for number, array in enumerate(arrays):
            await prepared.rebind({"x": array}, [ScalarArgument.u32(number)])
            await prepared.run()
            launch = device.launches[-2]
            assert launch.buffer_ids == (array.handle.id, scratch)
            assert launch.scalars == (ScalarArgument.u32(number),)
        with pytest.raises(LaunchArgumentMismatch, match="no slot"):
            await prepared.rebind({"z": arrays[0]})
        with pytest.raises(LaunchArgumentMismatch, match="runtime_scalars"):
            await prepared.rebind(runtime_scalars=[])
        await prepared.run()
        assert device.launches[-2].scalars == (ScalarArgument.u32(9),)
        assert prepared.made == 1
        arrays[-1].free()
        with pytest.raises(InvalidGraph, match="was destroyed"):
            await prepared.run()
        await prepared.rebind({"x": arrays[0]})
        await prepared.run()
    check_empty(device)


async def test_submitted_runs_follow_each_other() -> None:
    """Without a wait in between; each has its mark."""
    device = RecordingBackend()
    async with open_session(device) as session:
        prepared = await session.prepare(diamond())
        device.hold_all()
        first, second = prepared.submit(), prepared.submit()
        assert first.position < second.position
        assert not first.is_reached
        device.release_all()
        await second.wait()
        assert first.is_reached
    check_empty(device)


async def test_arrays_of_the_host_are_for_one_run_at_a_time() -> None:
    """A second submission is refused; a second run waits."""
    device = RecordingBackend()
    b = LaunchGraphBuilder()
    x, out = b.scratch("x", U32, 4), b.host("out", U32, 4)
    b.fill(x, 1)
    b.copy_out(x, out)
    array = np.ones(4, np.uint32)
    async with open_session(device) as session:
        prepared = await session.prepare(b.build(), {"out": array})
        device.hold_all()
        prepared.submit()
        with pytest.raises(GraphError, match="still in use"):
            prepared.submit()
        device.release_all()
        await prepared.run()
        assert not array.any()
    check_empty(device)


async def test_what_cannot_be_lowered_runs_all_the_same() -> None:
    """Plainly; ``always`` refuses it, ``submit`` says why."""
    calls: list[int] = []
    b = LaunchGraphBuilder()
    b.host_call(lambda: calls.append(1), name="call")
    plan, device = b.build(), RecordingBackend()
    async with open_session(device) as session:
        async with await session.prepare(plan) as prepared:
            assert not prepared.is_lowered
            assert [one.name for one in prepared.obstacles] == ["call"]
            await prepared.run()
            await prepared.rebind()
            await prepared.run()
            with pytest.raises(GraphError, match="call: a call on the host"):
                prepared.submit()
        assert calls == [1, 1]
        with pytest.raises(GraphError, match="cannot be lowered: call"):
            await session.prepare(plan, options=LaunchOptions(lowering="always"))
        never = LaunchOptions(lowering="never")
        assert not (await session.prepare(diamond(), options=never)).is_lowered
        event = session.backend.create_event()
        with pytest.raises(LaunchArgumentMismatch, match="for single runs"):
            await session.prepare(diamond(), options=LaunchOptions(signal_event=event))
    check_empty(device)


async def test_external_events_are_waited_for_and_signalled() -> None:
    """Before and after the whole."""
    device = RecordingBackend()
    b = LaunchGraphBuilder()
    b.external_event("go")
    b.external_event("gone")
    b.kernel(kernel_entry(0), name="one", wait="go", signal="gone")
    async with open_session(device) as session:
        go, gone = (session.backend.create_event() for _ in range(2))
        session.backend.record_event(go)
        prepared = await session.prepare(b.build(), {"go": go, "gone": gone})
        start = len(device.calls)
        await prepared.run()
        kinds = [call.kind for call in device.calls[start:-1]]
        assert kinds == ["stream_wait_event", "launch_graph", "record_event"]
        assert session.backend.is_event_complete(gone)
    check_empty(device)


async def test_a_failure_is_the_runs() -> None:
    """Told by node; the next run is a new one."""
    device = RecordingBackend()
    async with open_session(device) as session:
        prepared = await session.prepare(diamond())
        device.fail_execution(2)
        with pytest.raises(DeviceError, match="node=left"):
            await prepared.run()
        await prepared.run()
    check_empty(device)


async def test_a_cancelled_run_is_awaited_for_the_grace() -> None:
    """Then it is left to the reaper, and the plan is closed."""
    device = RecordingBackend()
    async with open_session(device, grace=0.01) as session:
        prepared = await session.prepare(diamond())
        device.hold_all()
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as group:
                group.start_soon(release_soon, device, scope)
                await prepared.run()
        assert scope.cancelled_caught
        await prepared.run()
        device.hold_all()
        with pytest.RaisesGroup(GraceExpired), anyio.move_on_after(0.01):
            await prepared.run()
        with pytest.raises(SessionClosed):
            await prepared.run()
        device.release_all()
        assert session.live_objects()["graphs"] == 0
    check_empty(device)


async def release_soon(device: RecordingBackend, scope: anyio.CancelScope) -> None:
    await anyio.wait_all_tasks_blocked()
    scope.cancel()
    device.release_all()


async def test_each_call_failing_once() -> None:
    """Whichever backend call fails while it is prepared, run, rebound: all is freed."""

    async def act(device: RecordingBackend) -> None:
        async with open_session(device) as session:
            one, two = session.allocate(4, U32), session.allocate(4, U32)
            always = LaunchOptions(
                runtime_scalars=(ScalarArgument.u32(1),), lowering="always"
            )
            async with await session.prepare(scaled(), {"x": one}, always) as prepared:
                await prepared.run()
                await prepared.rebind({"x": two})
                await prepared.run()

    device = RecordingBackend()
    await act(device)
    for nth in range(1, len(device.calls) + 1):
        device = RecordingBackend()
        device.fail("*", nth)
        with pytest.raises(Exception, match="told to fail"):
            await act(device)
        check_empty(device)
