"""What the driver refuses, what takes long, and a device that is lost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anyio
import numpy as np
import pytest

from accy_async.artifact.geometry import FixedLaunch
from accy_async.backends import BufferBinding, LaunchRequest
from accy_async.backends.vulkan import VulkanBackend
from accy_async.backends.vulkan.queue import VulkanQueue
from accy_async.backends.vulkan.results import VkResult
from accy_async.dtypes import ScalarArgument
from accy_async.errors import AccyError, DeviceError, DeviceLost, OutOfMemory
from tests.vulkan import native
from tests.vulkan.faults import FaultyLibrary, faulty_vulkan
from tests.vulkan.harness import join_threads

pytestmark = [pytest.mark.vulkan, pytest.mark.anyio]


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> FaultyLibrary:
    return faulty_vulkan(monkeypatch)


def hide(monkeypatch: pytest.MonkeyPatch, while_: Callable[[], bool]) -> None:
    """Have no batch seen to have run for so long: the hub has to wait for it."""
    ask = VulkanQueue._ask

    def hidden(self: VulkanQueue, counter: Any) -> None:
        ask(self, counter)
        if while_():
            counter[0] = 0

    monkeypatch.setattr(VulkanQueue, "_ask", hidden)


async def scenario(backend: VulkanBackend) -> list[int]:
    """Something of everything: load, write, launch, events, read."""
    loaded = backend.load_artifact(native.artifact("mix"))
    stream, start, end = (
        backend.create_stream(),
        backend.create_event(timing=True),
        backend.create_event(timing=True),
    )
    buffer = backend.allocate_buffer(4)
    backend.write_buffer(buffer, np.array([3], np.uint32), stream=stream)
    backend.record_event(start, stream)
    request = LaunchRequest(
        artifact=native.artifact("mix"),
        loaded=loaded,
        buffers=(BufferBinding(handle=buffer),),
        scalars=(ScalarArgument.u32(1),),
        geometry=FixedLaunch(grid=(1, 1, 1), threadgroup=(1, 1, 1)),
        diagnostic_id="the launch",
    )
    backend.submit_launch(backend.prepare_launch(request), stream)
    backend.record_event(end, stream)
    out = np.zeros(1, np.uint32)
    backend.read_buffer(buffer, out, stream=stream)
    await backend.wait_stream(stream)
    backend.elapsed_ns(start, end)
    return [int(value) for value in out]


async def attempt() -> list[int]:
    """A backend, opened and closed, with the scenario between."""
    backend = VulkanBackend(queues=1)  # each takes some drivers long to make
    try:
        return await scenario(backend)
    finally:
        backend.close()
        await anyio.to_thread.run_sync(join_threads)
        assert backend._device.is_destroyed
        assert backend.live_objects() == dict.fromkeys(backend.live_objects(), 0)
        assert backend._device.made() == {}


@pytest.mark.parametrize("anyio_backend", ["asyncio"])  # the driver knows no loop
async def test_every_refused_call_is_an_error_and_leaves_nothing(
    library: FaultyLibrary,
) -> None:
    waits = ("vkWaitSemaphores", "vkGetSemaphoreCounterValue", "vkSignalSemaphore")
    library.is_kept = False

    async def calls() -> list[str]:
        """Those of an attempt that can be refused."""
        library.calls.clear()
        library.fault = lambda number, name: None
        assert await attempt() == [94]
        return [name for name in library.calls if name not in waits]

    names = await calls()
    making = names.index("vkCreateDevice") + 1
    cases = [(names[nth - 1], nth, False) for nth in range(1, making + 1)]
    # For the others a device does that is there already: some are made slowly.
    library.is_kept = True
    names = (await calls(), await calls())[1]
    assert len(names) > 20
    cases += [(name, nth + 1, True) for nth, name in enumerate(names)]
    for called, wanted, is_kept in cases:
        library.is_kept = is_kept
        seen = 0

        def fault(number: int, name: str, wanted: int = wanted) -> int | None:
            nonlocal seen
            seen += name not in waits
            is_it = seen == wanted and name not in waits
            seen += is_it  # once
            return VkResult.OUT_OF_DEVICE_MEMORY if is_it else None

        library.fault = fault
        failed: AccyError | None = None
        try:
            values = await attempt()
        except AccyError as error:
            failed = error
        if failed is None:  # it was made good for: a smaller block of memory will do
            assert values == [94]
        else:
            assert "VK_ERROR_OUT_OF_DEVICE_MEMORY" in _story(failed), called


@pytest.mark.parametrize(
    "call", ["vkQueueSubmit", "vkWaitSemaphores", "vkGetSemaphoreCounterValue"]
)
async def test_lost_device_is_told_to_everybody(
    library: FaultyLibrary, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if call == "vkWaitSemaphores":
        hide(monkeypatch, lambda: True)
    backend = VulkanBackend()
    library.fault = lambda number, name: VkResult.DEVICE_LOST if name == call else None
    with pytest.raises(DeviceLost, match="vulkan:0 is lost") as caught:
        await scenario(backend)
    assert caught.value.code == VkResult.DEVICE_LOST
    assert not backend.is_healthy
    with pytest.raises(DeviceLost):
        backend.allocate_buffer(4)
    with pytest.raises(DeviceLost):
        await backend.wait_device()
    backend.close()
    await anyio.to_thread.run_sync(join_threads)
    assert backend._device.is_destroyed


async def test_a_counter_beyond_what_was_submitted_is_a_loss(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Some drivers let every semaphore be passed then: nothing counts as done."""
    backend = VulkanBackend()
    assert await scenario(backend) == [94]

    def far(self: VulkanQueue, counter: Any) -> None:
        counter[0] = 2**64 - 1

    monkeypatch.setattr(VulkanQueue, "_ask", far)
    with pytest.raises(DeviceLost, match="batches are said to have run"):
        await scenario(backend)
    backend.close()
    await anyio.to_thread.run_sync(join_threads)
    assert backend._device.is_destroyed


