"""What takes more bytes than can be counted is refused where it is declared."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import accy_async
from accy_async import DType
from accy_async.artifact.slots import PlannedSlot, SlotRole
from accy_async.backends import RecordingBackend
from accy_async.backends.array import DeviceArray
from accy_async.bench import Output
from accy_async.compiler.semantic import TensorType
from accy_async.errors import InvalidValue
from accy_async.graph import BufferSlot, HostSlot, LaunchGraphBuilder

LARGEST = 2**63 - 1

TOO_LARGE: list[tuple[DType, tuple[int, ...]]] = [
    (DType.U8, (2**63,)),
    (DType.F64, (2**60,)),
    (DType.F32, (2**31, 2**31)),
    (DType.F32, (0, 2**62)),  # no elements, and no offset within a row
    (DType.U8, (2**32,) * 40),
]

DECLARED: dict[str, Callable[[DType, Any], object]] = {
    "BufferSlot": lambda dtype, shape: BufferSlot("x", dtype, shape),
    "HostSlot": lambda dtype, shape: HostSlot("x", dtype, shape),
    "TensorType": TensorType,
    "Output": lambda dtype, shape: Output(shape, dtype),
    "PlannedSlot": lambda dtype, shape: PlannedSlot(
        slot_id=0, role=SlotRole.INPUT, dtype=dtype, shape=shape
    ),
}


@pytest.mark.parametrize("kind", DECLARED)
@pytest.mark.parametrize(("dtype", "shape"), TOO_LARGE)
def test_a_shape_of_too_many_bytes_is_refused(
    kind: str, dtype: DType, shape: tuple[int, ...]
) -> None:
    with pytest.raises(InvalidValue) as caught:
        DECLARED[kind](dtype, shape)
    error = caught.value
    assert (error.field, error.value) == (f"{kind}.shape", shape)
    assert str(LARGEST) in error.expected


@pytest.mark.parametrize("kind", DECLARED)
def test_the_largest_shapes_are_taken(kind: str) -> None:
    for dtype, shape in (
        (DType.U8, (LARGEST,)),
        (DType.F32, (2**30, 2**31 - 1)),
        (DType.F64, (0, LARGEST // 8, 0)),
    ):
        made: Any = DECLARED[kind](dtype, shape)
        assert made.byte_size <= LARGEST


@pytest.mark.parametrize("method", ["buffer", "scratch", "host"])
def test_a_builder_refuses_it_at_once_and_goes_on(method: str) -> None:
    g = LaunchGraphBuilder()
    with pytest.raises(InvalidValue, match=r"Slot\.shape: got \(2305843009213693952,"):
        getattr(g, method)("x", DType.F32, 2**61)
    getattr(g, method)("x", DType.F32, 4)  # the name is still to be had


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_an_array_is_refused_by_its_shape_before_the_device_is_asked() -> None:
    backend = RecordingBackend()
    calls = len(backend.calls)
    async with accy_async.open_session(backend) as session:
        makers: list[Callable[[DType, tuple[int, ...]], object]] = [
            lambda dtype, shape: session.allocate(shape, dtype),
            lambda dtype, shape: DeviceArray.allocate(backend, shape, dtype),
            lambda dtype, shape: session.adopt_memory(8, shape, dtype, owner=object()),
        ]
        for dtype, shape in TOO_LARGE:
            for make in makers:
                with pytest.raises(InvalidValue) as caught:
                    make(dtype, shape)
                assert caught.value.field == "DeviceArray.shape"
        assert not any(session.live_objects().values())
        assert not [one for one in backend.calls[calls:] if "alloc" in one.kind]
