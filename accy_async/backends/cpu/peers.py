"""The CPU backend beside other devices: its memory is the host's, its streams wait."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, cast

from accy_async.backends.base import Backend
from accy_async.backends.cpu.memory import CpuMemory
from accy_async.backends.cpu.operations import Copy, WaitFor
from accy_async.backends.cpu.streams import CpuStream
from accy_async.backends.hostmemory import HostMemory, host_bytes
from accy_async.backends.routes import Way

if TYPE_CHECKING:
    from accy_async.backends.cpu.pool import Pace, WorkerPool
    from accy_async.backends.guards import Guard
    from accy_async.backends.hooks import EventState, StreamState
    from accy_async.backends.peerhooks import Staging
    from accy_async.backends.resources import Resource

__all__ = ["CpuPeers"]


class CpuPeers(Backend):
    """The hooks of the backend for its peers.

    A stream waits for whatever device on its own thread: that takes the word of the
    other's timeline, and no event loop.
    """

    can_stage: ClassVar[bool] = True

    _pool: WorkerPool
    _copy_pace: Pace

    def _can_wait_for(self, peer: Backend) -> bool:
        del peer
        return True

    def _stream_wait_peer(
        self, stream: StreamState, position: int, event: EventState, peer: Backend
    ) -> None:
        del peer
        cast("CpuStream", stream).submit(WaitFor(position, event))

    def _way_to(self, peer: Backend) -> tuple[Way | None, str]:
        if isinstance(peer, CpuPeers):
            return Way.HOST, "both are in the memory of one processor"
        return None, f"the processor reaches no memory of {peer.device}"

    def _host_memory(self, buffer: Resource, byte_size: int) -> HostMemory:
        memory = cast("CpuMemory", buffer.payload)
        return host_bytes(memory.array[:byte_size], writable=False)

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
        del peer
        self._copy(stream, position, source, target, byte_size, guard)

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
        memory = cast("CpuMemory", buffer.payload)
        source = memory.address + offset_bytes
        addresses = staging.address, source
        self._move(stream, position, addresses, byte_size, memory, staging, guard)

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
        memory = cast("CpuMemory", buffer.payload)
        addresses = memory.address + offset_bytes, staging.address
        self._move(stream, position, addresses, byte_size, memory, staging, guard)

    def _move(
        self,
        stream: StreamState,
        position: int,
        addresses: tuple[int, int],
        byte_size: int,
        memory: CpuMemory,
        staging: Staging,
        guard: Guard | None,
    ) -> None:
        """Submit a copy between a buffer and staging memory: target, then source."""
        cast("CpuStream", stream).submit(
            Copy(
                position,
                self._pool,
                *addresses,
                byte_size,
                (memory.array, staging.array),
                self._copy_pace,
                "copy_to_peer",
                guard,
            )
        )
