"""A pipeline's kernels on several devices, each loaded where it is first launched."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Self
from weakref import WeakKeyDictionary

import anyio
import anyio.lowlevel
import attrs

from accy_async.backends.cleanup import raise_together
from accy_async.errors import LaunchArgumentMismatch

if TYPE_CHECKING:
    from accy_async.artifact.entry import KernelCallRegistry
    from accy_async.artifact.formats import ArtifactFormat
    from accy_async.pipeline.launch import PipelineLaunch
    from accy_async.pipeline.model import KernelCallPipeline
    from accy_async.pipeline.pool import PipelineArtifactPool
    from accy_async.session.single import Session

__all__ = ["PipelinePools"]


class PipelinePools:
    """One pool of kernels for each device, loaded when it is first asked for.

    `MultiSession.load_pipeline` gives one. An async context manager; the session
    destroys the kernels at the latest.

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
        self.pipeline = pipeline
        self._seat_of = seat_of
        self._registry = registry
        self._format = format
        self._pools: dict[str, PipelineArtifactPool] = {}
        self._loading: dict[str, anyio.Lock] = {}
        self._requests: WeakKeyDictionary[PipelineLaunch, dict[str, PipelineLaunch]] = (
            WeakKeyDictionary()
        )
        self._is_closed = False

    def __repr__(self) -> str:
        loaded = ", ".join(self._pools) or "no device yet"
        state = "closed" if self._is_closed else f"on {loaded}"
        return f"<PipelinePools {self.pipeline.target}: {state}>"

    async def on(self, device: str | int) -> PipelineArtifactPool:
        """The pool of a device, loaded if it is not yet; once, whoever asks.

        Raises:
            InvalidValue: the session has no such device.
            LaunchArgumentMismatch: the pools are closed.
            As `load_pipeline_artifacts`.

        Cancellation: what is loaded already of it is unloaded.
        """
        seat = self._seat_of(device)
        name = seat.backend.device
        found = self._pools.get(name)
        if found is not None and not self._is_closed:
            await anyio.lowlevel.checkpoint()
            return found
        async with self._loading.setdefault(name, anyio.Lock()):
            self._check()
            if name not in self._pools:
                pool = await seat.load_pipeline(
                    self.pipeline, self._registry, self._format
                )
                if self._is_closed:
                    pool.close()
                self._check()
                self._pools[name] = pool
            return self._pools[name]

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

    async def aclose(self) -> None:
        """Destroy every kernel, on all devices. Idempotent; waits for no launch.

        Raises:
            ExceptionGroup: a device refused; the others' were destroyed all the same.

        Cancellation: shielded from it.
        """
        self._is_closed = True
        errors: list[Exception] = []
        pools, self._pools = list(self._pools.values()), {}
        for pool in pools:
            try:
                pool.close()
            except Exception as error:  # noqa: BLE001 - raised below, together
                errors.append(error)
        raise_together(f"closing {self!r}", None, errors)
        await anyio.lowlevel.cancel_shielded_checkpoint()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            await self.aclose()
        except Exception as error:  # noqa: BLE001 - raised together with the block's
            raise_together(f"closing {self!r}", exc, [error])

    def _check(self) -> None:
        if self._is_closed:
            raise LaunchArgumentMismatch(f"{self!r}: they are closed")
