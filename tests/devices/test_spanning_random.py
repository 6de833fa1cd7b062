"""Random plans over several devices, in parts: every edge is kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accy_async.dtypes import DType
from accy_async.graph.lowering.obstacle import Obstacle
from accy_async.graph.lowering.spanning import SpanPart, span_parts
from accy_async.graph.nodes import BufferSlot
from accy_async.graph.options import LaunchOptions
from accy_async.graph.plan import LaunchGraphPlan
from accy_async.graph.whereabouts import Whereabouts
from accy_async.session import open_session
from accy_async.session.multi.spanning import SpanningPlan
from tests.devices.parts import check_all_empty, gpus
from tests.graphs.programs import Program, named_kernels

pytestmark = pytest.mark.anyio


@settings(max_examples=80, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 2**32 - 1),
    length=st.integers(2, 30),
    count=st.integers(2, 3),
    has_loops=st.booleans(),
)
def test_random_plans_in_parts_keep_every_edge_and_run(
    seed: int, length: int, count: int, has_loops: bool
) -> None:
    """Each node is in one part, each part is one device's, and no order is lost."""
    devices = gpus(count)
    names = [device.device for device in devices]
    program = Program(
        seed,
        length,
        named_kernels(),
        has_hosts=False,
        has_loops=has_loops,
        has_while=False,
        devices=names,
    )
    plan = program.plan
    options = LaunchOptions(runtime_scalars=tuple(program.scalars))

    async def look() -> None:
        async with open_session(devices=devices) as session:
            bound: dict[str, Any] = dict(program.hosts)
            for slot in plan.slots:
                if isinstance(slot, BufferSlot) and not slot.is_scratch:
                    bound[slot.name] = session.allocate(
                        slot.shape, DType.U32, device=slot.device
                    )
            if program.has_external:
                event = session.on(0).backend.create_event()
                session.on(0).backend.record_event(event)
                bound["start"] = event
            places = session.locate(plan, bound)
            if not plan.loops:
                check_parts(plan, places, span_parts(plan, places, lambda *_: True))
            made = await session.prepare(plan, bound, options)
            for _ in range(2):
                await made.run()
            if isinstance(made, SpanningPlan):
                made.submit()
            await made.aclose()

    anyio.run(look)
    check_all_empty(devices)


def check_parts(
    plan: LaunchGraphPlan, places: Whereabouts, found: Sequence[SpanPart | Obstacle]
) -> None:
    parts = [one for one in found if isinstance(one, SpanPart)]
    if not parts:
        return
    names = [name for part in parts for name in part.nodes]
    assert sorted(names) == sorted(node.name for node in plan.nodes)
    of = {name: place for place, part in enumerate(parts) for name in part.nodes}
    reached: list[set[int]] = []
    for place, part in enumerate(parts):
        assert all(before < place for before in part.after)
        reached.append({place}.union(*(reached[before] for before in part.after)))
        if part.plan is not None:
            on = {places.nodes[plan.node_index[name]] for name in part.nodes}
            assert on == {part.device}
    edges = [(edge.before, edge.after) for edge in plan.dependencies]
    edges += [
        (plan.nodes[edge.before].name, plan.nodes[edge.after].name)
        for edge in plan.order_edges
    ]
    for before, after in edges:
        assert of[before] in reached[of[after]]
        part = parts[of[after]]
        if of[before] == of[after] and part.plan is not None:
            assert comes_after(part.plan, before, after)


def comes_after(plan: LaunchGraphPlan, before: str, after: str) -> bool:
    """Whether a piece has an edge between two of its nodes."""
    return (before, after) in {(one.before, one.after) for one in plan.dependencies}
