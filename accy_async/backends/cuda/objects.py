"""What the backend keeps for its objects: the driver's handles, packed arguments."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

from accy_async.backends.hooks import EventState, StreamState

if TYPE_CHECKING:
    from accy_async.backends.cuda.modules import CudaKernel
    from accy_async.backends.cuda.timeline import CudaTimeline
    from accy_async.backends.launch import LaunchRequest

__all__ = ["CudaEvent", "CudaStream", "LaunchArguments"]


class CudaStream(StreamState):
    """A stream: the driver's handle, and its word."""

    def __init__(self, timeline: CudaTimeline, priority: int, native: Any) -> None:  # noqa: ANN401
        super().__init__(timeline, priority)
        self.native = native
        self.flags = timeline
        self.keeper: object = None  # of a stream that somebody else owns


class CudaEvent(EventState):
    """An event: the driver's handle."""

    def __init__(self, *, has_timing: bool, native: Any) -> None:  # noqa: ANN401
        super().__init__(has_timing=has_timing)
        self.native = native


class LaunchArguments:
    """A launch's arguments as the driver takes them, packed once."""

    __slots__ = ("_values", "launch", "pointer")

    def __init__(
        self, kernel: CudaKernel, request: LaunchRequest, addresses: list[int]
    ) -> None:
        slots = addresses + [scalar.slot for scalar in request.scalars]
        values = (ctypes.c_uint64 * max(1, len(slots)))(*slots)
        first = ctypes.addressof(values)
        pointers = (ctypes.c_void_p * max(1, len(slots)))(
            *[first + 8 * i for i in range(len(slots))]
        )
        self._values = (values, pointers)
        self.pointer = ctypes.addressof(pointers)
        geometry = request.geometry
        # What cuLaunchKernel takes before the stream.
        self.launch = (
            kernel.function,
            *geometry.grid,
            *geometry.threadgroup,
            geometry.dynamic_shared_memory_bytes,
        )
