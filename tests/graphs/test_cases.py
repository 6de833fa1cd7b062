"""Cases about scheduling and cancelling that went wrong elsewhere, by number."""

from __future__ import annotations

from collections.abc import Callable

import anyio
import anyio.lowlevel
import numpy as np
import pytest

from accy_async.backends import RecordingBackend
from accy_async.backends.replay import Replay
from accy_async.dtypes import DType, ScalarArgument
from accy_async.errors import DeviceError, GraphError, InvalidEvent
from accy_async.graph.builder import LaunchGraphBuilder
from accy_async.graph.options import LaunchOptions, OnError
from accy_async.graph.outcome import NodeState, RunCancelled
from accy_async.graph.plan import LaunchGraphPlan
from accy_async.session import open_session
from tests.graph.graphs import kernel_entry
from tests.graphs.parts import KERNEL, chains, check_empty
from tests.graphs.programs import cpu_kernels
from tests.graphs.scenes import leaves

pytestmark = pytest.mark.anyio

U32 = DType.U32
ONE = kernel_entry(1)


def count(n: int) -> ScalarArgument:
    return ScalarArgument.u32(n)


# C03: scratch outlives what uses it


async def test_c03_scratch_goes_only_after_the_streams_are_done() -> None:
    """Cancelled in the middle: the stream is drained, what is behind never begins,
    and only then the scratch is destroyed, newest first.
    """  # noqa: D205 - one promise, in one sentence
    b = LaunchGraphBuilder()
    one, two = b.scratch("one", U32, 4), b.scratch("two", U32, 4)
    b.kernel(ONE, [one], name="first")
    b.kernel(kernel_entry(2), [one.read, two.write], name="second")
    gate = anyio.Event()
    b.host_call(gate.wait, name="gate", after="first")
    b.kernel(ONE, [two], name="third", after="gate")
    device = RecordingBackend(is_holding=True)
    async with open_session(device) as session:
        run = session.start(b.build())
        await anyio.wait_all_tasks_blocked()
        run.cancel()
        await anyio.wait_all_tasks_blocked()
        scratch = list(device.allocated_buffer_ids)
        assert not run.is_done
        assert not set(scratch) & set(device.destroyed_ids)
        device.release_all()
        with pytest.raises(RunCancelled):
            await run
    freed = [i for i in device.destroyed_ids if i in scratch]
    assert freed == scratch[::-1]
    assert [launch.diagnostic_id for launch in device.launches] == ["first", "second"]
    check_empty(device)


# C05: registering and submitting are one


async def test_c05_cancelled_at_any_completion_nothing_is_kept() -> None:
    """A thousand runs cancelled at random leave no node, buffer, event or run."""
    for seed in range(40):
        device = RecordingBackend()
        replay = Replay(device, seed, cancels=0.5, burst=2)

        async def program(replay: Replay = replay) -> None:
            async with open_session(replay.backend) as session:
                plan = chains(3, 2)
                for number in range(25):
                    run = session.start(plan)
                    replay.cancellable(f"run{number}", run)
                    try:
                        await run
                    except RunCancelled:
                        pass
                assert session.statistics().runs == 0
                assert session.statistics().streams_leased == 0
                assert (await session.run(plan)).nodes == {NodeState.FINISHED: 6}
                assert not session._runs._unobserved
                assert not session._runs._runs

        await replay.drive(program)
        check_empty(device)


# C19: never a wait before its record


async def test_c19_no_wait_comes_before_its_record() -> None:
    """Consumers declared first, on another stream: each wait has an earlier record."""
    b = LaunchGraphBuilder(edges="explicit")
    for pair in range(6):
        b.kernel(KERNEL, name=f"use{pair}", stream="A", after=f"make{pair}")
    for pair in range(6):
        b.kernel(KERNEL, name=f"make{pair}", stream="B")
    plan = b.build()
    for seed in range(25):
        device = RecordingBackend()
        replay = Replay(device, seed)

        async def program(replay: Replay = replay) -> None:
            async with open_session(replay.backend) as session:
                for run in [session.start(plan), session.start(plan)]:
                    await run

        await replay.drive(program)
        recorded: set[int | None] = set()
        for call in device.calls:
            if call.kind == "record_event":
                recorded.add(call.object_id)
            if call.kind == "stream_wait_event":
                assert call.object_id in recorded


async def test_c19_waiting_for_a_fresh_event_is_refused() -> None:
    """By the run whose binding it is, as a failure of the node that would wait."""
    b = LaunchGraphBuilder()
    b.external_event("given")
    b.wait_event("given", name="wait")
    device = RecordingBackend()
    async with open_session(device) as session:
        run = session.start(b.build(), {"given": device.create_event()})
        with pytest.RaisesGroup(InvalidEvent):
            await run
        assert run["wait"].state is NodeState.FAILED
    check_empty(device)


