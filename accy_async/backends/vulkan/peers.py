"""The Vulkan backend beside other devices: it copies from and to the host's memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from accy_async.backends.routes import Way
from accy_async.backends.vulkan.graphs import VulkanGraphs
from accy_async.backends.vulkan.operations import Upload

if TYPE_CHECKING:
    from accy_async.backends.base import Backend
    from accy_async.backends.guards import Guard
    from accy_async.backends.hooks import StreamState
    from accy_async.backends.resources import Resource
    from accy_async.backends.vulkan.memory import VulkanMemory
    from accy_async.backends.vulkan.timeline import VulkanTimeline

__all__ = ["VulkanPeers"]

_PROCESSOR = (1, 0)
"""DLPack's kDLCPU."""


class VulkanPeers(VulkanGraphs):
    """The hooks of the backend for its peers.

    What it waits for of theirs is waited for on the host: a queue would stand still
    meanwhile, with the work of every other stream on it.
    """

    def _way_to(self, peer: Backend) -> tuple[Way | None, str]:
        if peer.exchange_device == _PROCESSOR:
            return Way.HOST, f"memory of {peer.device} is the host's"
        return None, f"{self.device} reaches no memory of {peer.device}"

    def _way_from(self, peer: Backend) -> tuple[Way | None, str]:
        return self._way_to(peer)

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
        written = cast("VulkanMemory", target.payload)
        behind = cast("VulkanTimeline", stream.timeline)
        with self._at(stream, position):
            # A copy to the host that is before it there ends on the host.
            operation = Upload(
                position, guard, self._allocator, written, 0, data, behind
            )
        self._submit(stream, operation)
