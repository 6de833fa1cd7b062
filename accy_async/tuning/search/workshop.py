"""From schedules to candidates: built on threads ahead of time, loaded when wanted.

What compiles runs on worker threads while others are measured. Loading is left to the
time between two heats: a driver may stop the whole device for it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING

import anyio

from accy_async.artifact.entry import KernelCallArtifact
from accy_async.artifact.kernel import KernelArtifact
from accy_async.backends.cleanup import destroy_all
from accy_async.backends.loading import LoadedKernel, load_kernel
from accy_async.errors import DeviceLost, InvalidType, OutOfMemory, SessionClosed
from accy_async.tuning.measuring import Candidate
from accy_async.tuning.search.jobs import Job, Workers
from accy_async.tuning.search.options import Variant
from accy_async.tuning.search.space import Schedule

if TYPE_CHECKING:
    from accy_async.backends.base import Backend
    from accy_async.backends.handles import BufferBinding, LoadedArtifact

__all__ = ["Build", "BuildFailed", "Workshop"]

Build = Callable[[Schedule], Variant]
"""Makes a schedule's kernel; on worker threads, several at a time."""

_Built = tuple[Variant, KernelArtifact | None]
"""What a thread made of a schedule; the artifact is still to be made without one."""

_MOST_LOADED = 64
"""Artifacts that are kept loaded; the one used longest ago goes first."""


class BuildFailed(Exception):
    """A schedule could not be made into a candidate; the cause says why."""


class Workshop:
    """Builds, loads, and owns what was loaded.

    Args:
        backend: the device.
        build: makes a schedule's kernel.
        buffers: the buffers that all candidates take.
        workers: threads that build ahead; 0 for none ahead.
        limit_s: after which building one is given up.
    """

    def __init__(
        self,
        backend: Backend,
        build: Build,
        buffers: Sequence[BufferBinding],
        workers: int,
        limit_s: float,
    ) -> None:
        self._limit_s = limit_s
        self._backend = backend
        self._build = build
        self._buffers = tuple(buffers)
        self._workers = Workers(max(1, workers), "build a candidate")
        self._is_ahead = workers > 0
        self._jobs: dict[Schedule, Job[_Built]] = {}
        self._loaded: dict[KernelArtifact, LoadedKernel] = {}

    @property
    def loaded(self) -> tuple[LoadedArtifact, ...]:
        """What is to be destroyed, the newest first."""
        return tuple(kernel.loaded for kernel in reversed(self._loaded.values()))

    def begin(self, schedule: Schedule) -> None:
        """It will be wanted soon: build it, where that is done ahead."""
        if self._is_ahead:
            self._job(schedule)

    async def candidate(self, schedule: Schedule) -> Candidate:
        """The schedule as a candidate: built, and loaded.

        Raises:
            BuildFailed: it cannot be built or loaded.
            DeviceLost, OutOfMemory, SessionClosed: nothing else can be, either.

        Cancellation: what is being built goes on, and is awaited the next time.
        """
        try:
            variant, made = await self._built(schedule)
            artifact = self._artifact(variant) if made is None else made
            kernel = await self._load(artifact)
        except (DeviceLost, OutOfMemory, SessionClosed):
            raise
        except Exception as error:
            raise BuildFailed(f"{type(error).__name__}: {error}") from error
        return variant.candidate(str(schedule), kernel, self._buffers)

    def keep(self, schedules: Collection[Schedule]) -> None:
        """Only these may be wanted again soon; others are built anew if they are."""
        for schedule in [one for one in self._jobs if one not in schedules]:
            del self._jobs[schedule]

    def trim(self) -> None:
        """Unload what was used longest ago, where there is too much."""
        excess = list(self._loaded)[: max(0, len(self._loaded) - _MOST_LOADED)]
        errors: list[Exception] = []
        handles = [self._loaded.pop(artifact).loaded for artifact in excess]
        destroy_all(self._backend, handles, errors)
        if errors:
            raise ExceptionGroup("search: what was measured is not unloaded", errors)

    def close(self) -> None:
        """Build nothing more."""
        self._workers.close()

    # Within

    async def _built(self, schedule: Schedule) -> _Built:
        """What a thread made of it; gives up any that is stuck meanwhile."""
        job = self._job(schedule)
        while True:
            with anyio.move_on_after(self._limit_s):
                return await job.result()
            self._workers.give_up_after(self._limit_s)

    def _job(self, schedule: Schedule) -> Job[_Built]:
        job = self._jobs.get(schedule)
        if job is None:
            job = self._workers.submit(lambda: self._make(schedule))
            self._jobs[schedule] = job
        return job

    def _make(self, schedule: Schedule) -> _Built:
        variant = self._build(schedule)
        if not isinstance(variant, Variant):
            raise InvalidType("search.build", variant, "a Variant")
        # What does not block is not made to be called on threads.
        is_slow = self._backend.loads_block
        return variant, self._artifact(variant) if is_slow else None

    def _artifact(self, variant: Variant) -> KernelArtifact:
        artifact = variant.artifact
        if isinstance(artifact, KernelCallArtifact):
            return self._backend.create_artifact(artifact.artifact_request())
        return artifact

    async def _load(self, artifact: KernelArtifact) -> LoadedKernel:
        kernel = self._loaded.pop(artifact, None)
        if kernel is None:
            kernel = await load_kernel(self._backend, artifact)
        self._loaded[artifact] = kernel  # the newest now
        return kernel
