"""What the backend keeps for its objects: the driver's handles, packed arguments."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from accy_async.backends.hooks import EventState, StreamState

if TYPE_CHECKING:
    from accy_async.backends.cuda.modules import CudaKernel
    from accy_async.backends.cuda.timeline import CudaTimeline
    from accy_async.backends.journal import Journal
    from accy_async.backends.launch import LaunchRequest

__all__ = ["CudaEvent", "CudaStream", "LaunchArguments"]


class CudaStream(StreamState):
    """A stream: the driver's handle, its word, and the ring of its journal."""

    journal: Journal

    def __init__(self, timeline: CudaTimeline, priority: int, native: Any) -> None:  # noqa: ANN401
        super().__init__(timeline, priority)
        self.native = native
        self.flags = timeline
        self.journal = timeline.journal
        self.number = int(native)
        self.recent = self.journal.work
        self.keeper: object = None  # of a stream that somebody else owns


class CudaEvent(EventState):
    """An event: the driver's handle.

    ``finisher`` is what the host has to do once it is reached, before anybody is told.
    """

    def __init__(self, *, has_timing: bool, native: Any) -> None:  # noqa: ANN401
        super().__init__(has_timing=has_timing)
        self.native = native
        self.finisher: Callable[[], None] | None = None


class LaunchArguments:
    """A launch's arguments and geometry as ``cuLaunchKernelEx`` takes them.

    All is packed once; what changes from one submission to the next is the stream.

    Attributes:
        config: geometry, attributes and stream.
        native: the stream that ``config`` names.
        function: the kernel.
        pointer: the address of the arguments' addresses.
        values: the arguments, 64 bits each.
        call: makes the driver's call, where it is made often; None before.
        calls: how often it was made before that.
    """

    __slots__ = (
        "_pointers",
        "call",
        "calls",
        "config",
        "function",
        "native",
        "pointer",
        "values",
    )

    def __init__(
        self,
        kernel: CudaKernel,
        config: Any,  # noqa: ANN401 - bindings are untyped
        request: LaunchRequest,
        addresses: list[int],
    ) -> None:
        slots = addresses + [scalar.slot for scalar in request.scalars]
        values = (ctypes.c_uint64 * max(1, len(slots)))(*slots)
        first = ctypes.addressof(values)
        pointers = (ctypes.c_void_p * max(1, len(slots)))(
            *[first + 8 * i for i in range(len(slots))]
        )
        self.values, self._pointers = values, pointers
        self.pointer = ctypes.addressof(pointers)
        self.function = kernel.function
        self.config = config
        self.native: Any = None
        self.call: Callable[[], int] | None = None
        self.calls = 0

    @property
    def memory(self) -> object:
        """What all of it lies in, to be kept while the driver may read it."""
        return self.config, self.values, self._pointers

    def aim(self, native: Any) -> None:  # noqa: ANN401
        """Have the launch go to this stream; under the submission lock."""
        self.config.hStream = native
        self.native = native
