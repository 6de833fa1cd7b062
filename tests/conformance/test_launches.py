"""Launches: arguments checked, scalars exact, zero work a completed no-op."""

from __future__ import annotations

import struct

import anyio
import attrs
import numpy as np
import pytest

from accy_async.backends import BufferAccess
from accy_async.dtypes import DType, ScalarArgument
from accy_async.errors import (
    InvalidStream,
    InvalidType,
    LaunchArgumentMismatch,
    OutOfRange,
)
from tests.conformance.devices import Device

pytestmark = pytest.mark.anyio

# Each Python and numpy kind of value, and the dtypes that take it.
_INTS = frozenset(d for d in DType if d.is_integer)
_FLOATS = frozenset(d for d in DType if d.is_float)
_BOOL = frozenset({DType.BOOL})
TABLE: dict[str, tuple[object, frozenset[DType]]] = {
    "int": (5, _INTS | _FLOATS),
    "float": (1.5, _FLOATS),
    "bool": (True, _BOOL),
    "0-d int": (np.array(5), _INTS | _FLOATS),
    "0-d float": (np.array(1.5), _FLOATS),
    "0-d bool": (np.array(True), _BOOL),
    "np.bool_": (np.bool_(True), _BOOL),
    **{
        f"np.{kind}": (np.dtype(kind).type(5), _INTS | _FLOATS)
        for kind in ("i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8")
    },
    **{
        f"np.{kind}": (np.dtype(kind).type(1.5), _FLOATS) for kind in ("f2", "f4", "f8")
    },
    "str": ("5", frozenset()),
    "None": (None, frozenset()),
    "complex": (5 + 0j, frozenset()),
    "1-d": (np.array([5]), frozenset()),
}


async def echo(device: Device, scalar: ScalarArgument) -> bytes:
    """What a kernel finds where its scalar is."""
    artifact = device.echo_artifact(scalar.dtype)
    out = bytearray(scalar.dtype.size_bytes)
    buffer = device.backend.allocate_buffer(len(out))
    device.backend.launch(device.request(artifact, [buffer], [scalar]))
    device.backend.read_buffer(buffer, out)
    await device.backend.wait_default_stream()
    return bytes(out)


@pytest.mark.parametrize("dtype", DType)
async def test_scalar_arrives_exactly_or_is_refused(
    device: Device, dtype: DType
) -> None:
    """C23: the exact value, or a TypeError naming the type; never other bits."""
    for name, (value, takes) in TABLE.items():
        if dtype not in takes:
            with pytest.raises(InvalidType, match=str(dtype)):
                ScalarArgument.of(dtype, value)
            continue
        scalar = ScalarArgument.of(dtype, value)
        found = await echo(device, scalar)
        if not device.executes:
            assert found == bytes(dtype.size_bytes)
            continue
        assert found == scalar.to_bytes(), name
        if dtype is DType.BF16:
            widened = struct.unpack("<f", b"\0\0" + found)[0]
            assert widened == value
        else:
            assert np.frombuffer(found, dtype.numpy)[0] == value


@pytest.mark.parametrize("dtype", DType)
async def test_extreme_scalars_arrive_exactly(device: Device, dtype: DType) -> None:
    values: list[object] = [dtype.minimum, dtype.maximum]
    if dtype is DType.BOOL:
        values = [False, True]
    if dtype.is_float:
        values += [float("inf"), float("-inf"), float("nan"), -0.0]
    for value in values:
        scalar = ScalarArgument.of(dtype, value)
        found = await echo(device, scalar)
        assert found == (scalar.to_bytes() if device.executes else bytes(len(found)))


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        (DType.I32, 2**40),
        (DType.U32, -1),
        (DType.U8, 256),
        (DType.I8, np.int64(128)),
        (DType.U64, 2**64),
        (DType.F16, 65520),
        (DType.F32, 2**25 + 1),
        (DType.F32, 1e39),
    ],
)
def test_scalar_that_does_not_fit_is_refused(dtype: DType, value: object) -> None:
    with pytest.raises(OutOfRange, match=str(dtype)):
        ScalarArgument.of(dtype, value)


@pytest.mark.parametrize("grid", [(0, 1, 1), (1, 0, 1), (4, 4, 0), (0, 0, 0)])
async def test_grid_of_no_blocks_is_a_completed_no_op(
    device: Device, grid: tuple[int, int, int]
) -> None:
    """C54: nothing runs, nothing is recorded, dependents see the input."""
    backend = device.backend
    buffer = device.write([4])
    event = backend.create_event()
    backend.launch(device.request("count", [buffer], grid=grid))
    backend.record_event(event)
    backend.stream_wait_event(None, event)
    device.mix(buffer, 1)
    assert await device.read(buffer) == [4 * 31 + 1 if device.executes else 0]


