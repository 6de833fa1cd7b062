"""Plans on several devices as parts: device graphs of each, and the copies kept."""

from __future__ import annotations

import re

import anyio
import numpy as np
import pytest

from accy_async.backends import RecordingBackend
from accy_async.dtypes import DType, ScalarArgument
from accy_async.errors import (
    DeviceLost,
    GraceExpired,
    GraphError,
    InvalidType,
    LaunchArgumentMismatch,
    SessionClosed,
)
from accy_async.graph.builder import LaunchGraphBuilder
from accy_async.graph.options import LaunchOptions
from accy_async.graph.plan import LaunchGraphPlan
from accy_async.session.multi.spanning import SpanningPlan
from tests.devices.parts import ONE, TWO, check_all_empty, gpus, opened, ring
from tests.devices.spans import kinds, prepared_pair
from tests.graphs.scenes import leaves

pytestmark = pytest.mark.anyio

NAMES = ["cuda:0", "cuda:1"]
OUT = {"out": np.zeros(4, np.uint32)}


async def test_each_devices_part_is_one_graph_and_the_copies_stay() -> None:
    devices = gpus(2)
    async with opened(devices) as session:
        made = await prepared_pair(session)
        assert made.is_lowered
        assert not made.obstacles
        assert [(part.device, part.nodes) for part in made.parts] == [
            (0, ("first", "second")),
            (0, ("across",)),
            (1, ("third",)),
            (0, ("beside",)),
        ]
        assert "3 graphs, 1 copies" in repr(made)
        begin = [len(device.calls) for device in devices]
        for _ in range(3):
            await made.run()
        first, second = (
            [kind for kind in kinds(device)[at:] if kind.startswith(("launch", "copy"))]
            for device, at in zip(devices, begin, strict=True)
        )
        assert sorted(first) == 3 * ["copy_to_peer"] + 6 * ["launch_graph"]
        assert second == 3 * ["launch_graph"]
        assert [device.launch_count for device in devices] == [9, 9]
        assert made.made == 3
        await made.aclose()
        await made.aclose()
        with pytest.raises(SessionClosed, match="closed"):
            await made.run()
        assert "closed" in repr(made)
        assert session.live_objects()["graphs"] == 0
        assert session.live_objects()["streams"] == 0
    check_all_empty(devices)


async def test_a_part_with_an_array_is_submitted_while_it_waits_for_the_other() -> None:
    """What its stream waits for is no run of its own, which would have the array."""
    b = LaunchGraphBuilder()
    x = b.buffer("x", DType.U32, 4, device="cuda:0")
    y = b.scratch("y", DType.U32, 4, device="cuda:1")
    b.kernel(ONE, [x.read_write])
    b.copy(x, y)
    b.kernel(ONE, [y.read_write])
    b.copy_out(y, b.host("out", DType.U32, 4))
    devices = gpus(2)
    async with opened(devices) as session:
        given = {"x": session.allocate(4, DType.U32, device="cuda:0"), **OUT}
        made = await session.prepare(b.build(), given)
        assert isinstance(made, SpanningPlan)
        for _ in range(2):
            devices[0].hold_all()
            async with anyio.create_task_group() as group:
                group.start_soon(made.run)
                await anyio.wait_all_tasks_blocked()
                devices[0].release_all()
    check_all_empty(devices)


async def test_a_copy_waits_for_no_more_than_it_comes_after() -> None:
    """What else its device has to do is a graph of its own, behind."""
    b = LaunchGraphBuilder()
    x, z = (b.buffer(name, DType.U32, 4, device="cuda:0") for name in "xz")
    y = b.scratch("y", DType.U32, 4, device="cuda:1")
    b.kernel(ONE, [x.read_write], name="first")
    b.kernel(TWO, [x.read, z.write], name="more")
    b.kernel(ONE, [y.read_write], name="before")
    b.copy(x, y, name="across")
    b.kernel(ONE, [y.read_write], name="last")
    b.kernel(ONE, [z.read_write], name="most")
    devices = gpus(2)
    async with opened(devices) as session:
        given = {s: session.allocate(4, DType.U32, device="cuda:0") for s in "xz"}
        made = await session.prepare(b.build(), given)
        assert isinstance(made, SpanningPlan)
        parts = {part.nodes: part for part in made.parts}
        assert list(parts) == [
            ("first",), ("before",), ("across",), ("last",), ("more", "most")
        ]  # fmt: skip
        assert parts["across",].after == (0, 1)
        await made.run()
    check_all_empty(devices)


