"""Plans as recorded command buffers: results, new buffers, failures, lifetimes.

The validation layer looks on wherever it is installed, and must say nothing.
"""

from __future__ import annotations

import traceback
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import attrs
import numpy as np
import pytest

from accy_async.artifact.entry import KernelCallArtifact
from accy_async.artifact.formats import ArtifactFormat
from accy_async.artifact.geometry import FixedLaunch
from accy_async.backends.devicegraph import GraphNode, GraphRequest
from accy_async.backends.vulkan import VulkanBackend
from accy_async.backends.vulkan.barriers import Synchronization
from accy_async.compiler.emit.text import compile_spirv
from accy_async.compiler.form import KernelBuilder
from accy_async.dtypes import DType, ScalarArgument
from accy_async.errors import AccyError, DeviceError, DeviceLost
from accy_async.graph import LaunchGraphBuilder, LaunchGraphPlan, LaunchOptions
from accy_async.graph.lowering import LoweredGraph
from accy_async.graph.lowering.parts import part_plan
from accy_async.graph.outcome import NodeState
from accy_async.session import Session, open_session
from tests.conformance.devices import VulkanDevice
from tests.graphs.programs import Program
from tests.graphs.starting import start_program
from tests.vulkan import harness
from tests.vulkan.faults import faulty_vulkan
from tests.vulkan.gates import hold
from tests.vulkan.harness import join_threads
from tests.vulkan.test_runs import kernels

pytestmark = pytest.mark.vulkan

U32 = DType.U32
LOOPS = pytest.mark.parametrize("loop", ["asyncio", "trio"])
ALWAYS = LaunchOptions(lowering="always")
ONE = ScalarArgument.u32(1)


def on_vulkan(
    work: Callable[[Session, VulkanBackend], Awaitable[None]], loop: str = "asyncio"
) -> None:
    """Do something in a session; nothing of it is left, on the device either."""
    backend = VulkanBackend(validation=harness.has_validation())

    async def main() -> None:
        async with open_session(backend) as session:
            with anyio.fail_after(100):
                await work(session, backend)
        assert not any(session.live_objects().values()), session.live_objects()

    anyio.run(main, backend=loop)
    backend.close()
    join_threads()
    assert backend.validation_messages == ()
    assert backend._device.made() == {}


@LOOPS
@pytest.mark.parametrize("seed", range(3))
def test_results_are_the_models(loop: str, seed: int) -> None:
    """Random graphs with loops and carries, twice each, three at a time."""
    programs = [
        Program(100 * seed + n, n, kernels(), has_hosts=False, has_while=False)
        for n in (5, 20, 60)
    ]

    async def work(session: Session, backend: VulkanBackend) -> None:
        for _ in range(2):
            expected = [program.expected() for program in programs]
            runs = [start_program(session, program, ALWAYS) for program in programs]
            for run in runs:
                assert (await run).is_lowered
            for program, values in zip(programs, expected, strict=True):
                program.check(values)

    on_vulkan(work, loop)


@LOOPS
def test_results_are_the_models_around_calls(loop: str) -> None:
    """Random graphs with calls on the host, as several graphs where they can be."""
    programs = [
        Program(seed, 10 + 3 * seed, kernels(), has_loops=seed % 2 == 0)
        for seed in range(10)
    ]

    async def work(session: Session, backend: VulkanBackend) -> None:
        lowered = 0
        for program in programs:
            found = part_plan(program.plan, program.scalars, has_loops=False)
            if isinstance(found, tuple) or not found.calls:
                continue
            for _ in range(2):
                expected = program.expected()
                assert (await start_program(session, program, ALWAYS)).is_lowered
                lowered += 1
                program.check(expected)
        assert lowered >= 4

    on_vulkan(work, loop)


