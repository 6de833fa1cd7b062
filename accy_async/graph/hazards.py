"""The order of a plan's nodes: events, labels, cycles, and hazards without one.

Besides the dependencies that a plan lists, two things order its nodes:

* an event: who waits for it comes after who signals it. With several signals
  (which must be ordered as the plan lists them) that is the last one before the
  waiter in the plan, or else the first after it. An external event that nobody
  has signalled before the waiter is the caller's, and orders nothing here, but
  a later signal must not overtake the wait;
* a stream label: nodes of one label run on one stream, in the plan's order.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

import attrs

from accy_async.errors import GraphError
from accy_async.graph.dataflow import READS, WRITES, Uses
from accy_async.graph.nodes import (
    BufferSlot,
    EventSignal,
    EventWait,
    HostSlot,
    LaunchGraphLoop,
    LaunchGraphNode,
)
from accy_async.graph.order import Block, GraphOrder

__all__ = [
    "OrderEdge",
    "check_cycles",
    "check_hazards",
    "check_signals",
    "check_written",
    "event_edges",
    "label_edges",
    "signals_and_waits",
]

_SHOWN = 12


@attrs.frozen
class OrderEdge:
    """An edge between nodes, by index, that is no listed dependency; and why."""

    before: int
    after: int
    why: str


def signals_and_waits(
    nodes: Sequence[LaunchGraphNode],
) -> tuple[dict[str, list[int]], dict[str, list[int]]]:
    """Who signals and who waits for each event, as indices in the plan's order."""
    signals: dict[str, list[int]] = {}
    waits: dict[str, list[int]] = {}
    for index, node in enumerate(nodes):
        operation = node.operation
        if node.signal_event is not None:
            signals.setdefault(node.signal_event, []).append(index)
        if isinstance(operation, EventSignal):
            signals.setdefault(operation.event, []).append(index)
        elif isinstance(operation, EventWait):
            waits.setdefault(operation.event, []).append(index)
        for event in node.wait_events:
            waits.setdefault(event, []).append(index)
    return signals, waits


def event_edges(
    nodes: Sequence[LaunchGraphNode],
    signals: Mapping[str, Sequence[int]],
    waits: Mapping[str, Sequence[int]],
    external: Collection[str],
) -> list[OrderEdge]:
    """The edges that events make.

    Raises:
        GraphError: an event is waited for that nobody signals.
    """
    edges = []
    for event, waiters in waits.items():
        signallers = signals.get(event, ())
        if not signallers and event not in external:
            raise GraphError(
                f"node {nodes[waiters[0]].name!r} waits for event {event!r}, which "
                "nobody signals; expected a node that signals it, or its name among "
                "external_events"
            )
        for waiter in waiters:
            earlier = [s for s in signallers if s < waiter]
            why = f"event {event!r}"
            if earlier:
                edges.append(OrderEdge(earlier[-1], waiter, why))
            elif signallers and event in external:
                edges.append(OrderEdge(waiter, signallers[0], f"external {why}"))
            elif signallers:
                edges.append(OrderEdge(signallers[0], waiter, why))
    return edges


def check_signals(
    nodes: Sequence[LaunchGraphNode],
    signals: Mapping[str, Sequence[int]],
    order: GraphOrder,
) -> None:
    """Check that an event's signals come one after the other.

    Raises:
        GraphError: two signals of an event have no order between them.
    """
    for event, signallers in signals.items():
        for one, two in itertools.pairwise(signallers):
            if one != two and not order.precedes(one, two):
                raise GraphError(
                    f"nodes {nodes[one].name!r} and {nodes[two].name!r} both signal "
                    f"event {event!r} without an order between them; add "
                    f"{_suggest(nodes[one].name, nodes[two].name)}, or use two events"
                )


def check_written(
    nodes: Sequence[LaunchGraphNode],
    uses: Sequence[Uses],
    loops: Sequence[LaunchGraphLoop],
    slots: Sequence[BufferSlot | HostSlot],
) -> None:
    """Check that what is read of a run's scratch is written by some node.

    What a loop carries counts as written where either of the two slots is.

    Raises:
        GraphError: a scratch slot is read, and no node writes it.
    """
    unwritten = {
        index
        for index, slot in enumerate(slots)
        if isinstance(slot, BufferSlot) and slot.is_scratch
    }
    if not unwritten:
        return
    for used in uses:
        unwritten.difference_update(slot for slot, how in used if how & WRITES)
    if not unwritten:
        return
    names = {slots[index].name for index in unwritten}
    for loop in loops:
        for carry in loop.carries:
            if not names >= {carry.current, carry.next}:
                names -= {carry.current, carry.next}
        if loop.condition in names:
            raise GraphError(_unwritten(f"loop {loop.name!r}", loop.condition))
    for node, used in zip(nodes, uses, strict=True):
        for slot, how in used:
            if how & READS and slots[slot].name in names:
                raise GraphError(_unwritten(f"node {node.name!r}", slots[slot].name))


