"""Random programs over streams and events give what running them in order gives.

A program is a list of kernels, each on some stream with some buffers. Wherever
a kernel touches a buffer that another stream touched last, the test orders the
two by an event, as a scheduler would; nothing else keeps the streams together.
"""

from __future__ import annotations

from collections.abc import Iterator

import anyio
import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accy_async.backends import BufferHandle, StreamHandle
from accy_async.dtypes import ScalarArgument
from tests.conformance.devices import CpuDevice

STREAMS, BUFFERS = 4, 4
MASK = 2**32 - 1


@attrs.frozen
class Mix:
    """``buffer = buffer * 31 + tag``."""

    stream: int
    buffer: int
    tag: int


@attrs.frozen
class Combine:
    """``target = target * 31 + source``."""

    stream: int
    target: int
    source: int


@attrs.frozen
class Noise:
    """An event between two streams that nothing asks for."""

    recorded: int
    waiting: int


_stream = st.integers(0, STREAMS - 1)
_buffer = st.integers(0, BUFFERS - 1)
PROGRAMS = st.lists(
    st.one_of(
        st.builds(Mix, _stream, _buffer, st.integers(0, MASK)),
        st.builds(Combine, _stream, _buffer, _buffer),
        st.builds(Noise, _stream, _stream),
    ),
    max_size=40,
)
Step = Mix | Combine | Noise


def model(program: list[Step]) -> list[int]:
    """The buffers after the program, run in order."""
    values = [0] * BUFFERS
    for step in program:
        match step:
            case Mix(buffer=buffer, tag=tag):
                values[buffer] = (values[buffer] * 31 + tag) & MASK
            case Combine(target=target, source=source):
                values[target] = (values[target] * 31 + values[source]) & MASK
            case Noise():
                pass
    return values


class _Run:
    def __init__(self, device: CpuDevice) -> None:
        self.device = device
        self.backend = device.backend
        self.streams = [self.backend.create_stream() for _ in range(STREAMS)]
        self.buffers = [device.write([0]) for _ in range(BUFFERS)]
        self.touched: dict[int, StreamHandle | None] = {}
        self.events = 0
        for index in range(BUFFERS):
            self.touched[index] = None

    def order(self, first: StreamHandle | None, second: StreamHandle | None) -> None:
        event = self.backend.create_event()
        self.backend.record_event(event, first)
        self.backend.stream_wait_event(second, event)
        self.backend.destroy(event)

    def touch(self, stream: StreamHandle | None, *buffers: int) -> list[BufferHandle]:
        for index in buffers:
            if self.touched[index] != stream:
                self.order(self.touched[index], stream)
            self.touched[index] = stream
        return [self.buffers[index] for index in buffers]

    def submit(self, step: Step) -> None:
        match step:
            case Mix(stream=on, buffer=buffer, tag=tag):
                stream = self.streams[on]
                handles = self.touch(stream, buffer)
                scalars = [ScalarArgument.u32(tag)]
                self.backend.launch(
                    self.device.request("mix", handles, scalars, stream=stream)
                )
            case Combine(stream=on, target=target, source=source):
                stream = self.streams[on]
                handles = self.touch(stream, target, source)
                self.backend.launch(
                    self.device.request("combine", handles, stream=stream)
                )
            case Noise(recorded=recorded, waiting=waiting):
                self.order(self.streams[recorded], self.streams[waiting])

    async def results(self) -> list[int]:
        handles = self.touch(None, *range(BUFFERS))
        values = [(await self.device.read(handle))[0] for handle in handles]
        for buffer in self.buffers:
            self.backend.destroy(buffer)
        for stream in self.streams:
            self.backend.destroy(stream)
        await self.backend.wait_device()
        return values


@pytest.fixture(scope="module")
def shared() -> Iterator[CpuDevice]:
    device = CpuDevice(workers=2)
    yield device
    device.close()


@given(program=PROGRAMS)
@settings(max_examples=200, deadline=None)
def test_random_programs_match_the_model(
    shared: CpuDevice, program: list[Step]
) -> None:
    async def main() -> list[int]:
        run = _Run(shared)
        for step in program:
            run.submit(step)
        return await run.results()

    assert anyio.run(main) == model(program)
    assert shared.new_objects() == {}