def test_calls_see_what_was_copied_before_and_change_what_comes() -> None:
    """Beside a node of the same part that they do not depend on."""
    b = LaunchGraphBuilder()
    x, one, aside = (b.scratch(name, U32, 1) for name in ("x", "one", "aside"))
    seen, given = b.host("seen", U32, 1), b.host("given", U32, 1)
    scalars = (ONE, ScalarArgument.u32(3))
    arrays = {name: np.zeros(1, np.uint32) for name in ("seen", "given")}

    def call() -> None:
        arrays["given"][0] = arrays["seen"][0] + 5

    for slot, value in ((x, 2), (one, 1), (aside, 1)):
        b.fill(slot, value)
    b.kernel(kernels().axpy, [x.write, x.read, one.read], scalars)
    b.copy_out(x, seen)
    b.kernel(kernels().axpy, [aside.write, aside.read, one.read], scalars)
    b.host_call(call, reads=[seen], writes=[given], name="call")
    b.copy_in(given, x)
    b.kernel(kernels().axpy, [x.write, x.read, one.read], scalars)
    b.copy_out(x, seen)
    plan = b.build()

    async def work(session: Session, backend: VulkanBackend) -> None:
        for _ in range(3):
            statistics = await session.run(plan, arrays, ALWAYS)
            assert statistics.is_lowered
            assert statistics.submissions == 2
            assert (arrays["given"][0], arrays["seen"][0]) == (12, 37)

    on_vulkan(work)


def model(count: int) -> int:
    x = 1
    for _ in range(count):
        x = (3 * x + 1) % 2**32
    return x


def test_c60_loops_with_carried_values() -> None:
    """C60: ``x = 3 x + 1`` so often in two buffers that take turns, unrolled."""
    b = LaunchGraphBuilder()
    x, y, one = (b.scratch(name, U32, 1) for name in ("x", "y", "one"))
    b.fill(x, 1)
    b.fill(one, 1)
    scalars = (ONE, ScalarArgument.u32(3))
    with b.loop(count=b.runtime_scalar(), carries=[(x, y)], name="loop"):
        b.kernel(kernels().axpy, [y.write, x.read, one.read], scalars, name="step")
    b.copy_out(x, b.host("answer", U32, 1), name="save")
    plan = b.build()
    answer = np.zeros(1, np.uint32)
    assert model(1000) == 3180628145

    async def work(session: Session, backend: VulkanBackend) -> None:
        for count in (1000, 0, 1, 2, 129, 1000):
            options = attrs.evolve(ALWAYS, runtime_scalars=(ScalarArgument.u32(count),))
            await session.run(plan, {"answer": answer}, options)
            assert answer[0] == model(count), count

    on_vulkan(work)


def test_loops_that_a_value_ends_are_told_and_run_node_by_node() -> None:
    b = LaunchGraphBuilder()
    n, minus = b.scratch("n", U32, 1), b.scratch("minus", U32, 1)
    b.fill(n, 7)
    b.fill(minus, 2**32 - 1)
    with b.loop(while_=n, name="down"):
        b.kernel(kernels().add, [n.read_write, n.read_write, minus.read], (ONE,))
    b.copy_out(n, b.host("out", U32, 1))
    plan, out = b.build(), np.full(1, 9, np.uint32)

    async def work(session: Session, backend: VulkanBackend) -> None:
        async with await session.prepare(plan, {"out": out}) as prepared:
            await prepared.run()
            assert not prepared.is_lowered
            (told,) = map(str, prepared.obstacles)
            assert told.startswith("down: a value decides on its end")
        assert out[0] == 0

    on_vulkan(work)


@LOOPS
def test_calls_on_the_host_between_graphs(loop: str) -> None:
    """What lies between them is recorded; each waits for what it depends on."""
    b = LaunchGraphBuilder()
    x, out = b.scratch("x", U32, 1), b.host("out", U32, 1)
    given = b.host("given", U32, 1)
    one = b.scratch("one", U32, 1)
    b.fill(one, 1)
    b.copy_in(given, x, name="load")
    seen: list[int] = []
    for part in range(3):
        for number in range(6):
            name = f"add {part} {number}"
            b.kernel(kernels().add, [x.read_write, x.read, one.read], (ONE,), name=name)
        b.copy_out(x, out, name=f"save {part}")
        b.host_call(
            lambda: seen.append(int(values[1][0])),
            name=f"tell {part}",
            after=f"save {part}",
        )
        b.fill(one, part + 2, name=f"step {part}", after=f"tell {part}")
    plan = b.build()
    values = [np.array([5], np.uint32), np.zeros(1, np.uint32)]

    async def work(session: Session, backend: VulkanBackend) -> None:
        bindings = {"given": values[0], "out": values[1]}
        for _ in range(3):
            seen.clear()
            assert (await session.run(plan, bindings, ALWAYS)).is_lowered
            assert seen == [11, 23, 41]

    on_vulkan(work, loop)


