"""The room in flight: never more than was said, all of it used, shared by weight."""

from __future__ import annotations

import random
from collections.abc import Sequence

import anyio
import anyio.lowlevel
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accy_async.backends import RecordingBackend
from accy_async.backends.timeline import Timeline
from accy_async.graph.governor import Governor
from accy_async.graph.outcome import NodeState
from accy_async.session import open_session
from tests.graphs.parts import chains, check_empty

pytestmark = pytest.mark.anyio


async def settle() -> None:
    """Let every task go on as far as it can."""
    for _ in range(40):
        await anyio.lowlevel.checkpoint()


class FakeRun:
    """A run that has streams, and nothing else."""

    def __init__(self, lines: Sequence[Timeline] | None = None) -> None:
        self.timelines = [Timeline("s")] if lines is None else list(lines)
        self.submitted = 0

    def in_flight(self) -> int:
        return sum(line.submitted - line.completed for line in self.timelines)

    def submit(self, count: int) -> None:
        """Give so many operations to the fewest laden stream."""
        self.submitted += count
        for _ in range(count):
            min(self.timelines, key=lambda one: one.submitted).advance()

    def complete(self, count: int) -> None:
        """Have so many end on the first stream."""
        line = self.timelines[0]
        line.complete(min(line.submitted, line.completed + count))


async def hungry(governor: Governor, run: FakeRun, chunk: int) -> None:
    """Submit for ever, as soon as that is allowed."""
    while True:
        if not governor.may_submit(run, chunk):
            await governor.wait_for_room(run, chunk)
        run.submit(chunk)


