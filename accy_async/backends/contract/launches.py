"""Launches: checked, packed, submitted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from accy_async.backends.handles import StreamHandle
from accy_async.backends.launch import PreparedLaunch
from accy_async.backends.lifetimes import refuse_destroyed

if TYPE_CHECKING:
    from accy_async.backends.guards import Guard
    from accy_async.backends.launch import LaunchRequest

from accy_async.backends.contract.core import BackendCore, admit

__all__ = ["Launches"]


class Launches(BackendCore):
    """Kernel launches on one device."""

    def launch(self, request: LaunchRequest) -> int:
        """Submit a kernel to its stream. A grid of no blocks is a no-op.

        Returns:
            Its position on the stream's timeline; the last one's for a no-op.

        Raises:
            LaunchArgumentMismatch: the arguments are not the kernel's.
            CapabilityMismatch: the geometry is beyond the device's limits.
            InvalidArtifact, InvalidBuffer, InvalidStream: a handle is not alive.
        """
        with self._lock:
            prepared = self.prepare_launch(request)
            return self.submit_launch(prepared, request.stream)

    def prepare_launch(self, request: LaunchRequest) -> PreparedLaunch:
        """Check and pack a launch once, to submit it many times.

        Raises:
            LaunchArgumentMismatch, CapabilityMismatch, InvalidArtifact,
            InvalidBuffer: as for `launch`.
        """
        self._check("launch")
        request.check_counts()
        self.capabilities.check_geometry(request.geometry, request.artifact.kernel_name)
        with self._lock:
            artifact = self._find_for_launch(request.loaded)
            buffers = [self._find_for_launch(b.handle) for b in request.buffers]
            payload = self._prepare(request, artifact, buffers)
        return PreparedLaunch(request, artifact, buffers, payload)

    def submit_launch(
        self,
        prepared: PreparedLaunch,
        stream: StreamHandle | None = None,
        guard: Guard | None = None,
    ) -> int:
        """Submit a prepared launch to a stream.

        Args:
            prepared: what `prepare_launch` gave.
            stream: where it runs; None for the default stream.
            guard: asked before, and told of its failure; see `guards`.

        Returns:
            Its position on the stream's timeline; the last one's for a no-op.

        Raises:
            InvalidArtifact, InvalidBuffer, InvalidStream: something that it uses
                is not alive any more.
        """
        self._check("launch")
        with self._lock:
            for resource in prepared.resources:
                if not resource.is_alive:
                    refuse_destroyed(resource)
            state = self._stream(stream)
            timeline = state.timeline
            if not prepared.has_blocks:
                return timeline.submitted
            for resource in prepared.resources:
                if resource.arrival is not None:
                    admit(state, prepared.resources)
                    break
            position = timeline.advance()
            for resource in prepared.resources:
                resource.touch(timeline, position)
            self._launch(state, position, prepared, guard)
        return position

    def submit_launches(
        self, launches: Sequence[PreparedLaunch], stream: StreamHandle | None = None
    ) -> None:
        """Submit prepared launches in order, all of them or none.

        Raises:
            InvalidArtifact, InvalidBuffer, InvalidStream: something that one of
                them uses is not alive any more; none was submitted.
        """
        with self._lock:
            for prepared in launches:
                for resource in prepared.resources:
                    if not resource.is_alive:
                        refuse_destroyed(resource)
            for prepared in launches:
                self.submit_launch(prepared, stream)
