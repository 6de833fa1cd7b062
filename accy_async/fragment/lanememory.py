"""The memory of a lane: buffers and staging arrays that stay from call to call."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from accy_async.backends.adopting import adopt_array
from accy_async.backends.array import DeviceArray
from accy_async.fragment.arguments import host_dtype
from accy_async.fragment.memory import Buffers
from accy_async.fragment.signature import ArgumentSlot, ResultSlot
from accy_async.fragment.spares import MOST_KEPT_BYTES, Spares
from accy_async.interop.dlpack import CPU

if TYPE_CHECKING:
    from collections.abc import Iterable

    from accy_async.backends.base import Backend
    from accy_async.backends.handles import BufferHandle, Handle
    from accy_async.fragment.arguments import HostArray
    from accy_async.graph.nodes import BufferSlot, HostSlot

__all__ = ["LaneMemory"]

_IN_PLACE_BYTES = 1 << 16
"""Host arrays from this size on are used where they are, if the device is the host:
a copy of 64 KiB takes some 6 us, as long as it takes to adopt an array."""


class LaneMemory:
    """What a lane's invocations are bound to.

    Args:
        backend: the device.
        constants: the buffers of the fragment's constants, which lanes share.

    Attributes:
        bound: what holds each slot's value in this invocation, by the slots' names.
    """

    def __init__(self, backend: Backend, constants: Buffers) -> None:
        self.backend = backend
        self.bound: dict[str, BufferHandle] = dict(constants.items())
        self._own = Buffers(backend, "a fragment's lane")
        self._spares = Spares(backend)
        self._staging: dict[str, tuple[HostArray, DeviceArray]] = {}
        place = backend.exchange_device
        self._is_host = place is not None and place[0] == CPU

    def own(self, slot: ArgumentSlot | ResultSlot) -> BufferHandle:
        """The lane's own buffer for a slot."""
        return self._own.allocate(slot.name, slot.slot.byte_size)

    def bind_missing(self, slots: Iterable[BufferSlot | HostSlot]) -> None:
        """Have a buffer of the lane's own for each slot that nothing is bound to."""
        for slot in slots:
            if slot.name not in self.bound:
                handle = self._own.allocate(slot.name, slot.byte_size)
                self.bound[slot.name] = handle

    def result(self, slot: ResultSlot) -> DeviceArray:
        """A new array for a result, the caller's; its buffer comes back if small."""
        backend, planned = self.backend, slot.slot
        if planned.byte_size > MOST_KEPT_BYTES:
            return DeviceArray.allocate(backend, planned.shape, planned.dtype)
        handle = self._spares.take(slot.name)
        if handle is None:
            handle = backend.allocate_buffer(planned.byte_size)
        reclaim = self._spares.reclaim(slot.name)
        return DeviceArray(
            backend, handle, planned.shape, planned.dtype, reclaim=reclaim
        )

    def staging(
        self, slot: ArgumentSlot | ResultSlot
    ) -> tuple[HostArray, DeviceArray] | None:
        """The same as an array of the host, where the device is the host."""
        if not self._is_host:
            return None
        found = self._staging.get(slot.name)
        if found is None:
            planned = slot.slot
            array = np.zeros(planned.shape, host_dtype(planned.dtype))
            adopted = adopt_array(self.backend, array, dtype=planned.dtype)
            found = self._staging[slot.name] = array, adopted
        return found

    def is_used_in_place(self, byte_size: int) -> bool:
        """True for host arrays that need no copy."""
        return self._is_host and byte_size >= _IN_PLACE_BYTES

    def detach(self) -> list[Handle]:
        """What it has, newest first, for others to destroy; it is of no use then."""
        handles: list[Handle] = [one.handle for _, one in self._staging.values()]
        self._staging.clear()
        handles += self._spares.detach()
        handles += self._own.detach()
        return handles
