"""Artifact pools: the loaded kernels of one pipeline, to launch it many times."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import anyio.lowlevel

from accy_async.artifact.entry import KernelCallRegistry
from accy_async.artifact.formats import ArtifactFormat, artifact_format
from accy_async.backends.cleanup import destroy_all, raise_together
from accy_async.backends.closing import ClosedOnExit
from accy_async.backends.loading import LoadedKernel, load_entry
from accy_async.pipeline.model import KernelCallPipeline
from accy_async.pipeline.resolved import (
    ResolvedPipeline,
    check_chain,
    check_device,
    check_format,
    resolve_pipeline,
)

if TYPE_CHECKING:
    from accy_async.backends.base import Backend
    from accy_async.backends.launch import PreparedLaunch

__all__ = ["PipelineArtifactPool", "PoolEntry", "load_pipeline_artifacts"]


PoolEntry = LoadedKernel
"""One stage's kernel: as an artifact, and as the device has it."""


class PipelineArtifactPool(ClosedOnExit):
    """The loaded kernels of one pipeline, one for each stage, owned by the caller.

    Keep a pool to launch the same chain many times, on any streams and at the
    same time, without loading its kernels again. It is an async context manager;
    `aclose` destroys every kernel.

    Attributes:
        backend: whose kernels they are.
        target, version, format: what the pool was loaded for.
        entries: the kernels, in the order of the stages.
    """

    def __init__(
        self,
        backend: Backend,
        resolved: ResolvedPipeline,
        entries: tuple[PoolEntry, ...],
    ) -> None:
        self.backend = backend
        self.target = resolved.pipeline.target
        self.version = resolved.pipeline.version
        self.format = resolved.format
        self.entries = entries
        self.resolved = resolved
        # Packed launches of requests that name this pool, while they are kept.
        self.launches: WeakKeyDictionary[object, tuple[PreparedLaunch, ...]] = (
            WeakKeyDictionary()
        )
        self._is_closed = False

    def __repr__(self) -> str:
        state = "closed" if self._is_closed else f"{len(self.entries)} kernels"
        return (
            f"<PipelineArtifactPool {self.target} v{self.version} "
            f"{self.format}: {state}>"
        )

    def __len__(self) -> int:
        return len(self.entries)

    def __iter__(self) -> Iterator[PoolEntry]:
        return iter(self.entries)

    @property
    def is_closed(self) -> bool:
        """True once `aclose` has been called."""
        return self._is_closed

    async def aclose(self) -> None:
        """Destroy every kernel of the pool. Idempotent; waits for no launch.

        A kernel that a queued launch still uses is freed when that launch is
        done: until then the backend's reaper holds it.

        Raises:
            AccyError: the device refused to destroy one; the others were
                destroyed all the same. Several errors come as an ExceptionGroup.

        Cancellation: shielded from it; all kernels are destroyed.
        """
        self.close()
        await anyio.lowlevel.cancel_shielded_checkpoint()

    def close(self) -> None:
        """`aclose` for sync code: destroying never waits."""
        if self._is_closed:
            return
        self._is_closed = True
        self.launches.clear()
        errors: list[Exception] = []
        destroy_all(self.backend, (entry.loaded for entry in self.entries), errors)
        raise_together(f"closing {self!r}", None, errors)


async def load_pipeline_artifacts(
    backend: Backend,
    pipeline: KernelCallPipeline,
    registry: KernelCallRegistry,
    format: ArtifactFormat | str,
) -> PipelineArtifactPool:
    """Load a pipeline's kernels once, for many launches.

    Checks the whole chain against the registry, then makes and loads each
    stage's entry. Awaits the loading, on a thread where the backend's loads
    block.

    Raises:
        InvalidType: the backend, the pipeline, the registry or the format is none.
        UnsupportedOperation: a stage has no entry in ``format``, or the backend
            does not load it (`KernelEntryMissing`, which is an InvalidArtifact
            too, in the first case).
        InvalidArtifact: an entry takes other arguments than its stage gives, or
            its payload is malformed.
        CapabilityMismatch, CompilationError, RuntimeUnavailable, OutOfMemory: a
            kernel could not be made or loaded. The stages loaded already are
            unloaded.

    Cancellation: the stages loaded already are unloaded, and one that is being
        loaded as soon as it is.
    """
    check_device("load_pipeline_artifacts", backend)
    check_chain(pipeline, registry)
    check_format("load_pipeline_artifacts", format)
    resolved = resolve_pipeline(pipeline, registry, artifact_format(format))
    await anyio.lowlevel.checkpoint()
    entries: list[PoolEntry] = []
    try:
        for number, stage in enumerate(resolved.stages):
            if number:
                await anyio.lowlevel.checkpoint()
            entries.append(await load_entry(backend, stage.entry, None))
    except BaseException as error:
        failures: list[Exception] = []
        destroy_all(backend, (entry.loaded for entry in entries), failures)
        raise_together(f"loading pipeline {pipeline.target!r}", error, failures)
        raise
    return PipelineArtifactPool(backend, resolved, tuple(entries))