# C21: in place, beside a reader


def test_c21_changing_what_a_sibling_reads_needs_an_order() -> None:
    """Without an order between them the plan is refused; dataflow gives one."""
    b = LaunchGraphBuilder(edges="explicit")
    x, total = b.buffer("x", U32, 4), b.buffer("total", U32, 4)
    b.fill(x, 1, name="ones")
    b.kernel(ONE, [x.read_write], name="p", stream="1", after="ones")
    b.kernel(kernel_entry(2), [total.write, x.read], name="q", stream="2", after="ones")
    with pytest.raises(GraphError, match=r"'p'.*'q'|'q'.*'p'"):
        b.build()


@pytest.mark.parametrize("reader_first", [True, False])
async def test_c21_the_declared_order_decides(*, reader_first: bool) -> None:
    """A reader listed before gets the old value, one listed behind the new one."""
    kernels, n = cpu_kernels(), 1000
    b = LaunchGraphBuilder()
    x, out, five = (b.scratch(name, U32, n) for name in ("x", "out", "five"))
    read = b.host("read", U32, n)
    b.fill(x, 1)
    b.fill(five, 0)

    def change() -> None:
        b.kernel(
            kernels.axpy,
            [x.read_write, x.read_write, five.read],
            [count(n), count(5)],
            stream="1",
        )

    if not reader_first:
        change()
    b.kernel(kernels.copy, [out.write, x.read], [count(n)], stream="2")
    if reader_first:
        change()
    b.copy_out(out, read)
    plan, array = b.build(), np.zeros(n, np.uint32)
    async with open_session("cpu") as session:
        for _ in range(20):
            await session.run(plan, {"read": array})
            assert set(array.tolist()) == ({1} if reader_first else {5})


# C37: fan-out


def fan(seven: Callable[[], object]) -> LaunchGraphPlan:
    """Eight nodes on four streams, and a call that fails beside them."""
    b = LaunchGraphBuilder(edges="explicit")
    for node in range(8):
        b.kernel(KERNEL, name=f"n{node}", stream=f"s{node % 4}")
        b.kernel(KERNEL, name=f"late{node}", after=(f"n{node}", "call"))
        if node == 0:
            b.host_call(seven, name="call", after=())
    return b.build()


async def test_c37_one_failure_reaches_all_of_a_fan_out() -> None:
    """Four streams are left idle, what had not begun never runs, one error comes."""
    b = LaunchGraphBuilder(edges="explicit")
    for node in range(8):
        b.kernel(KERNEL, name=f"n{node}", stream=f"s{node % 4}")
    plan = b.build()
    device = RecordingBackend(is_holding=True)
    device.fail_execution(4)
    async with open_session(device) as session:
        run = session.start(plan, options=LaunchOptions(on_error=OnError.CANCEL))
        await anyio.wait_all_tasks_blocked()
        streams = {launch.stream for launch in device.launches}
        assert len(streams) == 4
        for launch in device.launches[:4]:
            device.step(launch.stream)
        with pytest.RaisesGroup(DeviceError) as caught:
            device.release_all()
            await run
        (error,) = caught.value.exceptions
        assert error.node == device.launches[3].diagnostic_id  # type: ignore[union-attr]
        states = [run[node.name].state for node in plan.nodes]
        assert states.count(NodeState.FINISHED) == 3
        assert states.count(NodeState.FAILED) == 1
        assert states.count(NodeState.CANCELLED) == 4
        assert all(device.is_stream_idle(s) for s in streams if s is not None)
        assert session.statistics().streams_leased == 0
    check_empty(device)


async def test_c37_cancelled_from_outside_no_error_is_left() -> None:
    """The scope ends as cancelled: streams idle, nothing alive, no node begun late."""
    device = RecordingBackend(is_holding=True)
    plan = fan(lambda: None)
    runs = []
    scope = anyio.CancelScope()

    async def program() -> None:
        with scope:
            async with open_session(device) as session:
                runs.append(session.start(plan))
                await runs[0]

    async with anyio.create_task_group() as group:
        group.start_soon(program)
        await anyio.wait_all_tasks_blocked()
        device.step(device.launches[0].stream)
        scope.cancel()
        await anyio.wait_all_tasks_blocked()
        device.release_all()
    assert scope.cancelled_caught
    states = [runs[0][node.name].state for node in plan.nodes]
    assert states.count(NodeState.FINISHED) in (1, 2)  # the call may have been
    assert states.count(NodeState.CANCELLED) == len(states) - states.count(
        NodeState.FINISHED
    )
    check_empty(device)


