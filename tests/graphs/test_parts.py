"""Plans with calls on the host, as several device graphs around the calls."""

from __future__ import annotations

import random
from collections.abc import Callable

import anyio
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accy_async.backends import RecordingBackend
from accy_async.backends.replay import Replay
from accy_async.dtypes import DType, ScalarArgument
from accy_async.errors import DeviceError, GraphError
from accy_async.graph import LaunchGraphBuilder, LaunchGraphPlan, LaunchOptions
from accy_async.graph.lowering.obstacle import Obstacle
from accy_async.graph.lowering.parts import Parting, part_plan
from accy_async.graph.nodes import BufferSlot
from accy_async.graph.outcome import NodeSkipped, NodeState, RunCancelled
from accy_async.session import open_session
from tests.graph.graphs import kernel_entry
from tests.graphs.parts import KERNEL, check_empty
from tests.graphs.programs import LENGTH, Program, named_kernels

U32 = DType.U32
ALWAYS = LaunchOptions(lowering="always")
SEEDS = st.integers(0, 2**32 - 1)

pytestmark = pytest.mark.anyio


def nothing() -> None:
    """Called on the host."""


async def pause() -> None:
    """The same, on the loop."""
    await anyio.lowlevel.checkpoint()


def chained(lengths: list[int], call: Callable[[], object] = pause) -> LaunchGraphPlan:
    """Chains of kernels ``k<part>_<place>``, with a call after each but the last."""
    b = LaunchGraphBuilder(edges="explicit")
    last: tuple[str, ...] = ()
    for part, length in enumerate(lengths):
        for place in range(length):
            b.kernel(KERNEL, name=f"k{part}_{place}", after=last)
            last = (f"k{part}_{place}",)
        if part < len(lengths) - 1:
            b.host_call(call, name=f"call{part}", after=last)
            last = (f"call{part}",)
    return b.build()


def parting(plan: LaunchGraphPlan) -> Parting:
    found = part_plan(plan)
    assert isinstance(found, Parting), found
    return found


# Parting


def test_items_after_the_same_calls_are_one_part() -> None:
    b = LaunchGraphBuilder(edges="explicit")
    for name in ("a", "b"):
        b.kernel(KERNEL, name=name)
    b.host_call(nothing, name="first", after="a")
    b.host_call(nothing, name="second", after="a")
    b.kernel(KERNEL, name="c", after=("first", "b"))
    b.kernel(KERNEL, name="d", after="second")
    b.kernel(KERNEL, name="e", after=("c", "d"))
    b.kernel(KERNEL, name="f", after="b")
    plan = b.build()
    found = parting(plan)
    names = [node.name for node in plan.nodes]
    parts = [[names[item] for item in part.items] for part in found.parts]
    assert parts == [["a", "b", "f"], ["c"], ["d"], ["e"]]
    assert [[names[i] for i in part.awaited] for part in found.parts] == [
        ["a"], [], [], [],
    ]  # fmt: skip
    assert [part.parts for part in found.parts] == [(), (0,), (), (1, 2)]
    assert [[names[i] for i in part.calls] for part in found.parts] == [
        [], ["first"], ["second"], [],
    ]  # fmt: skip
    assert not found.is_worth_it
    assert parting(chained([10, 10])).is_worth_it


def test_what_is_in_the_way_is_told_by_name() -> None:
    b = LaunchGraphBuilder()
    b.external_event("go")
    x = b.scratch("x", U32, 1)
    with b.loop(count=2, name="twice"):
        b.fill(x, 1, name="one")
        b.host_call(nothing, name="within")
    b.fill(x, 1, name="two", wait="go")
    found = part_plan(b.build())
    assert not isinstance(found, Parting)
    assert all(isinstance(one, Obstacle) for one in found)
    assert {one.name for one in found} == {"within", "go"}
    b = LaunchGraphBuilder(edges="explicit")
    for number in range(17):
        b.kernel(KERNEL, name=f"k{number}")
    b.host_call(nothing, after=[f"k{number}" for number in range(17)])
    (only,) = part_plan(b.build())  # type: ignore[misc]
    assert "more than 16 nodes" in str(only)


