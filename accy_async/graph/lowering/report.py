"""Whether a plan can be lowered, and why not, in words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from accy_async.artifact.formats import BackendKind
from accy_async.graph.lowering.obstacle import Obstacle, several_devices
from accy_async.graph.lowering.outline import Outline, outline
from accy_async.graph.lowering.outlinenode import each_node
from accy_async.graph.lowering.parts import (
    TOO_SMALL,
    Parting,
    has_host_calls,
    part_plan,
)
from accy_async.graph.nodes import KernelCall

if TYPE_CHECKING:
    from accy_async.backends.capabilities import Capabilities
    from accy_async.graph.plan import LaunchGraphPlan

__all__ = ["lowering_report", "obstacles"]


def obstacles(plan: LaunchGraphPlan, *, has_loops: bool = True) -> tuple[Obstacle, ...]:
    """What keeps a plan from being lowered, on a device that has graphs."""
    found = outline(plan, has_loops=has_loops)
    return () if isinstance(found, Outline) else found


def lowering_report(
    plan: LaunchGraphPlan,
    limit: int,
    devices: Sequence[str] = (),
    capabilities: Capabilities | None = None,
) -> list[str]:
    """Whether the plan can be lowered, in lines; else what is in the way.

    Args:
        plan: the plan.
        limit: how many obstacles are listed.
        devices: those that it runs on, where they are several.
        capabilities: what the device can do that it is to run on. Without them it is
            a device with graphs, unless the plan's kernels are for the CPU.
    """
    if len(devices) > 1:
        lines = ["cannot be lowered to a device graph:"]
        return [*lines, f"  {several_devices(devices)}"]
    without = _without_graphs(plan, capabilities)
    if without is not None:
        return [
            f"is not lowered: {without} no device graphs, so each run submits its "
            "nodes one by one",
            "  lowering='always', and submit() of the prepared plan, raise GraphError",
        ]
    if capabilities is not None:
        return _on_graphs(plan, limit, has_loops=capabilities.device_loops)
    lines = _on_graphs(plan, limit, has_loops=True)
    if plan.loops and isinstance(outline(plan), Outline):
        stepped = obstacles(plan, has_loops=False)
        if stepped:
            lines.append("  not on a device that knows no loops, such as Vulkan's:")
            lines += [f"    {obstacle}" for obstacle in stepped[:limit]]
    return lines


def _without_graphs(
    plan: LaunchGraphPlan, capabilities: Capabilities | None
) -> str | None:
    """Who has no device graphs, with the verb; None where the device has some."""
    if capabilities is not None:
        if capabilities.device_graphs:
            return None
        return f"{capabilities.identity.name} has"
    is_for_cpu = any(
        isinstance(node.operation, KernelCall)
        and node.operation.entry.format.backend is BackendKind.CPU
        for node in plan.nodes
    )
    return "its kernels are for the CPU, which has" if is_for_cpu else None


def _on_graphs(plan: LaunchGraphPlan, limit: int, *, has_loops: bool) -> list[str]:
    """What becomes of the plan on a device that has graphs."""
    found = outline(plan, has_loops=has_loops)
    if isinstance(found, Outline):
        loops = sum(1 for node in each_node(found.body) if node.turns)
        within = f", {loops} of them loops" if loops else ""
        return [
            f"can be lowered: to one device graph of {found.node_count} nodes{within}"
        ]
    if has_host_calls(plan):
        parts = part_plan(plan, has_loops=has_loops)
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
