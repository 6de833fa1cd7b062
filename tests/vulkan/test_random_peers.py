"""Random copies between two Vulkan devices and the processor, in the order of events.

Each operation comes after the one before by an event, on whichever device, so that the
bytes are those of doing one after the other.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import anyio.lowlevel
import numpy as np
import pytest

from accy_async.backends import Backend, EventHandle, StreamHandle
from accy_async.backends.cpu import CpuBackend
from accy_async.backends.vulkan import VulkanBackend
from tests.vulkan import harness
from tests.vulkan.test_queues import copying_family, several_queues

__all__ = ["copying_family", "several_queues"]

pytestmark = [pytest.mark.vulkan, pytest.mark.anyio]

SIZE = 900


class Work:
    """Operations on some devices, and what is in their buffers then."""

    def __init__(self, devices: list[Backend], draw: random.Random) -> None:
        self._devices, self._draw = devices, draw
        self.streams = [[one.create_stream() for _ in range(2)] for one in devices]
        self._buffers = [
            [one.allocate_buffer(SIZE) for _ in range(2)] for one in devices
        ]
        self._values: list[list[int | None]] = [[None, None] for _ in devices]
        self._events: list[tuple[Backend, EventHandle]] = []
        self.read: list[tuple[np.ndarray, int]] = []

    def do_one(self) -> None:
        """One operation behind the one before."""
        draw, devices = self._draw, self._devices
        place, number = draw.randrange(len(devices)), draw.randrange(2)
        value = self._values[place][number]
        kind = draw.choice(["fill", "read", "copy", "pass", "pass", "pass"])
        if kind == "fill" or value is None:
            self._fill(place, number, draw.randrange(256))
        elif kind == "read":
            out = np.zeros(SIZE, np.uint8)
            stream = self._next_on(place)
            devices[place].read_buffer(self._buffers[place][number], out, stream=stream)
            self._end(place, stream)
            self.read.append((out, value))
        elif kind == "copy":
            source, target = self._buffers[place][number], self._buffers[place][~number]
            stream = self._next_on(place)
            devices[place].copy_buffer(source, target, stream=stream)
            self._end(place, stream)
            self._values[place][~number] = value
        else:
            others = [other for other in range(len(devices)) if other != place]
            self._pass(place, number, draw.choice(others), draw.randrange(2))

    def _fill(self, place: int, number: int, value: int) -> None:
        stream, pattern = self._next_on(place), bytes([value])
        buffer = self._buffers[place][number]
        self._devices[place].fill_buffer(buffer, pattern, stream=stream)
        self._end(place, stream)
        self._values[place][number] = value

    def _pass(self, place: int, number: int, there: int, other: int) -> None:
        """Copy a buffer to another device."""
        here, peer = self._devices[place], self._devices[there]
        on = there if here.route_to(peer).is_pulled else place
        stream = self._next_on(on)
        source, target = self._buffers[place][number], self._buffers[there][other]
        here.copy_to_peer(source, target, peer, stream=stream)
        self._end(on, stream)
        self._values[there][other] = self._values[place][number]

    def _next_on(self, place: int) -> StreamHandle:
        """A stream of a device that waits for the operation before."""
        device, stream = self._devices[place], self._draw.choice(self.streams[place])
        if self._events:
            device.wait_for_peer(stream, self._events[-1][1], self._events[-1][0])
        return stream

    def _end(self, place: int, stream: StreamHandle) -> None:
        device = self._devices[place]
        event = device.create_event()
        device.record_event(event, stream)
        self._events.append((device, event))

    def destroy(self) -> None:
        """Destroy all that it has."""
        for device, event in self._events:
            device.destroy(event)
        for device, streams, buffers in zip(
            self._devices, self.streams, self._buffers, strict=True
        ):
            for stream in streams:
                device.destroy(stream)
            for buffer in buffers:
                device.destroy(buffer)


@pytest.fixture
def devices(
    several_queues: None, copying_family: None, monkeypatch: pytest.MonkeyPatch
) -> Iterator[list[Backend]]:
    monkeypatch.setattr(VulkanBackend, "staging_bytes", 400)
    first, last = (VulkanBackend(validation=harness.has_validation()) for _ in range(2))
    cpu = CpuBackend()
    yield [first, cpu, last]
    for device in (first, cpu, last):
        device.close()
    for vulkan in (first, last):
        assert vulkan.validation_messages == ()


@pytest.mark.parametrize("anyio_backend", ["asyncio"])  # the devices know no loop
@pytest.mark.parametrize("seed", range(6))
async def test_bytes_are_those_of_one_after_the_other(
    devices: list[Backend], seed: int
) -> None:
    work = Work(devices, random.Random(seed))
    for _ in range(60):
        work.do_one()
    with anyio.fail_after(20):
        for device, streams in zip(devices, work.streams, strict=True):
            for stream in streams:
                await device.wait_stream(stream)
    for out, value in work.read:
        assert set(out.tolist()) == {value}
    work.destroy()
    with anyio.fail_after(10):
        while any(any(device.live_objects().values()) for device in devices):
            await anyio.lowlevel.checkpoint()