async def test_a_counter_one_ahead_is_no_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch may have run before who hands it over has noted that it did so."""
    backend = VulkanBackend()
    ask = VulkanQueue._ask

    def ahead(self: VulkanQueue, counter: Any) -> None:
        ask(self, counter)
        counter[0] += counter[0] == self.submitted

    monkeypatch.setattr(VulkanQueue, "_ask", ahead)
    for _ in range(3):
        assert await scenario(backend) == [94]
    backend.close()
    await anyio.to_thread.run_sync(join_threads)


async def test_lost_device_names_the_launch_when_debugging(
    library: FaultyLibrary,
) -> None:
    backend = VulkanBackend(debug=True)
    launched = False

    def fault(number: int, name: str) -> int | None:
        nonlocal launched
        launched |= name == "vkQueueSubmit" and library.calls.count(name) == 3
        return VkResult.DEVICE_LOST if launched and name == "vkWaitSemaphores" else None

    library.fault = fault
    with pytest.raises(DeviceLost) as caught:
        await scenario(backend)
    backend.close()
    join_threads()
    assert (caught.value.node, caught.value.kernel) == ("the launch", "mix")


async def test_a_wait_that_runs_out_is_no_loss(
    library: FaultyLibrary, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = 5
    hide(monkeypatch, lambda: left > 0)

    def fault(number: int, name: str) -> int | None:
        nonlocal left
        if name != "vkWaitSemaphores" or not left:
            return None
        left -= 1
        return VkResult.TIMEOUT

    library.fault = fault
    assert await attempt() == [94]
    assert not left


async def test_refused_submission_fails_its_own_work_alone(
    library: FaultyLibrary,
) -> None:
    backend = VulkanBackend()
    assert await scenario(backend) == [94]
    buffer = backend.allocate_buffer(4)
    library.fault = lambda number, name: (
        VkResult.OUT_OF_HOST_MEMORY if name == "vkQueueSubmit" else None
    )
    with pytest.raises(OutOfMemory, match="vkQueueSubmit"):
        backend.fill_buffer(buffer, b"\1")
    library.fault = lambda number, name: None
    with pytest.raises(DeviceError, match="driver refused it"):
        await backend.wait_default_stream()
    assert await scenario(backend) == [94]
    backend.close()


def _story(error: BaseException | None) -> str:
    """An error with its causes and members."""
    told = []
    while error is not None:
        told.append(str(error))
        if isinstance(error, BaseExceptionGroup):
            told += [_story(one) for one in error.exceptions]
        error = error.__cause__
    return " <- ".join(told)