# C38: interrupts and groups


def attached(error: BaseException | None) -> list[BaseException]:
    """An error, and every error that it was raised from or met."""
    if error is None:
        return []
    found = leaves(error)
    return [*found, *attached(error.__cause__), *attached(error.__context__)]


@pytest.mark.parametrize("in_cleanup", [True, False])
def test_c38_an_interrupt_wins_and_the_error_is_attached(
    *, in_cleanup: bool, anyio_backend: tuple[str, dict[str, object]]
) -> None:
    """Pressed in the cleanup after a node's error, or met by an error of it."""
    device = RecordingBackend()
    b = LaunchGraphBuilder()

    async def fail() -> None:
        raise ValueError

    b.host_call(fail, name="call")

    async def program() -> None:
        async with open_session(device) as session:
            kept = session.allocate(4, U32)
            if in_cleanup:
                device.fail("destroy", 1, KeyboardInterrupt())
                await session.run(b.build())
            device.fail("destroy", 1, ValueError())
            assert kept.shape == (4,)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as caught:
        anyio.run(program, backend=anyio_backend[0])
    assert any(isinstance(error, ValueError) for error in attached(caught.value))
    check_empty(device)


async def test_c38_three_failures_are_a_group_of_three() -> None:
    """Flat, with nothing else in it."""
    b = LaunchGraphBuilder()
    for number in range(3):

        async def fail(number: int = number) -> None:
            raise ValueError(number)

        b.host_call(fail, name=f"call{number}")
    async with open_session(RecordingBackend()) as session:
        with pytest.RaisesGroup(ValueError, ValueError, ValueError):
            await session.run(b.build())


# C44: a timeout around one start


async def test_c44_a_timeout_ends_the_run_that_it_is_around() -> None:
    """The other two finish, and the session goes on, on both loops."""
    device = RecordingBackend()
    async with open_session(device) as session:
        gate = device.create_event()
        device.hold()
        device.record_event(gate)  # on the held default stream: never reached
        others = [session.start(chains(1, 3)) for _ in range(2)]
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as group:

                async def never() -> None:
                    options = LaunchOptions(wait_events=[gate], name="never")
                    await session.run(chains(1, 2), options=options)

                group.start_soon(never)
                await anyio.wait_all_tasks_blocked()
                scope.cancel()
                device.release()
        assert scope.cancelled_caught
        for run in others:
            await run
        assert session.is_open
        await session.run(chains(1, 1))
    check_empty(device)


# C46: streams are said, not ambient


async def test_c46_each_launch_is_on_the_stream_it_was_given() -> None:
    """Two tasks with a stream each, awaiting in between: none uses the other's."""
    device = RecordingBackend()
    plan = chains(1, 1)
    used: dict[str, set[object]] = {}
    async with open_session(device) as session:

        async def task(name: str) -> None:
            async with session.stream() as stream:
                for number in range(50):
                    title = f"{name}{number}"
                    before = len(device.launches)
                    run = session.start(
                        plan, options=LaunchOptions(stream=stream, name=title)
                    )
                    await run
                    mine = device.launches[before:]
                    assert stream in {launch.stream for launch in mine}
                    used.setdefault(name, set()).add(stream)
                    await anyio.lowlevel.checkpoint()

        async with anyio.create_task_group() as group:
            group.start_soon(task, "one")
            group.start_soon(task, "two")
    assert [len(streams) for streams in used.values()] == [1, 1]
    assert used["one"] != used["two"]
    per_stream = [launch.stream for launch in device.launches]
    assert sorted(per_stream.count(s) for s in set(per_stream)) == [50, 50]


# C67: too deep a queue, too many streams


async def test_c67_a_deep_queue_waits_in_the_program() -> None:
    """Behind a device that stands still, no more is in flight than was said."""
    device = RecordingBackend(is_holding=True)
    async with open_session(device, max_in_flight=64, max_streams=4) as session:
        run = session.start(chains(16, 100))
        await anyio.wait_all_tasks_blocked()
        statistics = run.statistics()
        assert statistics.in_flight <= 64 + 8 * 3  # 8 steps between two looks
        assert statistics.nodes[NodeState.WAITING] >= 1600 - 64 - 8
        assert session.live_objects()["streams"] <= 4
        device.release_all()
        assert (await run).nodes == {NodeState.FINISHED: 1600}
        assert session.statistics().streams_open <= 4
    check_empty(device)
