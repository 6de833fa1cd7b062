"""Holding a stream back by a gate on the host."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from accy_async.backends import StreamHandle
from accy_async.backends.vulkan import VulkanBackend
from accy_async.backends.vulkan.operations import HostGate
from accy_async.backends.vulkan.streams import VulkanStream

__all__ = ["hold"]


def hold(
    backend: VulkanBackend, stream: StreamHandle | None = None
) -> Callable[[], None]:
    """Make a stream stand still behind its work; returns what lets it go on."""
    with backend._lock:
        state = cast("VulkanStream", backend._stream(stream))
        gate = HostGate(state.timeline.advance())
        backend._submit(state, gate)

    def release() -> None:
        with backend._lock:
            if not gate.is_open:
                gate.is_open = True
                backend._pump()

    return release
