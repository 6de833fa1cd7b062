"""The Vulkan backend beside other devices: it waits for any, and copies by the host.

A stream that waits for another device is kept on the host until that has come so far:
a queue would stand still meanwhile, with the work of every other stream on it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, cast

from accy_async.backends.completion import Completion
from accy_async.backends.hostmemory import host_bytes
from accy_async.backends.routes import Way, way_by_host
from accy_async.backends.vulkan.graphs import VulkanGraphs
from accy_async.backends.vulkan.operations import Upload
from accy_async.backends.vulkan.streams import Operation, take_failure

if TYPE_CHECKING:
    from accy_async.backends.base import Backend
    from accy_async.backends.guards import Guard
    from accy_async.backends.hooks import EventState, StreamState
    from accy_async.backends.hostmemory import HostMemory
    from accy_async.backends.peerhooks import Staging
    from accy_async.backends.resources import Resource
    from accy_async.backends.timeline import Timeline
    from accy_async.backends.vulkan.hub import Hub
    from accy_async.backends.vulkan.memory import VulkanMemory
    from accy_async.backends.vulkan.streams import VulkanStream
    from accy_async.backends.vulkan.timeline import VulkanTimeline

__all__ = ["VulkanPeers"]


class VulkanPeers(VulkanGraphs):
    """The hooks of the backend for its peers."""

    can_stage: ClassVar[bool] = True
    pulls_in_order: ClassVar[bool] = True

    def _can_wait_for(self, peer: Backend) -> bool:
        del peer
        return True

    def _stream_wait_peer(
        self, stream: StreamState, position: int, event: EventState, peer: Backend
    ) -> None:
        del peer
        assert event.mark is not None
        line, awaited = event.mark
        operation = _WaitForPeer(position, line, awaited)
        self._submit(stream, operation)
        if not operation.is_reached:
            line.watch(awaited, _Arrival(operation, self._hub))

    def _way_to(self, peer: Backend) -> tuple[Way | None, str]:
        return way_by_host(self, peer)

    def _way_from(self, peer: Backend) -> tuple[Way | None, str]:
        return way_by_host(self, peer)

    def _copy_out(
        self,
        stream: StreamState,
        position: int,
        source: Resource,
        peer: Backend,
        target: Resource,
        byte_size: int,
        guard: Guard | None,
    ) -> None:
        out = peer._host_memory(target, byte_size)  # noqa: SLF001 - a hook
        self._read(stream, position, source, 0, out, guard)

    def _copy_in(
        self,
        stream: StreamState,
        position: int,
        peer: Backend,
        source: Resource,
        target: Resource,
        byte_size: int,
        guard: Guard | None,
    ) -> None:
        data = peer._host_memory(source, byte_size)  # noqa: SLF001 - a hook
        self._upload(stream, position, target, 0, data, guard)

    def _stage_out(
        self,
        stream: StreamState,
        position: int,
        buffer: Resource,
        offset_bytes: int,
        staging: Staging,
        byte_size: int,
        guard: Guard | None,
    ) -> None:
        out = host_bytes(staging.array[:byte_size], writable=True)
        self._read(stream, position, buffer, offset_bytes, out, guard)

    def _stage_in(
        self,
        stream: StreamState,
        position: int,
        buffer: Resource,
        offset_bytes: int,
        staging: Staging,
        byte_size: int,
        guard: Guard | None,
    ) -> None:
        data = host_bytes(staging.array[:byte_size], writable=False)
        self._upload(stream, position, buffer, offset_bytes, data, guard)

    def _upload(
        self,
        stream: StreamState,
        position: int,
        buffer: Resource,
        offset_bytes: int,
        data: HostMemory,
        guard: Guard | None,
    ) -> None:
        """Submit a copy of what is in host memory once all before it has ended."""
        target = cast("VulkanMemory", buffer.payload)
        line = cast("VulkanTimeline", stream.timeline)
        with self._at(stream, position):
            operation = Upload(
                position, guard, self._allocator, target, offset_bytes, data, line
            )
        self._submit(stream, operation)


class _WaitForPeer(Operation):
    """Holds a stream back until another device has come to a recorded point.

    Args:
        position: where on the stream's timeline.
        line: the other stream's timeline.
        awaited: the point.

    Attributes:
        is_reached: True once it has come there; told, and never looked at again, for
            its backend's lock may be held by who waits for ours.
    """

    __slots__ = ("_awaited", "_line", "is_reached")
    call = "wait_for_peer"
    keeps_order = True

    def __init__(self, position: int, line: Timeline, awaited: int) -> None:
        self.position = position
        self.guard = None
        self._line = line
        self._awaited = awaited
        self.is_reached = line.has_reached(awaited)

    @property
    def is_ready(self) -> bool:
        return self.is_reached

    def hand_over(self, stream: VulkanStream) -> None:
        take_failure(stream, self.position, self._line.error_at(self._awaited))
        stream.end_with(self.position)


class _Arrival(Completion):
    """The signal that a point is reached: its stream goes on, by the hub's thread."""

    __slots__ = ("_hub", "_operation")

    def __init__(self, operation: _WaitForPeer, hub: Hub) -> None:
        super().__init__()
        self._operation = operation
        self._hub = hub

    def set(self) -> None:
        self._operation.is_reached = True
        self._hub.ring()