def random_plan(
    seed: int, length: int, call: Callable[[str], Callable[[], object]]
) -> tuple[LaunchGraphPlan, list[tuple[str, str]], dict[str, np.ndarray]]:
    """Nodes that each zero an array of their own, and calls, at random edges."""
    draw = random.Random(seed)
    b = LaunchGraphBuilder(edges="explicit")
    x = b.scratch("x", U32, 1)
    b.fill(x, 0, name="x")
    names, edges = ["x"], [("x", f"n{i}") for i in range(length)]
    arrays: dict[str, np.ndarray] = {}
    for number in range(length):
        name = f"n{number}"
        before = [one for one in names if one != "x" and draw.random() < 0.25]
        edges += [(one, name) for one in before]
        if draw.random() < 0.3:
            b.host_call(call(name), name=name, after=["x", *before])
        else:
            target = b.host(f"a{number}", U32, 1)
            b.copy_out(x, target, name=name, after=["x", *before])
            arrays[name] = np.ones(1, np.uint32)
        names.append(name)
    return b.build(), edges, arrays


@settings(max_examples=60, deadline=None, derandomize=True)
@given(seed=SEEDS, length=st.integers(1, 25))
def test_every_edge_is_kept(seed: int, length: int) -> None:
    """Within a part by the graph's edges, between parts by theirs."""
    plan, edges, _ = random_plan(seed, length, lambda _: nothing)
    found = part_plan(plan)
    if not isinstance(found, Parting):
        assert "more than 16" in str(found[0])
        return
    index = plan.node_index
    place: dict[int, tuple[int, int]] = {}
    for number, part in enumerate(found.parts):
        for at, node in enumerate(part.outline.body):
            place[node.index] = (number, at)
    calls = {plan.order.top.indices[item] for item in found.calls}
    assert len(place) + len(calls) == len(plan.nodes)
    behind = [set(part.parts) for part in found.parts]
    for mine in behind:  # those before are closed already
        for before in list(mine):
            mine |= behind[before]
    for one, other in edges:
        if index[one] in calls or index[other] in calls:
            continue
        (number, at), (its_number, its_at) = place[index[one]], place[index[other]]
        if number != its_number:
            assert number in behind[its_number]
            continue
        body, todo, seen = found.parts[number].outline.body, [its_at], set[int]()
        while todo:
            seen.update(todo)
            todo = [b for a in todo for b in body[a].after if b not in seen]
        assert at in seen


# Runs


async def test_the_second_run_is_one_submission_for_each_part() -> None:
    device, called = RecordingBackend(), 0

    async def call() -> None:
        nonlocal called
        called += 1
        assert device.launch_count % 24 == 8 * (called - 1) % 16 + 8

    plan = chained([8, 8, 8], call)
    async with open_session(device) as session:
        assert not (await session.run(plan)).is_lowered
        for _ in range(2):
            called, start = 0, len(device.calls)
            statistics = await session.run(plan)
            assert statistics.is_lowered
            assert statistics.submissions == 3
            assert statistics.host_calls == called == 2
            assert statistics.nodes == {NodeState.FINISHED: 26}
            kinds = [one.kind for one in device.calls[start:]]
            assert kinds.count("launch_graph") == 3
            assert kinds.count("launch") == 0
        assert session.live_objects()["graphs"] == 3
    check_empty(device)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(seed=SEEDS, length=st.integers(1, 20), step=SEEDS)
def test_nothing_begins_before_what_it_depends_on_is_done(
    seed: int, length: int, step: int
) -> None:
    """In whatever order the device comes along; calls by what they find."""
    done: set[str] = set()

    def call(name: str) -> Callable[[], object]:
        async def called() -> None:
            look()
            for one, other in edges:
                assert other != name or one in done, (one, other)
            await anyio.lowlevel.checkpoint()
            done.add(name)

        return called

    plan, edges, arrays = random_plan(seed, length, call)
    if not isinstance(part_plan(plan), Parting) or not arrays:
        return
    draw, device = random.Random(step), RecordingBackend()

    def look() -> None:
        done.add("x")
        fresh = {name for name, array in arrays.items() if not array[0]}
        done.update(fresh)
        for one, other in edges:
            assert other not in fresh or one in done, (one, other)

    async def main() -> None:
        async with open_session(device) as session:
            device.hold_all()
            bindings = {f"a{name[1:]}": array for name, array in arrays.items()}
            run = session.start(plan, bindings, ALWAYS)
            while not run.is_done:
                await anyio.wait_all_tasks_blocked()
                look()
                ready = device.ready_streams()
                if ready:
                    device.step(draw.choice(ready))
            assert (await run).is_lowered
            device.release_all()
        assert done >= {node.name for node in plan.nodes}
        check_empty(device)

    anyio.run(main, backend="trio")


