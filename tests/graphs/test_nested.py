"""Runs within host calls of runs, and runs beside others: none waits for a stream."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio
import anyio.lowlevel
import numpy as np
import pytest

from accy_async import DType, open_session
from accy_async.backends import RecordingBackend
from accy_async.backends.cpu import CpuBackend
from accy_async.backends.streampool import StreamPool
from accy_async.graph.builder import LaunchGraphBuilder
from accy_async.graph.options import LaunchOptions
from accy_async.graph.outcome import NodeState
from accy_async.graph.plan import LaunchGraphPlan
from accy_async.session import Session
from tests.graphs.parts import KERNEL, chains, check_empty

pytestmark = pytest.mark.anyio

GIVE_UP_S = 20.0


def around(
    call: Callable[[], Awaitable[object]], *, with_device: bool
) -> LaunchGraphPlan:
    """A host call between two nodes of the device, or alone."""

    async def nested() -> None:
        await call()

    b = LaunchGraphBuilder(edges="explicit")
    if with_device:
        b.kernel(KERNEL, name="before")
        b.host_call(nested, name="call", after="before")
        b.kernel(KERNEL, name="after", after="call")
    else:
        b.host_call(nested, name="call")
    return b.build()


async def descend(session: Session, depth: int, ends: list[int]) -> None:
    """Runs within runs, each of whose nodes are finished when its own run is."""
    if depth:
        plan = around(lambda: descend(session, depth - 1, ends), with_device=True)
        statistics = await session.run(plan)
        assert statistics.nodes == {NodeState.FINISHED: 3}
        assert statistics.streams == 1
    ends.append(depth)


@pytest.mark.parametrize("streams", [1, 2])
async def test_runs_nest_deeper_than_there_are_streams(streams: int) -> None:
    """Those within share the stream that those around have."""
    device = RecordingBackend()
    async with open_session(device, max_streams=streams) as session:
        ends: list[int] = []
        with anyio.fail_after(GIVE_UP_S):
            await descend(session, 5, ends)
        assert ends == [0, 1, 2, 3, 4, 5]
        assert session.statistics().streams_leased == 0
        assert session.statistics().streams_open <= streams
    check_empty(device)


async def test_runs_nest_on_a_device_that_works() -> None:
    """Each adds its part to one array, in the order of their ends."""
    device = CpuBackend(workers=1)
    async with open_session(device, max_streams=1) as session:
        values = np.zeros(5, np.uint32)

        async def fill(depth: int) -> None:
            if depth == 5:
                return
            b = LaunchGraphBuilder()
            slot, out = b.scratch("x", DType.U32, 1), b.host("out", DType.U32, 1)
            call = b.host_call(lambda: None, name="pause")
            b.fill(slot, depth + 1, after=call)
            b.copy_out(slot, out)
            plan = b.build()
            nested = around(lambda: fill(depth + 1), with_device=False)
            async with anyio.create_task_group() as group:
                group.start_soon(session.run, nested)
                await session.run(plan, {"out": values[depth : depth + 1]})

        with anyio.fail_after(GIVE_UP_S):
            await fill(0)
        assert values.tolist() == [1, 2, 3, 4, 5]
    device.close()


async def test_host_calls_alone_take_no_stream() -> None:
    """Also where loops are around them; and blocks may have all the streams."""
    device, turns = RecordingBackend(), []
    b = LaunchGraphBuilder(edges="explicit")
    b.host_call(lambda: turns.append("once"), name="once")
    with b.loop(count=3, name="loop"):
        b.host_call(lambda: turns.append("turn"), name="turn", after="once")
        with b.loop(count=2, name="inner"):
            b.host_call(lambda: turns.append("inner"), name="call", after="turn")
    plan = b.build()
    async with open_session(device, max_streams=1) as session:
        async with session.stream():
            with anyio.fail_after(GIVE_UP_S):
                run = session.start(plan)
                statistics = await run
                assert run["loop"].state is NodeState.FINISHED
                await run["inner"]
            assert session.statistics().streams_open == 1
        assert statistics.streams == 0
        assert statistics.nodes == {NodeState.FINISHED: 3}
        assert turns == ["once", *["turn", "inner", "inner"] * 3]
    check_empty(device)


async def test_host_calls_alone_still_wait_for_and_signal_events() -> None:
    """That takes a stream: the events are the device's."""
    device = RecordingBackend()
    plan = around(anyio.lowlevel.checkpoint, with_device=False)
    async with open_session(device) as session:
        first, last = (session.backend.create_event() for _ in range(2))
        session.backend.record_event(first)
        options = LaunchOptions(wait_events=(first,), signal_event=last)
        statistics = await session.run(plan, options=options)
        assert statistics.streams == 1
        assert session.backend.is_event_complete(last)


async def test_a_run_within_a_block_that_has_the_only_stream_gets_one_more() -> None:
    """Blocks share with nobody: one stream beyond the bound is opened, for runs."""
    device = RecordingBackend(is_holding=True)
    async with open_session(device, max_streams=1) as session:
        async with session.stream() as stream:
            runs = [session.start(chains(1, 4)) for _ in range(3)]
            await anyio.wait_all_tasks_blocked()
            used = {launch.stream for launch in device.launches}
            assert len(used) == 1
            assert stream not in used
            assert session.statistics().streams_open == 2
            device.release_all()
            for run in runs:
                assert (await run).nodes == {NodeState.FINISHED: 4}
        assert session.statistics().streams_open == 1
        assert session.statistics().streams_leased == 0
    check_empty(device)


