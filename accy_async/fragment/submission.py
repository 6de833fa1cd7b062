"""Submitting a prepared graph to one stream: sync, and no wait for anything."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from accy_async.errors import InvalidArtifact, UnsupportedOperation
from accy_async.graph.order import HOST

if TYPE_CHECKING:
    from accy_async.backends.handles import StreamHandle
    from accy_async.backends.launch import PreparedLaunch
    from accy_async.graph.plan import LaunchGraphPlan
    from accy_async.graph.prepared import PreparedGraph

__all__ = ["in_order", "launches_alone", "submit_prepared"]


def in_order(plan: LaunchGraphPlan) -> Sequence[int]:
    """A graph's nodes by index, none before those that it depends on.

    Raises:
        InvalidArtifact: it has no nodes.
        UnsupportedOperation: it has loops, calls on the host or external events,
            which take a run.
    """
    if not plan.nodes:
        raise InvalidArtifact("a graph of no nodes")
    top = plan.order.blocks[0]
    if top.bodies or HOST in top.kinds or plan.external_events:
        raise UnsupportedOperation(
            "a graph with loops, host calls or external events takes a run: pass it to "
            "Session.start with the bindings' graph_bindings()"
        )
    return [top.indices[item] for item in top.topological]


def launches_alone(
    prepared: PreparedGraph, order: Sequence[int]
) -> list[PreparedLaunch] | None:
    """The nodes' launches in this order; None where some node is no kernel."""
    launches = [prepared.launches[index] for index in order]
    ready = [launch for launch in launches if launch is not None]
    return ready if len(ready) == len(launches) else None


def submit_prepared(
    prepared: PreparedGraph, order: Sequence[int], stream: StreamHandle | None
) -> None:
    """Submit every node to one stream, in this order, which is that of the device.

    Raises:
        InvalidArtifact, InvalidBuffer, InvalidStream: something that it uses is not
            alive any more; nothing was submitted, if all nodes are kernels.
    """
    ready = launches_alone(prepared, order)
    if ready is not None:
        prepared.backend.submit_launches(ready, stream)
        return
    for index in order:
        prepared.action(index, prepared.initial_memories)(stream, None)