def two_kernels(most: int) -> LaunchGraphPlan:
    """``y = a x + x`` and ``z = y + x``, of so many elements as a scalar says."""
    b = LaunchGraphBuilder()
    x, y, z = (b.buffer(name, U32, most) for name in "xyz")
    count, factor = b.runtime_scalar(), b.runtime_scalar()
    b.kernel(kernels().axpy, [y.write, x.read, x.read], (count, factor), name="scale")
    b.kernel(kernels().add, [z.write, y.read, x.read], (count,), name="add")
    return b.build()


def test_c63_new_buffers_and_scalars_each_time() -> None:
    """C63: replays with buffers of five sizes in turn; one graph, memory flat."""
    most, sizes = 512, (512, 1, 63, 200, 511)
    plan = two_kernels(most)

    async def work(session: Session, backend: VulkanBackend) -> None:
        values = np.arange(most, dtype=np.uint32)
        x = await session.upload(values)
        prepared = None
        used, made = [], []
        for number in range(100):
            size = sizes[number % 5]
            y, z = session.allocate(most, U32), session.allocate(most, U32)
            scalars = (ScalarArgument.u32(size), ScalarArgument.u32(number))
            if prepared is None:
                options = attrs.evolve(ALWAYS, runtime_scalars=scalars)
                bindings = {"x": x, "y": y, "z": z}
                prepared = await session.prepare(plan, bindings, options)
            else:
                await prepared.rebind({"y": y, "z": z}, scalars)
            await prepared.run()
            found = await session.download(z)
            wanted = values[:size] * np.uint32(number) + 2 * values[:size]
            np.testing.assert_array_equal(found[:size], wanted)
            used.append(backend.memory_statistics()["used_bytes"])
            made.append(backend._device.made())
            y.free()
            z.free()
        assert prepared is not None
        assert prepared.made == 1
        assert max(used[10:]) <= max(used[:10])
        assert made[10] == made[-1]

    on_vulkan(work)


def test_changes_leave_what_is_in_flight() -> None:
    """Behind a gate or not, each launch has the scalar that it was submitted with."""
    device = VulkanDevice()
    backend = device.backend

    def mixing(tag: int) -> GraphRequest:
        request = device.request("mix", [buffer], [ScalarArgument.u32(tag)])
        return GraphRequest((GraphNode(backend.prepare_launch(request)),))

    async def main() -> None:
        graph = backend.create_graph(mixing(0))
        expected = 1
        with device.vulkan._gather():  # none of it is with the driver meanwhile
            for tag in range(40):
                if tag:
                    assert backend.update_graph(graph, mixing(tag))
                backend.launch_graph(graph)
                expected = (expected * 31 + tag) % 2**32
        assert await device.read(buffer) == [expected]
        backend.destroy(graph)

    buffer = device.write([1])
    anyio.run(main, backend="asyncio")
    device.close()


