"""Arrays of other libraries, as device arrays over the same memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from accy_async.backends.array import DeviceArray, array_byte_size
from accy_async.errors import ExchangeRefused, InvalidType, UnsupportedOperation
from accy_async.interop.dlpack import CUDA
from accy_async.interop.foreign import describe, device_of, is_foreign

if TYPE_CHECKING:
    from collections.abc import Sequence

    from accy_async.backends.base import Backend
    from accy_async.dtypes import DType

__all__ = ["adopt_array", "adopt_memory"]


def adopt_array(
    backend: Backend,
    array: object,
    *,
    dtype: DType | None = None,
    is_read_only: bool = False,
    what: str = "adopt",
) -> DeviceArray:
    """A device array over another library's memory. Sync; never waits, never copies.

    Every use of it here waits for what the other library submitted before, on the
    device. The memory stays, and nothing of it is freed, until the last use here is
    done.

    Args:
        backend: the device, whose memory it has to be.
        array: anything with DLPack or the CUDA array interface; a numpy array for
            the processor. One of this backend is returned as it is.
        dtype: the element type, where the other library's says too little (bf16 as
            uint16); it must have the same size.
        is_read_only: True to refuse what would write to it; what the other library
            says to be read-only is so anyway.
        what: names the array in messages.

    Raises:
        InvalidType: it speaks none of the protocols.
        ExchangeRefused: it is elsewhere, not packed in C order, or holds what has no
            counterpart here (also a BufferError).
        UnsupportedOperation: the backend takes no other's memory.
    """
    if isinstance(array, DeviceArray) and array.is_of(backend):
        return array
    if not is_foreign(array):
        raise InvalidType(what, array, "an array with DLPack or a CUDA array interface")
    place = backend.exchange_device
    if place is None:
        raise UnsupportedOperation(
            f"{what}: backend {backend.kind} takes no memory of other libraries; "
            "await session.asarray(array) for a copy of it there"
        )
    on_cuda = place[0] == CUDA
    exchange, number = None, -1
    there = device_of(array, what)
    is_declared = hasattr(array, "__dlpack__")
    if is_declared:
        if on_cuda and there[0] == CUDA and there[1] != place[1]:
            raise ExchangeRefused(
                f"{what}: its memory is on GPU {there[1]}, expected GPU {place[1]}; "
                "copy it there first"
            )
        if on_cuda and there[0] == CUDA:
            exchange, number = backend.exchange_stream()
    found = describe(
        array, there=there, on_cuda=on_cuda, stream=number, what=what, dtype=dtype
    )
    tensor = found.tensor
    handle = backend.adopt_buffer(
        tensor.address,
        found.byte_size,
        keeper=found.keeper,
        is_read_only=tensor.is_read_only or is_read_only,
        stream=found.stream,
        exchange=exchange,
        is_checked=is_declared,
    )
    return DeviceArray(backend, handle, tensor.shape, tensor.dtype)


def adopt_memory(
    backend: Backend,
    address: int,
    shape: Sequence[int],
    dtype: DType,
    *,
    owner: object,
    is_read_only: bool = False,
    stream: object = None,
) -> DeviceArray:
    """A device array over memory that is told by its address.

    Args:
        backend: the device, whose memory it has to be.
        address: where its first element lies.
        shape: extents, outermost first; packed in C order.
        dtype: the element type.
        owner: keeps the memory alive until the last use here is done.
        is_read_only: True to refuse what would write to it.
        stream: the owner's stream that its last writes are on; None if they are done.

    Raises:
        InvalidType: the address is no integer.
        InvalidValue: the shape or dtype is none.
        ExchangeRefused: the address is none of this device, or not aligned.
        UnsupportedOperation: the backend takes no other's memory.
    """
    if isinstance(address, bool) or not isinstance(address, int):
        raise InvalidType("adopt_memory.address", address, "an int")
    extents = tuple(shape)
    size = array_byte_size(extents, dtype)
    if size and address % dtype.size_bytes:
        raise ExchangeRefused(f"address {address:#x} is not aligned for {dtype}")
    if size and not 0 < address < 2**63 - size:
        raise ExchangeRefused(f"address {address:#x} is that of no memory")
    handle = backend.adopt_buffer(
        address, size, keeper=owner, is_read_only=is_read_only, stream=stream
    )
    return DeviceArray(backend, handle, extents, dtype)
