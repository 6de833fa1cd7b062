"""Runs of a plan on several devices that are submitted, and awaited later or not."""

from __future__ import annotations

import anyio
import numpy as np
import pytest

from accy_async.dtypes import DType, ScalarArgument
from accy_async.errors import DeviceError, DeviceLost, GraphError, SessionClosed
from accy_async.graph.builder import LaunchGraphBuilder
from accy_async.graph.options import LaunchOptions
from accy_async.graph.plan import LaunchGraphPlan
from accy_async.session import MultiSession, open_session
from accy_async.session.multi.spanning import SpanningPlan
from tests.devices.parts import ONE, check_all_empty, gpus, opened, ring
from tests.graph.graphs import kernel_entry

pytestmark = pytest.mark.anyio

HERE, THERE = "cuda:0", "cuda:1"


def two_chains() -> LaunchGraphPlan:
    """A kernel on each device, the copy from one to the other, and a kernel behind."""
    b = LaunchGraphBuilder()
    scaled = kernel_entry(1, runtime_scalar_argument_count=1)
    x = b.buffer("x", DType.U32, 4, device=HERE)
    y = b.scratch("y", DType.U32, 4, device=THERE)
    z = b.scratch("z", DType.U32, 4, device=THERE)
    b.kernel(ONE, [x.read_write], name="here")
    b.kernel(scaled, [z.read_write], [b.runtime_scalar()], name="beside")
    b.copy(x, y, name="across")
    b.kernel(ONE, [y.read_write], name="there")
    return b.build()


async def prepared(session: MultiSession) -> SpanningPlan:
    x = session.allocate(4, DType.U32, device=HERE)
    options = LaunchOptions(runtime_scalars=(ScalarArgument.u32(1),))
    made = await session.prepare(two_chains(), {"x": x}, options)
    assert isinstance(made, SpanningPlan)
    return made


async def test_submitting_does_not_wait_and_the_mark_does() -> None:
    devices = gpus(2)
    async with opened(devices) as session:
        made = await prepared(session)
        devices[0].hold_all()
        mark = made.submit()
        assert not mark.is_reached
        assert devices[1].launch_count == 2  # submitted, though not begun
        async with anyio.create_task_group() as group:
            group.start_soon(mark.wait)
            await anyio.wait_all_tasks_blocked()
            devices[0].release_all()
        assert mark.is_reached
        await mark.wait()
        await made.run()
        assert [device.launch_count for device in devices] == [2, 4]
    check_all_empty(devices)


async def test_a_run_begins_on_every_device_when_the_one_before_has_ended() -> None:
    """Also on the device that has nothing to do with what is held up."""
    devices = gpus(2)
    async with opened(devices) as session:
        made = await prepared(session)
        await made.run()
        devices[0].hold_all()
        [line] = (one.line for one in made._steps if one.part.nodes == ("beside",))
        first = made.submit()
        assert line.is_idle
        second = made.submit()
        assert not line.is_idle
        devices[0].release_all()
        assert first.is_reached
        assert second.is_reached
        assert [device.launch_count for device in devices] == [3, 6]
    check_all_empty(devices)


async def test_runs_that_nobody_awaits_end_with_the_session() -> None:
    devices = gpus(2)
    async with opened(devices) as session:
        made = await prepared(session)
        for _ in range(5):
            made.submit()
    assert [device.launch_count for device in devices] == [5, 10]
    check_all_empty(devices)
    with pytest.raises(SessionClosed):
        made.submit()


async def test_arrays_of_the_host_are_one_runs_at_a_time() -> None:
    """`submit` refuses what `run` waits for."""
    devices = gpus(2)
    out = {"out": np.zeros(4, np.uint32)}
    async with opened(devices) as session:
        made = await session.prepare(ring([HERE, THERE]), out)
        assert isinstance(made, SpanningPlan)
        devices[1].hold_all()
        mark = made.submit()
        with pytest.raises(GraphError, match="arrays of the last run are still in use"):
            made.submit()
        async with anyio.create_task_group() as group:
            group.start_soon(made.run)
            await anyio.wait_all_tasks_blocked()
            assert devices[0].launch_count == 1
            devices[1].release_all()
        assert devices[0].launch_count == 2
        assert mark.is_reached
        made.submit()
    check_all_empty(devices)


