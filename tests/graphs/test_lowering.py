"""Lowered runs are as if they had not been lowered, in one submission."""

from __future__ import annotations

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accy_async.backends import RecordingBackend
from accy_async.backends.replay import Replay
from accy_async.dtypes import DType, ScalarArgument
from accy_async.errors import DeviceError, DeviceLost, GraphError
from accy_async.graph import LaunchGraphBuilder, LaunchGraphPlan, LaunchOptions
from accy_async.graph.outcome import NodeState, RunCancelled
from accy_async.session import Session, open_session
from tests.graph.graphs import kernel_entry
from tests.graphs.parts import chains, check_empty, diamond
from tests.graphs.programs import Program, named_kernels
from tests.graphs.starting import start_program

U32 = DType.U32
ONE, TWO = kernel_entry(1), kernel_entry(2)
SEEDS = st.integers(0, 2**32 - 1)
LOOP = st.sampled_from(["asyncio", "trio"])

pytestmark = pytest.mark.anyio


def kinds(device: RecordingBackend, start: int = 0) -> list[str]:
    return [call.kind for call in device.calls[start:]]


async def test_the_second_run_is_one_submission() -> None:
    """The first is plain; the second makes the graph, all launch it."""
    device, plan = RecordingBackend(), diamond()
    async with open_session(device) as session:
        assert not (await session.run(plan)).is_lowered
        start = len(device.calls)
        for _ in range(3):
            statistics = await session.run(plan)
            assert statistics.is_lowered
            assert statistics.submissions == 1
            assert statistics.nodes == {NodeState.FINISHED: 4}
        repeated = ["launch_graph", "wait_stream"]
        expected = ["create_graph", "launch_graph", *repeated, *repeated]
        assert kinds(device, start) == expected
        assert device.launch_count == 16
        assert session.live_objects()["graphs"] == 1
    check_empty(device)


async def test_options_force_and_forbid() -> None:
    """``always`` from the first run on, ``never`` in none."""
    device, plan = RecordingBackend(), diamond()
    always, never = (LaunchOptions(lowering=how) for how in ("always", "never"))
    async with open_session(device) as session:
        assert (await session.run(plan, options=always)).is_lowered
        for _ in range(3):
            assert not (await session.run(plan, options=never)).is_lowered
    check_empty(device)


async def test_a_backend_that_waits_for_each_launch_lowers_nothing_unasked() -> None:
    device, plan = RecordingBackend(), diamond()
    device.is_debugging = True
    async with open_session(device) as session:
        for _ in range(3):
            assert not (await session.run(plan)).is_lowered
        always = LaunchOptions(lowering="always")
        assert (await session.run(plan, options=always)).is_lowered


async def test_always_says_what_is_in_the_way() -> None:
    """By name, for the plan, the run and the device."""
    b = LaunchGraphBuilder()
    b.host_call(lambda: None, name="call")
    calling = b.build()
    always = LaunchOptions(lowering="always")
    device = RecordingBackend(has_graphs=False)
    async with open_session() as session:
        with pytest.RaisesGroup(pytest.RaisesExc(GraphError, match="no device graphs")):
            await session.run(diamond_for(session), options=always)
    async with open_session(device) as session:
        with pytest.RaisesGroup(pytest.RaisesExc(GraphError, match="no device graphs")):
            await session.run(diamond(), options=always)
        for _ in range(3):
            assert not (await session.run(diamond())).is_lowered
    device = RecordingBackend()
    async with open_session(device) as session:
        with pytest.RaisesGroup(
            pytest.RaisesExc(GraphError, match="lowered: call: a call on the host")
        ):
            await session.run(calling, options=always)
        async with session.stream() as stream:
            options = LaunchOptions(lowering="always", stream=stream)
            with pytest.RaisesGroup(pytest.RaisesExc(GraphError, match="a stream")):
                await session.run(diamond(), options=options)
            plan = diamond()
            for _ in range(3):
                options = LaunchOptions(stream=stream)
                assert not (await session.run(plan, options=options)).is_lowered
    check_empty(device)


def diamond_for(session: Session) -> LaunchGraphPlan:
    """A plan without kernels, which any device could run."""
    b = LaunchGraphBuilder()
    b.fill(b.scratch("x", U32, 4), 1)
    return b.build()