async def test_a_run_whose_plan_is_closed_meanwhile_says_so() -> None:
    """Not that a stream was destroyed, of which its caller knows nothing."""
    devices = gpus(2)
    async with opened(devices) as session:
        made = await prepared_pair(session)
        devices[0].hold_all()

        async def run() -> None:
            with pytest.raises(SessionClosed, match="was closed"):
                await made.run()

        async with anyio.create_task_group() as group:
            group.start_soon(run)
            await anyio.wait_all_tasks_blocked()
            errors: list[Exception] = []
            made.close_now(errors)
            devices[0].release_all()
        assert not errors
    check_all_empty(devices)


async def test_a_device_waits_for_the_other_and_the_host_for_none() -> None:
    """All is submitted at once; what comes after the copy begins after it."""
    devices = gpus(2, grace_s=0.1)
    async with opened(devices) as session:
        made = await prepared_pair(session)
        devices[0].hold_all()
        async with anyio.create_task_group() as group:
            group.start_soon(made.run)
            await anyio.wait_all_tasks_blocked()
            assert kinds(devices[1]).count("launch_graph") == 1
            [last] = (
                one.stream for one in made._steps if one.backend.device == NAMES[1]
            )
            assert not devices[1].is_stream_idle(last)
            devices[0].release_all()
        assert devices[1].is_stream_idle(last)
    check_all_empty(devices)


@pytest.mark.parametrize("has_peer_access", [True, False], ids=["straight", "staged"])
async def test_all_around_and_back(has_peer_access: bool) -> None:
    """A ring of three devices, with a copy to the host at its end."""
    devices = gpus(3, has_peer_access=has_peer_access)
    plan = ring([one.device for one in devices])
    async with opened(devices) as session:
        assert "prepared: device graphs, 2 on cuda:0, 1 on cuda:1, 1 on cuda:2" in (
            session.explain(plan)
        )
        async with await session.prepare(plan, OUT) as made:
            assert made.is_lowered
            for _ in range(2):
                await made.run()
        assert [device.launch_count for device in devices] == [2, 2, 2]
    check_all_empty(devices)


def with_host_call() -> LaunchGraphPlan:
    b = LaunchGraphBuilder()
    x, y = (
        b.scratch(name, DType.U32, 4, device=on)
        for name, on in zip("xy", NAMES, strict=True)
    )
    out = b.host("out", DType.U32, 4)
    b.fill(x, 1)
    b.copy(x, y)
    b.copy_out(y, out)
    b.host_call(lambda: None, reads=[out], name="look")
    return b.build()


def with_while_over_both() -> LaunchGraphPlan:
    b = LaunchGraphBuilder()
    x = b.scratch("x", DType.U32, 4, device="cuda:0")
    y = b.scratch("y", DType.U32, 4, device="cuda:1")
    more = b.scratch("more", DType.U32, 1, device="cuda:1")
    out = b.host("out", DType.U32, 4)
    b.fill(x, 1)
    b.fill(more, 1)
    with b.loop(while_=more, name="again"):
        b.copy(x, y)
        b.kernel(TWO, [y.read, more.read_write])
    b.copy_out(y, out)
    return b.build()


def with_arrays_in_turns() -> LaunchGraphPlan:
    b = LaunchGraphBuilder()
    x = b.scratch("x", DType.U32, 4, device="cuda:0")
    y = b.scratch("y", DType.U32, 4, device="cuda:1")
    out = b.host("out", DType.U32, 4)
    b.fill(x, 1)
    with b.loop(count=2, name="again"):
        b.copy(x, y)
        b.copy_out(y, out)
    return b.build()


def with_shared_array() -> LaunchGraphPlan:
    b = LaunchGraphBuilder()
    x, y = (
        b.scratch(name, DType.U32, 4, device=on)
        for name, on in zip("xy", NAMES, strict=True)
    )
    out = b.host("out", DType.U32, 4)
    b.fill(x, 1)
    b.copy_out(x, out)
    b.copy_in(out, y)
    return b.build()


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        (with_host_call(), "look: a call on the host"),
        (with_while_over_both(), "again: .*a value decides on its end"),
        (with_arrays_in_turns(), "again: .*copy from or to the host: out"),
        (with_shared_array(), "out: an array that one device's part writes"),
    ],
    ids=["host call", "while", "arrays in turns", "array"],
)
async def test_what_cannot_be_runs_node_by_node_and_says_why(
    plan: LaunchGraphPlan, words: str
) -> None:
    devices = gpus(2)
    async with opened(devices) as session:
        made = await session.prepare(plan, OUT)
        assert not made.is_lowered
        assert any(re.search(words, str(one)) for one in made.obstacles)
        await made.run()
        with pytest.raises(GraphError, match=words):
            await session.prepare(plan, OUT, LaunchOptions(lowering="always"))
        never = await session.prepare(plan, OUT, LaunchOptions(lowering="never"))
        assert (never.is_lowered, never.obstacles) == (False, ())
        assert re.search(words, session.explain(plan))
    check_all_empty(devices)