async def test_what_the_host_has_to_do_behind_a_part_is_waited_for() -> None:
    """A copy to an array, which more comes after: the device is past it before that."""
    devices = gpus(2)
    b = LaunchGraphBuilder()
    x = b.scratch("x", DType.U32, 4, device=HERE)
    y = b.scratch("y", DType.U32, 4, device=THERE)
    b.fill(x, 1)
    b.fill(y, 2)
    b.copy_out(x, b.host("out", DType.U32, 4), name="first")
    b.copy(y, x, name="last")
    async with opened(devices) as session:
        made = await session.prepare(b.build(), {"out": np.zeros(4, np.uint32)})
        assert isinstance(made, SpanningPlan)
        lines = {mark.timeline for mark in made.submit().ends}
        ends = [one.part.nodes for one in made._steps if one.line in lines]
        assert {"first", "last"} <= {name for nodes in ends for name in nodes}
    check_all_empty(devices)


async def test_nothing_is_submitted_to_what_is_being_rebound_or_is_closed() -> None:
    devices = gpus(2)
    async with opened(devices) as session:
        made = await prepared(session)
        devices[0].hold_all()
        made.submit()

        async def rebind() -> None:
            await made.rebind(runtime_scalars=[ScalarArgument.u32(2)])

        async with anyio.create_task_group() as group:
            group.start_soon(rebind)
            await anyio.wait_all_tasks_blocked()
            with pytest.raises(GraphError, match="being rebound"):
                made.submit()
            devices[0].release_all()
        await made.submit().wait()
        [first, last] = [one.scalars for one in devices[1].launches if one.scalars]
        assert (first[0].value, last[0].value) == (1, 2)
        await made.aclose()
        with pytest.raises(SessionClosed, match="closed"):
            made.submit()
    check_all_empty(devices)


async def test_rebinding_that_is_cancelled_while_it_waits_changes_nothing() -> None:
    devices = gpus(2)
    async with opened(devices) as session:
        made = await prepared(session)
        devices[0].hold_all()
        mark = made.submit()
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as group:
                group.start_soon(made.rebind, None, [ScalarArgument.u32(2)])
                await anyio.wait_all_tasks_blocked()
                scope.cancel()
        made_for = made.submit()
        devices[0].release_all()
        await mark.wait()
        await made_for.wait()
        values = [one.scalars[0].value for one in devices[1].launches if one.scalars]
        assert values == [1, 1]
    check_all_empty(devices)


async def test_what_was_submitted_before_a_refusal_is_awaited() -> None:
    """The refusal comes out of `submit`; the plan goes on with the next run."""
    devices = gpus(2)
    async with opened(devices) as session:
        made = await prepared(session)
        devices[0].hold_all()
        devices[0].fail("copy_to_peer")
        with pytest.raises(DeviceError, match="copy_to_peer"):
            made.submit()
        devices[0].release_all()
        await made.submit().wait()
        await made.run()
    check_all_empty(devices)


async def test_a_part_that_fails_is_told_by_the_mark() -> None:
    """Its own error and not that of what came after it."""
    devices = gpus(2)
    async with opened(devices) as session:
        made = await prepared(session)
        devices[0].hold_all()
        devices[0].fail_execution(1)
        mark = made.submit()
        devices[0].release_all()
        with pytest.raises(DeviceError) as caught:
            await mark.wait()
        assert not caught.value.is_consequence
        with pytest.raises(DeviceError):  # what came after it is told to who waits
            await made.run()
        await made.run()
    check_all_empty(devices)


async def test_a_device_that_is_lost_ends_the_wait() -> None:
    devices = gpus(2)
    async with opened(devices) as session:
        made = await prepared(session)
        devices[1].hold_all()
        mark = made.submit()
        devices[1].lose_device("fell off")
        with pytest.raises(DeviceLost, match="cuda:1 is lost: fell off"):
            await mark.wait()
        with pytest.raises(DeviceLost):
            made.submit()
    check_all_empty(devices)


async def test_what_is_not_lowered_cannot_be_submitted() -> None:
    """As the processor has no device graphs; the refusal says so."""
    b = LaunchGraphBuilder()
    x, y = (b.scratch(n, DType.U32, 4, device=f"cpu:{i}") for i, n in enumerate("xy"))
    b.fill(x, 1)
    b.copy(x, y)
    async with open_session(devices=["cpu:0", "cpu:1"]) as session:
        made = await session.prepare(b.build())
        await made.run()
        with pytest.raises(
            GraphError, match=r"not lowered: cpu:0 has no device graphs"
        ):
            made.submit()


async def test_waiting_for_a_mark_can_be_cancelled() -> None:
    """Only the wait stops; the run goes on."""
    devices = gpus(2)
    async with opened(devices) as session:
        made = await prepared(session)
        devices[0].hold_all()
        mark = made.submit()
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as group:
                group.start_soon(mark.wait)
                await anyio.wait_all_tasks_blocked()
                scope.cancel()
        assert scope.cancelled_caught
        devices[0].release_all()
        await mark.wait()
    check_all_empty(devices)
