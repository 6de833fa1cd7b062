"""Lowered plans whose kernels fail, whose calls are refused, whose device is lost."""

from __future__ import annotations

import traceback

import anyio
import attrs
import numpy as np
import pytest

from accy_async.artifact.entry import KernelCallArtifact
from accy_async.artifact.formats import ArtifactFormat
from accy_async.artifact.geometry import FixedLaunch
from accy_async.backends.vulkan import VulkanBackend
from accy_async.compiler.emit.text import compile_spirv
from accy_async.compiler.form import KernelBuilder
from accy_async.dtypes import DType, ScalarArgument
from accy_async.errors import AccyError, DeviceError, DeviceLost
from accy_async.graph import LaunchGraphBuilder, LaunchGraphPlan, LaunchOptions
from accy_async.graph.outcome import NodeState
from accy_async.session import Session, open_session
from tests.vulkan.faults import faulty_vulkan
from tests.vulkan.gates import hold
from tests.vulkan.harness import join_threads
from tests.vulkan.sessions import kernels, on_vulkan, two_kernels

pytestmark = pytest.mark.vulkan

U32 = DType.U32
LOOPS = pytest.mark.parametrize("loop", ["asyncio", "trio"])
ALWAYS = LaunchOptions(lowering="always")
ONE = ScalarArgument.u32(1)


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