def test_validation_reports_a_barrier_that_is_not_recorded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Which shows that its silence about all others means something."""
    if not harness.has_validation():
        pytest.skip("the validation layer is not installed")
    backend = VulkanBackend(validation=True)
    monkeypatch.setattr(Synchronization, "hold_apart", lambda self, commands: None)
    b = LaunchGraphBuilder()
    x, y = b.scratch("x", U32, 64), b.scratch("y", U32, 64)
    b.fill(x, 1)
    b.copy(x, y)

    async def main() -> None:
        async with open_session(backend) as session:
            await session.run(b.build(), options=ALWAYS)

    anyio.run(main, backend="asyncio")
    backend.close()
    join_threads()
    assert any("SYNC-HAZARD" in message for message in backend.validation_messages)


def test_only_touched_parts_are_recorded_again() -> None:
    """Of a hundred nodes in four parts, the one with the last node."""
    b = LaunchGraphBuilder()
    x, y, one = b.buffer("x", U32, 1), b.buffer("y", U32, 1), b.buffer("one", U32, 1)
    for _ in range(100):
        b.kernel(kernels().add, [x.read_write, x.read_write, one.read], (ONE,))
    b.kernel(kernels().add, [y.write, x.read, one.read], (ONE,))
    plan = b.build()

    async def work(session: Session, backend: VulkanBackend) -> None:
        arrays = [await session.upload(np.array([n], np.uint32)) for n in (0, 0, 1)]
        bindings = dict(zip(("x", "y", "one"), arrays, strict=True))
        prepared = await session.prepare(
            plan, bindings, attrs.evolve(ALWAYS, runtime_scalars=())
        )
        lowered = prepared._prepared.lowered
        assert isinstance(lowered, LoweredGraph)
        graph = backend._table.get(lowered._graph).payload  # type: ignore[arg-type]
        before = graph.segments[0].recordings  # type: ignore[attr-defined]
        other = session.allocate(1, U32)
        await prepared.rebind({"y": other})
        after = graph.segments[0].recordings  # type: ignore[attr-defined]
        same = [a is b for a, b in zip(before, after, strict=True)]
        assert same == [True, True, True, False]
        await prepared.run()
        assert (await session.download(other))[0] == 101

    on_vulkan(work)


def test_awaited_nodes_and_their_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node awaited before is told of while the graph goes on, its array filled."""
    b = LaunchGraphBuilder()
    x = b.scratch("x", U32, 1000)
    first, second = b.host("first", U32, 1000), b.host("second", U32, 1000)
    b.fill(x, 1, name="ones")
    b.copy_out(x, first, name="read ones")
    b.fill(x, 2, name="twos")
    b.copy_out(x, second, name="read twos")
    plan = b.build()
    launched: list[int] = []
    launch = VulkanBackend._launch_graph

    def counting(self: VulkanBackend, stream: Any, graph: Any, guard_of: Any) -> int:
        launched.append(len(graph.segments))
        return launch(self, stream, graph, guard_of)

    monkeypatch.setattr(VulkanBackend, "_launch_graph", counting)

    async def work(session: Session, backend: VulkanBackend) -> None:
        one, two = np.zeros(1000, np.uint32), np.zeros(1000, np.uint32)
        for _ in range(3):
            run = session.start(plan, {"first": one, "second": two}, ALWAYS)
            await run["read ones"]
            assert one.sum() == 1000
            await run
            assert two.sum() == 2000
            one.fill(0)
            two.fill(0)
        assert launched == [1, 2, 2]

    on_vulkan(work)


def test_fills_and_copies_of_every_width() -> None:
    """Patterns of 1, 2, 4 and 8 bytes; empty buffers; copies on the device."""
    b = LaunchGraphBuilder()
    arrays = {}
    for dtype in (DType.U8, DType.U16, DType.U32, DType.U64, DType.F64):
        for size in (0, 1, 77):
            name = f"{dtype}_{size}"
            x = b.scratch(f"x{name}", dtype, size)
            y = b.scratch(f"y{name}", dtype, size)
            b.fill(x, 201)
            b.copy(x, y)
            b.copy_out(y, b.host(name, dtype, size))
            arrays[name] = np.zeros(size, dtype.numpy)
    plan = b.build()

    async def work(session: Session, backend: VulkanBackend) -> None:
        for _ in range(2):
            await session.run(plan, arrays, ALWAYS)
            for array in arrays.values():
                assert (array == 201).all()
                array.fill(0)

    on_vulkan(work)


def checking() -> KernelCallArtifact:
    """A kernel that copies what is not zero, and fails with 23 of what is."""
    builder = KernelBuilder("checked", threadgroup=(1, 1, 1))
    read = builder.buffer("read", U32, "read_only")
    written = builder.buffer("written", U32, "write_only")
    with builder.region():
        index = builder.thread.cast(DType.U64)
        builder.require(read[index] > 0, 23)
        written[index] = read[index]
    return KernelCallArtifact(
        target="test.checked",
        version=1,
        format=ArtifactFormat.VULKAN_SPIRV,
        entry_name="checked",
        argument_count=2,
        payload=compile_spirv(builder.build()),
        launch=FixedLaunch(grid=(1, 1, 1), threadgroup=(1, 1, 1)),
    )


