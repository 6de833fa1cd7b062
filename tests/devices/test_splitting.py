"""Loops over several devices as parts: turns, carries, and what they come to."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import anyio
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accy_async.backends import RecordingBackend
from accy_async.backends.array import DeviceArray
from accy_async.backends.cpu import CpuBackend
from accy_async.dtypes import DType, ScalarArgument
from accy_async.errors import GraphError
from accy_async.graph.builder import LaunchGraphBuilder
from accy_async.graph.lowering.spanning import SpanPart, span_parts
from accy_async.graph.lowering.splitting import MOST_TURNED
from accy_async.graph.nodes import BufferSlot
from accy_async.graph.options import LaunchOptions
from accy_async.graph.plan import LaunchGraphPlan
from accy_async.session import MultiSession, open_session
from accy_async.session.multi.spanning import SpanningPlan
from tests.devices.parts import ONE, TWO, check_all_empty, gpus, opened
from tests.graph.graphs import kernel_entry
from tests.graphs.programs import LENGTH, Program, cpu_kernels

pytestmark = pytest.mark.anyio

THREE = kernel_entry(3)

HERE, THERE = "cuda:0", "cuda:1"


def to_and_fro(count: int | None = None) -> LaunchGraphPlan:
    """A loop from one device to the other and back, whose value swaps two buffers.

    Within it a loop of the other device alone, with a pair of its own. How often it
    turns is the run's to say where no count is given.
    """
    b = LaunchGraphBuilder()
    x = b.buffer("x", DType.U32, 4, device=HERE)
    y, z, u, v = (b.buffer(name, DType.U32, 4, device=THERE) for name in "yzuv")
    turns = b.runtime_scalar() if count is None else count
    b.kernel(ONE, [x.read_write], name="begin")
    for buffer in (z, u, v):
        b.fill(buffer, 1)
    with b.loop(count=turns, carries=[(y, z)], name="around"):
        b.copy(x, y, name="go")
        with b.loop(count=3, carries=[(u, v)], name="inner"):
            b.kernel(TWO, [u.read, v.read_write], name="turn")
        uses = [y.read, u.read, z.read_write]
        b.kernel(THREE, uses, name="there")
        b.copy(z, x, name="return")
        b.kernel(ONE, [x.read_write], name="here")
    b.kernel(TWO, [y.read, u.read_write], name="end")
    return b.build()


def bound(session: MultiSession, plan: LaunchGraphPlan) -> dict[str, DeviceArray]:
    return {
        slot.name: session.allocate(4, DType.U32, device=slot.device)
        for slot in plan.slots
        if isinstance(slot, BufferSlot)
    }


def launched(device: RecordingBackend, begin: int) -> list[tuple[str, tuple[int, ...]]]:
    return [(one.kernel_name, one.buffer_ids) for one in device.launches[begin:]]


@pytest.mark.parametrize("count", range(6))
async def test_a_loop_over_both_launches_what_it_does_node_by_node(count: int) -> None:
    """The same kernels on the same buffers, in the same order; none is copied more."""
    devices = gpus(2)
    plan = to_and_fro(count)
    async with opened(devices) as session:
        given = bound(session, plan)
        await session.run(plan, given)
        plain = [launched(device, 0) for device in devices]
        copies = [device.peer_copy_count for device in devices]
        made = await session.prepare(plan, given)
        assert isinstance(made, SpanningPlan)
        for _ in range(2):
            begin = [len(device.launches) for device in devices]
            before = [device.peer_copy_count for device in devices]
            await made.run()
            assert plain == [
                launched(device, at) for device, at in zip(devices, begin, strict=True)
            ]
            assert copies == [
                device.peer_copy_count - at
                for device, at in zip(devices, before, strict=True)
            ]
    check_all_empty(devices)


async def test_turns_of_one_arrangement_are_one_graph() -> None:
    """What the carries come round to is made once, however many turns there are."""
    devices = gpus(2)
    async with opened(devices) as session:
        graphs = []
        for count in (4, 10):
            plan = to_and_fro(count)
            made = await session.prepare(plan, bound(session, plan))
            assert isinstance(made, SpanningPlan)
            assert len({part.number for part in made.parts}) < len(made.parts)
            graphs.append(made.made)
        assert graphs[0] == graphs[1]
        assert "prepared: device graphs, 2 on cuda:0, 4 on cuda:1; 2 copies" in (
            session.explain(to_and_fro())
        )
    check_all_empty(devices)


async def test_a_turn_begins_when_the_one_before_has_ended() -> None:
    devices = gpus(2)
    plan = to_and_fro(3)
    async with opened(devices) as session:
        made = await session.prepare(plan, bound(session, plan))
        assert isinstance(made, SpanningPlan)
        parts = made.parts
        reached: list[set[int]] = []
        last: dict[int, int] = {}
        for place, part in enumerate(parts):
            mine = {place}.union(*(reached[before] for before in part.after))
            if part.number in last:  # on one stream
                mine |= reached[last[part.number]]
            last[part.number] = place
            reached.append(mine)
        copies = [place for place, part in enumerate(parts) if part.copy is not None]
        assert len(copies) == 6
        for before, after in itertools.pairwise(copies):
            assert before in reached[after]
        assert [parts[place].copy for place in copies] == [
            ("x", "y"), ("z", "x"), ("x", "z"), ("y", "x"), ("x", "y"), ("z", "x")
        ]  # fmt: skip
    check_all_empty(devices)


async def test_other_scalars_are_other_turns() -> None:
    """Rebinding makes what is needed then; where that is too much, it is closed."""
    devices = gpus(2)
    plan = to_and_fro()

    def options(count: int) -> LaunchOptions:
        return LaunchOptions(runtime_scalars=(ScalarArgument.u32(count),))

    async with opened(devices) as session:
        given = bound(session, plan)
        expected = {}
        for count in (0, 1, 2, 5):
            begin = [len(device.launches) for device in devices]
            await session.run(plan, given, options(count))
            expected[count] = [
                launched(device, at) for device, at in zip(devices, begin, strict=True)
            ]
        made = await session.prepare(plan, given, options(1))
        assert isinstance(made, SpanningPlan)
        for count in (1, 5, 0, 2, 2):
            await made.rebind(runtime_scalars=[ScalarArgument.u32(count)])
            begin = [len(device.launches) for device in devices]
            await made.run()
            assert expected[count] == [
                launched(device, at) for device, at in zip(devices, begin, strict=True)
            ]
        graphs = made.made
        await made.rebind(runtime_scalars=[ScalarArgument.u32(2)])
        assert made.made == graphs
        with pytest.raises(GraphError, match=f"around: .*more than {MOST_TURNED}"):
            await made.rebind(runtime_scalars=[ScalarArgument.u32(1000)])
        assert "closed" in repr(made)
        assert session.live_objects()["graphs"] == 0
    check_all_empty(devices)


async def test_too_many_turns_run_node_by_node() -> None:
    devices = gpus(2)
    plan = to_and_fro(MOST_TURNED)
    async with opened(devices) as session:
        made = await session.prepare(plan, bound(session, plan))
        assert not made.is_lowered
        assert [one.name for one in made.obstacles] == ["around"]
        assert "its turns come to more than" in session.explain(plan)
    check_all_empty(devices)


async def run_parts(seed: int, length: int, count: int) -> bool:
    """Run a random program's parts one after the other on processors.

    Returns:
        Whether there were any: what cannot be put into parts says so.
    """
    devices = [CpuBackend(workers=1, index=index) for index in range(count)]
    names = [device.device for device in devices]
    program = Program(
        seed, length, cpu_kernels(), has_hosts=False, has_while=seed % 3 == 0,
        has_limits=False, devices=names,
    )  # fmt: skip
    expected = program.expected()
    plan, scalars = program.plan, tuple(program.scalars)
    try:
        async with open_session(devices=devices) as session:
            memories: dict[str, Any] = dict(program.hosts)
            for slot in plan.slots:
                if isinstance(slot, BufferSlot):
                    memories[slot.name] = session.allocate(
                        slot.shape, slot.dtype, device=slot.device
                    )
            bindings = _given(plan, memories)
            if program.has_external:
                bindings["start"] = session.on(0).backend.create_event()
            places = session.locate(plan, bindings)
            found = span_parts(plan, places, lambda *_: True, scalars)
            parts = [one for one in found if isinstance(one, SpanPart)]
            for part in parts:
                await _run_part(session, part, memories, scalars)
    finally:
        for device in devices:
            device.close()
    for name, array in expected.items() if parts else ():
        np.testing.assert_array_equal(program.hosts[name], array, name)
    return bool(parts)


def _given(plan: LaunchGraphPlan, memories: Mapping[str, Any]) -> dict[str, Any]:
    return {
        slot.name: memories[slot.name]
        for slot in plan.slots
        if not (isinstance(slot, BufferSlot) and slot.is_scratch)
    }


async def _run_part(
    session: MultiSession,
    part: SpanPart,
    memories: Mapping[str, Any],
    scalars: tuple[ScalarArgument, ...],
) -> None:
    if part.plan is not None:
        names = (slot.name for slot in part.plan.slots)
        given = {name: memories[part.memories.get(name, name)] for name in names}
        options = LaunchOptions(runtime_scalars=scalars)
        await session.on(part.device).run(part.plan, given, options)
        return
    assert part.copy is not None
    source, target = (memories[name] for name in part.copy)
    values = await session.download(source)
    await session.write(target, values)


@pytest.mark.slow
@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 2**32 - 1), length=st.integers(2, 24), count=st.integers(2, 3)
)
def test_parts_one_after_the_other_leave_what_the_steps_would(
    seed: int, length: int, count: int
) -> None:
    """With loops on one device and over several, and carries in both."""
    anyio.run(run_parts, seed, length, count)


def test_random_programs_with_loops_come_out_as_parts() -> None:
    """So that the test above is about something."""
    assert LENGTH == 5
    assert sum(anyio.run(run_parts, seed, 16, 2) for seed in range(12)) >= 4
