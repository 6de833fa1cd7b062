"""Graphs of small launches, for the benchmarks of running graphs."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import attrs

from accy_async import (
    ArtifactFormat,
    BackendKind,
    DeviceArray,
    DType,
    Session,
    open_session,
)
from accy_async.artifact import FixedLaunch, KernelCallArtifact
from accy_async.backends import RecordingBackend
from accy_async.graph import (
    BufferSlot,
    BufferUse,
    KernelCall,
    LaunchGraphDependency,
    LaunchGraphNode,
    LaunchGraphPlan,
)

__all__ = ["STREAMS", "Parts", "bindings", "entry", "random_parts", "recording_session"]

STREAMS = 8
REACH = 64
"""How far back a node's predecessors lie at most, in the order of the plan."""


@attrs.frozen
class Parts:
    """What a plan is built of, and each node's predecessors, for our peers."""

    nodes: tuple[LaunchGraphNode, ...]
    dependencies: tuple[LaunchGraphDependency, ...]
    slots: tuple[BufferSlot, ...]
    preds: tuple[tuple[int, ...], ...]

    def plan(self) -> LaunchGraphPlan:
        """The plan, validated."""
        return LaunchGraphPlan(
            nodes=self.nodes, dependencies=self.dependencies, slots=self.slots
        )


def entry() -> KernelCallArtifact:
    """A kernel of two buffers that the recording backend takes."""
    return KernelCallArtifact(
        target="bench.kernel",
        version=1,
        format=ArtifactFormat.CUDA_PTX,
        entry_name="kernel",
        argument_count=2,
        payload="code",
        launch=FixedLaunch(grid=(1, 1, 1), threadgroup=(32, 1, 1)),
    )


def random_parts(count: int, seed: int = 1) -> Parts:
    """Launches, each after one to three of those shortly before it."""
    choose = random.Random(seed)
    kernel = entry()
    preds: list[tuple[int, ...]] = []
    for node in range(count):
        first = max(0, node - REACH)
        some = min(node - first, choose.randint(1, 3))
        preds.append(tuple(sorted(choose.sample(range(first, node), some))))
    return Parts(
        nodes=tuple(
            LaunchGraphNode(
                name=f"n{node}",
                operation=KernelCall(
                    entry=kernel,
                    buffers=(BufferUse("a", "read_only"), BufferUse("b", "read_only")),
                ),
            )
            for node in range(count)
        ),
        dependencies=tuple(
            LaunchGraphDependency(f"n{before}", f"n{after}")
            for after, befores in enumerate(preds)
            for before in befores
        ),
        slots=tuple(BufferSlot(name, DType.F32, 64) for name in "ab"),
        preds=tuple(preds),
    )


@asynccontextmanager
async def recording_session() -> AsyncIterator[Session]:
    """A session on a device that takes everything and keeps no record of it."""
    backend = RecordingBackend(BackendKind.CUDA, keeps_records=False)
    # One more than a long run gets: it leaves that to others.
    async with open_session(backend, max_streams=STREAMS + 1) as session:
        yield session


def bindings(session: Session) -> Mapping[str, DeviceArray]:
    """Buffers for the slots of `random_parts`."""
    return {name: session.allocate(64, DType.F32) for name in "ab"}
