"""Copies and fills: between the host, by way of pinned memory, and on the device."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, cast

import numpy as np

from accy_async.backends.base import Backend
from accy_async.backends.cuda.memory import DeviceMemory, PinnedPool
from accy_async.backends.resources import Resource
from accy_async.errors import AccyError

if TYPE_CHECKING:
    from accy_async.backends.cuda.objects import CudaStream
    from accy_async.backends.cuda.timeline import CudaTimeline
    from accy_async.backends.guards import Guard
    from accy_async.backends.hooks import StreamState
    from accy_async.backends.hostmemory import HostMemory

__all__ = ["CudaCopies"]


class CudaCopies(Backend):
    """The hooks of the backend that move bytes."""

    _pinned: PinnedPool

    @abstractmethod
    def _submit(self, call: str, *arguments: object, stream: StreamState) -> None:
        """Make a driver call that submits an operation to a stream."""

    def _write(
        self,
        stream: StreamState,
        position: int,
        buffer: Resource,
        offset_bytes: int,
        data: HostMemory,
        guard: Guard | None,
    ) -> None:
        del guard
        if data.byte_size == 0:
            return
        target = cast("DeviceMemory", buffer.payload).address + offset_bytes
        staging, block = self._pinned.take(data.byte_size)
        np.copyto(block[: data.byte_size], data.array)
        size = data.byte_size
        self._submit_staged("cuMemcpyHtoDAsync", target, staging, staging, size, stream)
        cast("CudaTimeline", stream.timeline).finish_with(
            position, lambda: self._pinned.give_back(staging, size)
        )

    def _read(
        self,
        stream: StreamState,
        position: int,
        buffer: Resource,
        offset_bytes: int,
        out: HostMemory,
        guard: Guard | None,
    ) -> None:
        del guard
        size = out.byte_size
        if size == 0:
            return
        source = cast("DeviceMemory", buffer.payload).address + offset_bytes
        staging, block = self._pinned.take(size)
        self._submit_staged("cuMemcpyDtoHAsync", staging, source, staging, size, stream)

        def finish() -> None:
            np.copyto(out.array, block[:size])
            self._pinned.give_back(staging, size)

        cast("CudaTimeline", stream.timeline).finish_with(position, finish, size)

    def _submit_staged(
        self,
        call: str,
        to: int,
        source: int,
        staging: int,
        byte_size: int,
        stream: StreamState,
    ) -> None:
        """Submit a copy to or from a staging block, which a refusal gives back."""
        native = cast("CudaStream", stream).native
        try:
            self._submit(call, to, source, byte_size, native, stream=stream)
        except AccyError:  # nothing of it was submitted
            self._pinned.give_back(staging, byte_size)
            raise

    def _copy(
        self,
        stream: StreamState,
        position: int,
        source: Resource,
        target: Resource,
        byte_size: int,
        guard: Guard | None,
    ) -> None:
        del position, guard
        if byte_size:
            read = cast("DeviceMemory", source.payload).address
            written = cast("DeviceMemory", target.payload).address
            native = cast("CudaStream", stream).native
            self._submit(
                "cuMemcpyDtoDAsync", written, read, byte_size, native, stream=stream
            )

    def _fill(
        self,
        stream: StreamState,
        position: int,
        buffer: Resource,
        pattern: bytes,
        byte_size: int,
        guard: Guard | None,
    ) -> None:
        del position, guard
        if not byte_size:
            return
        address = cast("DeviceMemory", buffer.payload).address
        native = cast("CudaStream", stream).native
        if len(pattern) == 8 and pattern[:4] == pattern[4:]:
            pattern = pattern[:4]
        value = int.from_bytes(pattern, "little")
        count = byte_size // len(pattern)
        if len(pattern) < 8:
            call = f"cuMemsetD{8 * len(pattern)}Async"
            self._submit(call, address, value, count, native, stream=stream)
            return
        for half in (0, 4):  # eight bytes as two columns of four, 8 bytes apart
            value = int.from_bytes(pattern[half : half + 4], "little")
            self._submit(
                "cuMemsetD2D32Async",
                address + half, 8, value, 1, count, native,
                stream=stream,
            )  # fmt: skip
