"""What the recording backend remembers: calls, launches, what is under way."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING

import attrs

from accy_async.artifact.geometry import Dim3
from accy_async.backends.handles import (
    BufferAccess,
    StreamHandle,
)
from accy_async.backends.hooks import StreamState
from accy_async.backends.journal import Journal
from accy_async.backends.timeline import Timeline
from accy_async.dtypes import ScalarArgument

if TYPE_CHECKING:
    from accy_async.backends.guards import Guard

__all__ = [
    "CALL_KINDS",
    "BorrowedMemory",
    "CallRecord",
    "LaunchRecord",
    "RecordedOperation",
    "RecordingStream",
    "SyncScope",
]

CALL_KINDS = (
    "create_artifact",
    "load_artifact",
    "allocate_buffer",
    "write_buffer",
    "read_buffer",
    "copy_buffer",
    "fill_buffer",
    "create_stream",
    "create_event",
    "record_event",
    "stream_wait_event",
    "wait_for_peer",
    "follow_stream",
    "copy_to_peer",
    "launch",
    "create_graph",
    "update_graph",
    "launch_graph",
    "destroy",
    "wait_stream",
    "wait_event",
    "wait_default_stream",
    "wait_buffer",
    "wait_device",
)
"""The calls that are recorded, and that `RecordingBackend.fail` can make fail."""


class SyncScope(str, Enum):
    """What a wait waited for."""

    STREAM = "stream"
    EVENT = "event"
    BUFFER = "buffer"
    DEFAULT_STREAM = "default_stream"
    DEVICE = "device"

    def __str__(self) -> str:
        return self.value


@attrs.frozen
class CallRecord:
    """One call: its kind, and the id of the object it was about, if any."""

    kind: str
    object_id: int | None = None

    def __str__(self) -> str:
        return self.kind if self.object_id is None else f"{self.kind}({self.object_id})"


@attrs.frozen(kw_only=True)
class LaunchRecord:
    """One launch, as it was submitted."""

    kernel_name: str
    grid: Dim3
    threadgroup: Dim3
    dynamic_shared_memory_bytes: int
    buffer_ids: tuple[int, ...]
    buffer_access: tuple[BufferAccess, ...]
    scalars: tuple[ScalarArgument, ...]
    loaded_id: int
    stream: StreamHandle | None
    diagnostic_id: str | None
    cluster: Dim3 | None = None
    cooperative: bool = False


class RecordedOperation:
    """Something submitted and not yet completed."""

    __slots__ = ("guard", "position", "run", "takes_ns", "waits_for")

    def __init__(
        self,
        position: int,
        run: Callable[[], object] | None = None,
        waits_for: tuple[Timeline, int] | None = None,
        takes_ns: float = 0.0,
        guard: Guard | None = None,
    ) -> None:
        self.position = position
        self.run = run
        self.waits_for = waits_for
        self.takes_ns = takes_ns
        self.guard = guard


class RecordingStream(StreamState):
    """A stream: what is under way on it, and whether it is held back."""

    journal: Journal

    def __init__(self, timeline: Timeline, priority: int) -> None:
        super().__init__(timeline, priority)
        self.journal = Journal()
        self.pending: deque[RecordedOperation] = deque()
        self.is_held = False
        self.steps = 0
        self.time_ns = 0.0
        self.number = 0  # as other libraries know it; 0 where none has asked
        self.keeper: object = None
        self.alias: int | None = None  # what tests call it, where it has no id


class BorrowedMemory:
    """A buffer's memory that another library owns."""

    __slots__ = ("address", "byte_size", "keeper")

    def __init__(self, address: int, byte_size: int, keeper: object) -> None:
        self.address = address
        self.byte_size = byte_size
        self.keeper = keeper
