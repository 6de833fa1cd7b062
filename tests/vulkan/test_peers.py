"""A Vulkan device beside the processor: copies both ways, alone and in plans."""

from __future__ import annotations

from collections.abc import Iterator

import anyio.lowlevel
import numpy as np
import pytest

from accy_async.backends.cpu import CpuBackend
from accy_async.backends.recording import RecordingBackend
from accy_async.backends.routes import Way
from accy_async.backends.vulkan import VulkanBackend
from accy_async.dtypes import DType
from accy_async.errors import DeviceError, UnsupportedOperation
from accy_async.graph import LaunchGraphBuilder
from accy_async.session import open_session
from tests.conformance.devices import CpuDevice
from tests.vulkan import harness
from tests.vulkan.gates import hold

pytestmark = [pytest.mark.vulkan, pytest.mark.anyio]


@pytest.fixture
def devices() -> Iterator[tuple[VulkanBackend, CpuBackend]]:
    cpu = CpuBackend()
    vulkan = VulkanBackend(validation=harness.has_validation())
    yield vulkan, cpu
    for device in (vulkan, cpu):
        assert not any(device.live_objects().values())
        device.close()
    assert vulkan.validation_messages == ()


@pytest.fixture
def two() -> Iterator[tuple[VulkanBackend, VulkanBackend]]:
    both = [VulkanBackend(validation=harness.has_validation()) for _ in range(2)]
    yield both[0], both[1]
    for device in both:
        assert not any(device.live_objects().values())
        device.close()
        assert device.validation_messages == ()


@pytest.mark.parametrize("words", [0, 5, 1 << 19])
async def test_arrays_are_copied_to_the_processor_and_back(
    devices: tuple[VulkanBackend, CpuBackend], words: int
) -> None:
    vulkan, cpu = devices
    values = np.arange(words, dtype=np.uint32)
    async with open_session(devices=[vulkan, cpu]) as session:
        there = await session.on(0).upload(values)
        here = await there.copy_to(session.on(1))
        back = await here.copy_to(session.on(0))
        np.testing.assert_array_equal(await session.on(1).download(here), values)
        np.testing.assert_array_equal(await session.on(0).download(back), values)


async def test_the_device_carries_copies_out(
    devices: tuple[VulkanBackend, CpuBackend],
) -> None:
    vulkan, cpu = devices
    for source, target in ((vulkan, cpu), (cpu, vulkan)):
        route = source.route_to(target)
        assert (route.way, route.device) == (Way.HOST, vulkan.device)
    with pytest.raises(UnsupportedOperation, match=r"vulkan:\d+ .* to cuda:0"):
        vulkan.route_to(RecordingBackend(can_wait_for_peers=False))


async def test_what_a_copy_uses_stays_until_it_is_done(
    devices: tuple[VulkanBackend, CpuBackend],
) -> None:
    vulkan, cpu = devices
    source, target = vulkan.allocate_buffer(4), cpu.allocate_buffer(4)
    vulkan.fill_buffer(source, b"\1\2\3\4")
    release = hold(vulkan)
    vulkan.copy_to_peer(source, target, cpu)
    assert not cpu.destroy(target)
    vulkan.destroy(source)
    assert cpu.live_objects()["buffers"] == 1
    release()
    with anyio.fail_after(5):  # though nobody waits, or looks
        while cpu._table._retired:
            await anyio.lowlevel.checkpoint()


async def test_plans_on_both(devices: tuple[VulkanBackend, CpuBackend]) -> None:
    """Twice, so that it runs as it was prepared, too."""
    vulkan, cpu = devices
    names = vulkan.device, cpu.device
    b = LaunchGraphBuilder()
    there, again = (b.scratch(n, DType.U32, 4, device=names[0]) for n in "ad")
    here = b.scratch("b", DType.U32, 4, device=names[1])
    out = b.host("out", DType.U32, 4)
    b.fill(there, 7)
    b.copy(there, here)
    b.copy(here, again)
    b.copy_out(again, out)
    plan = b.build()
    async with open_session(devices=[vulkan, cpu]) as session:
        for _ in range(2):
            found = np.zeros(4, np.uint32)
            await session.run(plan, {"out": found})
            assert found.tolist() == [7] * 4


