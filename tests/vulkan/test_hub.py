"""The thread that follows the device does not end without a word."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import anyio
import pytest

from accy_async.backends.completion import Completion
from accy_async.backends.vulkan import VulkanBackend
from accy_async.backends.vulkan.hub import Hub
from accy_async.backends.vulkan.queue import VulkanQueue
from accy_async.backends.vulkan.results import VkResult
from accy_async.errors import DeviceError, DeviceLost, RuntimeUnavailable
from tests.vulkan.faults import faulty_vulkan
from tests.vulkan.harness import join_threads

pytestmark = [pytest.mark.vulkan, pytest.mark.anyio]

GIVE_UP_S = 20.0


@pytest.fixture
def anyio_backend() -> str:
    """One will do: the thread knows no loop."""
    return "asyncio"


async def end(backend: VulkanBackend) -> None:
    backend.close()
    await anyio.to_thread.run_sync(join_threads)
    assert backend._device.is_destroyed


def break_on_the_hub(
    monkeypatch: pytest.MonkeyPatch, break_: Callable[[], object]
) -> None:
    """Have the hub's thread, and it alone, fail where it asks how far a queue is."""
    reached = VulkanQueue.reached

    def broken(self: VulkanQueue) -> int:
        if threading.current_thread().name.startswith("accy_async vulkan"):
            break_()
            return 0
        # Nobody else may be faster.
        return 0 if self.oldest is not None else reached(self)

    monkeypatch.setattr(VulkanQueue, "reached", broken)


@pytest.mark.parametrize("error", [MemoryError("no room"), SystemExit("no reason")])
async def test_whatever_ends_the_following_is_told_to_who_waits(
    monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    backend = VulkanBackend(queues=1)

    def break_() -> None:
        raise error

    break_on_the_hub(monkeypatch, break_)
    buffer = backend.allocate_buffer(4)
    backend.fill_buffer(buffer, b"\1")
    with anyio.fail_after(GIVE_UP_S), pytest.raises(DeviceLost, match="no r") as caught:
        await backend.wait_default_stream()
    assert str(type(error).__name__) in str(caught.value)
    await end(backend)


async def test_a_driver_without_memory_to_answer_with_has_lost_the_device(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As where it has none to wait with."""
    library = faulty_vulkan(monkeypatch)
    backend = VulkanBackend(queues=1)
    ask = VulkanQueue._ask

    def on_the_hub_alone(self: VulkanQueue, counter: Any) -> None:
        if threading.current_thread().name.startswith("accy_async vulkan"):
            ask(self, counter)

    monkeypatch.setattr(VulkanQueue, "_ask", on_the_hub_alone)
    buffer = backend.allocate_buffer(4)
    backend.fill_buffer(buffer, b"\1")
    library.fault = lambda number, name: (
        VkResult.OUT_OF_HOST_MEMORY if name == "vkGetSemaphoreCounterValue" else None
    )
    with anyio.fail_after(GIVE_UP_S), pytest.raises(DeviceLost, match="HOST_MEMORY"):
        await backend.wait_default_stream()
    await end(backend)


async def test_a_thread_that_the_system_refuses_is_started_by_the_next_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    backend = VulkanBackend(queues=1)

    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        with pytest.raises(RuntimeUnavailable, match="can't start new thread"):
            backend._hub.ring()
        line = backend._default.timeline
        line.advance()
        with pytest.raises(RuntimeUnavailable):
            line.watch(line.submitted, Completion())
        assert not line._waiters  # nobody would set it
        line.complete(line.submitted)
    backend._hub.ring()
    assert backend._hub._thread is not None
    await end(backend)


async def test_what_the_device_is_given_back_with_is_told_where_nobody_asked(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    backend = VulkanBackend(queues=1)

    def refuse() -> None:
        raise DeviceError("not now")

    with monkeypatch.context() as patch:
        patch.setattr(backend._device, "destroy", refuse)
        backend._hub.ring()
        hubs_own = backend._hub._thread
        others = property(lambda self: threading.current_thread() is not hubs_own)
        patch.setattr(Hub, "is_at_work", others)
        backend.close()
        with anyio.fail_after(GIVE_UP_S):
            await anyio.to_thread.run_sync(join_threads)
    assert "giving the device back: not now" in caplog.text
    backend._device.destroy()
