"""Copies are faithful, bounded, and particular about host memory."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from accy_async.dtypes import DType
from accy_async.errors import InvalidBuffer, ReadBufferDestinationTooSmall
from tests.conformance.devices import Device

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("dtype", DType)
@pytest.mark.parametrize("offset", [0, 1, 7, 64])
async def test_copy_is_faithful_for_every_dtype_and_offset(
    device: Device, dtype: DType, offset: int
) -> None:
    backend = device.backend
    raw = np.random.default_rng(offset).integers(
        0, 256, 37 * dtype.size_bytes, np.uint8
    )
    # bf16 has no numpy dtype; its bits travel as u16.
    array = raw.view(np.uint16 if dtype is DType.BF16 else dtype.numpy)
    buffer = backend.allocate_buffer(raw.nbytes + offset)
    backend.write_buffer(buffer, array, offset_bytes=offset)
    out = np.ones_like(array)
    backend.read_buffer(buffer, out, offset_bytes=offset)
    await backend.wait_default_stream()
    expected = array.tobytes() if device.executes else bytes(array.nbytes)
    assert out.tobytes() == expected


async def test_write_touches_nothing_beside_its_range(device: Device) -> None:
    backend = device.backend
    buffer = backend.allocate_buffer(64)
    backend.write_buffer(buffer, bytes(range(64)))
    backend.write_buffer(buffer, b"\xff" * 16, offset_bytes=24)
    out = bytearray(64)
    backend.read_buffer(buffer, out)
    await backend.wait_default_stream()
    expected = bytearray(range(64))
    expected[24:40] = b"\xff" * 16
    assert out == (expected if device.executes else bytearray(64))


async def test_large_copy_is_faithful(device: Device) -> None:
    """Large enough to be split, and no multiple of anything."""
    backend = device.backend
    array = np.arange(5_000_003, dtype=np.uint32)
    buffer = backend.allocate_buffer(array.nbytes + 3)
    out = np.ones_like(array)
    for _ in range(3):
        backend.write_buffer(buffer, array, offset_bytes=3)
        backend.read_buffer(buffer, out, offset_bytes=3)
    await backend.wait_default_stream()
    assert np.array_equal(out, array if device.executes else np.zeros_like(array))


async def test_partial_read_leaves_the_rest_of_the_destination(device: Device) -> None:
    backend = device.backend
    buffer = backend.allocate_buffer(8)
    backend.write_buffer(buffer, b"abcdefgh")
    out = bytearray(b"........")
    backend.read_buffer(buffer, out, byte_size=3, offset_bytes=2)
    await backend.wait_default_stream()
    assert bytes(out) == (b"cde....." if device.executes else b"\0\0\0.....")


@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 3, 2)])
async def test_empty_copies_complete(device: Device, shape: tuple[int, ...]) -> None:
    """C54: zero bytes are a completed no-op, whatever their shape."""
    backend = device.backend
    empty = np.empty(shape, np.float32)
    for size in (0, 8):
        buffer = backend.allocate_buffer(size)
        backend.write_buffer(buffer, empty, offset_bytes=size)
        backend.read_buffer(buffer, empty, offset_bytes=size)
        backend.read_buffer(buffer, bytearray(4), byte_size=0)
    backend.write_buffer(buffer, b"")
    await backend.wait_default_stream()
    assert empty.shape == shape


@pytest.mark.parametrize(
    ("offset", "size"), [(0, 17), (16, 1), (17, 0), (-1, 4), (2**64, 1), (9, 8)]
)
async def test_copy_beyond_the_bounds_changes_nothing(
    device: Device, offset: int, size: int
) -> None:
    backend = device.backend
    buffer = backend.allocate_buffer(16)
    backend.write_buffer(buffer, bytes(range(16)))
    await backend.wait_default_stream()
    why = "passes the end" if offset >= 0 else "expected 0 or more"
    with pytest.raises(InvalidBuffer, match=why):
        backend.write_buffer(buffer, b"\xff" * size, offset_bytes=offset)
    out = bytearray(b"\xaa" * size)
    with pytest.raises(InvalidBuffer, match=why):
        backend.read_buffer(buffer, out, offset_bytes=offset)
    assert out == b"\xaa" * size
    assert backend.is_stream_idle()
    whole = bytearray(16)
    backend.read_buffer(buffer, whole)
    await backend.wait_default_stream()
    assert whole == (bytes(range(16)) if device.executes else bytes(16))


async def test_destination_too_small_is_refused(device: Device) -> None:
    buffer = device.backend.allocate_buffer(16)
    with pytest.raises(ReadBufferDestinationTooSmall, match=r"16 bytes.*15 bytes"):
        device.backend.read_buffer(buffer, bytearray(15), byte_size=16)


RECORD = np.dtype([("id", "<u2"), ("weight", "<f4")])
RIGHT: dict[str, Callable[[], np.ndarray]] = {
    "c order": lambda: np.arange(12, dtype=np.int32).reshape(3, 4),
    "0-d": lambda: np.array(7, np.int64),
    "contiguous slice": lambda: np.arange(20, dtype=np.int16)[3:9],
    "structured": lambda: np.array([(1, 2.0), (3, 4.0)], RECORD),
    "big-endian": lambda: np.arange(4).astype(">i4"),
    "read-only": lambda: np.frombuffer(b"constant", np.uint8),
    "datetime": lambda: np.arange(3).astype("datetime64[s]"),
}
STRIDED: dict[str, Callable[[], np.ndarray]] = {
    "every other": lambda: np.arange(10)[::2],
    "reversed": lambda: np.arange(10)[::-1],
    "transposed": lambda: np.arange(12).reshape(3, 4).T,
    "broadcast": lambda: np.broadcast_to(np.float32(1), 1000),
    "fortran": lambda: np.asfortranarray(np.arange(12).reshape(3, 4)),
    "field": lambda: np.zeros(4, RECORD)["weight"],
}


@pytest.mark.parametrize("case", RIGHT)
async def test_contiguous_host_arrays_are_right(device: Device, case: str) -> None:
    """C56, the layouts that are taken: equal to numpy's bytes."""
    backend, array = device.backend, RIGHT[case]()
    buffer = backend.allocate_buffer(array.nbytes)
    backend.write_buffer(buffer, array)
    out = np.empty_like(array)
    backend.read_buffer(buffer, out)
    await backend.wait_default_stream()
    assert out.tobytes() == (
        array.tobytes() if device.executes else bytes(array.nbytes)
    )


