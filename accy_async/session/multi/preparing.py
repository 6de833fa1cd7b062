"""Preparing a plan on several devices: in parts, where all of them can be lowered."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from accy_async.backends.cleanup import raise_together
from accy_async.errors import DeviceError, GraphError, OutOfMemory
from accy_async.graph.lowering.obstacle import Obstacle
from accy_async.graph.lowering.outline import Outline, outline
from accy_async.graph.lowering.policy import MOST_NODES
from accy_async.graph.lowering.spanning import SpanPart, span_parts
from accy_async.graph.options import Lowering
from accy_async.graph.rereads import pulled_early
from accy_async.session.multi.spanning import SpanningPlan

if TYPE_CHECKING:
    from accy_async.graph.bindings import Binding
    from accy_async.graph.crossing import CrossingExecutive
    from accy_async.graph.options import LaunchOptions
    from accy_async.graph.plan import LaunchGraphPlan
    from accy_async.graph.whereabouts import Whereabouts
    from accy_async.session.single import Session

__all__ = ["prepare_spanning"]

_log = logging.getLogger("accy_async.graph")


async def prepare_spanning(
    plan: LaunchGraphPlan,
    places: Whereabouts,
    seats: Sequence[Session],
    crossing: CrossingExecutive,
    bindings: Mapping[str, Binding],
    options: LaunchOptions,
    grace_s: float,
) -> SpanningPlan | tuple[Obstacle, ...]:
    """Make a plan's parts ready on their devices; or say what keeps them from it.

    Args:
        plan: the plan.
        places: where everything is, by the numbers of the devices that it uses.
        seats: the sessions on these.
        crossing: what runs plans on them.
        bindings: as for `MultiSession.prepare`.
        options: as there.
        grace_s: how long cleanup may wait for the devices, in seconds.

    Raises:
        GraphError: it must be lowered and cannot be.
        LaunchArgumentMismatch, InvalidType: bindings or options do not fit the plan.
        AccyError: it must be lowered and a device refused, or is lost.

    Cancellation: nothing is left of it but loaded kernels.
    """
    must = options.lowering is Lowering.ALWAYS
    split = partial(_parts_to_lower, plan, places, seats)
    found = split(options)
    parts = [one for one in found if isinstance(one, SpanPart)]
    if len(parts) < len(found):
        obstacles = tuple(one for one in found if isinstance(one, Obstacle))
        if must:
            named = "; ".join(map(str, obstacles))
            raise GraphError(
                f"a plan of {len(plan.nodes)} nodes on several devices cannot be "
                f"lowered: {named}"
            )
        return obstacles
    made = SpanningPlan(plan, places, seats, crossing, split, grace_s)
    try:
        await made.open(parts, bindings, options)
    except BaseException as error:  # noqa: BLE001 - raised, or said as an obstacle
        errors: list[Exception] = []
        made.close_now(errors)
        is_refused = isinstance(error, (DeviceError, GraphError, OutOfMemory))
        is_well = all(seat.backend.is_healthy for seat in seats)
        if must or errors or not is_refused or not is_well:
            raise_together("preparing a plan", error, errors)
        obstacle = Obstacle("", f"a device refused: {error}")
        _log.warning("a plan on several devices runs node by node: %s", obstacle)
        return (obstacle,)
    return made


def _parts_to_lower(
    plan: LaunchGraphPlan,
    places: Whereabouts,
    seats: Sequence[Session],
    options: LaunchOptions,
) -> tuple[SpanPart, ...] | tuple[Obstacle, ...]:
    """The parts of a plan, all of which can be lowered; or all that is in the way."""

    def can_wait(waiting: int, waited: int) -> bool:
        return seats[waiting].backend.can_wait_for(seats[waited].backend)

    found = span_parts(plan, places, can_wait, options.runtime_scalars)
    obstacles = pulled_early(plan, lambda number: seats[number].backend, places)
    if options.lowering is not Lowering.ALWAYS and len(plan.nodes) > MOST_NODES:
        many = f"it has {len(plan.nodes)} nodes, more than the {MOST_NODES} that are "
        obstacles.append(Obstacle("", f"{many}lowered unasked"))
    without: set[int] = set()
    once = {part.number: part for part in found if isinstance(part, SpanPart)}
    for part in once.values():
        if part.plan is None:
            continue
        capabilities = seats[part.device].capabilities
        if not capabilities.device_graphs:
            without.add(part.device)
            continue
        outlined = outline(
            part.plan,
            options.runtime_scalars,
            has_loops=capabilities.device_loops,
            no_limits="what comes after it on other devices would have to be skipped",
        )
        if not isinstance(outlined, Outline):
            obstacles += outlined
    for device in sorted(without):
        why = f"{seats[device].backend.device} has no device graphs"
        obstacles.append(Obstacle("", why))
    return tuple(obstacles) if obstacles else found