@settings(max_examples=30, deadline=None, derandomize=True)
@given(seed=SEEDS, length=st.integers(1, 40))
def test_parts_are_as_plain(seed: int, length: int) -> None:
    """Every node of random programs as often, with the same end."""

    async def outcome(how: str) -> tuple[list[str], dict[str, NodeState], int]:
        program = Program(seed, length, named_kernels())
        device = RecordingBackend()
        bindings: dict[str, object] = dict(program.hosts)
        async with open_session(device) as session:
            for slot in program.plan.slots:
                if isinstance(slot, BufferSlot) and not slot.is_scratch:
                    bindings[slot.name] = session.allocate(LENGTH, U32)
            options = LaunchOptions(runtime_scalars=program.scalars, lowering=how)
            run = session.start(program.plan, bindings, options)
            statistics = await run
            assert statistics.is_lowered == (how == "always")
            states = {node.name: run[node.name].state for node in program.plan.nodes}
        check_empty(device)
        launched = sorted(one.diagnostic_id or "" for one in device.launches)
        return launched, states, statistics.host_calls

    async def main() -> None:
        assert await outcome("always") == await outcome("never")

    program = Program(seed, length, named_kernels())
    if isinstance(part_plan(program.plan), Parting):
        anyio.run(main, backend="trio")


@pytest.mark.parametrize("how", ["finish", "cancel"])
async def test_a_call_that_fails_skips_the_parts_behind_it(how: str) -> None:
    device = RecordingBackend()

    def fail() -> None:
        raise ValueError("it failed")

    b = LaunchGraphBuilder(edges="explicit")
    for name in ("a", "b"):
        b.kernel(KERNEL, name=name)
    b.host_call(fail, name="failing", after="a")
    b.host_call(pause, name="good", after="b")
    b.kernel(KERNEL, name="skipped", after="failing")
    b.kernel(KERNEL, name="ran", after="good")
    plan = b.build()
    async with open_session(device) as session:
        options = LaunchOptions(lowering="always", on_error=how)
        for _ in range(2):
            run = session.start(plan, options=options)
            with pytest.RaisesGroup(pytest.RaisesExc(ValueError, match="it failed")):
                await run
            assert run["b"].state is NodeState.FINISHED
            if how == "finish":
                assert run["skipped"].state is NodeState.SKIPPED
                assert run["ran"].state is NodeState.FINISHED
                with pytest.raises(NodeSkipped):
                    await run["skipped"]
            else:
                assert run["skipped"].state is NodeState.CANCELLED
    check_empty(device)


async def test_a_node_that_fails_skips_what_depends_on_it() -> None:
    device, plan = RecordingBackend(), chained([2, 2])
    async with open_session(device) as session:
        await session.run(plan, options=ALWAYS)
        device.fail_execution(1)
        run = session.start(plan, options=ALWAYS)
        with pytest.RaisesGroup(pytest.RaisesExc(DeviceError, match="node=k0_0")):
            await run
        states = {node.name: run[node.name].state for node in plan.nodes}
        assert states.pop("k0_0") is NodeState.FAILED
        assert set(states.values()) == {NodeState.SKIPPED}
        assert (await session.run(plan)).is_lowered
    check_empty(device)


async def test_cancelling_ends_a_call_and_drops_the_rest() -> None:
    device, plan = RecordingBackend(), chained([2, 2], anyio.sleep_forever)
    async with open_session(device) as session:
        run = session.start(plan, options=ALWAYS)
        await anyio.wait_all_tasks_blocked()
        run.cancel()
        with pytest.raises(RunCancelled):
            await run
        assert run["k0_1"].state is NodeState.FINISHED
        assert run["k1_0"].state is NodeState.CANCELLED
    check_empty(device)


