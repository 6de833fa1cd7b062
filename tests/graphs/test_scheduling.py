"""Where runs run, what they keep, and how they share: options, reuse, room, turns."""

from __future__ import annotations

import threading

import anyio
import anyio.lowlevel
import pytest

from accy_async.artifact.geometry import FixedLaunch
from accy_async.artifact.resources import (
    LaunchResourceCandidate,
    LaunchResourcePlan,
)
from accy_async.backends import RecordingBackend, StreamHandle
from accy_async.dtypes import DType, ScalarArgument
from accy_async.graph.builder import LaunchGraphBuilder
from accy_async.graph.options import LaunchOptions
from accy_async.graph.outcome import NodeState
from accy_async.graph.plan import LaunchGraphPlan
from accy_async.graph.run import Run
from accy_async.observe import SpanRecorder, encode_trace, validate_trace
from accy_async.session import open_session
from tests.graph.graphs import kernel_entry
from tests.graphs.parts import KERNEL, chains, check_empty, diamond

pytestmark = pytest.mark.anyio

U32 = DType.U32


def made(device: RecordingBackend) -> list[str]:
    """The calls that make or load something, so far."""
    kinds = ("create_artifact", "load_artifact", "allocate_buffer", "create_")
    return [call.kind for call in device.calls if call.kind.startswith(kinds)]


# Options


async def test_a_run_on_a_stream_of_the_callers_leases_none() -> None:
    """All of it is there, and the stream stays the caller's."""
    device = RecordingBackend()
    async with open_session(device) as session, session.stream() as stream:
        statistics = await session.run(diamond(), options=LaunchOptions(stream=stream))
        assert {launch.stream for launch in device.launches} == {stream}
        assert (statistics.streams, statistics.event_waits) == (1, 0)
        assert session.statistics().streams_leased == 1
        assert device.is_alive(stream)
    check_empty(device)


async def test_a_run_waits_for_events_and_signals_one_behind_all() -> None:
    """Nothing of it runs before the ones; the other is reached after all of it."""
    device = RecordingBackend(is_holding=True)
    async with open_session(device) as session:
        go, done = device.create_event(), device.create_event()
        device.record_event(go)
        options = LaunchOptions(wait_events=[go], signal_event=done)
        run = session.start(chains(3, 2), options=options)
        await anyio.wait_all_tasks_blocked()
        held = [s for s in device.ready_streams() if s is not None]
        assert held == []  # each waits for the event, on the device
        device.release()
        last = device.launches[-1].stream
        others = {launch.stream for launch in device.launches} - {last}
        for stream in others:
            device.release(stream)
        assert not device.is_event_complete(done)
        device.release_all()
        assert device.is_event_complete(done)
        await run
    check_empty(device)


async def test_scalars_and_candidates_are_those_of_the_run() -> None:
    """What the node has as its own gives way to what the run says for it."""
    shapes = [FixedLaunch(grid=(n, 1, 1), threadgroup=(1, 1, 1)) for n in (1, 2, 3)]
    entry = kernel_entry(
        0,
        runtime_scalar_argument_count=1,
        launch_resources=LaunchResourcePlan(
            candidates=tuple(
                LaunchResourceCandidate(geometry=shape) for shape in shapes
            )
        ),
    )
    b = LaunchGraphBuilder()
    b.kernel(entry, scalars=[b.runtime_scalar()], name="node", tuning_candidate=1)
    plan = b.build()
    device = RecordingBackend()
    async with open_session(device) as session:
        for value, tuning in ((5, {}), (6, {"node": 2}), (5, {})):
            scalars = [ScalarArgument.u32(value)]
            options = LaunchOptions(runtime_scalars=scalars, tuning=tuning)
            await session.run(plan, options=options)
            assert device.launches[-1].scalars == tuple(scalars)
            assert device.launches[-1].grid == ((3 if tuning else 2), 1, 1)


# Running again


def scratch_plan() -> LaunchGraphPlan:
    b = LaunchGraphBuilder()
    x, y = b.buffer("x", U32, 4), b.scratch("y", U32, 4)
    b.kernel(kernel_entry(2), [x.read, y.write], name="one", signal="e")
    b.kernel(kernel_entry(1), [y.read_write], name="two", wait="e")
    return b.build()