def checked_plan() -> LaunchGraphPlan:
    """Two checked copies side by side, each with something behind it."""
    b = LaunchGraphBuilder()
    entry, one = checking(), b.scratch("one", U32, 1)
    b.fill(one, 1, name="one")
    for name in ("left", "right"):
        given, out = b.host(f"{name} in", U32, 1), b.host(f"{name} out", U32, 1)
        x, y, z = (b.scratch(f"{name} {s}", U32, 1) for s in "xyz")
        b.copy_in(given, x, name=f"{name} load")
        b.kernel(entry, [x.read, y.write], name=f"{name} check")
        b.kernel(kernels().add, [z.write, y.read, one.read], (ONE,), name=f"{name} add")
        b.copy_out(z, out, name=f"{name} save")
    return b.build()


@LOOPS
def test_a_failed_assertion_fails_its_node_alone(loop: str) -> None:
    """What depends on it is skipped, on what does not the graph goes on."""
    plan = checked_plan()
    names = ("left in", "right in", "left out", "right out")

    async def work(session: Session, backend: VulkanBackend) -> None:
        arrays = {name: np.array([4], np.uint32) for name in names}
        for left in (4, 0, 5):
            arrays["left in"][0] = left
            arrays["left out"][0] = arrays["right out"][0] = 99
            run = session.start(plan, arrays, ALWAYS)
            if left:
                assert (await run).is_lowered
                assert arrays["left out"][0] == left + 1
            else:
                with pytest.RaisesGroup(
                    pytest.RaisesExc(DeviceError, match="node=left check")
                ):
                    await run
                states = {n: run[f"left {n}"].state for n in ("check", "add", "save")}
                assert states == {
                    "check": NodeState.FAILED,
                    "add": NodeState.SKIPPED,
                    "save": NodeState.SKIPPED,
                }
                assert run["right save"].state is NodeState.FINISHED
                assert arrays["left out"][0] == 99
            assert arrays["right out"][0] == 5

    on_vulkan(work, loop)


def test_a_failed_assertion_of_a_prepared_plan_is_its_runs() -> None:
    plan = checked_plan()
    names = ("left in", "right in", "left out", "right out")

    async def work(session: Session, backend: VulkanBackend) -> None:
        arrays = {name: np.array([4], np.uint32) for name in names}
        prepared = await session.prepare(plan, arrays, ALWAYS)
        await prepared.run()
        arrays["right in"][0] = 0
        with pytest.raises(DeviceError, match="node=right check") as caught:
            await prepared.run()
        assert caught.value.code == 23
        arrays["right in"][0] = 1
        await prepared.run()
        assert arrays["right out"][0] == 2

    on_vulkan(work)


def test_words_for_assertions_come_back() -> None:
    async def work(session: Session, backend: VulkanBackend) -> None:
        left = len(backend._words._idle)
        arrays = {
            f"{side} {end}": np.ones(1, np.uint32)
            for side in ("left", "right")
            for end in ("in", "out")
        }
        prepared = await session.prepare(checked_plan(), arrays, ALWAYS)
        assert len(backend._words._idle) == left - 2
        await prepared.run()
        await prepared.aclose()
        await backend.wait_device()
        backend.reaper.sweep()
        assert len(backend._words._idle) == left
        backend._words._idle = backend._words._idle[:1000]
        runs = [await session.run(checked_plan(), arrays) for _ in range(3)]
        assert not any(run.is_lowered for run in runs)

    on_vulkan(work)


@LOOPS
def test_cancelling_a_replay(loop: str) -> None:
    """Behind a gate: it ends when that opens, and the plan runs again."""
    plan = two_kernels(64)
    scalars = (ScalarArgument.u32(64), ScalarArgument.u32(2))

    async def work(session: Session, backend: VulkanBackend) -> None:
        x = await session.upload(np.arange(64, dtype=np.uint32))
        bindings = {"x": x, "y": session.allocate(64, U32)}
        bindings["z"] = session.allocate(64, U32)
        options = attrs.evolve(ALWAYS, runtime_scalars=scalars)
        prepared = await session.prepare(plan, bindings, options)
        await prepared.run()
        release = hold(backend, prepared._stream)
        async with anyio.create_task_group() as group:
            with anyio.CancelScope() as scope:
                group.start_soon(prepared.run)
                await anyio.lowlevel.checkpoint()
                scope.cancel()
            group.cancel_scope.cancel()
            release()
        await prepared.run()
        assert (await session.run(plan, bindings, options)).is_lowered
        assert (await session.download(bindings["z"]))[63] == 63 * 4
        # Left in flight: the session's exit waits for it.
        session.start(plan, bindings, options)
        prepared.submit()

    on_vulkan(work, loop)