async def test_a_node_that_was_awaited_is_told_of_by_itself_next_time() -> None:
    device, plan = RecordingBackend(), chained([3, 3])
    async with open_session(device) as session:
        run = session.start(plan, options=ALWAYS)
        await run["k1_0"]
        await run
        device.hold_all()
        run = session.start(plan, options=ALWAYS)
        while run["k1_0"].state is not NodeState.FINISHED:
            await anyio.wait_all_tasks_blocked()
            device.step(device.ready_streams()[-1])
        assert not run["k1_2"].state.is_final
        device.release_all()
        await run
    check_empty(device)


async def test_other_buffers_and_scalars_change_the_graphs() -> None:
    """Of a plan with a loop that a scalar counts, too."""
    device, b = RecordingBackend(), LaunchGraphBuilder()
    entry = kernel_entry(1, runtime_scalar_argument_count=1)
    x, times = b.buffer("x", U32, 4), b.runtime_scalar()
    with b.loop(count=times, name="loop"):
        b.kernel(entry, [x.read_write], [times], name="step")
    b.host_call(pause, reads=[x], name="call")
    b.kernel(entry, [x.read_write], [times], name="last")
    plan = b.build()
    async with open_session(device) as session:
        for number in range(1, 12):
            x_array, count = session.allocate(4, U32), 1 + number % 3
            scalars = (ScalarArgument.u32(count),)
            options = LaunchOptions(lowering="always", runtime_scalars=scalars)
            before = device.launch_count
            await session.run(plan, {"x": x_array}, options)
            launches = device.launches[before:]
            assert len(launches) == count + 1
            assert {launch.scalars for launch in launches} == {scalars}
            assert {launch.buffer_ids for launch in launches} == {(x_array.handle.id,)}
    check_empty(device)


async def test_small_parts_are_left_alone_unless_it_is_said() -> None:
    device, plan = RecordingBackend(), chained([2, 2])
    assert "too small" in plan.explain()
    assert "to 2 device graphs of 16 nodes, around 1 calls" in chained([8, 8]).explain()
    async with open_session(device) as session:
        for _ in range(3):
            assert not (await session.run(plan)).is_lowered
        assert (await session.run(plan, options=ALWAYS)).is_lowered
        async with await session.prepare(plan) as prepared:
            assert not prepared.is_lowered
            await prepared.run()
            with pytest.raises(GraphError, match="too small"):
                prepared.submit()
    check_empty(device)


async def test_each_call_failing_once_is_told_and_leaves_nothing() -> None:
    async def act(device: RecordingBackend) -> int:
        plan, done = chained([2, 2]), 0
        async with open_session(device) as session:
            for _ in range(2):
                try:
                    await session.run(plan, options=ALWAYS)
                    done += 1
                except ExceptionGroup:
                    continue
        return done

    device = RecordingBackend()
    assert await act(device) == 2
    count = len(device.calls)
    for nth in range(1, count + 1):
        device = RecordingBackend()
        device.fail("*", nth)
        error: Exception | None = None
        try:
            assert await act(device) <= 2
        except Exception as raised:  # noqa: BLE001 - of the session's own end
            error = raised
        assert error is None or "told to fail" in repr(error)
        check_empty(device)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(seed=SEEDS, step=SEEDS)
def test_runs_cut_short_anywhere_leave_nothing(seed: int, step: int) -> None:
    """Cancelled, calls and launches failing, at any moment."""
    device = RecordingBackend()
    replay = Replay(
        device, step, burst=3, cancels=0.05, failures=0.05, host_failures=0.2
    )
    plan, _, arrays = random_plan(seed, 12, replay.call)
    if not isinstance(part_plan(plan), Parting):
        return

    async def work() -> None:
        async with open_session(device) as session:
            bindings = {f"a{name[1:]}": array for name, array in arrays.items()}
            for _ in range(3):
                run = session.start(plan, bindings, ALWAYS)
                replay.cancellable("run", run)
                await run.wait_over()
                run.cancel()

    async def main() -> None:
        await replay.drive(work)
        check_empty(device)

    anyio.run(main)