async def test_running_again_makes_nothing() -> None:
    """No allocation, load, stream or event: only launches, and the edges' events.

    Where the runs are no device graph; that is made once, for the second run.
    """
    device, plan = RecordingBackend(), scratch_plan()
    async with open_session(device) as session:
        x = session.allocate(4, U32)
        options = LaunchOptions(lowering="never")
        await session.run(plan, {"x": x})
        first, count = made(device), len(device.calls)
        for _ in range(10):
            await session.run(plan, {"x": x}, options)
        assert made(device) == first
        again = [call.kind for call in device.calls[count:]]
        assert set(again) <= {"launch", "record_event", "stream_wait_event"}
        assert device.launch_count == 22
        for _ in range(10):
            await session.run(plan, {"x": x})
        assert made(device) == [*first, "create_graph"]
        assert device.launch_count == 42
    check_empty(device)


async def test_other_bindings_are_prepared_anew() -> None:
    """With scratch of their own, but no kernel loaded twice."""
    device, plan = RecordingBackend(), scratch_plan()
    async with open_session(device) as session:
        arrays = [session.allocate(4, U32) for _ in range(2)]
        for x in arrays:
            await session.run(plan, {"x": x})
        assert device.load_count == 2
        assert device.buffer_allocate_count == 4
        used = [launch.buffer_ids for launch in device.launches]
        assert used[0] != used[2]
        await session.run(plan, {"x": arrays[0]})
        assert device.launches[-2].buffer_ids == used[0]
        assert device.buffer_allocate_count == 4


async def test_runs_of_one_plan_at_once_share_no_scratch() -> None:
    """Each has its own while they overlap; afterwards one is kept."""
    device, plan = RecordingBackend(is_holding=True), scratch_plan()
    async with open_session(device) as session:
        x = session.allocate(4, U32)
        runs = [session.start(plan, {"x": x}) for _ in range(3)]
        await anyio.wait_all_tasks_blocked()
        scratch = [la.buffer_ids[1] for la in device.launches if len(la.buffer_ids) > 1]
        assert len(set(scratch)) == 3
        device.release_all()
        for run in runs:
            await run
        assert session.live_objects()["buffers"] <= 4
    check_empty(device)


async def test_a_destroyed_buffer_is_not_used_again() -> None:
    """A plan that was prepared with it is prepared anew for what it is bound to."""
    device, plan = RecordingBackend(), scratch_plan()
    async with open_session(device) as session:
        for _ in range(3):
            with session.allocate(4, U32) as x:
                await session.run(plan, {"x": x})
                assert device.launches[-2].buffer_ids[0] == x.handle.id
    check_empty(device)


# Room and turns


async def completed_before(device: RecordingBackend, small: Run, big: Run) -> int:
    """How many nodes of the big run the device does until the small one is done."""
    before = big.statistics().nodes.get(NodeState.FINISHED, 0)
    while small["c0_9"].state is not NodeState.FINISHED:
        ready = device.ready_streams()
        assert ready
        for stream in ready:
            device.step(stream)
        for _ in range(20):
            await anyio.lowlevel.checkpoint()
    return big.statistics().nodes.get(NodeState.FINISHED, 0) - before