async def test_carries_swap_and_are_told_of() -> None:
    """An odd number of iterations leaves the value in the other array."""
    device = RecordingBackend()
    b = LaunchGraphBuilder()
    x, y = b.buffer("x", U32, 1), b.buffer("y", U32, 1)
    with b.loop(count=b.runtime_scalar(), carries=[(x, y)], name="loop"):
        b.kernel(TWO, [x.read, y.write], name="step")
    b.kernel(ONE, [x], name="last")
    plan = b.build()
    async with open_session(device) as session:
        given = {name: session.allocate(1, U32) for name in ("x", "y")}
        ids = {name: array.handle.id for name, array in given.items()}
        for count in (0, 3, 4, 1001, 1002):
            scalars = (ScalarArgument.u32(count),)
            launched = []
            for how in ("never", "always"):
                start = len(device.launches)
                options = LaunchOptions(runtime_scalars=scalars, lowering=how)
                run = session.start(plan, given, options)
                await run
                launched.append([one.buffer_ids for one in device.launches[start:]])
                assert run.binding("x") is given["y" if count % 2 else "x"]
            plain, lowered = launched
            assert plain == lowered
            assert lowered[-1] == (ids["y" if count % 2 else "x"],)
    check_empty(device)


async def test_new_buffers_and_scalars_change_the_graph_in_place() -> None:
    """From the ninth set on: one graph, updated, with scratch that stays."""
    device = RecordingBackend()
    b = LaunchGraphBuilder()
    x, y = b.buffer("x", U32, 4), b.scratch("y", U32, 4)
    entry = kernel_entry(2, runtime_scalar_argument_count=1)
    b.kernel(entry, [x.read, y.write], [b.runtime_scalar()], name="one")
    b.kernel(kernel_entry(1), [y.read_write], name="two")
    plan = b.build()
    async with open_session(device) as session:
        for number in range(40):
            array = session.allocate(4 + number % 5, U32)
            options = LaunchOptions(runtime_scalars=(ScalarArgument.u32(number),))
            statistics = await session.run(plan, {"x": array}, options)
            assert statistics.is_lowered == (number >= 8)
            launch = device.launches[-2]
            assert launch.buffer_ids[0] == array.handle.id
            assert launch.scalars == (ScalarArgument.u32(number),)
            array.free()
        assert kinds(device).count("create_graph") == 8
        assert kinds(device).count("update_graph") == 24
        assert session.live_objects()["buffers"] == 8
    check_empty(device)


