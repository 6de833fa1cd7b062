"""What a backend implements to work with other devices of the process, its peers.

All of it is optional. A backend that implements none of it has its edges to other
devices resolved on the host, and its copies to them refused.

Hooks that submit run under the submission locks of both devices.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np

from accy_async.errors import UnsupportedOperation

if TYPE_CHECKING:
    from accy_async.backends.base import Backend
    from accy_async.backends.guards import Guard
    from accy_async.backends.hooks import EventState, StreamState
    from accy_async.backends.hostmemory import HostMemory
    from accy_async.backends.resources import Resource
    from accy_async.backends.routes import Way

__all__ = ["PeerHooks", "Staging"]


class Staging:
    """Host memory that a copy passes through; backends have page-locked ones.

    Attributes:
        address: where it begins.
        array: its bytes.
    """

    __slots__ = ("address", "array")

    def __init__(self, array: np.ndarray) -> None:
        self.array = array
        self.address = int(array.ctypes.data)

    def give_back(self) -> None:
        """Nothing uses it any more; any thread."""


class PeerHooks:
    """The hooks of one device for its peers."""

    staging_bytes: ClassVar[int] = 8 << 20
    """How much a staged copy moves at a time: two such pieces are under way at once.
    At the 25 GB/s of a PCIe 4 slot a piece takes 330 us, some thirty times what
    submitting it does."""

    def _can_wait_for(self, peer: Backend) -> bool:
        """Whether a stream here can wait for an event there, without the host."""
        del peer
        return False

    def _stream_wait_peer(
        self, stream: StreamState, position: int, event: EventState, peer: Backend
    ) -> None:
        """Submit a wait for a peer's event; only where `_can_wait_for`."""
        raise NotImplementedError

    def _way_to(self, peer: Backend) -> tuple[Way | None, str]:
        """How this device copies to a peer's memory by itself, and why so.

        None, and why not, where it cannot.
        """
        del peer
        return None, "this device reaches no other's memory"

    def _way_from(self, peer: Backend) -> tuple[Way | None, str]:
        """How this device copies from a peer's memory by itself, and why so."""
        del peer
        return None, "this device reaches no other's memory"

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
        """Submit a copy to a peer's buffer, to a stream of this device."""
        raise NotImplementedError

    pulls_in_order: ClassVar[bool] = False
    """True where a copy from a peer's memory that is the host's takes the bytes when
    its turn comes, and not when it is submitted."""

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
        """Submit a copy from a peer's buffer, to a stream of this device."""
        raise NotImplementedError

    def _host_memory(self, buffer: Resource, byte_size: int) -> HostMemory:
        """A buffer's first bytes, where its memory is the host's."""
        raise UnsupportedOperation(f"{buffer.name} is not in host memory")

    can_stage: ClassVar[bool] = False
    """True where copies can be staged: the three hooks below."""

    def _take_staging(self, byte_size: int) -> Staging:
        """Host memory to stage a copy in, until it is given back."""
        return Staging(np.empty(byte_size, np.uint8))

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
        """Submit a copy from a buffer to staging memory."""
        raise NotImplementedError

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
        """Submit a copy from staging memory to a buffer."""
        raise NotImplementedError
