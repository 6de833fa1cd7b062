"""Loading one kernel: made, put onto the device, and never lost on the way."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from accy_async.artifact.kernel import KernelArtifact
from accy_async.backends.completion import run_abandonable
from accy_async.backends.handles import LoadedArtifact
from accy_async.values import instances

if TYPE_CHECKING:
    from collections.abc import Callable

    from accy_async.artifact.entry import KernelCallArtifact
    from accy_async.backends.base import Backend

__all__ = ["LoadedKernel", "load_entry", "load_kernel"]


@attrs.frozen
class LoadedKernel:
    """A kernel: as an artifact, and as the device has it."""

    artifact: KernelArtifact = attrs.field(validator=instances(KernelArtifact))
    loaded: LoadedArtifact = attrs.field(validator=instances(LoadedArtifact))


async def load_entry(
    backend: Backend, entry: KernelCallArtifact, diagnostic_id: str | None
) -> LoadedKernel:
    """Make and load one kernel; on a thread where the backend's loads block.

    Raises:
        AccyError: as `Backend.create_artifact` and `Backend.load_artifact`.

    Cancellation: returns at once; what is being loaded is unloaded when it is.
    """
    return await _load(
        backend,
        lambda: backend.create_artifact(entry.artifact_request(diagnostic_id)),
        entry.entry_name,
    )


async def load_kernel(backend: Backend, artifact: KernelArtifact) -> LoadedKernel:
    """Load one kernel that is made; on a thread where the backend's loads block.

    Raises:
        AccyError: as `Backend.load_artifact`.

    Cancellation: returns at once; what is being loaded is unloaded when it is.
    """
    return await _load(backend, lambda: artifact, artifact.kernel_name)


async def _load(
    backend: Backend, make: Callable[[], KernelArtifact], name: str
) -> LoadedKernel:
    def load() -> LoadedKernel:
        artifact = make()
        return LoadedKernel(artifact, backend.load_artifact(artifact))

    def unload(late: LoadedKernel) -> None:
        backend.discard_late(late.loaded, "whose loading was cancelled")

    if not backend.loads_block:
        return load()
    return await run_abandonable(load, unload, name=f"load {name}")
