"""GPUs beside other devices: peer access, copies, and waits for each other.

Access of one GPU to another's memory is looked for once, when it is first of use, and
given back when either backend goes. The memory of a stream-ordered pool asks for it by
itself: CUDA C++ Programming Guide, "Stream Ordered Memory Allocator", "Device
Accessibility for Multi-GPU Support".
"""

from __future__ import annotations

import weakref
from abc import abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar, cast

import numpy as np

from accy_async.backends.base import Backend
from accy_async.backends.cuda.copies import CudaCopies
from accy_async.backends.cuda.memory import DeviceMemory, DevicePool, PinnedPool
from accy_async.backends.peerhooks import Staging
from accy_async.backends.routes import Way, way_by_host

if TYPE_CHECKING:
    from accy_async.backends.cuda.context import CudaContext
    from accy_async.backends.cuda.objects import CudaStream
    from accy_async.backends.guards import Guard
    from accy_async.backends.hooks import EventState, StreamState
    from accy_async.backends.resources import Resource

__all__ = ["CudaPeers", "PeerAccess"]

_ALREADY_ENABLED = 704
_TOO_MANY_PEERS = 711
_GONE = frozenset({4, 201, 705, 709})
"""Codes of access that went with a context, or was taken back by somebody else."""


class _Pinned(Staging):
    """A block of a pinned pool."""

    __slots__ = ("_pool", "_size")

    def __init__(self, pool: PinnedPool, byte_size: int) -> None:
        self._pool, self._size = pool, byte_size
        self.address, block = pool.take(byte_size)
        self.array = cast("np.ndarray", block)

    def give_back(self) -> None:
        self._pool.give_back(self.address, self._size)


class PeerAccess:
    """Access of one GPU to another's memory, until it is taken back.

    Args:
        context: of the GPU that has it.
        peer: of the GPU whose memory it is.
        pool: that one's pool.
        is_well: False once one of the GPUs is lost, with which its access goes.
    """

    def __init__(
        self,
        context: CudaContext,
        peer: CudaContext,
        pool: DevicePool,
        is_well: Callable[[], bool],
    ) -> None:
        self._is_well = is_well
        self._context = context
        self._peer = peer
        self._is_ours = False
        driver = context.driver
        answer = driver.cuDeviceCanAccessPeer(context.device, peer.device)
        self.is_possible = bool(context.check(answer, "cuDeviceCanAccessPeer"))
        if not self.is_possible:
            return
        context.make_current()
        (result,) = driver.cuCtxEnablePeerAccess(peer.native, 0)
        if int(result) == _TOO_MANY_PEERS:  # a device has room for so many
            self.is_possible = False
            return
        if int(result) != _ALREADY_ENABLED:  # another library's, which keeps it
            context.check((result,), "cuCtxEnablePeerAccess")
            self._is_ours = True
        peer.make_current()
        pool.allow(context.index)

    def take_back(self) -> None:
        """End it. Idempotent."""
        if not self._is_ours or not self._is_well():
            return
        self._is_ours = False
        context = self._context
        context.make_current()
        answer = context.driver.cuCtxDisablePeerAccess(self._peer.native)
        if int(answer[0]) not in _GONE:
            context.check(answer, "cuCtxDisablePeerAccess")


class CudaPeers(CudaCopies):
    """The hooks of the backend for its peers."""

    can_stage: ClassVar[bool] = True

    _context: CudaContext
    _pool: DevicePool
    _accesses: weakref.WeakKeyDictionary[Backend, PeerAccess]
    """By this GPU to others' memory."""
    _admitted: list[PeerAccess]
    """By other GPUs to this one's."""

    @abstractmethod
    def _submit(self, call: str, *arguments: object, stream: StreamState) -> None:
        """Make a driver call that submits an operation to a stream."""

    def _can_wait_for(self, peer: Backend) -> bool:
        return isinstance(peer, CudaPeers)

    def _stream_wait_peer(
        self, stream: StreamState, position: int, event: EventState, peer: Backend
    ) -> None:
        del peer  # the driver takes events of other contexts, also of other devices
        self._stream_wait(stream, position, event)

    def _way_to(self, peer: Backend) -> tuple[Way | None, str]:
        if isinstance(peer, CudaPeers):
            if self._access_to(peer).is_possible:
                return Way.PEER, f"{self.device} has access to memory of {peer.device}"
            return None, f"the driver gives {self.device} no access to {peer.device}"
        return way_by_host(self, peer)

    def _way_from(self, peer: Backend) -> tuple[Way | None, str]:
        return way_by_host(self, peer)

    def _access_to(self, peer: CudaPeers) -> PeerAccess:
        access = self._accesses.get(peer)
        if access is None:
            access = PeerAccess(
                self._context,
                peer._context,
                peer._pool,
                lambda: self.loss is None and peer.loss is None,
            )
            self._accesses[peer] = access
            peer._admitted.append(access)
        return access

    def _take_back_access(self) -> None:
        """End what this GPU has of others, and others of it."""
        accesses = [*self._accesses.values(), *self._admitted]
        self._accesses.clear()
        self._admitted.clear()
        for access in accesses:
            access.take_back()
        self._context.make_current()

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
        if not isinstance(peer, CudaPeers):
            out = peer._host_memory(target, byte_size)  # noqa: SLF001 - a hook
            self._read(stream, position, source, 0, out, guard)
        elif byte_size:
            self._submit(
                "cuMemcpyPeerAsync",
                cast("DeviceMemory", target.payload).address,
                peer._context.native,  # noqa: SLF001 - of this very class
                cast("DeviceMemory", source.payload).address,
                self._context.native,
                byte_size,
                cast("CudaStream", stream).native,
                stream=stream,
            )

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
        self._write(stream, position, target, 0, data, guard)

    def _take_staging(self, byte_size: int) -> Staging:
        return _Pinned(self._pinned, byte_size)

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
        del position, guard
        source = cast("DeviceMemory", buffer.payload).address + offset_bytes
        native = cast("CudaStream", stream).native
        self._submit(
            "cuMemcpyDtoHAsync",
            staging.address, source, byte_size, native,
            stream=stream,
        )  # fmt: skip

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
        del position, guard
        target = cast("DeviceMemory", buffer.payload).address + offset_bytes
        native = cast("CudaStream", stream).native
        self._submit(
            "cuMemcpyHtoDAsync",
            target, staging.address, byte_size, native,
            stream=stream,
        )  # fmt: skip
