"""Small parts for runs under test: kernels that only have a name, counting plans."""

from __future__ import annotations

from accy_async.artifact.entry import KernelCallArtifact
from accy_async.backends import RecordingBackend
from accy_async.graph.builder import LaunchGraphBuilder
from accy_async.graph.plan import LaunchGraphPlan
from tests.graph.graphs import kernel_entry

__all__ = ["KERNEL", "chains", "check_empty", "diamond"]

KERNEL: KernelCallArtifact = kernel_entry(0)
"""A kernel without arguments, for the recording backend."""


def chains(count: int, length: int) -> LaunchGraphPlan:
    """Independent chains ``c<chain>_<place>``."""
    b = LaunchGraphBuilder(edges="explicit")
    for chain in range(count):
        last: tuple[str, ...] = ()
        for place in range(length):
            b.kernel(KERNEL, name=f"c{chain}_{place}", after=last)
            last = (f"c{chain}_{place}",)
    return b.build()


def diamond() -> LaunchGraphPlan:
    """``top`` before ``left`` and ``right``, both before ``bottom``."""
    b = LaunchGraphBuilder(edges="explicit")
    b.kernel(KERNEL, name="top")
    b.kernel(KERNEL, name="left", after="top")
    b.kernel(KERNEL, name="right", after="top")
    b.kernel(KERNEL, name="bottom", after=("left", "right"))
    return b.build()


def check_empty(backend: RecordingBackend) -> None:
    """Assert that nothing made on the backend is left, in use or not."""
    assert not any(backend.live_objects().values()), backend.live_objects()
    assert len(backend.reaper) == 0
