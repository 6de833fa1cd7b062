"""Plans over several devices: streams, waits, loops, and what explains them."""

from __future__ import annotations

import anyio
import numpy as np
import pytest

from accy_async.backends.cpu import CpuBackend
from accy_async.backends.routes import Way
from accy_async.dtypes import DType
from accy_async.errors import (
    GraphError,
)
from accy_async.graph.builder import LaunchGraphBuilder
from accy_async.graph.options import LaunchOptions
from accy_async.session import MultiSession, open_session
from tests.devices.parts import (
    ONE,
    TWO,
    alone,
    bound,
    check_all_empty,
    gpus,
    opened,
    ring,
)

pytestmark = pytest.mark.anyio


async def test_a_plan_over_all_devices_runs_in_order() -> None:
    """Copies go from each device to the next, and are waited for on the devices."""
    devices = gpus(3)
    plan = ring([one.device for one in devices])
    async with opened(devices) as session:
        run = session.start(plan, {"out": np.ones(4, np.uint32)})
        statistics = await run
        assert statistics.streams == 3
        assert not statistics.is_lowered
        assert [one.peer_copy_count for one in devices] == [1, 1, 1]
        assert [one.launch_count for one in devices] == [1, 1, 1]
        waits = sum(
            call.kind == "wait_for_peer" for one in devices for call in one.calls
        )
        assert waits >= 3
        prepared = await session.prepare(plan, {"out": np.ones(4, np.uint32)})
        await prepared.run()
    check_all_empty(devices)


async def test_explain_says_which_way_and_why() -> None:
    """And that it is not lowered, as it is on several devices."""
    devices = gpus(2, has_peer_access=False)
    plan = ring(["cuda:0", "cuda:1"])
    async with opened(devices) as session:
        text = session.explain(plan)
        assert "device cuda:1: 2 nodes" in text
        assert "copies cuda:0 → cuda:1: staged in host memory" in text
        assert "no peer access" in text
        assert "edges between devices" in text
        assert "it runs on several devices: cuda:0, cuda:1" in text
        assert session.locate(plan).routes[0].way is Way.STAGED
        assert session.explain(alone()).startswith("on cuda:0")
        with pytest.raises(ExceptionGroup) as caught:
            await session.run(
                plan,
                {"out": np.ones(4, np.uint32)},
                LaunchOptions(lowering="always"),
            )
        assert caught.group_contains(GraphError, match="devices: cuda:0, cuda:1")


async def test_events_around_a_run_over_two_devices() -> None:
    """It waits for an event of either, and signals one after both."""
    devices = gpus(2)
    devices[0].hold_all()
    async with opened(devices) as session:
        before = devices[1].create_event()
        after = devices[1].create_event()
        devices[1].record_event(before)
        options = LaunchOptions(wait_events=(before,), signal_event=after)
        given = {"out": np.ones(4, np.uint32)}
        run = session.start(ring(["cuda:0", "cuda:1"]), given, options)
        await anyio.wait_all_tasks_blocked()
        assert not devices[1].is_event_complete(after)
        devices[0].release_all()
        await run
        assert devices[1].is_event_complete(after)


async def test_edges_that_the_host_resolves() -> None:
    """Where devices cannot wait for each other, the host does; the result is right."""
    devices = gpus(2, can_wait_for_peers=False)
    async with opened(devices) as session:
        for device in devices:
            device.hold_all()
        plan = ring(["cuda:0", "cuda:1"])
        run = session.start(plan, {"out": np.ones(4, np.uint32)})
        order = []
        for _ in range(200):
            await anyio.wait_all_tasks_blocked()
            if run.is_done:
                break
            for device in devices:
                for stream in device.ready_streams():
                    order.append(device.device)
                    device.step(stream)
        await run
        kinds = {call.kind for device in devices for call in device.calls}
        assert "wait_for_peer" not in kinds
        for device in devices:
            device.release_all()
    check_all_empty(devices)


async def test_loops_over_two_devices() -> None:
    """A body on both begins and ends each turn on one, and runs as often."""
    devices = gpus(2)
    b = LaunchGraphBuilder()
    x = b.scratch("x", DType.U32, 4, device="cuda:0")
    y, z = (b.scratch(name, DType.U32, 4, device="cuda:1") for name in "yz")
    b.fill(x, 1)
    with b.loop(count=3, carries=[(y, z)]):
        b.copy(x, y)
        b.kernel(TWO, [y.read, z.write], name="there")
        b.kernel(ONE, [x.read_write], name="here")
    async with opened(devices) as session:
        await session.run(b.build())
    assert [device.launch_count for device in devices] == [3, 3]
    check_all_empty(devices)


async def test_a_session_over_one_device_is_a_session() -> None:
    """It costs what one session does: runs are the seat's, and are lowered."""
    (device,) = gpus(1)
    plan = bound()
    async with open_session(devices=[device]) as session:
        assert isinstance(session, MultiSession)
        array = session.allocate(4, DType.U32)
        for _ in range(3):
            statistics = await session.run(plan, {"x0": array})
        assert statistics.is_lowered
    check_all_empty([device])


async def test_two_real_processors_compute_together() -> None:
    """A plan over both leaves what its steps in order would."""
    devices = [CpuBackend(workers=1), CpuBackend(workers=1, index=1)]
    b = LaunchGraphBuilder()
    source, out = b.host("source", DType.U32, 100), b.host("out", DType.U32, 100)
    x = b.scratch("x", DType.U32, 100, device="cpu:0")
    y = b.scratch("y", DType.U32, 100, device="cpu:1")
    b.copy_in(source, x)
    b.copy(x, y)
    b.fill(x, 3)
    b.copy_out(y, out)
    values = np.arange(100, dtype=np.uint32)
    found = np.zeros(100, np.uint32)
    async with open_session(devices=devices) as session:
        await session.run(b.build(), {"source": values, "out": found})
    np.testing.assert_array_equal(found, values)
    for device in devices:
        device.close()