async def test_streams_wait_for_the_processors(
    devices: tuple[VulkanBackend, CpuBackend],
) -> None:
    """What follows begins once that has come to the event, and others go on."""
    vulkan, _ = devices
    device = CpuDevice()
    cpu = device.backend
    waiting, free = vulkan.create_stream(), vulkan.create_stream()
    first, second = cpu.create_event(), cpu.create_event()
    buffer = vulkan.allocate_buffer(4)
    cpu.record_event(first)
    await cpu.wait_event(first)
    held = cpu.create_stream()
    release = device.hold(held)
    cpu.record_event(second, held)
    for event in (first, second):
        vulkan.wait_for_peer(waiting, event, cpu)
    vulkan.fill_buffer(buffer, b"\1", stream=waiting)
    vulkan.fill_buffer(buffer, b"\2", stream=free)
    await vulkan.wait_stream(free)
    assert not vulkan.is_stream_idle(waiting)
    release()
    with anyio.fail_after(5):
        await vulkan.wait_stream(waiting)
    out = np.zeros(4, np.uint8)
    vulkan.read_buffer(buffer, out)
    await vulkan.wait_default_stream()
    assert out.tolist() == [1] * 4
    for handle in (waiting, free, buffer):
        vulkan.destroy(handle)
    cpu.close()


async def test_a_failure_elsewhere_fails_the_wait_for_it(
    devices: tuple[VulkanBackend, CpuBackend],
) -> None:
    vulkan, _ = devices
    device = CpuDevice()
    cpu, stream = device.backend, vulkan.create_stream()
    event, buffer = cpu.create_event(), vulkan.allocate_buffer(4)
    device.fail()
    cpu.record_event(event)
    vulkan.wait_for_peer(stream, event, cpu)
    vulkan.fill_buffer(buffer, b"\1", stream=stream)
    with pytest.raises(DeviceError, match="assertion 7") as caught, anyio.fail_after(5):
        await vulkan.wait_stream(stream)
    assert caught.value.is_consequence
    with pytest.raises(DeviceError, match="assertion 7"):
        await cpu.wait_default_stream()
    for handle in (stream, buffer):
        vulkan.destroy(handle)
    cpu.close()


@pytest.mark.parametrize("words", [1, 5000])
async def test_copies_between_vulkan_devices_are_staged(
    two: tuple[VulkanBackend, VulkanBackend],
    words: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In several pieces, and to and fro."""
    monkeypatch.setattr(VulkanBackend, "staging_bytes", 4096)
    one, other = two
    assert one.route_to(other).way is Way.STAGED
    values = np.arange(words, dtype=np.uint32)
    async with open_session(one) as first, open_session(other) as second:
        array = await first.upload(values)
        for place in (second, first, second):
            array = await array.copy_to(place)
        found = await second.download(array)
    np.testing.assert_array_equal(found, values)


async def test_failures_go_over_with_the_copy(
    devices: tuple[VulkanBackend, CpuBackend],
) -> None:
    """A stream of the processor that waits for an event behind it is told."""
    vulkan, cpu = devices
    stream, event = cpu.create_stream(), vulkan.create_event()
    release = hold(vulkan)
    vulkan.record_event(event)
    cpu.wait_for_peer(stream, event, vulkan)
    assert not cpu.is_stream_idle(stream)
    line = vulkan._default.timeline
    line.fail(line.submitted, DeviceError("it failed", call="test"))
    release()
    with pytest.raises(DeviceError, match="it failed"):
        await cpu.wait_stream(stream)
    with pytest.raises(DeviceError, match="it failed"):
        await vulkan.wait_default_stream()
    for made, backend in ((stream, cpu), (event, vulkan)):
        backend.destroy(made)
