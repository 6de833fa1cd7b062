"""Device arrays, shown to other libraries: capsules, interfaces, views.

The array's methods (`DeviceArray.__dlpack__` and its like) say what each gives.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

import numpy as np

from accy_async.dtypes import DType
from accy_async.errors import ExchangeRefused, InterfaceMissing
from accy_async.interop.dlpack import CUDA, Tensor, make_capsule
from accy_async.interop.interface import make_interface
from accy_async.interop.streams import LEGACY_DEFAULT

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from accy_async.backends.array import DeviceArray
    from accy_async.backends.base import Backend
    from accy_async.backends.handles import BufferHandle

__all__ = ["capsule", "device", "interface", "numpy_view"]

_NO_WAIT = -1


def device(array: DeviceArray, backend: Backend) -> tuple[int, int]:
    """DLPack's device type and index of an array."""
    found = backend.exchange_device
    if found is None:
        raise ExchangeRefused(
            f"{array!r} cannot be shared: backend {backend.kind} has no memory that "
            "another library could use; await session.download(array) for a copy"
        )
    return found


def capsule(
    array: DeviceArray,
    backend: Backend,
    stream: int | None,
    max_version: tuple[int, int] | None,
    dl_device: tuple[int, int] | None,
    copy: bool | None,
) -> object:
    """A DLPack capsule; see `DeviceArray.__dlpack__`."""
    place = device(array, backend)
    if dl_device is not None and tuple(int(part) for part in dl_device) != place:
        raise ExchangeRefused(
            f"{array!r} is on device {place}, not on {tuple(dl_device)}; await a "
            "download for a copy in host memory"
        )
    is_versioned = max_version is not None and max_version[0] >= 1
    if array.is_read_only and not is_versioned and not copy:
        raise ExchangeRefused(
            f"{array!r} is read-only, which a capsule before DLPack 1 cannot say; ask "
            "with max_version=(1, 0), or for a copy"
        )
    waiting = _check_stream(array, backend, stream)
    if not backend.exchanges_streams:
        _require_idle(array, backend)
        if copy:
            return _capsule_of_copy(array, numpy_view(array, backend), is_versioned)
    handle = array.handle
    if copy:
        handle = backend.copy_for_loan(handle)
    loan = backend.lend_buffer(handle, waiting)
    tensor = _tensor(array, backend, handle, is_read_only=not copy)
    try:
        return make_capsule(
            tensor, loan.end, is_versioned=is_versioned, is_copied=bool(copy)
        )
    finally:
        if copy:
            backend.destroy(handle)  # once the loan has ended


def interface(array: DeviceArray, backend: Backend) -> dict[str, object]:
    """The CUDA array interface; see `DeviceArray.__cuda_array_interface__`."""
    place = backend.exchange_device
    if place is None or place[0] != CUDA:
        raise InterfaceMissing(
            f"{array!r} is not in the memory of a CUDA device; await "
            "session.download(array) for a copy in host memory"
        )
    if array.dtype is DType.BF16:
        raise InterfaceMissing(
            f"{array!r}: the CUDA array interface has no name for bf16; use DLPack"
        )
    waiting = backend.gather_uses(array.handle)
    return make_interface(_tensor(array, backend, array.handle), waiting)


def numpy_view(array: DeviceArray, backend: Backend) -> NDArray[np.generic]:
    """A numpy array over an array's memory; see `DeviceArray.__array__`."""
    if backend.exchanges_streams or backend.exchange_device is None:
        raise ExchangeRefused(
            f"{array!r} is not in host memory; await session.download(array)"
        )
    _require_idle(array, backend)
    name = "uint16" if array.dtype is DType.BF16 else array.dtype.numpy
    if not array.byte_size:
        return np.empty(array.shape, name)
    block = (ctypes.c_uint8 * array.byte_size).from_address(
        backend.buffer_address(array.handle)
    )
    # The view keeps the block, the block the loan, which ends when it goes.
    block.loan = backend.lend_buffer(array.handle, None)  # type: ignore[attr-defined]
    view = np.frombuffer(memoryview(block), np.uint8).view(name).reshape(array.shape)
    view.flags.writeable = not array.is_read_only
    return view


def _tensor(
    array: DeviceArray,
    backend: Backend,
    handle: BufferHandle,
    *,
    is_read_only: bool = True,
) -> Tensor:
    return Tensor(
        address=backend.buffer_address(handle),
        device=device(array, backend),
        dtype=array.dtype,
        shape=array.shape,
        is_read_only=is_read_only and array.is_read_only,
    )


def _check_stream(
    array: DeviceArray, backend: Backend, stream: int | None
) -> int | None:
    """The stream that has to wait; None where none has."""
    if not backend.exchanges_streams:
        if stream is not None:
            raise ExchangeRefused(
                f"{array!r} is in host memory, which has no streams; got stream "
                f"{stream!r}, expected None"
            )
        return None
    if stream is None:
        return LEGACY_DEFAULT
    given: object = stream
    if not isinstance(given, int) or given < _NO_WAIT:
        raise ExchangeRefused(
            f"{array!r}: got stream {stream!r}, expected -1, 1, 2, a stream's number, "
            "or None"
        )
    if stream == 0:
        raise ExchangeRefused(
            f"{array!r}: stream 0 does not say which default stream it means; expected "
            "1 or 2"
        )
    return None if stream == _NO_WAIT else stream


def _require_idle(array: DeviceArray, backend: Backend) -> None:
    if not backend.is_buffer_idle(array.handle):
        raise ExchangeRefused(
            f"{array!r} is in use: await session.wait_array(array) before sharing it"
        )


def _capsule_of_copy(
    array: DeviceArray, view: NDArray[np.generic], is_versioned: bool
) -> object:
    kept = [view.copy()]
    tensor = Tensor(
        address=kept[0].__array_interface__["data"][0] if view.size else 0,
        device=(1, 0),
        dtype=array.dtype,
        shape=array.shape,
    )
    return make_capsule(tensor, kept.clear, is_versioned=is_versioned, is_copied=True)
