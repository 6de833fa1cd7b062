"""The recording backend: the contract, with every call noted first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from accy_async.backends.handles import (
    BufferHandle,
    EventHandle,
    GraphHandle,
    Handle,
    LoadedArtifact,
    StreamHandle,
)

if TYPE_CHECKING:
    from accy_async.artifact.kernel import ArtifactRequest, KernelArtifact
    from accy_async.backends.base import Backend
    from accy_async.backends.contract.steps import LaunchStep
    from accy_async.backends.devicegraph import GraphRequest
    from accy_async.backends.guards import Guard, GuardOf
    from accy_async.backends.launch import PreparedLaunch
    from accy_async.backends.owners import Owner

from accy_async.backends.recording.records import (
    SyncScope,
)
from accy_async.backends.recording.script import RecordingScript, usual_error

__all__ = ["RecordingBackend"]


class RecordingBackend(RecordingScript):
    """A device that only remembers. See the package.

    Args:
        kind: the kind of device it pretends to be.
        format: the one artifact format it loads.
        fail_load_after_count: loads that succeed before all others fail with
            `RuntimeUnavailable`; None for no failure.
        fail_buffer_allocate_after_count: allocations that succeed before all
            others fail with `OutOfMemory`; None for no failure.
        memory_limit_bytes: what buffers may take together; None for no limit.
        operation_ns: how long each launch takes in simulated time.
        is_holding: True to begin with every stream held back.
        grace_s: how long cleanup waits for the device.
        keeps_records: False to count without keeping `launches` and `calls`.
        index: the pretended device's number among those of its kind.
        has_graphs: False for a device that knows no device graphs.
        has_peer_access: False for one that reaches no other's memory, so that copies
            are staged.
        can_wait_for_peers: False for one whose streams wait for no other device.

    Attributes:
        create_count, load_count, launch_count, destroy_count,
        buffer_allocate_count, write_count, read_count, copy_count, fill_count,
        peer_copy_count, stage_count, sync_count: calls that succeeded;
            ``destroy_count`` counts objects freed, ``stage_count`` the pieces of
            staged copies that went out of or into this device.
        destroyed_ids: ids of freed objects, in order.
        allocated_buffer_ids, allocated_buffer_byte_sizes: of every buffer.
        last_sync_scope, last_sync_stream: of the last wait begun.
        launches: every launch submitted, in order.
        calls: every call made, failed ones included, in order.
        exchanges: what streams and other libraries' waited for, in order: ``("follow",
            ours, theirs)`` for ours waiting, with None for all that the device was
            given; ``("lead", ours, theirs)`` for theirs.
        on_call: called with each `CallRecord` before the call has effect.
    """

    def create_artifact(self, request: ArtifactRequest) -> KernelArtifact:
        """Record the call; see `Backend.create_artifact`."""
        self._note("create_artifact")
        artifact = super().create_artifact(request)
        self.create_count += 1
        return artifact

    def load_artifact(self, artifact: KernelArtifact) -> LoadedArtifact:
        """Record the call; see `Backend.load_artifact`."""
        self._note("load_artifact")
        limit = self.fail_load_after_count
        if limit is not None and self.load_count >= limit:
            raise usual_error("load_artifact")
        loaded = super().load_artifact(artifact)
        self.load_count += 1
        return loaded

    def allocate_buffer(self, byte_size: int, *, alignment: int = 256) -> BufferHandle:
        """Record the call; see `Backend.allocate_buffer`."""
        self._note("allocate_buffer")
        buffer = super().allocate_buffer(byte_size, alignment=alignment)
        self.buffer_allocate_count += 1
        self.allocated_buffer_ids.append(buffer.id)
        self.allocated_buffer_byte_sizes.append(byte_size)
        return buffer

    def write_buffer(
        self,
        buffer: BufferHandle,
        data: object,
        *,
        offset_bytes: int = 0,
        stream: StreamHandle | None = None,
        guard: Guard | None = None,
    ) -> int:
        """Record the call; see `Backend.write_buffer`."""
        self._note("write_buffer", buffer)
        position = super().write_buffer(
            buffer, data, offset_bytes=offset_bytes, stream=stream, guard=guard
        )
        if self._pending_count or self._woken:
            self._pump()
        return position

    def read_buffer(
        self,
        buffer: BufferHandle,
        out: object,
        *,
        byte_size: int | None = None,
        offset_bytes: int = 0,
        stream: StreamHandle | None = None,
        guard: Guard | None = None,
    ) -> int:
        """Record the call; see `Backend.read_buffer`. It reads zeros."""
        self._note("read_buffer", buffer)
        position = super().read_buffer(
            buffer,
            out,
            byte_size=byte_size,
            offset_bytes=offset_bytes,
            stream=stream,
            guard=guard,
        )
        if self._pending_count or self._woken:
            self._pump()
        return position

    def copy_buffer(
        self,
        source: BufferHandle,
        target: BufferHandle,
        *,
        byte_size: int | None = None,
        stream: StreamHandle | None = None,
        guard: Guard | None = None,
    ) -> int:
        """Record the call; see `Backend.copy_buffer`."""
        self._note("copy_buffer", source)
        position = super().copy_buffer(
            source, target, byte_size=byte_size, stream=stream, guard=guard
        )
        if self._pending_count or self._woken:
            self._pump()
        return position

    def fill_buffer(
        self,
        buffer: BufferHandle,
        pattern: bytes,
        *,
        byte_size: int | None = None,
        stream: StreamHandle | None = None,
        guard: Guard | None = None,
    ) -> int:
        """Record the call; see `Backend.fill_buffer`."""
        self._note("fill_buffer", buffer)
        position = super().fill_buffer(
            buffer, pattern, byte_size=byte_size, stream=stream, guard=guard
        )
        if self._pending_count or self._woken:
            self._pump()
        return position

    def create_stream(self, *, priority: int = 0) -> StreamHandle:
        """Record the call; see `Backend.create_stream`."""
        self._note("create_stream")
        return super().create_stream(priority=priority)

    def create_event(self, *, timing: bool = False) -> EventHandle:
        """Record the call; see `Backend.create_event`."""
        self._note("create_event")
        return super().create_event(timing=timing)

    def record_event(
        self, event: EventHandle, stream: StreamHandle | None = None
    ) -> int:
        """Record the call; see `Backend.record_event`."""
        self._note("record_event", event)
        position = super().record_event(event, stream)
        if self._pending_count or self._woken:
            self._pump()
        return position

    def stream_wait_event(self, stream: StreamHandle | None, event: EventHandle) -> int:
        """Record the call; see `Backend.stream_wait_event`."""
        self._note("stream_wait_event", event)
        position = super().stream_wait_event(stream, event)
        if self._pending_count or self._woken:
            self._pump()
        return position

    def submit_launch(
        self,
        prepared: PreparedLaunch,
        stream: StreamHandle | None = None,
        guard: Guard | None = None,
    ) -> int:
        """Record the call as ``launch``; see `Backend.submit_launch`."""
        self._note("launch", prepared.loaded)
        self.find_fault("launch")
        position = super().submit_launch(prepared, stream, guard)
        if self._pending_count or self._woken:
            self._pump()
        return position

    def submit_launches(
        self, launches: Sequence[PreparedLaunch], stream: StreamHandle | None = None
    ) -> None:
        """Record the calls as ``launch``; see `Backend.submit_launches`."""
        with self._lock:
            self._stream(stream)
            for prepared in launches:
                self._check_alive(prepared)
            for prepared in launches:
                self.submit_launch(prepared, stream)

    def submit_steps(self, steps: Sequence[LaunchStep], positions: list[int]) -> None:
        """See `Backend.submit_steps`; takes none while anybody looks at each call."""
        if self._is_watched or self._fault is not None:
            return
        super().submit_steps(steps, positions)
        if self._pending_count or self._woken:
            self._pump()

    def create_graph(self, request: GraphRequest) -> GraphHandle:
        """Record the call; see `Backend.create_graph`."""
        self._note("create_graph")
        return super().create_graph(request)

    def update_graph(self, graph: GraphHandle, request: GraphRequest) -> bool:
        """Record the call; see `Backend.update_graph`."""
        self._note("update_graph", graph)
        return super().update_graph(graph, request)

    def launch_graph(
        self,
        graph: GraphHandle,
        stream: StreamHandle | None = None,
        guard_of: GuardOf | None = None,
    ) -> int:
        """Record the call; see `Backend.launch_graph`. Its nodes are no calls."""
        self._note("launch_graph", graph)
        position = super().launch_graph(graph, stream, guard_of)
        if self._pending_count or self._woken:
            self._pump()
        return position

    def destroy(self, handle: Handle) -> bool:
        """Record the call; see `Backend.destroy`. A failure frees all the same."""
        failure = self._take_failure("destroy", handle)
        is_freed = super().destroy(handle)
        if failure is not None:
            raise failure
        return is_freed

    def wait_for_peer(
        self, stream: StreamHandle | None, event: EventHandle, peer: Backend
    ) -> int:
        """Record the call; see `Backend.wait_for_peer`."""
        self._note("wait_for_peer", event)
        position = super().wait_for_peer(stream, event, peer)
        if self._pending_count or self._woken:
            self._pump()
        return position

    def follow_stream(
        self, stream: StreamHandle | None, leader: StreamHandle | None, peer: Backend
    ) -> int:
        """Record the call; see `Backend.follow_stream`."""
        self._note("follow_stream", leader)
        position = super().follow_stream(stream, leader, peer)
        if self._pending_count or self._woken:
            self._pump()
        return position

    def copy_to_peer(
        self,
        source: BufferHandle,
        target: BufferHandle,
        peer: Backend,
        *,
        byte_size: int | None = None,
        stream: StreamHandle | None = None,
        guard: Guard | None = None,
    ) -> int:
        """Record the call; see `Backend.copy_to_peer`."""
        self._note("copy_to_peer", source)
        position = super().copy_to_peer(
            source, target, peer, byte_size=byte_size, stream=stream, guard=guard
        )
        self._pump_with(peer.base)
        return position

    async def wait_stream(
        self, stream: StreamHandle | None, position: int | None = None
    ) -> None:
        """Record the call; see `Backend.wait_stream`."""
        scope = SyncScope.STREAM if stream else SyncScope.DEFAULT_STREAM
        self._note_wait("wait_stream", scope, stream)
        await super().wait_stream(stream, position)

    async def wait_event(self, event: EventHandle) -> None:
        """Record the call; see `Backend.wait_event`."""
        self._note_wait("wait_event", SyncScope.EVENT, event)
        await super().wait_event(event)

    async def wait_default_stream(self) -> None:
        """Record the call; see `Backend.wait_default_stream`."""
        self._note_wait("wait_default_stream", SyncScope.DEFAULT_STREAM)
        await super().wait_default_stream()

    async def wait_buffer(self, buffer: BufferHandle) -> None:
        """Record the call; see `Backend.wait_buffer`."""
        self._note_wait("wait_buffer", SyncScope.BUFFER, buffer)
        await super().wait_buffer(buffer)

    async def wait_device(self) -> None:
        """Record the call; see `Backend.wait_device`."""
        self._note_wait("wait_device", SyncScope.DEVICE)
        await super().wait_device()

    async def wait_for_owner(self, owner: Owner, deadline: float) -> None:
        """Record the call as ``wait_device``; see `Backend.wait_for_owner`."""
        self._note_wait("wait_device", SyncScope.DEVICE)
        await super().wait_for_owner(owner, deadline)
