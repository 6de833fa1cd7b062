"""When a prepared plan is lowered, and saying why one was not.

A plan's first run is plain. A device graph costs some 10 us a node to make, and a
replay saves the submitting of each node, some 5 us; so a plan that runs again has
paid for its graph after two or three more runs, and is lowered on its second one.
What refuses to be lowered runs as before, and says why.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from accy_async.backends.completion import run_abandonable
from accy_async.errors import AccyError, GraphError
from accy_async.graph.lowering.lowered import LoweredGraph
from accy_async.graph.lowering.obstacle import Obstacle, several_devices
from accy_async.graph.lowering.outline import outline
from accy_async.graph.lowering.parted import LoweredParts
from accy_async.graph.lowering.parts import TOO_SMALL, Parting, part_plan
from accy_async.graph.nodes import RuntimeScalar
from accy_async.graph.options import Lowering

if TYPE_CHECKING:
    from accy_async.backends.capabilities import Capabilities
    from accy_async.graph.lowering.outline import Outline
    from accy_async.graph.options import LaunchOptions
    from accy_async.graph.plan import LaunchGraphPlan
    from accy_async.graph.prepared import PreparedGraph

__all__ = ["FIRST_LOWERED_RUN", "MOST_NODES", "Lowered", "can_lower", "follow", "lower"]

Lowered = LoweredGraph | LoweredParts
"""A plan as one device graph, or as several around its calls on the host."""

FIRST_LOWERED_RUN = 2
"""The run from which on a prepared plan is a device graph, unless told otherwise."""

MOST_NODES = 20_000
"""Nodes of plans that are lowered unasked: their graphs take a fifth of a second."""

_MADE_AT_ONCE = 32
"""Nodes of graphs that are made on the spot; larger ones are on a thread."""

_log = logging.getLogger("accy_async.graph")


async def lower(
    prepared: PreparedGraph, options: LaunchOptions, *, is_observed: bool
) -> Lowered | None:
    """What a prepared plan is to run as; None to run it node by node.

    A plan with calls on the host is a device graph for each part between them.

    Args:
        prepared: the plan; its count of runs includes this one.
        options: of this run.
        is_observed: whether somebody is to be told of each node.

    Raises:
        GraphError: it must be lowered and cannot be; every obstacle is named.
        AccyError: it must be lowered and the device refused.

    Cancellation: nothing has been submitted; graphs that are being made on a
        thread are destroyed there.
    """
    must = options.lowering is Lowering.ALWAYS
    if options.lowering is Lowering.NEVER:
        return None
    if not must and prepared.runs < FIRST_LOWERED_RUN:
        return None
    if not must and prepared.backend.is_debugging:
        return None  # so that each launch is one that an error can be found at
    hindrance = _hindrance(prepared, options, is_observed=is_observed)
    if hindrance is not None:
        if must:
            raise _refusal(prepared.plan, (hindrance,))
        return None
    if prepared.obstacles and not must:
        return None
    if not must and len(prepared.plan.nodes) > MOST_NODES:
        prepared.obstacles = (_too_large(len(prepared.plan.nodes)),)
        return None
    try:
        return await _lower_now(prepared, must=must)
    except AccyError as error:
        if must or not prepared.backend.is_healthy:
            raise
        if not prepared.obstacles:
            prepared.obstacles = (Obstacle("", f"the device refused: {error}"),)
            _log.warning("a plan runs node by node: %s", prepared.obstacles[0])
        return None


def can_lower(prepared: PreparedGraph) -> bool:
    """True where the device has graphs, and nothing was found to be in the way."""
    return prepared.backend.capabilities.device_graphs and not prepared.obstacles


def follow(prepared: PreparedGraph, nodes: list[int]) -> None:
    """Have what a prepared plan runs as follow its new buffers or scalars.

    Args:
        prepared: the plan.
        nodes: those whose launches are others now.

    Raises:
        GraphError: it cannot be lowered any more, by its scalars.
        AccyError: the device refused.
    """
    lowered = prepared.lowered
    if lowered is None:
        return
    shape = lowered.shape
    if any(isinstance(loop.count, RuntimeScalar) for loop in prepared.plan.loops):
        shape = _shape_of(prepared, must=True)
    lowered.change(shape, nodes)


async def _lower_now(prepared: PreparedGraph, *, must: bool) -> Lowered:
    """What a prepared plan runs as, up to date.

    Parts too small to win anything are refused, unless they ``must`` be.

    Raises:
        GraphError: it cannot be lowered; every obstacle is named.
        AccyError: the device refused.
    """
    lowered = prepared.lowered
    if lowered is None:
        shape = _shape_of(prepared, must=must)
        if isinstance(shape, Parting):
            lowered = LoweredParts(prepared, shape)
        else:
            lowered = LoweredGraph(prepared, shape)
        prepared.lowered = lowered
    if prepared.awaited:
        lowered.watch(prepared.awaited)
    if not lowered.is_made:
        try:
            await _make(lowered)
        except BaseException:
            if prepared.lowered is lowered:
                prepared.lowered = None
            raise
    return lowered


def _shape_of(prepared: PreparedGraph, *, must: bool) -> Outline | Parting:
    """A prepared plan as one graph, or as several where it has calls on the host.

    Raises:
        GraphError: it is neither; what is in the way is noted.
    """
    capabilities, plan = prepared.backend.capabilities, prepared.plan
    found: Outline | Parting | tuple[Obstacle, ...] = (_no_graphs(capabilities),)
    if capabilities.device_graphs:
        find = part_plan if prepared.has_calls else outline
        scalars, has_loops = prepared.options.runtime_scalars, capabilities.device_loops
        found = find(plan, scalars, has_loops=has_loops)
    if isinstance(found, Parting) and not (must or found.is_worth_it):
        found = (TOO_SMALL,)
    if isinstance(found, tuple):
        prepared.obstacles = found
        raise _refusal(plan, found)
    return found


async def _make(lowered: Lowered) -> None:
    """Make device graphs: small ones at once, others on a thread.

    What was cancelled the thread closes, whether it is made by now or not.
    """
    if lowered.node_count <= _MADE_AT_ONCE:
        _make_or_close(lowered)
    else:
        await run_abandonable(
            lambda: _make_or_close(lowered),
            lambda _: lowered.close(),
            name="making device graphs",
        )


def _make_or_close(lowered: Lowered) -> None:
    try:
        lowered.make()
    except BaseException:
        lowered.close()
        raise


def _hindrance(
    prepared: PreparedGraph, options: LaunchOptions, *, is_observed: bool
) -> Obstacle | None:
    """What is in the way in this run alone, or where the plan is laid out now."""
    if prepared.places is not None:
        return several_devices(prepared.places.devices)
    if options.stream is not None:
        why = "its options name a stream, on which one node is to follow the other"
        return Obstacle("", why)
    if is_observed:
        return Obstacle("", "it is observed, node by node")
    return None


def _no_graphs(capabilities: Capabilities) -> Obstacle:
    return Obstacle("", f"{capabilities.identity.name} has no device graphs")


def _too_large(count: int) -> Obstacle:
    return Obstacle(
        "", f"it has {count} nodes, more than the {MOST_NODES} that are lowered unasked"
    )


def _refusal(plan: LaunchGraphPlan, found: tuple[Obstacle, ...]) -> GraphError:
    named = "; ".join(map(str, found[:8]))
    more = f"; and {len(found) - 8} more" if len(found) > 8 else ""
    return GraphError(
        f"a plan of {len(plan.nodes)} nodes cannot be lowered: {named}{more}"
    )
