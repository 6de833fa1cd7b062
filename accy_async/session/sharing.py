"""Arrays, memory and streams of other libraries in a session, without a copy."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from accy_async.backends.adopting import adopt_array, adopt_memory
from accy_async.backends.array import DeviceArray
from accy_async.errors import ExchangeRefused
from accy_async.interop.dlpack import CPU, CUDA_HOST
from accy_async.interop.foreign import device_of, is_foreign
from accy_async.session.arrays import SessionArrays, check_array, extents_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from accy_async.backends.handles import StreamHandle
    from accy_async.dtypes import DType
    from accy_async.interop.streams import NativeStream

__all__ = ["SessionSharing"]


class SessionSharing(SessionArrays):
    """What a session exchanges with other libraries."""

    def adopt(
        self, array: object, *, dtype: DType | None = None, read_only: bool = False
    ) -> DeviceArray:
        """Use another library's array where it is. Sync; never waits, never copies.

        Every use of it here waits, on the device, for what the other library had
        submitted. The memory is never freed here; the other array is kept alive until
        the last use here is done. It is handed over once: work that the other library
        submits to it later is the caller's to order, or to adopt anew.

        Args:
            array: anything with DLPack or the CUDA array interface; a numpy array
                where the device is the processor.
            dtype: the element type, where the other library's says too little (bf16
                as uint16); it must have the same size.
            read_only: True to refuse what would write to it; what the other library
                says to be read-only is so anyway.

        Raises:
            InvalidType: it speaks none of the protocols.
            ExchangeRefused: it is elsewhere, not packed in C order, or holds what has
                no counterpart here (also a BufferError).
            UnsupportedOperation: the device takes no other's memory.
            SessionClosed: the session is not open.
        """
        self._check("adopt")
        return adopt_array(self.backend, array, dtype=dtype, is_read_only=read_only)

    async def asarray(
        self, array: object, *, dtype: DType | None = None
    ) -> DeviceArray:
        """An array on this device, without a copy where that can be.

        One of the session is returned as it is, one that lies on the device is adopted,
        one in host memory is uploaded if the device is another; that is awaited.

        Raises:
            As `adopt` and `upload`.

        Cancellation: as for `upload`.
        """
        self._check("asarray")
        if isinstance(array, DeviceArray) and array.is_of(self.backend):
            return array
        if is_foreign(array):
            place = self.backend.exchange_device
            there = device_of(array, "asarray")[0]
            if there in {CPU, CUDA_HOST} and (place is None or place[0] != CPU):
                host = array if isinstance(array, np.ndarray) else _on_host(array)
                return await self.upload(host, dtype=dtype)
            return self.adopt(array, dtype=dtype)
        return await self.upload(np.asarray(array), dtype=dtype)

    def adopt_memory(
        self,
        address: int,
        shape: int | Sequence[int],
        dtype: DType,
        *,
        owner: object,
        read_only: bool = False,
        stream: object = None,
    ) -> DeviceArray:
        """Use memory that somebody else owns, by its address; it is never freed here.

        Args:
            address: where its first element lies, on this device.
            shape: extents, outermost first; packed in C order.
            dtype: the element type.
            owner: kept alive until the last use here is done.
            read_only: True to refuse what would write to it.
            stream: the owner's stream that its last writes are on, as `adopt_stream`
                takes it; None if they are done.

        Raises:
            InvalidValue: the shape or dtype is none.
            ExchangeRefused: the address is none of this device, or not aligned.
            SessionClosed: the session is not open.
        """
        self._check("adopt_memory")
        extents = extents_of(shape)
        return adopt_memory(
            self.backend, address, extents, dtype,
            owner=owner, is_read_only=read_only, stream=stream,
        )  # fmt: skip

    def adopt_stream(self, stream: object) -> StreamHandle:
        """Use another library's stream; it is never destroyed here.

        It is waited for only where a wait names it, and then as a whole, the other
        library's own work included; leaving the session waits for our work on it alone.

        Args:
            stream: an object with ``__cuda_stream__``, a stream of CuPy, PyTorch or
                Numba, or the driver's handle. It is kept alive.

        Raises:
            InvalidType: it is no stream.
            ExchangeRefused: it is of another device, or the per-thread default stream.
            UnsupportedOperation: the device has no streams of a driver.
            SessionClosed: the session is not open.
        """
        self._check("adopt_stream")
        return self.backend.adopt_stream(stream)

    def native_stream(self, stream: StreamHandle | None = None) -> NativeStream:
        """A stream of ours for other libraries to submit to, while it is open.

        It has ``__cuda_stream__``, and its ``handle`` is what `ExternalStream` of CuPy
        and PyTorch take. Waits for the stream, leaving its block among them, then wait
        for the other libraries' work on it too.

        Args:
            stream: which one; None for the default stream.

        Raises:
            InvalidStream: it is not alive.
            UnsupportedOperation: the device has no streams of a driver.
            SessionClosed: the session is not open.
        """
        self._check("native_stream")
        return self.backend.native_stream(stream)

    async def wait_array(self, array: DeviceArray) -> None:
        """Return once everything submitted here that uses the array is done.

        Raises:
            InvalidType: it is no DeviceArray.
            DeviceError: some of it failed.
            ExceptionGroup: work failed on several streams.
            InvalidBuffer: the array was freed.
            SessionClosed: the session is not open.

        Cancellation: only the wait stops; the work goes on.
        """
        self._check("wait_array")
        check_array("wait_array.array", array)
        await self.backend.wait_buffer(array.handle)


def _on_host(array: object) -> np.ndarray:
    """Another library's array in host memory, as numpy has it."""
    try:
        return np.from_dlpack(array)  # type: ignore[arg-type]
    except Exception as error:
        raise ExchangeRefused(
            f"asarray: {type(array).__name__} refuses to share it: {error}"
        ) from error
