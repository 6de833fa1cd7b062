"""What is wrong in a call about arrays or memory is said, before anything happens."""

from __future__ import annotations

import numpy as np
import pytest

from accy_async import DType, open_session
from accy_async.backends import RecordingBackend
from accy_async.backends.base import Backend
from accy_async.backends.cpu import CpuBackend
from accy_async.errors import (
    InvalidBuffer,
    InvalidType,
    OutOfMemory,
    ReadBufferDestinationTooSmall,
)

pytestmark = pytest.mark.anyio

BACKENDS = pytest.mark.parametrize("kind", [CpuBackend, RecordingBackend])


async def test_a_dtype_of_equal_size_is_refused_in_both_directions() -> None:
    """Both dtypes are named, and the call that copies the bits as they are."""
    device = RecordingBackend()
    async with open_session(device) as session:
        array = session.allocate((4,), DType.F32)
        for other in (np.int32, np.uint32, np.dtype(">f4")):
            host = np.zeros(4, other)
            message = rf"of {host.dtype}, .*f32.* takes float32; .*view\('float32'\)"
            with pytest.raises(InvalidBuffer, match=f"write: .*{message}"):
                await session.write(array, host)
            with pytest.raises(InvalidBuffer, match=f"download: .*{message}"):
                await session.download(array, out=host)
        with pytest.raises(InvalidBuffer, match=r"float64.* takes float32"):
            await session.write(array, np.zeros(2, np.float64))
        assert device.write_count + device.read_count == 0


async def test_bits_are_copied_as_they_are_through_a_view() -> None:
    """Numpy's own reinterpretation says that it is meant."""
    async with open_session("cpu") as session:
        array = session.allocate((2,), DType.F32)
        bits = np.array([0x3F800000, 0x40000000], np.uint32)
        await session.write(array, bits.view(np.float32))
        out = np.zeros(2, np.uint32)
        await session.download(array, out=out.view(np.float32))
        assert out.tolist() == bits.tolist()
        assert (await session.download(array)).tolist() == [1.0, 2.0]


async def test_bf16_travels_as_uint16_in_both_directions() -> None:
    """Numpy has no name for it."""
    async with open_session("cpu") as session:
        array = await session.upload(np.array([1, 2], np.uint16), dtype=DType.BF16)
        await session.write(array, np.array([3, 4], np.uint16))
        out = np.zeros(2, np.uint16)
        assert await session.download(array, out=out) is out
        assert out.tolist() == [3, 4]
        with pytest.raises(InvalidBuffer, match=r"float16, .*bf16.* takes uint16"):
            await session.write(array, np.zeros(2, np.float16))


async def test_sizes_are_looked_at_first() -> None:
    """A wrong size says so, whatever the dtype."""
    async with open_session("recording") as session:
        array = session.allocate((4,), DType.F32)
        with pytest.raises(InvalidBuffer, match="write: 8 bytes for"):
            await session.write(array, np.zeros(2, np.int32))
        with pytest.raises(ReadBufferDestinationTooSmall):
            await session.download(array, out=np.zeros(2, np.int32))


@pytest.mark.parametrize("wrong", [5, None, "x", np.zeros(4, np.float32)])
async def test_what_is_no_device_array_is_refused(wrong: object) -> None:
    """By the names of the call and its argument."""
    async with open_session("recording") as session:
        with pytest.raises(InvalidType, match=r"download\.source.*a DeviceArray"):
            await session.download(wrong)  # type: ignore[arg-type]
        with pytest.raises(InvalidType, match=r"write\.target.*a DeviceArray"):
            await session.write(wrong, np.zeros(4, np.float32))  # type: ignore[arg-type]


@BACKENDS
@pytest.mark.parametrize("wrong", [3.5, "4", None, True, np.float32(4)])
def test_a_size_that_is_no_integer_takes_no_memory(
    kind: type[Backend], wrong: object
) -> None:
    """Nor does an alignment."""
    backend = kind()  # type: ignore[call-arg]
    with pytest.raises(InvalidType, match=r"allocate_buffer\.byte_size.*an integer"):
        backend.allocate_buffer(wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidType, match=r"allocate_buffer\.alignment.*an integer"):
        backend.allocate_buffer(4, alignment=wrong)  # type: ignore[arg-type]
    assert not any(backend.live_objects().values())
    if isinstance(backend, CpuBackend):
        assert backend.bytes_in_use == 0
    backend.close()


@BACKENDS
def test_a_size_beyond_all_measure_takes_no_memory(kind: type[Backend]) -> None:
    """Also where the device would say yes to anything."""
    backend = kind()  # type: ignore[call-arg]
    for size in (-1, 2**63, 2**200):
        with pytest.raises((InvalidBuffer, OutOfMemory)):
            backend.allocate_buffer(size)
    assert not any(backend.live_objects().values())
    backend.close()
