"""Whether a plan can be lowered, and why not, in words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from accy_async.graph.lowering.obstacle import Obstacle, several_devices
from accy_async.graph.lowering.outline import Outline, outline
from accy_async.graph.lowering.outlinenode import each_node
from accy_async.graph.lowering.parts import (
    TOO_SMALL,
    Parting,
    has_host_calls,
    part_plan,
)

if TYPE_CHECKING:
    from accy_async.graph.plan import LaunchGraphPlan

__all__ = ["lowering_report", "obstacles"]


def obstacles(plan: LaunchGraphPlan, *, has_loops: bool = True) -> tuple[Obstacle, ...]:
    """What keeps a plan from being lowered, on a device that has graphs."""
    found = outline(plan, has_loops=has_loops)
    return () if isinstance(found, Outline) else found


def lowering_report(
    plan: LaunchGraphPlan, limit: int, devices: Sequence[str] = ()
) -> list[str]:
    """Whether the plan can be lowered, in lines; else what is in the way.

    Args:
        plan: the plan.
        limit: how many obstacles are listed.
        devices: those that it runs on, where they are several.
    """
    if len(devices) > 1:
        lines = ["cannot be lowered to a device graph:"]
        return [*lines, f"  {several_devices(devices)}"]
    found = outline(plan)
    if isinstance(found, Outline):
        loops = sum(1 for node in each_node(found.body) if node.turns)
        within = f", {loops} of them loops" if loops else ""
        lines = [
            f"can be lowered: to one device graph of {found.node_count} nodes{within}"
        ]
        stepped = obstacles(plan, has_loops=False) if loops else ()
        if stepped:
            lines.append("  not on a device that knows no loops, such as Vulkan's:")
            lines += [f"    {obstacle}" for obstacle in stepped[:limit]]
        return lines
    if has_host_calls(plan):
        parts = part_plan(plan)
        if isinstance(parts, Parting) and parts.is_worth_it:
            nodes = sum(part.outline.node_count for part in parts.parts)
            return [
                f"can be lowered: to {len(parts.parts)} device graphs of {nodes} "
                f"nodes, around {len(parts.calls)} calls on the host"
            ]
        found = (TOO_SMALL,) if isinstance(parts, Parting) else parts
    lines = ["cannot be lowered to a device graph:"]
    lines += [f"  {obstacle}" for obstacle in found[:limit]]
    if len(found) > limit:
        lines.append(f"  ... {len(found) - limit} more")
    return lines
