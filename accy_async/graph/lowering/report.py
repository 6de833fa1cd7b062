"""Whether a plan can be lowered, and why not, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from accy_async.graph.lowering.outline import Obstacle, Outline, outline

if TYPE_CHECKING:
    from accy_async.graph.plan import LaunchGraphPlan

__all__ = ["lowering_report", "obstacles"]


def obstacles(plan: LaunchGraphPlan, *, has_loops: bool = True) -> tuple[Obstacle, ...]:
    """What keeps a plan from being lowered, on a device that has graphs."""
    found = outline(plan, has_loops=has_loops)
    return () if isinstance(found, Outline) else found


def lowering_report(plan: LaunchGraphPlan, limit: int) -> list[str]:
    """Whether the plan can be lowered, in lines; else what is in the way."""
    found = outline(plan)
    if isinstance(found, Outline):
        loops = sum(1 for node in found.body if node.turns)
        within = f", {loops} of them loops" if loops else ""
        return [
            f"can be lowered: to one device graph of {len(found.body)} nodes{within}"
        ]
    lines = ["cannot be lowered to a device graph:"]
    lines += [f"  {obstacle}" for obstacle in found[:limit]]
    if len(found) > limit:
        lines.append(f"  ... {len(found) - limit} more")
    return lines
