"""Device arrays that other libraries have: views, lifetimes, streams that wait."""

from __future__ import annotations

import gc
import os
import threading
import time
import weakref
from collections.abc import Callable

import anyio
import numpy as np
import pytest

import accy_async
from accy_async.backends.array import DeviceArray
from accy_async.backends.cpu import CpuBackend
from accy_async.backends.recording import RecordingBackend
from accy_async.dtypes import DType
from accy_async.errors import ExchangeRefused, InterfaceMissing, InvalidBuffer
from accy_async.interop.dlpack import CPU, CUDA, take_capsule
from tests.conformance.devices import CpuDevice

pytestmark = pytest.mark.anyio


def until(condition: Callable[[], bool]) -> None:
    """Wait for what the thread of the loans does."""
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def recorded(shape: tuple[int, ...] = (4, 8)) -> tuple[RecordingBackend, DeviceArray]:
    backend = RecordingBackend()
    return backend, DeviceArray.allocate(backend, shape, DType.F32)


async def test_numpy_sees_and_changes_the_same_memory() -> None:
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    async with accy_async.open_session("cpu") as session:
        array = await session.upload(values)
        for view in (np.from_dlpack(array), np.asarray(array)):
            assert view.shape == (2, 3)
            assert np.array_equal(view, values)
            view[1, 2] += 1
            values[1, 2] += 1
            assert np.array_equal(await session.download(array), values)
        assert array.__dlpack_device__() == (CPU, 0)
        assert np.array_equal(np.array(array, dtype=np.float64), values)
        assert np.asarray(array, dtype=np.float64).dtype == np.float64


@pytest.mark.parametrize("dtype", list(DType), ids=str)
async def test_every_dtype_goes_out_and_comes_back(dtype: DType) -> None:
    raw = np.arange(1, 5).astype("uint16" if dtype is DType.BF16 else dtype.numpy)
    async with accy_async.open_session("cpu") as session:
        array = await session.upload(raw, dtype=dtype)
        assert np.array_equal(np.asarray(array), raw)
        taken = take_capsule(array.__dlpack__(max_version=(1, 0)), "it").tensor
        assert (taken.dtype, taken.shape) == (dtype, (4,))
        back = session.adopt(np.asarray(array), dtype=dtype)
        assert back.dtype is dtype


async def test_memory_outlives_array_session_and_backend() -> None:
    async with accy_async.open_session("cpu") as session:
        array = await session.upload(np.arange(5, dtype=np.int64))
        view = np.from_dlpack(array)
        array.free()
        assert session.live_objects()["buffers"] == 1
        assert session.backend.reaper.held() == ("buffer 1 (40 bytes), exported",)
        with pytest.raises(InvalidBuffer, match="cannot be shared: it was freed"):
            np.from_dlpack(array)
    assert view.tolist() == [0, 1, 2, 3, 4]
    assert session.live_objects()["buffers"] == 1
    del view
    until(lambda: not any(session.live_objects().values()))


async def test_leaving_a_session_tells_of_no_expired_grace() -> None:
    async with accy_async.open_session("cpu", grace=0.05) as session:
        kept = np.asarray(await session.upload(np.zeros(3)))
    assert kept.tolist() == [0, 0, 0]


def test_every_loan_has_to_end() -> None:
    backend = CpuBackend()
    array = DeviceArray.allocate(backend, (16,), DType.U8)
    views = [np.from_dlpack(array), np.asarray(array), np.from_dlpack(array)]
    array.free()
    while views:
        assert backend.live_objects()["buffers"] == 1
        views.pop()
    until(lambda: backend.live_objects()["buffers"] == 0)
    assert backend.bytes_in_use == 0
    backend.close()


def test_many_threads_let_go_at_once() -> None:
    backend, array = recorded()
    capsules = [[array.__dlpack__(stream=-1)] for _ in range(64)]
    threads = [threading.Thread(target=kept.clear) for kept in capsules]
    array.free()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    until(lambda: backend.live_objects()["buffers"] == 0)
    assert backend.destroyed_ids == [1]


