"""What keeps plans from being lowered, by name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import attrs

from accy_async.graph.nodes import EventSignal, EventWait, HostCall

if TYPE_CHECKING:
    from accy_async.graph.plan import LaunchGraphPlan

__all__ = [
    "CALL_IN_LOOP",
    "Obstacle",
    "calls_in_the_way",
    "external_events",
    "several_devices",
]

CALL_IN_LOOP = "a call on the host within a loop, which each turn has to wait for"


@attrs.frozen
class Obstacle:
    """Something that keeps a plan from being lowered.

    Attributes:
        name: the node, loop or event; empty for the plan as a whole.
        reason: why, in words.
    """

    name: str
    reason: str

    def __str__(self) -> str:
        return f"{self.name}: {self.reason}" if self.name else self.reason


def several_devices(devices: Sequence[str]) -> Obstacle:
    """What is in the way of a plan on several devices: a graph is one device's."""
    return Obstacle("", f"it runs on several devices: {', '.join(devices)}")


def calls_in_the_way(plan: LaunchGraphPlan) -> list[Obstacle]:
    """The plan's calls on the host, which keep it from being one graph."""
    return [
        Obstacle(
            node.name,
            "a call on the host, which a device graph cannot make: on the driver's "
            "thread it could deadlock against the interpreter lock",
        )
        for node in plan.nodes
        if isinstance(node.operation, HostCall)
    ]


def external_events(
    plan: LaunchGraphPlan,
) -> tuple[tuple[str, ...], tuple[str, ...], list[Obstacle]]:
    """The caller's events that are waited for and signalled, where that can be done.

    They are waited for before all of the graph and signalled after all of it.
    """
    waits: dict[str, None] = {}
    signals: dict[str, None] = {}
    obstacles: list[Obstacle] = []
    external = frozenset(plan.external_events)
    for index, name, is_signal in _events(plan):
        if name not in external:
            continue
        (signals if is_signal else waits)[name] = None
        if plan.order.block_of[index].loop >= 0:
            obstacles.append(
                Obstacle(name, "an event of the caller's is used within a loop")
            )
    obstacles += [
        Obstacle(name, "an event of the caller's is both waited for and signalled")
        for name in waits
        if name in signals
    ]
    return tuple(waits), tuple(signals), obstacles


def _events(plan: LaunchGraphPlan) -> Iterator[tuple[int, str, bool]]:
    """Each use of a named event: the node, the event, whether it signals it."""
    for index, node in enumerate(plan.nodes):
        for name in node.wait_events:
            yield index, name, False
        if node.signal_event is not None:
            yield index, node.signal_event, True
        if isinstance(node.operation, EventWait):
            yield index, node.operation.event, False
        elif isinstance(node.operation, EventSignal):
            yield index, node.operation.event, True