@pytest.mark.parametrize("width", [1, 4, 64])
async def test_a_long_run_delays_a_later_one_by_a_bound(width: int) -> None:
    """Of 10,000 nodes no more than what was in flight go before ten later ones.

    And for a run that finds no room none are submitted before its own.
    """
    device = RecordingBackend(is_holding=True, keeps_records=False)
    async with open_session(device, max_in_flight=64, max_streams=8) as session:
        big = session.start(chains(width, 10_000 // width))
        while big.statistics().waits_for_room == 0:  # it is laid out on a thread
            await anyio.lowlevel.checkpoint()
        submitted = big.statistics().submissions
        small = session.start(chains(1, 10))
        await anyio.wait_all_tasks_blocked()
        assert big.statistics().submissions == submitted
        assert await completed_before(device, small, big) <= 64 + 16 + 10 * 8
        device.release_all()
        await small
        await big
    check_empty(device)


async def test_room_is_divided_by_weight() -> None:
    """A run of three times the weight has three times as much in flight."""
    device = RecordingBackend(is_holding=True, keeps_records=False)
    async with open_session(device, max_in_flight=400) as session:
        plan = chains(1, 1000)
        light = session.start(plan, options=LaunchOptions(weight=1.0))
        heavy = session.start(plan, options=LaunchOptions(weight=3.0))
        # Both have filled their first share: what is in flight then settles down.
        for _ in range(600):
            for run in (light, heavy):
                if run.statistics().in_flight > (100 if run is light else 300):
                    timeline = run._progress.timelines[0]
                    device.step(stream_of(device, timeline.name))
            await anyio.lowlevel.checkpoint()
        await anyio.wait_all_tasks_blocked()
        assert abs(light.statistics().in_flight - 100) <= 16
        assert abs(heavy.statistics().in_flight - 300) <= 16
        device.release_all()
        await light
        await heavy


def stream_of(device: RecordingBackend, name: str) -> StreamHandle | None:
    handles = [s for s in device.ready_streams() if s is not None]
    return next(s for s in handles if device.object_name(s) == name)


async def test_others_get_turns_while_a_run_is_submitted() -> None:
    """Submitting gives way after each stretch: a ticker has as many turns."""
    device = RecordingBackend(keeps_records=False)
    turns = 0
    async with open_session(device, max_in_flight=100_000) as session:
        run = session.start(chains(1, 20_000))

        async def tick() -> None:
            nonlocal turns
            while not run.is_done:
                turns += 1
                await anyio.lowlevel.checkpoint()

        async with anyio.create_task_group() as group:
            group.start_soon(tick)
            statistics = await run
    assert statistics.yields > 10
    assert turns > statistics.yields


def test_two_sessions_on_two_loops_at_once() -> None:
    """In two threads, with one plan: each has its own runs, and all come out whole."""
    plan = diamond()
    ended: list[int] = []
    errors: list[BaseException] = []

    async def program() -> None:
        device = RecordingBackend()
        async with open_session(device) as session:
            for _ in range(50):
                runs = [session.start(plan) for _ in range(4)]
                for run in runs:
                    assert (await run).nodes == {NodeState.FINISHED: 4}
                    ended.append(1)
        check_empty(device)

    def thread(backend: str) -> None:
        try:
            anyio.run(program, backend=backend)
        except BaseException as error:  # noqa: BLE001 - raised in the test's thread
            errors.append(error)

    threads = [threading.Thread(target=thread, args=(b,)) for b in ("asyncio", "trio")]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert errors == []
    assert len(ended) == 400


# Observers


@pytest.mark.parametrize("is_holding", [True, False])
async def test_every_node_leaves_one_span(*, is_holding: bool) -> None:
    """With its stream, bytes and shape; the trace of a diamond is a sound one."""
    device, recorder = RecordingBackend(is_holding=is_holding), SpanRecorder()
    plan = diamond()
    async with open_session(device) as session:
        run = session.start(plan, options=LaunchOptions(name="d"), observer=recorder)
        await anyio.wait_all_tasks_blocked()
        device.release_all()
        await run
    trace = recorder.trace()
    assert [(r.name, r.state) for r in trace.runs] == [("d", "ok")]
    assert sorted(span.name for span in trace.spans) == [
        "bottom",
        "left",
        "right",
        "top",
    ]
    assert {span.state for span in trace.spans} == {"ok"}
    assert {span.grid for span in trace.spans} == {(1, 1, 1)}
    assert len({span.stream_id for span in trace.spans}) == 2
    assert trace.unmatched_events == trace.open_spans == 0
    assert validate_trace(encode_trace(trace)) == []


async def test_spans_of_what_the_device_is_not_asked_about() -> None:
    """Events, launches of no blocks and loops leave sound traces as well."""
    device, recorder = RecordingBackend(is_holding=True), SpanRecorder()
    empty = kernel_entry(0, launch=FixedLaunch(grid=(0, 1, 1), threadgroup=(1, 1, 1)))
    b = LaunchGraphBuilder(edges="explicit")
    b.kernel(KERNEL, name="a", signal="e")
    b.signal_event("f", name="signal", after="a")
    b.wait_event("f", name="wait")
    b.kernel(empty, name="empty", after="wait")
    with b.loop(count=3):
        b.kernel(KERNEL, name="step", after="empty")
    b.kernel(KERNEL, name="z", wait="e", after="step")
    async with open_session(device) as session:
        run = session.start(b.build(), observer=recorder)
        await anyio.wait_all_tasks_blocked()
        device.release_all()
        await run
    trace = recorder.trace()
    names = sorted(span.name for span in trace.spans)
    assert names == ["a", "empty", "signal", "step", "step", "step", "wait", "z"]
    assert {span.state for span in trace.spans} == {"ok"}
    assert trace.unmatched_events == 0
    assert validate_trace(encode_trace(trace)) == []


async def test_spans_of_a_failure_and_what_is_behind_it() -> None:
    """The failed node's span has its error, those behind it are skipped."""
    device, recorder = RecordingBackend(is_holding=True), SpanRecorder()
    device.fail_execution(1)
    async with open_session(device) as session:
        run = session.start(diamond(), observer=recorder)
        await anyio.wait_all_tasks_blocked()
        device.release_all()
        with pytest.RaisesGroup(Exception):
            await run
    found = {span.name: span for span in recorder.trace().spans}
    assert {name: span.state for name, span in found.items()} == {
        "top": "failed",
        "left": "skipped",
        "right": "skipped",
        "bottom": "skipped",
    }
    assert "failed on the device" in (found["top"].error or "")