def test_loan_ends_within_the_collector_under_the_backends_own_lock() -> None:
    """A deleter that took a lock would deadlock here."""
    backend, array = recorded()
    circle: list[object] = [array.__dlpack__(stream=-1)]
    circle.append(circle)
    array.free()
    held = threading.Event()
    release = threading.Event()

    def hold() -> None:
        with backend._lock:
            held.set()
            release.wait(20)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(20)
    del circle
    gc.collect()  # returns, though another thread has the lock
    release.set()
    thread.join()
    until(lambda: backend.live_objects()["buffers"] == 0)


def test_interface_is_a_loan_for_as_long_as_the_array_is() -> None:
    backend, array = recorded()
    shown = array.__cuda_array_interface__
    assert shown["data"] == (backend.buffer_address(array.handle), False)
    assert (shown["shape"], shown["typestr"], shown["version"], shown["strides"]) == (
        (4, 8),
        "<f4",
        3,
        None,
    )
    assert shown["stream"] is None  # nothing is under way
    array.free()
    backend.live_objects()
    assert backend.reaper.held() == ("buffer 1 (128 bytes), exported",)
    gone = weakref.ref(array)
    del array
    assert gone() is None
    until(lambda: backend.live_objects()["buffers"] == 0)


def test_interface_is_missing_where_it_says_nothing() -> None:
    cpu = CpuBackend()
    on_cpu = DeviceArray.allocate(cpu, (3,), DType.F32)
    bf16 = DeviceArray.allocate(RecordingBackend(), (3,), DType.BF16)
    for array in (on_cpu, bf16):
        assert not hasattr(array, "__cuda_array_interface__")
        with pytest.raises(InterfaceMissing):
            _ = array.__cuda_array_interface__
    cpu.close()


def test_consumers_stream_waits_for_every_use() -> None:
    backend, array = recorded()
    streams = [backend.create_stream() for _ in range(3)]
    idle = backend.create_stream()
    for stream in streams:
        backend.hold(stream)
        backend.fill_buffer(array.handle, b"\0", stream=stream)
    capsule = array.__dlpack__(stream=0x77)
    numbers = [backend.native_stream(stream).handle for stream in streams]
    assert backend.exchanges == [("lead", number, 0x77) for number in numbers]
    assert backend.native_stream(idle).handle not in numbers
    del capsule
    backend.release_all()
    backend.close()


@pytest.mark.parametrize(("given", "waiting"), [(None, 1), (1, 1), (2, 2), (99, 99)])
def test_stream_numbers_mean_what_dlpack_says(given: int | None, waiting: int) -> None:
    backend, array = recorded()
    backend.hold(None)
    backend.fill_buffer(array.handle, b"\0")
    capsule = array.__dlpack__(stream=given)
    assert [theirs for _, _, theirs in backend.exchanges] == [waiting]
    array.__dlpack__(stream=-1)
    assert len(backend.exchanges) == 1 or backend.exchanges[1][0] == "follow"
    del capsule
    backend.release_all()
    backend.close()


def test_interface_names_a_stream_that_waits_for_every_use() -> None:
    backend, array = recorded()
    stream = backend.create_stream()
    backend.hold(stream)
    backend.fill_buffer(array.handle, b"\0", stream=stream)
    number = array.__cuda_array_interface__["stream"]
    (exchange,) = backend._exchange
    assert number == backend._stream_number(exchange)
    assert not exchange.timeline.is_idle
    backend.release(stream)
    assert exchange.timeline.is_idle
    del array
    backend.close()


@pytest.mark.parametrize("stream", [0, -2, 1.5, "1", object()])
def test_wrong_streams_are_refused(stream: object) -> None:
    _, array = recorded()
    with pytest.raises(ExchangeRefused, match="stream"):
        array.__dlpack__(stream=stream)  # type: ignore[arg-type]


