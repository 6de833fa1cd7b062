"""When a prepared plan is lowered, and saying why one was not.

A plan's first run is plain. A device graph costs some 10 us a node to make, and a
replay saves the submitting of each node, some 5 us; so a plan that runs again has
paid for its graph after two or three more runs, and is lowered on its second one.
What refuses to be lowered runs as before, and says why.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from accy_async.backends.completion import run_abandonable
from accy_async.errors import AccyError, GraphError
from accy_async.graph.lowering.lowered import LoweredGraph
from accy_async.graph.lowering.outline import (
    Obstacle,
    Outline,
    outline,
    several_devices,
)
from accy_async.graph.lowering.parted import LoweredParts
from accy_async.graph.lowering.parts import TOO_SMALL, Parting, part_plan
from accy_async.graph.nodes import RuntimeScalar
from accy_async.graph.options import Lowering

if TYPE_CHECKING:
    from accy_async.backends.capabilities import Capabilities
    from accy_async.graph.options import LaunchOptions
    from accy_async.graph.plan import LaunchGraphPlan
    from accy_async.graph.prepared import PreparedGraph

__all__ = [
    "FIRST_LOWERED_RUN",
    "MOST_NODES",
    "can_lower",
    "follow",
    "lower",
    "lower_now",
    "lower_parts",
]

FIRST_LOWERED_RUN = 2
"""The run from which on a prepared plan is a device graph, unless told otherwise."""

MOST_NODES = 20_000
"""Nodes of plans that are lowered unasked: their graphs take a fifth of a second."""

_MADE_AT_ONCE = 32
"""Nodes of graphs that are made on the spot; larger ones are on a thread."""

_LoweredT = TypeVar("_LoweredT")

_log = logging.getLogger("accy_async.graph")


async def lower(
    prepared: PreparedGraph, options: LaunchOptions, *, is_observed: bool
) -> LoweredGraph | None:
    """The device graph to run a prepared plan as; None to run it node by node.

    Args:
        prepared: the plan; its count of runs includes this one.
        options: of this run.
        is_observed: whether somebody is to be told of each node.

    Raises:
        GraphError: it must be lowered and cannot be; every obstacle is named.
        AccyError: it must be lowered and the device refused.

    Cancellation: nothing has been submitted; a graph that is being made on a
        thread is destroyed there.
    """
    return await _lower(prepared, options, lower_now, is_observed=is_observed)


async def lower_parts(
    prepared: PreparedGraph, options: LaunchOptions, *, is_observed: bool
) -> LoweredParts | None:
    """The same for a plan with calls on the host: a device graph for each part.

    Raises:
        As `lower`.

    Cancellation: as for `lower`.
    """
    now = partial(_part_now, must=options.lowering is Lowering.ALWAYS)
    return await _lower(prepared, options, now, is_observed=is_observed)


async def _lower(
    prepared: PreparedGraph,
    options: LaunchOptions,
    now: Callable[[PreparedGraph], Awaitable[_LoweredT]],
    *,
    is_observed: bool,
) -> _LoweredT | None:
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
        return await now(prepared)
    except AccyError as error:
        if must or not prepared.backend.is_healthy:
            raise
        if not prepared.obstacles:
            prepared.obstacles = (Obstacle("", f"the device refused: {error}"),)
            _log.warning("a plan runs node by node: %s", prepared.obstacles[0])
        return None


async def _part_now(prepared: PreparedGraph, *, must: bool) -> LoweredParts:
    """The device graphs of a prepared plan's parts, up to date.

    They are refused where nothing is won by them, unless they ``must`` be.

    Raises:
        As `lower_now`.
    """
    parted = prepared.parted
    if parted is None:
        found = _parting_of(prepared)
        if isinstance(found, Parting) and not (must or found.is_worth_it):
            found = (TOO_SMALL,)
        if not isinstance(found, Parting):
            prepared.obstacles = found
            raise _refusal(prepared.plan, found)
        parted = prepared.parted = LoweredParts(prepared, found)
    parted.watch(prepared.awaited)
    if not parted.is_made:
        try:
            await _make(parted, len(prepared.plan.nodes))
        except BaseException:
            if prepared.parted is parted:
                prepared.parted = None
            raise
    return parted


def _parting_of(prepared: PreparedGraph) -> Parting | tuple[Obstacle, ...]:
    capabilities = prepared.backend.capabilities
    if not capabilities.device_graphs:
        return (_no_graphs(capabilities),)
    return part_plan(
        prepared.plan,
        prepared.options.runtime_scalars,
        has_loops=capabilities.device_loops,
    )


async def lower_now(prepared: PreparedGraph) -> LoweredGraph:
    """The device graph of a prepared plan, up to date.

    Raises:
        GraphError: it cannot be lowered; every obstacle is named.
        AccyError: the device refused.
    """
    lowered = prepared.lowered
    if lowered is None:
        found = _outline_of(prepared)
        if not isinstance(found, Outline):
            prepared.obstacles = found
            raise _refusal(prepared.plan, found)
        lowered = prepared.lowered = LoweredGraph(prepared, found)
    has_more_watched = bool(prepared.awaited) and lowered.watch(prepared.awaited)
    if has_more_watched or not lowered.is_made:
        try:
            await _make(lowered, len(lowered.outline.body))
        except BaseException:
            if prepared.lowered is lowered:
                prepared.lowered = None
            raise
    return lowered


def can_lower(prepared: PreparedGraph) -> bool:
    """True where the device has graphs, and nothing was found to be in the way."""
    return prepared.backend.capabilities.device_graphs and not prepared.obstacles


def follow(prepared: PreparedGraph, nodes: list[int]) -> None:
    """Have a prepared plan's device graph follow its new buffers or scalars.

    Args:
        prepared: the plan.
        nodes: those whose launches are others now.

    Raises:
        GraphError: it cannot be lowered any more, by its scalars.
        AccyError: the device refused.
    """
    if prepared.parted is not None:
        parting = prepared.parted.parting
        if any(isinstance(loop.count, RuntimeScalar) for loop in prepared.plan.loops):
            parts = _parting_of(prepared)
            if not isinstance(parts, Parting):
                prepared.obstacles = parts
                raise _refusal(prepared.plan, parts)
            parting = parts
        prepared.parted.change(parting, nodes)
    lowered = prepared.lowered
    if lowered is None:
        return
    found = lowered.outline
    if any(isinstance(loop.count, RuntimeScalar) for loop in prepared.plan.loops):
        again = _outline_of(prepared)
        if not isinstance(again, Outline):
            prepared.obstacles = again
            raise _refusal(prepared.plan, again)
        found = again
    lowered.change(found, nodes)


async def _make(lowered: LoweredGraph | LoweredParts, node_count: int) -> None:
    """Make device graphs: small ones at once, others on a thread.

    What was cancelled the thread closes, whether it is made by now or not.
    """
    if node_count <= _MADE_AT_ONCE:
        _make_or_close(lowered)
    else:
        await run_abandonable(
            lambda: _make_or_close(lowered),
            lambda _: lowered.close(),
            name="making device graphs",
        )


def _make_or_close(lowered: LoweredGraph | LoweredParts) -> None:
    try:
        lowered.make()
    except BaseException:
        lowered.close()
        raise


def _outline_of(prepared: PreparedGraph) -> Outline | tuple[Obstacle, ...]:
    capabilities = prepared.backend.capabilities
    if not capabilities.device_graphs:
        return (_no_graphs(capabilities),)
    return outline(
        prepared.plan,
        prepared.options.runtime_scalars,
        has_loops=capabilities.device_loops,
    )


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