async def test_zero_grid_is_checked_like_any_other(device: Device) -> None:
    request = device.request("count", [device.write([1])], grid=(0, 1, 1))
    with pytest.raises(LaunchArgumentMismatch, match="takes 1 buffers"):
        device.backend.launch(attrs.evolve(request, buffers=()))


async def test_argument_counts_are_checked(device: Device) -> None:
    buffer = device.write([1])
    await device.backend.wait_default_stream()
    scalar = ScalarArgument.u32(1)
    request = device.request("mix", [buffer], [scalar])
    for change in (
        {"buffers": ()},
        {"buffers": request.buffers * 2},
        {"scalars": ()},
        {"scalars": (scalar, scalar)},
    ):
        with pytest.raises(LaunchArgumentMismatch, match="'mix'"):
            device.backend.launch(attrs.evolve(request, **change))
    assert device.backend.is_stream_idle()


async def test_arguments_are_checked_against_the_kernel(device: Device) -> None:
    if not device.executes or not device.knows_parameters:
        pytest.skip("the backend does not know what parameters a kernel has")
    backend = device.backend
    buffer = device.write([1])
    await backend.wait_default_stream()
    request = device.request("mix", [buffer], [ScalarArgument.u32(1)])
    read_only = (attrs.evolve(request.buffers[0], access=BufferAccess.READ_ONLY),)
    part = (attrs.evolve(request.buffers[0], byte_size=3),)
    block = attrs.evolve(request.geometry, threadgroup=(2, 1, 1))
    for change, message in (
        ({"scalars": (ScalarArgument.i32(1),)}, r"scalar 0 is i32\(1\), expected u32"),
        (
            {"scalars": (ScalarArgument.f32(1),)},
            r"scalar 0 is f32\(1.0\), expected u32",
        ),
        (
            {"buffers": read_only},
            "access of buffer 0 is read_only, expected read_write",
        ),
        ({"buffers": part}, "buffer 0 is 3 bytes, expected whole elements of u32"),
        ({"geometry": block}, r"threadgroup is \(2, 1, 1\), expected \(1, 1, 1\)"),
    ):
        with pytest.raises(LaunchArgumentMismatch, match=message):
            backend.launch(attrs.evolve(request, **change))
    assert backend.is_stream_idle()
    assert await device.read(buffer) == [1]


async def test_same_request_can_be_launched_again_and_again(device: Device) -> None:
    buffer = device.write([0])
    request = device.request("mix", [buffer], [ScalarArgument.u32(1)])
    for _ in range(5):
        device.backend.launch(request)
    expected = 0
    for _ in range(5):
        expected = expected * 31 + 1
    assert await device.read(buffer) == [expected if device.executes else 0]


async def test_a_bound_launch_takes_other_arguments_from_the_next_one_on(
    device: Device,
) -> None:
    """What is submitted already keeps those that it had."""
    first, second = device.write([1]), device.write([2])
    request = device.request("mix", [first], [ScalarArgument.u32(5)])
    launcher = device.backend.bind_launch(request)
    launcher.submit()
    launcher.set_scalar(0, 7)
    launcher.submit()
    launcher.set_buffer(0, attrs.evolve(request.buffers[0], handle=second))
    launcher.submit()
    expected = [(1 * 31 + 5) * 31 + 7, 2 * 31 + 7] if device.executes else [0, 0]
    assert [(await device.read(b))[0] for b in (first, second)] == expected


async def test_a_bound_launch_is_awaited_by_itself(device: Device) -> None:
    """On any stream; a wait that is cancelled leaves the launch."""
    backend = device.backend
    for stream in (None, backend.create_stream()):
        buffer = device.write([1])
        request = device.request("mix", [buffer], [ScalarArgument.u32(5)])
        launcher = backend.bind_launch(attrs.evolve(request, stream=stream))
        await backend.wait_device()
        for _ in range(3):
            await launcher.run()
            assert backend.is_stream_idle(stream)
        with anyio.CancelScope() as scope:
            scope.cancel()
            await launcher.run()
        assert scope.cancelled_caught
        await launcher.run()
        expected = 1
        for _ in range(5):
            expected = expected * 31 + 5
        assert await device.read(buffer) == [expected if device.executes else 0]
    if stream is not None:
        backend.destroy(stream)
        with pytest.raises(InvalidStream):
            await launcher.run()


async def test_one_buffer_may_be_bound_twice(device: Device) -> None:
    buffer = device.write([3])
    device.backend.launch(device.request("combine", [buffer, buffer]))
    assert await device.read(buffer) == [3 * 32 if device.executes else 0]