@pytest.mark.parametrize("weights", [(1.0, 1.0), (3.0, 1.0), (1.0, 2.0, 5.0), (1.0,)])
async def test_hungry_runs_share_all_of_the_room_by_weight(
    weights: tuple[float, ...],
) -> None:
    """Whenever the device has given room, it is full again, and each has its share."""
    governor = Governor(480)
    runs = [FakeRun() for _ in weights]
    async with anyio.create_task_group() as group:
        for run, weight in zip(runs, weights, strict=True):
            governor.enter(run, weight)
            group.start_soon(hungry, governor, run, 4)
            await settle()
            assert governor.in_flight() == 480  # a later one finds no room yet
        for _ in range(20):
            for run in runs:  # as fast as each has work on the device
                run.complete(max(8, run.in_flight() // 4))
            await settle()
            assert governor.in_flight() <= 480
            assert governor.in_flight() >= 480 // 2
        for run, weight in zip(runs, weights, strict=True):
            share = 480 * weight / sum(weights)
            assert share / 2 <= run.in_flight() <= 1.25 * share
        group.cancel_scope.cancel()


async def test_what_one_leaves_another_uses() -> None:
    """A run that wants little does not keep its share from one that wants all."""
    governor = Governor(100)
    modest, greedy = FakeRun(), FakeRun()
    governor.enter(modest, 1.0)
    governor.enter(greedy, 1.0)
    modest.submit(4)
    async with anyio.create_task_group() as group:
        group.start_soon(hungry, governor, greedy, 4)
        await settle()
        assert governor.in_flight() == 100
        assert greedy.in_flight() == 96
        group.cancel_scope.cancel()


async def test_a_newcomer_is_next_whatever_others_have() -> None:
    """It has nothing in flight: nobody submits before it."""
    governor = Governor(64)
    old, new = FakeRun(), FakeRun()
    governor.enter(old, 100.0)
    async with anyio.create_task_group() as group:
        group.start_soon(hungry, governor, old, 8)
        await settle()
        governor.enter(new, 0.01)
        group.start_soon(hungry, governor, new, 8)
        await settle()
        assert new.submitted == 0
        before = old.submitted
        old.complete(8)
        await settle()
        assert (new.submitted, old.submitted) == (8, before)
        group.cancel_scope.cancel()


async def test_a_run_that_drains_takes_room_but_no_share() -> None:
    """Until it has left, what it has in flight counts."""
    governor = Governor(64)
    draining, other = FakeRun(), FakeRun()
    governor.enter(draining, 1.0)
    governor.enter(other, 1.0)
    draining.submit(60)
    governor.drain(draining)
    governor.drain(draining)
    assert governor.slice_part(other) == 1.0
    assert governor.may_submit(other, 4)
    assert not governor.may_submit(other, 5)
    async with anyio.create_task_group() as group:
        group.start_soon(hungry, governor, other, 8)
        await settle()
        assert other.submitted == 0
        governor.leave(draining)  # its streams are destroyed, whatever is on them
        await settle()
        assert other.submitted == 64
        group.cancel_scope.cancel()
    governor.leave(other)
    governor.leave(other)
    assert governor.in_flight() == 0


async def test_streams_that_runs_share_count_once() -> None:
    """The room is what is on the device, not what each has to wait for."""
    governor, line = Governor(10), Timeline("s")
    first, second = FakeRun([line]), FakeRun([line])
    for run in (first, second):
        governor.enter(run, 1.0)
    first.submit(6)
    assert governor.in_flight() == 6
    assert governor.may_submit(second, 4)
    governor.leave(first)
    assert governor.in_flight() == 6


async def test_a_step_larger_than_the_room_goes_alone() -> None:
    """It would wait for ever otherwise."""
    governor = Governor(4)
    run, other = FakeRun(), FakeRun()
    governor.enter(run, 1.0)
    governor.enter(other, 1.0)
    other.submit(1)
    async with anyio.create_task_group() as group:
        group.start_soon(hungry, governor, run, 9)
        await settle()
        assert run.submitted == 0
        other.complete(1)
        await settle()
        assert run.submitted == 9
        group.cancel_scope.cancel()


async def test_a_run_that_stops_waiting_hands_its_turn_on() -> None:
    """Cancelled while it is the next: the one after it is woken."""
    governor = Governor(8)
    full, first, second = FakeRun(), FakeRun(), FakeRun()
    for run in (full, first, second):
        governor.enter(run, 1.0)
    full.submit(8)
    async with anyio.create_task_group() as group:
        async with anyio.create_task_group() as inner:
            inner.start_soon(governor.wait_for_room, first, 8)
            await settle()
            group.start_soon(hungry, governor, second, 2)
            await settle()
            full.complete(4)
            await settle()
            assert second.submitted == 0  # the first waits for more than that
            inner.cancel_scope.cancel()
        await settle()
        assert second.submitted == 4
        group.cancel_scope.cancel()


@settings(deadline=None, max_examples=40)
@given(
    st.integers(1, 64),
    st.lists(st.tuples(st.floats(0.01, 100.0), st.integers(1, 12)), max_size=8),
    st.integers(0, 2**32),
)
def test_nobody_waits_for_ever_and_nothing_is_exceeded(
    limit: int, wants: list[tuple[float, int]], seed: int
) -> None:
    """Runs of random weights and steps, and a device that ends what it likes."""

    async def main() -> None:
        governor, draw = Governor(limit), random.Random(seed)
        left = {FakeRun(): (weight, chunk) for weight, chunk in wants}

        async def work(run: FakeRun, chunk: int) -> None:
            for _ in range(6):
                if not governor.may_submit(run, chunk):
                    await governor.wait_for_room(run, chunk)
                alone = governor.in_flight() == 0
                run.submit(chunk)
                assert alone or governor.in_flight() <= limit
                await anyio.lowlevel.checkpoint()
            governor.drain(run)

        with anyio.fail_after(60):
            async with anyio.create_task_group() as group:
                for run, (weight, chunk) in left.items():
                    governor.enter(run, weight)
                    group.start_soon(work, run, chunk)
                await anyio.lowlevel.checkpoint()
                while any(run.submitted < 6 * left[run][1] for run in left):
                    busy = [run for run in left if run.in_flight()]
                    if busy:
                        draw.choice(busy).complete(draw.randint(1, limit))
                    await anyio.lowlevel.checkpoint()

    anyio.run(main)


@pytest.mark.parametrize("limit", [1, 4, 16, 64])
@pytest.mark.parametrize("runs", [1, 2, 20])
async def test_runs_keep_to_the_bound_together(limit: int, runs: int) -> None:
    """Also those that have submitted everything, and with their events counted."""
    device = RecordingBackend(is_holding=True)
    async with open_session(device, max_in_flight=limit, max_streams=8) as session:
        going = [session.start(chains(1, 30)) for _ in range(runs)]
        await settle()
        # Full, but for less than is submitted in one go.
        least = min(limit, 30 * runs) - 7
        assert least <= session._runs._governor.in_flight() <= limit
        while device.ready_streams():
            for stream in device.ready_streams():
                device.step(stream)
            await settle()
            assert session._runs._governor.in_flight() <= limit
        for run in going:
            assert (await run).nodes == {NodeState.FINISHED: 30}
    check_empty(device)


@pytest.mark.parametrize("limit", [1, 16, 64])
async def test_a_run_waits_for_room_and_goes_on(limit: int) -> None:
    """Submitting goes on as soon as there is room again."""
    device = RecordingBackend(is_holding=True)
    async with open_session(device, max_in_flight=limit) as session:
        run = session.start(chains(2, 100))
        await settle()
        seen = 0
        while run.statistics().nodes.get(NodeState.FINISHED, 0) < 200:
            statistics = run.statistics()
            assert statistics.in_flight <= limit
            assert statistics.submissions >= min(seen + 1, 200)
            seen = statistics.submissions
            for stream in device.ready_streams():
                device.step(stream, limit)
            await settle()
        assert (await run).waits_for_room > 0
    check_empty(device)
