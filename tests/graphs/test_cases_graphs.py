"""Cases about the shape of graphs, their loops and their calls, by their numbers."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable

import anyio
import anyio.lowlevel
import numpy as np
import pytest

from accy_async.artifact.entry import KernelCallArtifact
from accy_async.artifact.formats import ArtifactFormat
from accy_async.artifact.geometry import FixedLaunch
from accy_async.backends import RecordingBackend
from accy_async.backends.cpu import CpuBackend
from accy_async.compiler.emit import compile_cpu
from accy_async.compiler.form import KernelBuilder
from accy_async.dtypes import DType, ScalarArgument
from accy_async.errors import GraphError
from accy_async.graph.builder import LaunchGraphBuilder
from accy_async.graph.outcome import HostCallFailed, NodeState, RunCancelled
from accy_async.graph.plan import LaunchGraphPlan
from accy_async.graph.run import Run
from accy_async.session import open_session
from tests.graph.graphs import edges, graph, kernel_entry
from tests.graphs.parts import KERNEL, chains, check_empty
from tests.graphs.programs import cpu_kernels

pytestmark = pytest.mark.anyio

U32 = DType.U32


@functools.cache
def triple() -> KernelCallArtifact:
    """``out[0] = 3 * x[0] + 1`` in u32: ``(out, x)``."""
    k = KernelBuilder("triple", threadgroup=(1, 1, 1))
    out, x = k.buffer("out", U32, "write_only"), k.buffer("x", U32, "read_only")
    with k.region():
        i = k.thread.cast(DType.U64)
        out[i] = x[i] * 3 + 1
    return KernelCallArtifact(
        target="test.triple",
        version=1,
        format=ArtifactFormat.CPU_MACHINE_CODE,
        entry_name="triple",
        argument_count=2,
        payload=compile_cpu([k.build()], format="cpu_machine_code"),
        launch=FixedLaunch(grid=(1, 1, 1), threadgroup=(1, 1, 1)),
    )


def count(n: int) -> ScalarArgument:
    return ScalarArgument.u32(n)


# C54: nothing to do


@pytest.mark.parametrize("make", [RecordingBackend, CpuBackend])
async def test_c54_no_work_is_done_at_once(
    make: Callable[[], RecordingBackend | CpuBackend],
) -> None:
    """An empty graph, empty buffers, copies of nothing, a grid of no blocks."""
    kernels = cpu_kernels()
    b = LaunchGraphBuilder()
    empty, other = b.scratch("empty", U32, 0), b.scratch("other", U32, (3, 0))
    source, out = b.host("source", U32, 0), b.host("out", U32, (3, 0))
    b.copy_in(source, empty, name="in")
    b.copy(empty, other, name="copy")
    b.fill(other, 7, name="fill")
    if make is CpuBackend:
        for n in (0, 1):
            x = b.scratch(f"x{n}", U32, n)
            b.kernel(kernels.fill, [x.write], [count(n), count(9)], name=f"kernel{n}")
    b.copy_out(other, out, name="out")
    plan = b.build()
    bindings = {"source": np.zeros(0, np.uint32), "out": np.zeros((3, 0), np.uint32)}
    device = make()
    async with open_session(device) as session:
        assert (await session.run(LaunchGraphPlan())).nodes == {}
        statistics = await session.run(plan, bindings)
        assert statistics.nodes == {NodeState.FINISHED: len(plan.nodes)}
    assert bindings["out"].shape == (3, 0)
    assert not any(device.live_objects().values())
    device.close()


# C58: cycles, reuse, duplicates


async def test_c58_a_diamond_with_its_edges_given_again_and_again() -> None:
    """A=1, B=A+10, C=A×100, D=B+C is 111, and A runs once."""
    calls: list[str] = []
    values: dict[str, int] = {}

    def node(name: str, function: Callable[[], int]) -> Callable[[], None]:
        def call() -> None:
            calls.append(name)
            values[name] = function()

        return call

    b = LaunchGraphBuilder(edges="explicit")
    b.host_call(node("A", lambda: 1), name="A")
    b.host_call(node("B", lambda: values["A"] + 10), name="B", after=("A", "A", "A"))
    b.host_call(node("C", lambda: values["A"] * 100), name="C", after="A")
    b.host_call(
        node("D", lambda: values["B"] + values["C"]), name="D", after=list("BCAA")
    )
    async with open_session(RecordingBackend()) as session:
        await session.run(b.build())
    assert values["D"] == 111
    assert sorted(calls) == list("ABCD")


@pytest.mark.parametrize(
    ("names", "arrows"),
    [
        ("a", "a>a"),
        ("a b", "a>b b>a"),
        (
            " ".join(f"n{i}" for i in range(1000)),
            " ".join(f"n{i}>n{(i + 1) % 1000}" for i in range(1000)),
        ),
    ],
    ids=["self", "pair", "thousand"],
)
def test_c58_a_cycle_is_found_before_anything_runs(names: str, arrows: str) -> None:
    """And its path is shown."""
    with pytest.raises(GraphError, match="cycle") as caught:
        graph(names, arrows)
    assert names.split()[0] in str(caught.value)
    assert len(edges(arrows)) == len(names.split())


async def test_c58_a_node_that_awaits_itself_is_an_error() -> None:
    """It would never end; it is told so."""
    b = LaunchGraphBuilder()
    started = anyio.Event()
    runs: list[Run] = []

    async def call() -> None:
        await started.wait()
        await runs[0]["call"]

    b.host_call(call, name="call")
    async with open_session(RecordingBackend()) as session:
        runs.append(session.start(b.build()))
        started.set()
        with pytest.RaisesGroup(GraphError):
            await runs[0]


# C60: loops with carried values


def tripling(times: int) -> LaunchGraphPlan:
    """``x = 3 x + 1`` so often, from 1, the two buffers changing places."""
    b = LaunchGraphBuilder()
    x, y = b.scratch("x", U32, 1), b.scratch("y", U32, 1)
    out = b.host("out", U32, 1)
    b.fill(x, 1)
    with b.loop(count=times, carries=[(x, y)], name="loop"):
        b.kernel(triple(), [y.write, x.read], name="step")
    b.copy_out(x, out)
    return b.build()


@pytest.mark.parametrize(
    ("times", "expected"), [(1000, 3180628145), (0, 1), (1, 4), (2, 13)]
)
async def test_c60_a_value_carried_through_iterations(
    times: int, expected: int
) -> None:
    """Whichever buffer it ends in; two of them are all that is ever allocated."""
    device, out = CpuBackend(), np.zeros(1, np.uint32)
    async with open_session(device) as session:
        run = session.start(tripling(times), {"out": out})
        await run["loop"]
        await run
        assert session.live_objects()["buffers"] == 2
    assert out[0] == expected
    device.close()


@pytest.mark.parametrize("times", [1, 2, 3, 30])
async def test_c60_two_carried_values_swapped(times: int) -> None:
    """(a, b) = (b, a) each time: after an odd number of times they are swapped."""
    kernels = cpu_kernels()
    b = LaunchGraphBuilder()
    a0, a1, b0, b1 = (b.scratch(name, U32, 1) for name in ("a0", "a1", "b0", "b1"))
    outs = [b.host("a", U32, 1), b.host("b", U32, 1)]
    b.fill(a0, 3)
    b.fill(b0, 8)
    with b.loop(count=times, carries=[(a0, a1), (b0, b1)]):
        b.kernel(kernels.copy, [a1.write, b0.read], [count(1)])
        b.kernel(kernels.copy, [b1.write, a0.read], [count(1)])
    b.copy_out(a0, outs[0])
    b.copy_out(b0, outs[1])
    left, right = np.zeros(1, np.uint32), np.zeros(1, np.uint32)
    async with open_session("cpu") as session:
        await session.run(b.build(), {"a": left, "b": right})
    swapped = times % 2 == 1
    assert (left[0], right[0]) == ((8, 3) if swapped else (3, 8))


async def test_c60_loops_within_loops() -> None:
    """Thirty times thirty steps are nine hundred."""
    kernels = cpu_kernels()
    b = LaunchGraphBuilder()
    total, one = b.scratch("total", U32, 1), b.scratch("one", U32, 1)
    out = b.host("out", U32, 1)
    b.fill(total, 0)
    b.fill(one, 1)
    with b.loop(count=30), b.loop(count=30):
        b.kernel(kernels.add, [total, total, one.read], [count(1)])
    b.copy_out(total, out)
    array = np.zeros(1, np.uint32)
    async with open_session("cpu") as session:
        await session.run(b.build(), {"out": array})
    assert array[0] == 900


async def test_c60_cancelled_in_the_middle_of_a_loop() -> None:
    """After 500 iterations no other is begun, and nothing is left."""
    device = RecordingBackend()
    b = LaunchGraphBuilder()
    done = 0

    async def call() -> None:
        nonlocal done
        done += 1
        if done == 500:
            run.cancel()
            await anyio.lowlevel.checkpoint()

    with b.loop(count=1000, name="loop"):
        b.host_call(call, name="call")
        b.kernel(KERNEL, name="step", after="call")
    async with open_session(device) as session:
        run = session.start(b.build())
        with pytest.raises(RunCancelled):
            await run
        assert done == 500
        assert run["loop"].state is NodeState.CANCELLED
        assert device.launch_count in (499, 500)
    check_empty(device)


# C63: again with other buffers


async def test_c63_a_plan_runs_again_with_other_buffers() -> None:
    """Each run uses its own; what is kept of those before is bounded."""
    b = LaunchGraphBuilder()
    x, y = b.buffer("x", U32, 4), b.buffer("y", U32, 4)
    b.kernel(kernel_entry(2), [x.read, y.write], name="node")
    plan = b.build()
    device = RecordingBackend()
    async with open_session(device) as session:
        for number in range(200):
            size = 4 + number % 5
            given = {name: session.allocate(size, U32) for name in ("x", "y")}
            await session.run(plan, given)
            ids = tuple(array.handle.id for array in given.values())
            assert device.launches[-1].buffer_ids == ids
            for array in given.values():
                array.free()
            assert session.live_objects()["buffers"] == 0
        assert len(session._runs._preparer) <= 32
        assert device.load_count == 1
    check_empty(device)


# C71: whatever a function raises


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


class Bare(Exception):
    def __init__(self) -> None:
        super().__init__()


RAISED = [StopIteration, StopAsyncIteration, GeneratorExit, SystemExit, Bare, Mute]


@pytest.mark.parametrize("error", RAISED)
@pytest.mark.parametrize("is_async", [True, False])
async def test_c71_whatever_a_call_raises_ends_the_await(
    error: type[BaseException], *, is_async: bool
) -> None:
    """As itself, or as the cause of what can be raised; the session goes on."""

    def fail() -> None:
        raise error

    async def fail_async() -> None:
        raise error

    b = LaunchGraphBuilder()
    b.host_call(fail_async if is_async else fail, name="call")
    device = RecordingBackend()
    async with open_session(device) as session:
        run = session.start(b.build())
        with pytest.RaisesGroup(Exception) as caught:
            await run
        (told,) = caught.value.exceptions
        assert isinstance(told, error) or isinstance(told.__cause__, error)
        assert isinstance(told, (error, HostCallFailed, RuntimeError))
        assert run["call"].error is told
        assert (await session.run(chains(1, 1))).nodes == {NodeState.FINISHED: 1}
    check_empty(device)


async def test_c71_an_awaitable_returned_by_mistake_is_named() -> None:
    """A function that only makes a coroutine is told to be async."""

    async def work() -> None:
        await anyio.lowlevel.checkpoint()

    b = LaunchGraphBuilder()
    b.host_call(lambda: work(), name="call")
    named = pytest.RaisesExc(HostCallFailed, match="async function")
    async with open_session(RecordingBackend()) as session:
        with pytest.RaisesGroup(named):
            await session.run(b.build())


# C85: a cancel that is swallowed


async def test_c85_a_call_that_swallows_its_cancel_keeps_nothing_open() -> None:
    """The run and the scope still end as cancelled, and what came after is not run."""
    b = LaunchGraphBuilder()
    swallowed = threading.Event()

    async def call() -> None:
        try:
            await anyio.Event().wait()
        except BaseException:  # noqa: BLE001 - the mistake in question
            swallowed.set()

    b.host_call(call, name="call")
    b.kernel(KERNEL, name="after", after="call")
    device = RecordingBackend()
    with anyio.CancelScope() as scope:
        async with open_session(device) as session:
            run = session.start(b.build())
            await anyio.wait_all_tasks_blocked()
            scope.cancel()
            await run
    assert scope.cancelled_caught
    assert swallowed.is_set()
    assert run["after"].state is NodeState.CANCELLED
    assert device.launch_count == 0
    check_empty(device)