def test_buffers_freed_in_flight_outlive_the_graph() -> None:
    plan = two_kernels(64)
    scalars = (ScalarArgument.u32(64), ScalarArgument.u32(2))

    async def work(session: Session, backend: VulkanBackend) -> None:
        arrays = {name: session.allocate(64, U32) for name in "xyz"}
        options = attrs.evolve(ALWAYS, runtime_scalars=scalars)
        prepared = await session.prepare(plan, dict(arrays), options)
        await prepared.run()
        release = hold(backend, prepared._stream)
        mark = prepared.submit()
        for array in arrays.values():
            array.free()
        assert session.live_objects()["buffers"] == 3
        assert not mark.is_reached
        release()
        await prepared.aclose()
        assert mark.is_reached
        await backend.wait_device()
        backend.reaper.sweep()
        assert session.live_objects()["buffers"] == 0
        assert session.live_objects()["graphs"] == 0

    on_vulkan(work)


def test_a_lost_device_is_told_with_what_the_graph_may_have_lost_it_by(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    library = faulty_vulkan(monkeypatch)
    backend = VulkanBackend(queues=1)
    scalars = (ScalarArgument.u32(64), ScalarArgument.u32(2))

    async def main() -> None:
        async with open_session(backend) as session:
            bindings = {name: session.allocate(64, U32) for name in "xyz"}
            options = attrs.evolve(ALWAYS, runtime_scalars=scalars)
            prepared = await session.prepare(two_kernels(64), bindings, options)
            await prepared.run()
            library.fault = lambda number, name: -4 if name == "vkQueueSubmit" else None
            await prepared.run()

    with pytest.raises(DeviceLost, match="vulkan:0 is lost"):
        anyio.run(main, backend="asyncio")
    backend.close()
    join_threads()
    assert backend._device.is_destroyed


def test_every_refused_call_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each call of the driver failing once, while a graph is made, changed and run."""
    library = faulty_vulkan(monkeypatch)
    waits = ("vkWaitSemaphores", "vkGetSemaphoreCounterValue", "vkSignalSemaphore")
    plan = checked_plan()
    names = ("left in", "right in", "left out", "right out")

    def told() -> int:
        """How many calls there were that can be refused."""
        return sum(name not in waits for name in library.calls)

    def attempt(fault_at: int) -> tuple[int, str]:
        """One run; the calls before the first graph, and what went wrong."""
        backend = VulkanBackend(queues=1)
        arrays = {name: np.array([4], np.uint32) for name in names}
        first = 0

        def fault(number: int, name: str) -> int | None:
            return -2 if name not in waits and told() - first == fault_at else None

        async def main() -> None:
            nonlocal first
            async with open_session(backend) as session:
                await session.run(plan, arrays)
                first = told()
                library.fault = fault
                prepared = await session.prepare(plan, arrays, ALWAYS)
                await prepared.run()
                await prepared.rebind({"left in": np.array([7], np.uint32)})
                await prepared.run()
                assert arrays["left out"][0] == 8

        refusal = ""
        try:
            anyio.run(main, backend="asyncio")
        except (AccyError, ExceptionGroup) as error:
            refusal = "".join(traceback.format_exception(error))
        library.fault = lambda number, name: None
        count = told() - first
        backend.close()
        join_threads()
        assert backend._device.made() == {}
        assert not any(backend.live_objects().values())
        return count, refusal

    count, refusal = attempt(0)
    assert not refusal
    refusals = [attempt(number)[1] for number in range(1, count + 1)]
    # Making a graph of a plan takes a block of memory less, where it must.
    assert all("VK_ERROR_OUT_OF_DEVICE_MEMORY" in one for one in refusals if one)
    assert sum(map(bool, refusals)) > count // 2
