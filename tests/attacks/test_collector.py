"""The garbage collector comes at any moment, also while a lock is held."""

from __future__ import annotations

import gc
import threading

import pytest

import accy_async
from accy_async import DType
from accy_async.backends import RecordingBackend
from accy_async.backends.cpu import CpuBackend
from accy_async.backends.handles import BufferHandle, ObjectKind
from accy_async.errors import DeviceError, OutOfMemory


class Cycle:
    """Garbage that only the collector frees, with an array in it."""

    def __init__(self, array: accy_async.DeviceArray) -> None:
        self.itself = self
        self.array = array


@pytest.mark.anyio
async def test_an_array_collected_while_the_table_is_locked_ends_in_no_deadlock() -> (
    None
):
    device = RecordingBackend()
    finished = threading.Event()

    def add() -> None:
        table = device._table

        def collect(object_id: int) -> BufferHandle:
            gc.collect()
            return BufferHandle(id=object_id, backend=device.kind, byte_size=0)

        table.add(ObjectKind.BUFFER, collect, None)
        finished.set()

    async with accy_async.open_session(device) as session:
        Cycle(session.allocate(4, DType.F32))
        thread = threading.Thread(target=add, daemon=True)
        thread.start()
        assert finished.wait(20.0)
        # The one that was collected is gone as soon as anybody looks.
        assert session.live_objects()["buffers"] == 0
        assert device.live_objects()["buffers"] == 1
    assert not any(session.live_objects().values())


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("locked", ["the table", "the stream"])
async def test_a_wait_collected_while_a_lock_is_held_ends_in_no_deadlock(
    locked: str, anyio_backend: str
) -> None:
    """What was dropped without having ended is closed wherever the collector runs."""
    device = RecordingBackend()
    device.hold_all()
    buffer, stream = device.allocate_buffer(4), device.create_stream()
    device.fill_buffer(buffer, bytes(4), stream=stream)
    device.destroy(buffer)  # once that is done
    line = device.mark(stream).timeline
    wait = device.wait_stream(stream)
    while not line._waiters:
        wait.send(None)
    finished = threading.Event()

    def close() -> None:
        with device._table._lock if locked == "the table" else line._lock:
            wait.close()
        finished.set()

    threading.Thread(target=close, daemon=True).start()
    assert finished.wait(20.0)
    device.release_all()  # its signal is given, and nobody is there
    assert device.is_stream_idle(stream)
    device.close()


@pytest.mark.anyio
async def test_what_the_collector_found_makes_room() -> None:
    device = CpuBackend(memory_limit_bytes=1 << 20)
    async with accy_async.open_session(device) as session:
        for _ in range(20):
            Cycle(session.allocate(1 << 18, DType.U8))
        with pytest.raises(OutOfMemory):
            session.allocate(2 << 20, DType.U8)
        assert session.live_objects()["buffers"] == 0
    device.close()


@pytest.mark.anyio
async def test_what_the_collector_found_and_the_device_refuses_fails_no_call() -> None:
    """The session tells of it in the end, as of all that is refused late."""
    device = RecordingBackend()
    with pytest.raises(DeviceError) as caught:
        async with accy_async.open_session(device) as session:
            Cycle(session.allocate(4, DType.F32))
            gc.collect()
            device.fail("destroy", 1)
            assert session.allocate(4, DType.F32).size == 4
    (note,) = caught.value.__notes__
    assert note == "destroying buffer 1 (16 bytes), which nobody held any more"
    assert not any(session.live_objects().values())