@pytest.mark.parametrize("case", STRIDED)
async def test_strided_host_arrays_are_refused(device: Device, case: str) -> None:
    """C56, the layouts that are not: refused with the way out, both ways."""
    backend, array = device.backend, STRIDED[case]()
    buffer = backend.allocate_buffer(array.nbytes)
    with pytest.raises(InvalidBuffer, match="ascontiguousarray"):
        backend.write_buffer(buffer, array)
    with pytest.raises(InvalidBuffer, match="ascontiguousarray"):
        backend.read_buffer(buffer, array)
    backend.write_buffer(buffer, np.ascontiguousarray(array))
    await backend.wait_default_stream()


async def test_host_memory_that_cannot_be_copied_is_refused(device: Device) -> None:
    backend = device.backend
    buffer = backend.allocate_buffer(64)
    read_only = np.zeros(4)
    read_only.flags.writeable = False
    for out in (read_only, b"constant", memoryview(b"constant")):
        with pytest.raises(InvalidBuffer, match="read-only"):
            backend.read_buffer(buffer, out)
    with pytest.raises(InvalidBuffer, match="holds no values"):
        backend.write_buffer(buffer, np.array([object()]))
    for thing in (7, "text", [1, 2], None):
        with pytest.raises(InvalidBuffer, match="expected an array or bytes"):
            backend.write_buffer(buffer, thing)
    assert backend.is_stream_idle()


@pytest.mark.parametrize("alignment", [1, 4, 256, 4096])
async def test_buffers_of_any_alignment_hold_data(
    device: Device, alignment: int
) -> None:
    backend = device.backend
    buffer = backend.allocate_buffer(8, alignment=alignment)
    backend.write_buffer(buffer, b"12345678")
    out = bytearray(8)
    backend.read_buffer(buffer, out)
    await backend.wait_default_stream()
    assert out == (b"12345678" if device.executes else bytes(8))


def test_impossible_allocations_are_refused(device: Device) -> None:
    before = device.new_objects()
    for size, alignment in ((-1, 256), (4, 0), (4, 3), (4, -2)):
        with pytest.raises(InvalidBuffer):
            device.backend.allocate_buffer(size, alignment=alignment)
    assert device.new_objects() == before
