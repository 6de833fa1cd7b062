"""A pipeline's kernels on several devices, each loaded where it is first launched."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import attrs

from accy_async.errors import AccyError, LaunchArgumentMismatch
from accy_async.pipeline.pool import PipelineArtifactPool
from accy_async.session.multi.perdevice import PerDevice

if TYPE_CHECKING:
    from accy_async.artifact.entry import KernelCallRegistry
    from accy_async.artifact.formats import ArtifactFormat
    from accy_async.pipeline.model import KernelCallPipeline
    from accy_async.pipeline.request import PipelineLaunch
    from accy_async.session.single import Session

__all__ = ["PipelinePools"]


class PipelinePools(PerDevice[PipelineArtifactPool]):
    """One pool of kernels for each device, loaded when it is first asked for.

    `MultiSession.load_pipeline` gives one. An async context manager; the session
    destroys the kernels at the latest. Closing waits for no launch.

    Args:
        seat_of: the session's seat on a device, by its name or place.
        pipeline, registry, format: what is loaded; None for each device's own format.
    """

    def __init__(
        self,
        seat_of: Callable[[str | int], Session],
        pipeline: KernelCallPipeline,
        registry: KernelCallRegistry,
        format: ArtifactFormat | str | None,
    ) -> None:
        super().__init__(pipeline.target, seat_of)
        self.pipeline = pipeline
        self._registry = registry
        self._format = format
        self._requests: WeakKeyDictionary[PipelineLaunch, dict[str, PipelineLaunch]] = (
            WeakKeyDictionary()
        )

    async def bound(self, request: PipelineLaunch, device: str | int) -> PipelineLaunch:
        """A launch with the pool of a device; the same each time, so packed once.

        Raises:
            As `on`.
        """
        pool = await self.on(device)
        name = pool.backend.device
        bound = self._requests.setdefault(request, {})
        if name not in bound:
            bound[name] = attrs.evolve(request, artifacts=pool)
        return bound[name]

    async def _load(self, seat: Session) -> PipelineArtifactPool:
        return await seat.load_pipeline(self.pipeline, self._registry, self._format)

    def _closed(self) -> AccyError:
        return LaunchArgumentMismatch(f"{self!r}: they are closed")