async def test_what_cannot_be_had_is_refused_as_a_buffer_error() -> None:
    backend, array = recorded()
    assert array.__dlpack_device__() == (CUDA, 0)
    with pytest.raises(BufferError, match="await a download"):
        array.__dlpack__(dl_device=(CPU, 0))
    with pytest.raises(ExchangeRefused, match="not in host memory"):
        np.asarray(array)
    on_nothing = DeviceArray.allocate(RecordingBackend("cpu"), (2,), DType.F32)
    with pytest.raises(ExchangeRefused, match="no memory that"):
        on_nothing.__dlpack__()
    async with accy_async.open_session("cpu") as session:
        host = session.allocate(4, DType.F32)
        with pytest.raises(ExchangeRefused, match="has no streams"):
            host.__dlpack__(stream=1)
        values = np.arange(4)
        values.flags.writeable = False
        frozen = session.adopt(values)
        assert not np.asarray(frozen).flags.writeable
        with pytest.raises(ExchangeRefused, match="read-only"):
            frozen.__dlpack__()
        assert take_capsule(
            frozen.__dlpack__(max_version=(1, 0)), "it"
        ).tensor.is_read_only
        assert not take_capsule(frozen.__dlpack__(copy=True), "it").tensor.is_read_only
    backend.close()


async def test_host_memory_in_use_has_to_be_awaited() -> None:
    device = CpuDevice()
    backend = device.backend
    array = DeviceArray.allocate(backend, (4,), DType.U32)
    release = device.hold()
    backend.fill_buffer(array.handle, b"\1")
    with pytest.raises(ExchangeRefused, match="in use: await session"):
        np.from_dlpack(array)
    with anyio.move_on_after(0.01) as scope:
        await backend.wait_buffer(array.handle)
    assert scope.cancelled_caught  # and a cancelled wait lends nothing
    release()
    await backend.wait_buffer(array.handle)
    assert np.asarray(array).tolist() == [0x01010101] * 4
    array.free()
    device.close()


async def test_copies_are_the_consumers_own() -> None:
    async with accy_async.open_session("cpu") as session:
        array = await session.upload(np.arange(4))
        copy = take_capsule(array.__dlpack__(copy=True, max_version=(1, 0)), "it")
        view = np.asarray(array)
        assert copy.tensor.address != view.ctypes.data
        view[:] = 0
    backend, ours = recorded()
    kept = ours.__dlpack__(copy=True, stream=5)
    assert (backend.copy_count, backend.live_objects()["buffers"]) == (1, 2)
    del kept
    until(lambda: backend.live_objects()["buffers"] == 1)


def test_a_buffer_given_back_is_freed_behind_all_that_the_device_was_given() -> None:
    """C01: nobody knows on which streams the memory was used."""
    backend, array = recorded()
    capsule = array.__dlpack__(stream=-1)
    exchange = backend._open_exchange()
    exchange.is_held = True  # type: ignore[attr-defined]
    array.free()
    del capsule
    until(
        lambda: any(one[0] == "follow" and one[2] is None for one in backend.exchanges)
    )
    until(lambda: not backend.reaper.held()[0].endswith("exported"))
    assert backend.destroyed_ids == []
    exchange.is_held = False  # type: ignore[attr-defined]
    backend._pump()
    assert backend.destroyed_ids == [1]


def test_a_device_that_refuses_is_asked_again() -> None:
    backend, array = recorded()
    answers = [False, False, True]
    follow = backend._follow

    def refuse(stream: object, position: int, number: int | None) -> bool:
        return answers.pop(0) and follow(stream, position, number)  # type: ignore[arg-type]

    backend._follow = refuse  # type: ignore[method-assign]
    capsule = array.__dlpack__(stream=-1)
    array.free()
    del capsule
    until(lambda: backend.live_objects()["buffers"] == 0)
    assert answers == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_child_lets_its_parents_loans_be() -> None:
    backend, array = recorded()
    capsule = array.__dlpack__(stream=-1)
    child = os.fork()
    if not child:
        del capsule
        fresh = RecordingBackend()
        ours = DeviceArray.allocate(fresh, (4,), DType.F32)
        lent = ours.__dlpack__(stream=-1)
        ours.free()
        del lent
        deadline = time.monotonic() + 10
        while fresh.live_objects()["buffers"] and time.monotonic() < deadline:
            time.sleep(0.001)
        os._exit(fresh.live_objects()["buffers"])
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    array.free()
    assert backend.live_objects()["buffers"] == 1
    del capsule
    until(lambda: backend.live_objects()["buffers"] == 0)