def _unwritten(who: str, slot: str) -> str:
    return (
        f"{who} reads scratch slot {slot!r}, which no node writes: what a run finds "
        "in its scratch is undefined; write it first, or bind a buffer of yours"
    )


def label_edges(nodes: Sequence[LaunchGraphNode]) -> list[OrderEdge]:
    """The edges from each node with a stream label to the next of that label.

    Raises:
        GraphError: two nodes of one label ask for different priorities.
    """
    edges = []
    latest: dict[str, int] = {}
    urgency: dict[str, int] = {}
    for index, node in enumerate(nodes):
        label = node.stream
        if label is None:
            continue
        if label in latest:
            edges.append(OrderEdge(latest[label], index, f"stream {label!r}"))
        latest[label] = index
        if node.priority is None:
            continue
        first = urgency.setdefault(label, index)
        if nodes[first].priority != node.priority:
            raise GraphError(
                f"stream {label!r} has one priority: node {nodes[first].name!r} asks "
                f"for {nodes[first].priority} and node {node.name!r} for "
                f"{node.priority}"
            )
    return edges


def check_cycles(
    order: GraphOrder,
    name: Callable[[Block, int], str],
    edges: Sequence[OrderEdge],
) -> None:
    """Check that no node waits for itself.

    Raises:
        GraphError: there is a cycle; the message shows one as a path, and which
            of its steps are no dependencies but events or stream labels.
    """
    for block in order.blocks:
        circle = block.cycle()
        if not circle:
            continue
        path = [*(name(block, item) for item in circle), name(block, circle[0])]
        steps = set(zip(circle, [*circle[1:], circle[0]], strict=True))
        reasons = {}
        for edge in edges:
            where, one, two = order.place(edge.before, edge.after)
            if where is block and (one, two) in steps:
                step = f"{name(block, one)} → {name(block, two)} by {edge.why}"
                reasons[one, two] = step
        where_ = ""
        if block.parent is not None:
            where_ = f" in {name(block.parent, block.parent_item)}"
        because = f" ({'; '.join(list(reasons.values())[:3])})" if reasons else ""
        raise GraphError(f"the graph has a cycle{where_}: {_path(path)}{because}")


def _path(names: Sequence[str]) -> str:
    if len(names) <= _SHOWN:
        return " → ".join(names)
    half = _SHOWN // 2
    left_out = len(names) - 2 * half
    return " → ".join([*names[:half], f"... {left_out} more ...", *names[-half:]])


def check_hazards(
    uses: Mapping[Block, Sequence[Uses]],
    name: Callable[[Block, int], str],
    slots: Sequence[str],
) -> None:
    """Check that whatever conflicts over a slot has an order.

    Two items of a block conflict where both use a slot and one writes it.

    Raises:
        GraphError: two conflicting items have no order between them.
    """
    for block, items in uses.items():
        pairs: dict[int, dict[int, int]] = {}
        for before, after, slot in _neighbours(block, items):
            pairs.setdefault(after, {}).setdefault(before, slot)
        for after, candidates in pairs.items():
            unordered = candidates.keys() - block.before(after, candidates)
            if unordered:
                before = min(unordered)
                slot = candidates[before]
                one, two = sorted((before, after))
                verbs = [
                    "writes" if dict(items[item])[slot] & WRITES else "reads"
                    for item in (one, two)
                ]
                first, second = name(block, one), name(block, two)
                raise GraphError(
                    f"slot {slots[slot]!r}: {first!r} {verbs[0]} it and {second!r} "
                    f"{verbs[1]} it without an order between them; add "
                    f"{_suggest(first, second)}, or the other way round"
                )


def _neighbours(block: Block, items: Sequence[Uses]) -> Iterator[tuple[int, int, int]]:
    """Pairs whose order gives every conflict over a slot one, by transitivity."""
    writers: dict[int, int] = {}
    readers: dict[int, list[int]] = {}
    for item in block.topological:
        for slot, how in items[item]:
            since = readers.get(slot)
            writer = writers.get(slot)
            if how & WRITES:
                if since:
                    for reader in since:
                        yield reader, item, slot
                    since.clear()
                elif writer is not None:
                    yield writer, item, slot
                writers[slot] = item
            else:
                if writer is not None:
                    yield writer, item, slot
                readers.setdefault(slot, []).append(item)


def _suggest(before: str, after: str) -> str:
    return f"LaunchGraphDependency({before!r}, {after!r})"