async def test_scalars_that_count_a_loop_may_take_another_graph() -> None:
    """Where the number of iterations changes the graph's nodes, it is made anew."""
    device = RecordingBackend()
    b = LaunchGraphBuilder()
    x, y = b.buffer("x", U32, 1), b.buffer("y", U32, 1)
    with b.loop(count=b.runtime_scalar(), carries=[(x, y)], name="loop"):
        b.kernel(TWO, [x.read, y.write], name="step")
    plan = b.build()
    async with open_session(device) as session:
        given = {name: session.allocate(1, U32) for name in ("x", "y")}
        for number in range(30):
            count = (3, 1000, 1001, 0, 5)[number % 5] + (number // 5) % 2
            options = LaunchOptions(runtime_scalars=(ScalarArgument.u32(count),))
            before = device.launch_count
            await session.run(plan, given, options)
            assert device.launch_count - before == count
    check_empty(device)


async def test_awaited_nodes_are_told_of_by_themselves_next_time() -> None:
    """The first lowered run resolves a node at its end; those after it do sooner."""
    device, plan = RecordingBackend(), diamond()
    async with open_session(device) as session:
        for _ in range(2):
            run = session.start(plan)
            await run["top"]
            await run
        device.hold_all()
        run = session.start(plan)
        await anyio.wait_all_tasks_blocked()
        (stream,) = device.ready_streams()
        device.step(stream, 2)  # the node, and its event
        (side,) = (one for one in device.ready_streams() if one != stream)
        device.release(side)
        with anyio.fail_after(60):
            await run["top"]
        assert run["top"].state is NodeState.FINISHED
        assert run["bottom"].state is NodeState.SUBMITTED
        device.release_all()
        await run
        assert (await session.run(plan)).is_lowered
    check_empty(device)


async def test_a_failing_node_fails_alone() -> None:
    """As in a plain run: what depends on it is skipped, its siblings finish."""
    device, plan = RecordingBackend(), diamond()
    async with open_session(device) as session:
        await session.run(plan)
        device.fail_execution(2)
        run = session.start(plan)
        with pytest.RaisesGroup(pytest.RaisesExc(DeviceError, match="node=left")):
            await run
        states = {node.name: run[node.name].state for node in plan.nodes}
        assert states == {
            "top": NodeState.FINISHED,
            "left": NodeState.FAILED,
            "right": NodeState.FINISHED,
            "bottom": NodeState.SKIPPED,
        }
        assert (await session.run(plan)).is_lowered
    check_empty(device)


async def test_a_lost_device_is_told_with_the_node_that_lost_it() -> None:
    """The run's error names it, and so does the session's."""
    device, plan = RecordingBackend(), diamond()
    with pytest.raises(DeviceLost, match="node=right"):
        async with open_session(device) as session:
            await session.run(plan)
            device.fail_execution(3, sticky=True)
            with pytest.RaisesGroup(pytest.RaisesExc(DeviceLost, match="node=right")):
                await session.run(plan)
    check_empty(device)


async def test_cancelling_a_replay_drops_what_has_not_begun() -> None:
    """And the plan runs again afterwards."""
    device, plan = RecordingBackend(), chains(1, 5)
    async with open_session(device) as session:
        await session.run(plan)
        await session.run(plan)
        device.hold_all()
        run = session.start(plan)
        await anyio.wait_all_tasks_blocked()
        (stream,) = device.ready_streams()
        device.step(stream, 2)
        run.cancel()
        device.release_all()
        with pytest.raises(RunCancelled):
            await run
        states = [run[f"c0_{i}"].state for i in range(5)]
        assert states == [NodeState.FINISHED] * 2 + [NodeState.CANCELLED] * 3
        assert (await session.run(plan)).is_lowered
    check_empty(device)


async def test_a_device_that_refuses_a_graph_runs_the_plan_plainly(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Once told, it is not asked again; ``always`` raises what it said."""
    device, plan = RecordingBackend(), diamond()
    async with open_session(device) as session:
        await session.run(plan)
        device.fail("create_graph")
        for _ in range(3):
            assert not (await session.run(plan)).is_lowered
        assert kinds(device).count("create_graph") == 1
        assert "create_graph: told to fail" in caplog.text
        device.fail("create_graph")
        with pytest.RaisesGroup(DeviceError):
            await session.run(diamond(), options=LaunchOptions(lowering="always"))
    check_empty(device)


# As if it had not been lowered


async def outcome(
    seed: int, length: int, lowering: str, failing: int
) -> tuple[dict[str, int], dict[str, NodeState], dict[str, str]]:
    """How often each node was launched, where nodes ended, and what failed."""
    program = Program(seed, length, named_kernels(), has_hosts=False, has_while=False)
    device = RecordingBackend()
    async with open_session(device) as session:
        if failing:
            device.fail_execution(failing)
        run = start_program(session, program, LaunchOptions(lowering=lowering))
        await run.wait_over()
        names = [node.name for node in program.plan.nodes]
        names += [loop.name for loop in program.plan.loops]
        states = {name: run[name].state for name in names}
        errors = {name: str(error)[:40] for name, error in run.errors.items()}
        assert run.statistics().is_lowered == (lowering == "always")
        run.cancel()  # it has been looked at
    check_empty(device)
    launched: dict[str, int] = {}
    for launch in device.launches:
        name = launch.diagnostic_id or ""
        launched[name] = launched.get(name, 0) + 1
    return launched, states, errors


@pytest.mark.slow
@settings(max_examples=150, deadline=None, derandomize=True)
@given(loop=LOOP, seed=SEEDS, length=st.integers(1, 40))
def test_lowered_is_as_plain(loop: str, seed: int, length: int) -> None:
    """Of random graphs: every node as often, with the same end."""

    async def main() -> None:
        plain = await outcome(seed, length, "never", 0)
        assert await outcome(seed, length, "always", 0) == plain

    anyio.run(main, backend=loop)


@pytest.mark.slow
@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    loop=LOOP, seed=SEEDS, length=st.integers(2, 30), ends=st.integers(1, 3), step=SEEDS
)
def test_lowered_is_stepped_whole(
    loop: str, seed: int, length: int, ends: int, step: int
) -> None:
    """However its completions interleave with another run's, all is freed."""

    async def main() -> None:
        device = RecordingBackend()
        replay = Replay(device, step, burst=3, cancels=0.02)
        program = Program(
            seed, length, named_kernels(), has_hosts=False, has_while=False
        )

        async def work() -> None:
            async with open_session(device) as session:
                for _ in range(ends):
                    options = LaunchOptions(lowering="always")
                    runs = [start_program(session, program, options) for _ in range(2)]
                    replay.cancellable("one", runs[0])
                    for run in runs:
                        await run.wait_over()
                        run.cancel()

        await replay.drive(work)
        check_empty(device)

    anyio.run(main, backend=loop)
