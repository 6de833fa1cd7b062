"""Arrays on one of several devices, and from one to another."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from accy_async.backends.array import DeviceArray
from accy_async.errors import InvalidBuffer, InvalidType
from accy_async.interop.foreign import device_of, is_foreign
from accy_async.observe.protocol import phase
from accy_async.session.multi.core import MultiCore

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike, NDArray

    from accy_async.backends.handles import StreamHandle
    from accy_async.dtypes import DType
    from accy_async.session.single import Session

__all__ = ["MultiArrays"]


class MultiArrays(MultiCore):
    """The arrays and streams of a session over several devices."""

    def allocate(
        self,
        shape: int | Sequence[int],
        dtype: DType,
        *,
        device: str | int | None = None,
    ) -> DeviceArray:
        """Allocate an array; see `Session.allocate`.

        Args:
            shape: as there.
            dtype: as there.
            device: where; where the policy places data if left out.
        """
        return self._seat("allocate", device).allocate(shape, dtype)

    async def upload(
        self,
        array: ArrayLike,
        *,
        dtype: DType | None = None,
        copy: bool = False,
        stream: StreamHandle | None = None,
        device: str | int | None = None,
    ) -> DeviceArray:
        """Copy a numpy array to a new array on a device; see `Session.upload`.

        Args:
            array: as there.
            dtype: as there.
            copy: as there.
            stream: as there.
            device: where; that of ``stream`` if left out, or where the policy places
                data.
        """
        seat = self._seat("upload", device, stream)
        return await seat.upload(array, dtype=dtype, copy=copy, stream=stream)

    async def write(
        self,
        target: DeviceArray,
        array: ArrayLike,
        *,
        stream: StreamHandle | None = None,
    ) -> None:
        """Copy a numpy array over an array where it is; see `Session.write`."""
        await self._seat_of("write.target", target).write(target, array, stream=stream)

    async def download(
        self,
        source: DeviceArray,
        *,
        out: NDArray[np.generic] | None = None,
        stream: StreamHandle | None = None,
    ) -> NDArray[np.generic]:
        """Copy an array to numpy from where it is; see `Session.download`."""
        seat = self._seat_of("download.source", source)
        return await seat.download(source, out=out, stream=stream)

    async def wait_array(self, array: DeviceArray) -> None:
        """Return once everything submitted that uses the array is done."""
        await self._seat_of("wait_array.array", array).wait_array(array)

    async def copy_to(
        self,
        array: DeviceArray,
        device: str | int,
        *,
        stream: StreamHandle | None = None,
    ) -> DeviceArray:
        """Copy an array to a new one on a device; see `DeviceArray.copy_to`."""
        self._seat_of("copy_to.array", array)
        seat = self.on(device)
        with phase(self.observer, "copy", f"{array!r} to {seat.backend.device}"):
            return await array.copy_to(seat, stream=stream)

    def adopt(
        self, array: object, *, dtype: DType | None = None, read_only: bool = False
    ) -> DeviceArray:
        """Use another library's array where it is; see `Session.adopt`.

        Raises:
            ExchangeRefused: also where it is on none of the session's devices.
        """
        self._check("adopt")
        return self._seat_for(array).adopt(array, dtype=dtype, read_only=read_only)

    @asynccontextmanager
    async def stream(
        self, *, priority: int = 0, device: str | int | None = None
    ) -> AsyncIterator[StreamHandle]:
        """Lease a stream of one device; see `Session.stream`.

        Args:
            priority: as there.
            device: whose; where the policy places data if left out.
        """
        async with self._seat("stream", device).stream(priority=priority) as stream:
            yield stream

    # Within

    def _seat(
        self,
        call: str,
        device: str | int | None,
        stream: StreamHandle | None = None,
    ) -> Session:
        """The seat that a call names, by a device or a stream; or the policy's."""
        self._check(call)
        if device is not None:
            return self.on(device)
        number = None if stream is None else self._number_of(stream)
        if number is not None and number >= 0:
            return self._seats[number]
        return self.on(self.place())

    def _seat_of(self, name: str, array: DeviceArray) -> Session:
        """The seat where an array is.

        Raises:
            InvalidType: it is no array.
            InvalidBuffer: it is on none of the devices.
        """
        self._check(name.partition(".")[0])
        if not isinstance(array, DeviceArray):
            raise InvalidType(name, array, "a DeviceArray")
        number = self._number_of(array.handle)
        if number is None or number < 0:
            why = self._seats[0].backend.foreign(array.handle) or "is of no device"
            theirs = why.partition(", this one is")[0]
            raise InvalidBuffer(
                f"{name}: {array!r} {theirs}; the session's devices are "
                f"{', '.join(self._names)}"
            )
        return self._seats[number]

    def _seat_for(self, array: object) -> Session:
        """The seat on the device of another library's array; the first for others."""
        if isinstance(array, DeviceArray):
            return self._seat_of("adopt.array", array)
        if is_foreign(array):
            there = device_of(array, "adopt")
            for seat in self._seats:
                if seat.backend.exchange_device == there:
                    return seat
        return self._seats[0]
