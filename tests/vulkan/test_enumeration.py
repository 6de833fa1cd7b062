"""Every call of the driver failing once, and every await cancelled, on a real device.

One device serves all attempts: whatever went wrong in one, the next must find nothing
of it, and the validation layer, with its checks of synchronisation, says nothing.
"""

from __future__ import annotations

import contextlib
import functools
import traceback
from collections.abc import Callable, Coroutine, Iterator
from types import SimpleNamespace
from typing import Any, cast

import anyio
import attrs
import numpy as np
import pytest

from accy_async.backends import RecordingBackend
from accy_async.backends.vulkan import VulkanBackend
from accy_async.backends.vulkan.results import VkResult
from accy_async.compiler.kernels import reference_scan, scan_pipeline
from accy_async.compiler.kernels.catalogue import library_registry
from accy_async.dtypes import DType, ScalarArgument
from accy_async.errors import DeviceError
from accy_async.fragment import CompiledFragment, compile_fragment
from accy_async.graph import LaunchGraphBuilder, LaunchGraphPlan
from accy_async.graph.outcome import RunCancelled
from accy_async.pipeline import PipelineLaunch
from accy_async.session import open_session
from tests.harness.steps import Outcome, cancel_scope, perform
from tests.seeds import test_fragment_executor as seed
from tests.vulkan import harness
from tests.vulkan.faults import FaultyLibrary, faulty_vulkan
from tests.vulkan.harness import join_threads
from tests.vulkan.test_runs import SPIRV, kernels

pytestmark = pytest.mark.vulkan

LENGTH = 500
_UNCOUNTED = ("vkWaitSemaphores", "vkGetSemaphoreCounterValue", "vkSignalSemaphore")

Scenario = Callable[[VulkanBackend], Coroutine[Any, Any, None]]


@functools.cache
def plan() -> LaunchGraphPlan:
    """In, twice it in two steps, out."""
    b = LaunchGraphBuilder()
    x, y = b.buffer("x", DType.U32, LENGTH), b.scratch("y", DType.U32, LENGTH)
    n = (ScalarArgument.u32(LENGTH),)
    b.copy_in(b.host("given", DType.U32, LENGTH), x)
    b.fill(y, 0)
    b.kernel(kernels().add, [y.write, x.read, x.read], n, name="twice")
    b.copy_out(y, b.host("found", DType.U32, LENGTH))
    return b.build()


async def runs(backend: VulkanBackend) -> None:
    """A plan, by its nodes, recorded, with a node awaited, with another buffer."""
    given = np.arange(LENGTH, dtype=np.uint32)
    async with open_session(backend) as session:
        arrays = [session.allocate(LENGTH, DType.U32) for _ in range(2)]
        for number in range(4):
            found = np.zeros(LENGTH, np.uint32)
            bindings = {"given": given, "found": found, "x": arrays[number == 3]}
            run = session.start(plan(), bindings)
            if number == 1:
                await run["twice"]
            await run
            np.testing.assert_array_equal(found, 2 * given)


async def scans(backend: VulkanBackend) -> None:
    """A pipeline of three kernels, loaded and launched twice."""
    data = np.random.default_rng(5).normal(size=LENGTH).astype(np.float32)
    registry, pipeline = library_registry(SPIRV), scan_pipeline(DType.F32)
    async with open_session(backend) as session:
        operand = await session.upload(data)
        result = session.allocate(data.shape, DType.F32)
        async with await session.load_pipeline(pipeline, registry) as pool:
            launch = PipelineLaunch(
                pipeline=pipeline,
                registry=registry,
                format=pool.format,
                operands=(operand.binding("read_only"),),
                results=(result.binding("write_only"),),
                runtime_scalar_arguments=(ScalarArgument.u32(LENGTH),),
                artifacts=pool,
            )
            for _ in range(2):
                await session.launch_pipeline(launch)
        found = await session.download(result)
    np.testing.assert_array_equal(found, reference_scan(data))


_compiled: dict[str, CompiledFragment] = {}


async def calls(backend: VulkanBackend) -> None:
    """A fragment, loaded and called twice."""
    if "add" not in _compiled:
        _compiled["add"] = await compile_fragment(backend, seed.add_module("add"))
    async with (
        open_session(backend) as session,
        await session.load_fragment(_compiled["add"]) as fragment,
    ):
        for _ in range(2):
            found = await fragment(seed.LHS, seed.RHS)
            np.testing.assert_array_equal(found, seed.LHS + seed.RHS)


SCENARIOS = pytest.mark.parametrize(
    "scenario", [pytest.param(one, id=one.__name__) for one in (runs, scans, calls)]
)


@attrs.frozen
class Place:
    """A backend whose driver refuses on request."""

    backend: VulkanBackend
    library: FaultyLibrary

    def count(self) -> int:
        """How many calls there were so far that may be refused."""
        return sum(name not in _UNCOUNTED for name in self.library.calls)

    def refuse(self, nth: int) -> None:
        """Have the nth of them from here on refused."""
        first = self.count()

        def fault(number: int, name: str) -> int | None:
            is_it = name not in _UNCOUNTED and self.count() - first == nth
            return VkResult.OUT_OF_HOST_MEMORY if is_it else None

        self.library.fault = fault

    async def perform(self, scenario: Scenario, step: int = 0) -> Outcome:
        """Run it, cancelled at a suspension where one is given; nothing is left."""
        nobody = cast("RecordingBackend", SimpleNamespace(calls=[]))
        injections = {step: cancel_scope} if step else {}
        with anyio.fail_after(60):
            outcome = await perform(
                nobody, functools.partial(scenario, self.backend), injections
            )
            self.library.fault = lambda number, name: None
            with contextlib.suppress(DeviceError):  # refused, and not told yet
                await self.backend.wait_device()
        self.backend.reaper.sweep()
        left = self.backend.live_objects()
        assert not any(left.values()), (outcome, left)
        assert self.backend.validation_messages == ()
        return outcome


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    library = faulty_vulkan(monkeypatch)
    backend = VulkanBackend(validation=harness.has_validation())
    yield Place(backend, library)
    backend.close()
    join_threads()
    assert backend.validation_messages == ()
    assert backend._device.made() == {}


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])  # the driver knows no loop
@SCENARIOS
async def test_each_call_of_the_driver_failing_once(
    place: Place, scenario: Scenario
) -> None:
    await place.perform(scenario)  # what is made once is made
    before = place.count()
    assert (await place.perform(scenario)).is_success
    count = place.count() - before
    refused = 0
    for nth in range(1, count + 1):
        place.refuse(nth)
        outcome = await place.perform(scenario)
        if outcome.error is not None:
            story = "".join(traceback.format_exception(outcome.error))
            assert "VK_ERROR_OUT_OF_HOST_MEMORY" in story
            refused += 1
    assert refused > count // 2
    assert (await place.perform(scenario)).is_success


@pytest.mark.anyio
@SCENARIOS
async def test_each_await_cancelled_once(place: Place, scenario: Scenario) -> None:
    """How many there are depends on how fast the device is: some more are tried."""
    whole = await place.perform(scenario)
    cancelled = 0
    for step in range(1, whole.steps + 3):
        outcome = await place.perform(scenario, step)
        assert outcome.error is None or isinstance(outcome.error, RunCancelled)
        cancelled += outcome.was_cancelled
    assert cancelled > 0
    assert (await place.perform(scenario)).is_success