async def test_a_short_run_beside_long_ones_that_have_every_stream() -> None:
    """It begins at once, on a stream of theirs, and is done long before they are."""
    device = RecordingBackend(is_holding=True, keeps_records=False)
    async with open_session(device, max_streams=2, max_in_flight=64) as session:
        long = [session.start(chains(4, 2000)) for _ in range(2)]
        while session.statistics().streams_leased < 2:  # laid out on a thread
            await anyio.lowlevel.checkpoint()
        short = session.start(chains(1, 4))
        with anyio.fail_after(GIVE_UP_S):
            while not short.is_done:
                for stream in device.ready_streams():
                    device.step(stream)
                await anyio.lowlevel.checkpoint()
        assert (await short).nodes == {NodeState.FINISHED: 4}
        for run in long:
            assert not run.is_done
            assert run.statistics().nodes[NodeState.FINISHED] < 500
        device.release_all()
        for run in long:
            await run
    check_empty(device)


async def test_a_run_is_done_with_its_own_work_on_a_shared_stream() -> None:
    """It does not wait for what the other has submitted behind it."""
    device = RecordingBackend(is_holding=True)
    async with open_session(device, max_streams=1) as session:
        first = session.start(chains(1, 4))
        await anyio.wait_all_tasks_blocked()
        second = session.start(chains(1, 4))
        await anyio.wait_all_tasks_blocked()
        (stream,) = device.ready_streams()
        device.step(stream, 4)
        with anyio.fail_after(GIVE_UP_S):
            await first
        assert not second.is_done
        assert second.statistics().in_flight == 4
        assert session.statistics().streams_leased == 1
        device.release_all()
        await second
        assert session.statistics().streams_leased == 0
    check_empty(device)


async def test_a_cancelled_run_leaves_the_stream_to_who_shares_it() -> None:
    """Its own work is dropped in its turn; the other's goes on."""
    device = RecordingBackend(is_holding=True)
    async with open_session(device, max_streams=1) as session:
        first, second = (session.start(chains(1, 4)) for _ in range(2))
        await anyio.wait_all_tasks_blocked()
        first.cancel()
        await anyio.wait_all_tasks_blocked()
        device.release_all()
        await first.wait_over()
        assert first.state == "cancelled"
        assert (await second).nodes == {NodeState.FINISHED: 4}
    check_empty(device)


@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_a_run_within_another_ends_with_it(is_cancelled: bool) -> None:
    """The outer one is cancelled, or the session left, while the inner one waits."""
    device = RecordingBackend(is_holding=True)
    async with open_session(device, max_streams=1, grace=0.1) as session:
        inner = session.start(chains(1, 2))
        outer = session.start(around(inner.wait, with_device=False))
        await anyio.wait_all_tasks_blocked()
        assert outer["call"].state is NodeState.SUBMITTED
        if is_cancelled:
            outer.cancel()
            await outer.wait_over()
            assert not inner.is_done
        device.release_all()
    assert inner.is_done
    assert outer.is_done
    check_empty(device)


# The pool


async def test_the_least_shared_stream_of_the_nearest_priority_is_shared() -> None:
    """And nothing that a block has."""
    device = RecordingBackend()
    pool = StreamPool(device, 3)
    block = await pool.lease()
    low, high = pool.lease_or_share(2), pool.lease_or_share(-2)
    assert (low.priority, high.priority) == (2, -2)
    assert pool.lease_nowait() is None
    assert pool.lease_or_share(-1) == high
    assert pool.lease_or_share(-1) == low
    assert pool.lease_or_share(1) == low
    assert (pool.leased, pool.opened) == (3, 3)
    for stream, times in ((low, 3), (high, 2)):
        for left in reversed(range(times)):
            assert pool.give_back(stream)
            assert pool.leased == 1 + (stream is low) + (left > 0)
    assert pool.give_back(block)
    assert (pool.leased, pool.opened) == (0, 3)


async def test_a_shared_stream_is_destroyed_by_its_last_user_only() -> None:
    """Busy or not: the others still have it."""
    device = RecordingBackend(is_holding=True)
    pool = StreamPool(device, 1)
    stream = pool.lease_or_share()
    assert pool.lease_or_share() == stream
    buffer = device.allocate_buffer(4)
    device.fill_buffer(buffer, b"\0", stream=stream)
    assert pool.give_back(stream)
    assert device.is_alive(stream)
    assert not pool.give_back(stream)
    assert not device.is_alive(stream)
    assert (pool.leased, pool.opened) == (0, 0)
    device.release_all()


async def test_the_stream_beyond_the_bound_goes_when_nobody_needs_it() -> None:
    """Idle, it stays only where the pool has room for it."""
    device = RecordingBackend()
    pool = StreamPool(device, 1)
    block = await pool.lease()
    extra = pool.lease_or_share()
    assert pool.lease_or_share() == extra != block
    assert (pool.leased, pool.opened) == (2, 2)
    pool.give_back(extra)
    assert not pool.give_back(extra)
    assert (pool.leased, pool.opened) == (1, 1)
    extra = pool.lease_or_share()
    assert not pool.give_back(block)
    assert (pool.leased, pool.opened) == (1, 1)
    assert pool.give_back(extra)
    assert (pool.leased, pool.opened) == (0, 1)
    assert pool.lease_nowait() == extra
