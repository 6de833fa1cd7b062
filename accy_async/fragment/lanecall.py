"""One invocation of a lane: what is copied before and after it, and kept alive."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from accy_async.backends.adopting import adopt_array
from accy_async.backends.array import DeviceArray
from accy_async.backends.writing import submit_write
from accy_async.fragment.arguments import host_dtype
from accy_async.fragment.lanememory import LaneMemory
from accy_async.fragment.signature import ArgumentSlot, ResultKind, ResultSlot

if TYPE_CHECKING:
    from accy_async.backends.handles import BufferHandle, StreamHandle
    from accy_async.fragment.arguments import HostArray

__all__ = ["LaneCall"]


class LaneCall:
    """One invocation of a lane.

    Args:
        memory: the lane's own.
        stream: what it runs on.

    Attributes:
        wanted: the buffers that the kernels are to use, by their slots' names.
    """

    def __init__(self, memory: LaneMemory, stream: StreamHandle) -> None:
        self.wanted: dict[str, BufferHandle] = {}
        self._memory = memory
        self._backend = memory.backend
        self._stream = stream
        self._copies: list[tuple[BufferHandle, BufferHandle]] = []
        self._uploads: list[tuple[BufferHandle, object]] = []
        self._downloads: list[tuple[BufferHandle, HostArray]] = []
        self._results: list[tuple[ResultSlot, DeviceArray | HostArray]] = []
        self._staged: list[tuple[HostArray, HostArray]] = []
        self._adopted: list[DeviceArray] = []

    def take(self, slot: ArgumentSlot, given: DeviceArray | HostArray) -> None:
        """Bind an argument, or have it copied to the lane's own buffer."""
        if isinstance(given, DeviceArray) and not slot.is_written:
            self.wanted[slot.name] = given.handle
            return
        if (
            not isinstance(given, DeviceArray)
            and not slot.is_written
            and given.flags.aligned
            and self._memory.is_used_in_place(given.nbytes)
        ):
            self.wanted[slot.name] = self._adopt(given, slot, is_read_only=True)
            return
        if not isinstance(given, DeviceArray):
            staging = self._memory.staging(slot)
            if staging is not None:
                np.copyto(staging[0], given)  # nothing else uses the lane now
                self.wanted[slot.name] = staging[1].handle
                return
        own = self.wanted[slot.name] = self._memory.own(slot)
        if isinstance(given, DeviceArray):
            self._copies.append((given.handle, own))
        else:
            self._uploads.append((own, given))

    def open(self, result: ResultSlot, *, to_host: bool) -> DeviceArray | HostArray:
        """Memory for a result, bound where kernels can write it as it is."""
        slot = result.slot
        is_written = result.kind is ResultKind.WRITTEN
        if to_host:
            array = np.empty(slot.shape, host_dtype(slot.dtype))
            if is_written and self._memory.is_used_in_place(array.nbytes):
                self.wanted[result.name] = self._adopt(array, result)
                return array
            if not is_written:
                self._results.append((result, array))
                return array
            staging = self._memory.staging(result)
            if staging is not None:
                self.wanted[result.name] = staging[1].handle
                self._staged.append((staging[0], array))
            else:
                own = self.wanted[result.name] = self._memory.own(result)
                self._downloads.append((own, array))
            return array
        made = self._memory.result(result)
        if is_written:
            self.wanted[result.name] = made.handle
        else:
            self._results.append((result, made))
        return made

    async def upload(self) -> None:
        """Submit the copies that come before the kernels."""
        backend, stream = self._backend, self._stream
        for handle, data in self._uploads:
            await submit_write(backend, handle, data, stream, name="upload")
        for source, target in self._copies:
            backend.copy_buffer(source, target, stream=stream)

    def download(self) -> None:
        """Submit the copies that come after the kernels."""
        backend, stream = self._backend, self._stream
        for handle, out in self._downloads:
            backend.read_buffer(handle, out, stream=stream)
        for result, made in self._results:
            self._copy_result(result, made)

    def finish(self) -> None:
        """Give out what was staged, and let go of what was adopted."""
        for source, target in self._staged:
            np.copyto(target, source)
        for array in self._adopted:
            array.free()

    def _copy_result(self, result: ResultSlot, made: DeviceArray | HostArray) -> None:
        backend, stream = self._backend, self._stream
        if result.kind is ResultKind.KNOWN:
            data = result.slot.data
            assert data is not None
            if isinstance(made, DeviceArray):
                backend.write_buffer(made.handle, data, stream=stream)
            else:
                made[...] = np.frombuffer(data, made.dtype).reshape(made.shape)
            return
        source = self._memory.bound[result.name]
        if isinstance(made, DeviceArray):
            backend.copy_buffer(
                source, made.handle, byte_size=made.byte_size, stream=stream
            )
        else:
            backend.read_buffer(source, made, stream=stream)

    def _adopt(
        self,
        array: HostArray,
        slot: ArgumentSlot | ResultSlot,
        *,
        is_read_only: bool = False,
    ) -> BufferHandle:
        adopted = adopt_array(
            self._backend,
            array,
            dtype=slot.slot.dtype,
            is_read_only=is_read_only,
            what=slot.name,
        )
        self._adopted.append(adopted)
        return adopted.handle
