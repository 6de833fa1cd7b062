"""Waits of streams for events: each is needed, and taking one away is noticed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accy_async.backends import EventHandle, RecordingBackend, StreamHandle
from accy_async.backends.guards import Guard
from accy_async.backends.launch import PreparedLaunch
from accy_async.graph.builder import LaunchGraphBuilder
from accy_async.graph.outcome import NodeState
from accy_async.graph.plan import LaunchGraphPlan
from accy_async.session import open_session
from tests.graphs.parts import KERNEL, check_empty

Clock = dict[int, int]
pytestmark = pytest.mark.slow

LOOP = st.sampled_from(["asyncio", "trio"])


class ClockedBackend(RecordingBackend):
    """Keeps, of every stream, what is sure to be done before its next operation.

    Attributes:
        redundant: waits for what was sure to be done already.
        waits: how many waits there were.
        drop: which wait is left out, counting from 0; None for none.
        dropped_for: the stream and position of what that one was for.
    """

    def __init__(self, *, drop: int | None = None, is_holding: bool = False) -> None:
        super().__init__(is_holding=is_holding)
        self.drop = drop
        self.waits = 0
        self.redundant: list[int] = []
        self.dropped_for: tuple[int, int] | None = None
        self._clocks: dict[int, Clock] = defaultdict(dict)
        self._events: dict[int, tuple[int, int, Clock]] = {}

    def submit_launch(
        self,
        prepared: PreparedLaunch,
        stream: StreamHandle | None = None,
        guard: Guard | None = None,
    ) -> int:
        position = super().submit_launch(prepared, stream, guard)
        assert stream is not None
        self._clocks[stream.id][stream.id] = position
        return position

    def record_event(
        self, event: EventHandle, stream: StreamHandle | None = None
    ) -> int:
        assert stream is not None
        clock = dict(self._clocks[stream.id])
        self._events[event.id] = (stream.id, clock.get(stream.id, 0), clock)
        return super().record_event(event, stream)

    def stream_wait_event(self, stream: StreamHandle | None, event: EventHandle) -> int:
        assert stream is not None
        number, self.waits = self.waits, self.waits + 1
        signaller, position, clock = self._events[event.id]
        mine = self._clocks[stream.id]
        if mine.get(signaller, 0) >= position:
            self.redundant.append(number)
        if number == self.drop:
            self.dropped_for = (signaller, position)
            return 0
        for line, at in clock.items():
            mine[line] = max(mine.get(line, 0), at)
        return super().stream_wait_event(stream, event)


def random_graph(count: int, edges: Sequence[tuple[int, int]]) -> LaunchGraphPlan:
    """Kernels ``n0``, ``n1``..., with these edges from lower to higher."""
    b = LaunchGraphBuilder(edges="explicit")
    before: dict[int, list[str]] = defaultdict(list)
    for one, two in edges:
        if one % count < two % count:
            before[two % count].append(f"n{one % count}")
    for node in range(count):
        b.kernel(KERNEL, name=f"n{node}", after=before[node])
    return b.build()


GRAPHS = st.builds(
    random_graph,
    st.integers(1, 40),
    st.lists(st.tuples(st.integers(0, 39), st.integers(0, 39)), max_size=80),
)


async def run_once(device: ClockedBackend, plan: LaunchGraphPlan, streams: int) -> None:
    async with open_session(device, max_streams=streams) as session:
        statistics = await session.run(plan)
    assert device.waits == statistics.event_waits == plan.layout(streams).wait_count
    check_empty(device)


@settings(max_examples=600, deadline=None, derandomize=True)
@given(loop=LOOP, plan=GRAPHS, streams=st.sampled_from([1, 2, 3, 8]))
def test_no_wait_is_for_what_is_sure_to_be_done(
    loop: str, plan: LaunchGraphPlan, streams: int
) -> None:
    """By vector clocks over the calls made, every wait tells its stream something."""
    device = ClockedBackend()
    anyio.run(run_once, device, plan, streams, backend=loop)
    assert device.redundant == []


def complete_without(device: RecordingBackend, stream: int, position: int) -> None:
    """Complete all that can be without one operation, held with what is behind it."""
    has_moved = True
    while has_moved:
        has_moved = False
        for handle in device.ready_streams():
            assert handle is not None
            completed = device.mark(handle).timeline.completed
            if handle.id != stream or completed + 1 < position:
                device.step(handle)
                has_moved = True


async def overtakers(
    plan: LaunchGraphPlan, *, drop: int | None, held: tuple[int, int] | None = None
) -> tuple[set[str], tuple[int, int]]:
    """Which nodes run before one that they depend on, which does not complete.

    Args:
        plan: what is run.
        drop: the wait that is left out.
        held: stream and position of what does not complete; what the wait that
            is left out would have been for if None.
    """
    device = ClockedBackend(drop=drop, is_holding=True)
    async with open_session(device) as session:
        run = session.start(plan)
        await anyio.wait_all_tasks_blocked()
        if held is None:
            assert device.dropped_for is not None
            held = device.dropped_for
        complete_without(device, *held)
        places = {
            (int(mark.timeline.name.split()[1]), mark.position): node.name
            for index, node in enumerate(plan.nodes)
            for mark in [run._progress.mark_of(index)]
        }
        name = places[held]
        found = {
            node.name
            for node in plan.nodes
            if run[node.name].state is NodeState.FINISHED
            and node.name != name
            and plan.precedes(name, node.name)
        }
        device.release_all()
        await run
    check_empty(device)
    return found, held


@settings(max_examples=40, deadline=None, derandomize=True)
@given(loop=LOOP, plan=GRAPHS)
def test_leaving_out_any_wait_is_noticed(loop: str, plan: LaunchGraphPlan) -> None:
    """Without it something runs before what it depends on; with it nothing does."""

    async def check() -> None:
        for drop in range(plan.layout(32).wait_count):
            found, held = await overtakers(plan, drop=drop)
            assert found
            assert await overtakers(plan, drop=None, held=held) == (set(), held)

    anyio.run(check, backend=loop)