async def test_devices_without_graphs_or_waits_for_each_other_are_named() -> None:
    for devices, words in (
        (
            [RecordingBackend(), RecordingBackend(index=1, has_graphs=False)],
            "cuda:1 has no device graphs",
        ),
        (gpus(2, can_wait_for_peers=False), "cannot wait for events of"),
    ):
        async with opened(devices) as session:
            made = await session.prepare(ring(NAMES), OUT)
            assert [words in str(one) for one in made.obstacles] == [True]
            assert words in session.explain(ring(NAMES))
            await made.run()
        check_all_empty(devices)


async def test_a_device_that_refuses_its_graph_leaves_the_plan_node_by_node(
    caplog: pytest.LogCaptureFixture,
) -> None:
    devices = gpus(2)
    async with opened(devices) as session:
        devices[1].fail("create_graph", 1)
        made = await session.prepare(ring(NAMES), OUT)
        assert "a device refused" in str(made.obstacles[0])
        assert "node by node" in caplog.text
        await made.run()
        assert session.live_objects()["graphs"] == 0
    check_all_empty(devices)


async def test_rebinding_changes_what_each_part_uses() -> None:
    devices = gpus(2)
    async with opened(devices) as session:
        made = await prepared_pair(session)
        await made.run()
        other = session.allocate(4, DType.U32, device="cuda:0")
        await made.rebind({"x": other}, [ScalarArgument.u32(7)])
        await made.run()
        launches = [one for one in devices[0].launches if one.scalars]
        assert launches[-1].scalars == (ScalarArgument.u32(7),)
        assert launches[-1].buffer_ids == (other.handle.id,)
        assert made.made == 3
        elsewhere = session.allocate(4, DType.U32, device="cuda:1")
        with pytest.raises(LaunchArgumentMismatch, match=r"'x'.*cuda:1.*cuda:0"):
            await made.rebind({"x": elsewhere})
        with pytest.raises(LaunchArgumentMismatch, match="no slot"):
            await made.rebind({"q": other})
        with pytest.raises(InvalidType, match="a list"):
            await made.rebind(runtime_scalars=3)  # type: ignore[arg-type]
        with pytest.raises(InvalidType, match="a mapping"):
            await made.rebind(3)  # type: ignore[arg-type]
        await made.run()
        assert devices[0].launches[-1].buffer_ids == (other.handle.id,)
    check_all_empty(devices)


async def test_runs_at_the_same_time_follow_each_other() -> None:
    devices = gpus(2)
    async with opened(devices) as session:
        made = await prepared_pair(session)
        async with anyio.create_task_group() as group:
            for _ in range(3):
                group.start_soon(made.run)
        assert [device.launch_count for device in devices] == [9, 9]
    check_all_empty(devices)
    with pytest.raises(SessionClosed):
        await made.run()
    await made.aclose()


async def test_a_device_lost_in_the_middle_ends_the_run_and_no_others() -> None:
    devices = gpus(3)
    with pytest.raises((DeviceLost, ExceptionGroup)):
        async with opened(devices) as session:
            made = await prepared_pair(session)
            devices[1].hold_all()
            async with anyio.create_task_group() as group:
                group.start_soon(made.run)
                await anyio.wait_all_tasks_blocked()
                devices[1].lose_device("fell off")
                devices[1].release_all()
                await session.on(2).run(ring(["cuda:2"]), OUT)
    assert [device.is_healthy for device in devices] == [True, False, True]
    check_all_empty(devices)


async def test_a_cancelled_run_waits_for_the_grace_and_is_closed_after_it() -> None:
    devices = gpus(2, grace_s=0.05)
    async with opened(devices) as session:
        made = await prepared_pair(session)
        devices[1].hold_all()
        with pytest.raises(ExceptionGroup) as caught, anyio.CancelScope() as scope:
            async with anyio.create_task_group() as group:
                group.start_soon(made.run)
                await anyio.wait_all_tasks_blocked()
                scope.cancel()
        assert [type(one) for one in leaves(caught.value)] == [GraceExpired]
        devices[1].release_all()
        with pytest.raises(SessionClosed):
            await made.run()
    check_all_empty(devices)
