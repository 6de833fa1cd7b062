"""What cannot be adopted, and what may not be written to, is refused by name."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import accy_async
from accy_async.backends import Backend
from accy_async.backends.adopting import adopt_array
from accy_async.backends.recording import RecordingBackend
from accy_async.dtypes import DType
from accy_async.errors import (
    ExchangeRefused,
    InvalidBuffer,
    InvalidType,
    InvalidValue,
    LaunchArgumentMismatch,
    UnsupportedOperation,
)
from accy_async.graph import LaunchGraphBuilder
from tests.graph.graphs import kernel_entry
from tests.interop.producers import CudaArray, InterfaceArray

pytestmark = pytest.mark.anyio


async def test_a_field_of_structures_is_not_taken_for_packed() -> None:
    """Its elements are 12 bytes apart, and 8 wide: rounded down that would be one."""
    records = np.zeros(4, [("value", "f8"), ("weight", "f4")])
    async with accy_async.open_session("cpu") as session:
        with pytest.raises(ExchangeRefused, match=r"\(12,\) are no multiples of f64"):
            session.adopt(records["value"])
        await session.upload(records["value"].copy())


@pytest.mark.parametrize(
    "view",
    [
        lambda a: a[::2],
        lambda a: a.T,
        lambda a: a[::-1],
        lambda a: np.broadcast_to(a[:1], a.shape),
        np.asfortranarray,
    ],
    ids=["strided", "transposed", "reversed", "broadcast", "fortran"],
)
async def test_views_are_refused(view: Any) -> None:
    values = np.arange(12, dtype=np.float32).reshape(3, 4)
    async with accy_async.open_session("cpu") as session:
        with pytest.raises(ExchangeRefused, match="not packed in C order"):
            session.adopt(view(values))
        assert session.live_objects()["buffers"] == 0


async def test_what_is_packed_is_taken() -> None:
    values = np.arange(12, dtype=np.float32).reshape(3, 4)
    async with accy_async.open_session("cpu") as session:
        for one in (
            values[1:2],
            values[:1].T[:1],
            np.zeros((0, 5), np.float32)[:, ::2],
            np.array(5.0),
        ):
            array = session.adopt(one)
            assert array.shape == one.shape
            assert np.array_equal(await session.download(array), one)


@pytest.mark.parametrize(
    "values",
    [
        np.zeros(3, np.complex64),
        np.zeros(3, ">f4"),
        np.zeros(3, [("a", "f4"), ("b", "i4")]),
        np.array([object()]),
        np.zeros(3, "M8[s]"),
        np.array(["a"]),
    ],
    ids=lambda values: str(values.dtype),
)
async def test_dtypes_without_a_counterpart_are_refused(values: Any) -> None:
    async with accy_async.open_session("cpu") as session:
        with pytest.raises(ExchangeRefused, match="have no counterpart"):
            session.adopt(values)


async def test_misaligned_memory_is_refused() -> None:
    raw = np.zeros(17, np.uint8)
    async with accy_async.open_session("cpu") as session:
        with pytest.raises(ExchangeRefused, match="not aligned for f64"):
            session.adopt(raw[1:].view(np.float64))
        with pytest.raises(ExchangeRefused, match="not aligned"):
            session.adopt_memory(raw.ctypes.data + 1, 2, DType.F64, owner=raw)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (CudaArray(device=(2, 1)), "on GPU 1, expected GPU 0"),
        (CudaArray(device=(10, 0)), "ROCm, expected CUDA"),
        (CudaArray(device=(77, 0)), "device type 77, expected CUDA"),
        (np.zeros(3), "CPU, expected CUDA"),
        (CudaArray(strides=(8, 2)), "not packed"),
        (CudaArray(strides=(0, 1)), "not packed"),
        (CudaArray(strides=(-8, 1)), "not packed"),
        (CudaArray(address=0), "at address 0"),
        (CudaArray(address=0x1002), "not aligned"),
        (InterfaceArray(strides=(16, 4)), "not packed"),
        (InterfaceArray(strides=(32, 3)), "no multiples"),
        (InterfaceArray(stream=0), "stream 0"),
        (InterfaceArray(stream="x"), "stream 'x'"),
        (InterfaceArray(mask=object()), "masked"),
        (InterfaceArray(typestr="<c8"), "complex64 have no counterpart"),
        (InterfaceArray(typestr="|V2"), "have no counterpart"),
        (InterfaceArray(lambda shown: shown.pop("data")), "malformed: KeyError"),
        (InterfaceArray(shape=3), "malformed: TypeError"),
        (InterfaceArray(typestr="what"), "malformed: TypeError"),
        (InterfaceArray(shape=(-1,)), "a shape of"),
    ],
)
def test_flaws_are_named(given: object, message: str) -> None:
    backend = RecordingBackend()
    with pytest.raises(ExchangeRefused, match=message):
        adopt_array(backend, given)
    assert backend.live_objects()["buffers"] == 0


async def test_memory_of_a_gpu_is_refused_by_the_cpu() -> None:
    async with accy_async.open_session("cpu") as session:
        for one in (CudaArray(), InterfaceArray()):
            with pytest.raises(ExchangeRefused, match="CUDA, expected CPU"):
                session.adopt(one)


@pytest.mark.parametrize("given", [None, 3, [1.0], "text", object()])
def test_what_is_no_array_is_refused(given: object) -> None:
    with pytest.raises(InvalidType, match="an array with DLPack"):
        adopt_array(RecordingBackend(), given)


def test_device_without_memory_for_others_says_so() -> None:
    with pytest.raises(UnsupportedOperation, match="takes no memory"):
        adopt_array(RecordingBackend("cpu"), np.zeros(3))


def test_wide_enough_dtypes_may_be_named() -> None:
    backend = RecordingBackend()
    half = InterfaceArray(typestr="|V2")
    assert adopt_array(backend, half, dtype=DType.BF16).dtype is DType.BF16
    assert adopt_array(backend, CudaArray(), dtype=DType.U32).dtype is DType.U32
    with pytest.raises(ExchangeRefused, match="elements of 4 bytes"):
        adopt_array(backend, CudaArray(), dtype=DType.F64)


def read_only_arrays(backend: Backend) -> list[accy_async.DeviceArray]:
    return [
        adopt_array(backend, CudaArray(is_read_only=True)),
        adopt_array(backend, InterfaceArray(data=(0x1000, True))),
        adopt_array(backend, CudaArray(), is_read_only=True),
    ]


def test_nothing_writes_to_read_only_memory() -> None:
    backend = RecordingBackend()
    for array in read_only_arrays(backend):
        assert array.is_read_only
        assert array.binding().access.value == "read_only"
        with pytest.raises(InvalidValue, match="read_only: buffer"):
            array.binding("read_write")
        other = backend.allocate_buffer(128)
        with pytest.raises(InvalidBuffer, match="another library's, and read-only"):
            backend.fill_buffer(array.handle, b"\0")
        with pytest.raises(InvalidBuffer, match="another library's, and read-only"):
            backend.write_buffer(array.handle, bytes(128))
        with pytest.raises(InvalidBuffer, match="another library's, and read-only"):
            backend.copy_buffer(other, array.handle)
        backend.copy_buffer(array.handle, other)
    assert (backend.fill_count, backend.write_count, backend.copy_count) == (0, 0, 3)


async def test_plans_that_write_refuse_read_only_arrays() -> None:
    builder = LaunchGraphBuilder()
    data = builder.buffer("data", DType.F32, (4, 8))
    builder.kernel(kernel_entry(1), [data.read_write])
    plan = builder.build()
    backend = RecordingBackend()
    async with accy_async.open_session(backend) as session:
        for array in read_only_arrays(session.backend):
            with pytest.raises(LaunchArgumentMismatch, match=r"\['data'\].*read-only"):
                await session.run(plan, {"data": array})
        with pytest.raises(LaunchArgumentMismatch, match="read-only"):
            await session.run(plan, {"data": CudaArray(is_read_only=True)})
        assert backend.launch_count == 0
        await session.run(plan, {"data": CudaArray()})
        assert backend.launch_count == 1
