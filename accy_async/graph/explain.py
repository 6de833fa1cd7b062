"""Saying in words how a plan was laid out, and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence, Sized
from typing import TYPE_CHECKING

from accy_async.graph.dataflow import WRITES
from accy_async.graph.lowering.report import lowering_report
from accy_async.graph.nodes import KernelCall, LaunchGraphLoop, RuntimeScalar
from accy_async.graph.order import HOST, LOOP
from accy_async.graph.placing import (
    CONTINUES,
    HOST_SIDE,
    LABELLED,
    OPENS,
    REUSES,
    SHARES,
)

if TYPE_CHECKING:
    from accy_async.backends.capabilities import Capabilities
    from accy_async.graph.layout import BlockLayout, Item
    from accy_async.graph.plan import LaunchGraphPlan
    from accy_async.graph.whereabouts import Whereabouts

__all__ = ["explain", "item_name", "iterations", "operation_name"]

_NAMES = 8  # names in a list before it is cut short
_Name = Callable[[int], str]


def explain(
    plan: LaunchGraphPlan,
    max_streams: int,
    limit: int,
    places: Whereabouts | None = None,
    capabilities: Capabilities | None = None,
) -> str:
    """The plan's layout in words, of at most ``limit`` items in each block."""
    if places is not None and len(places.used) < 2:
        places = None
    layout = plan.layout(max_streams, places)
    lines = [_counts(plan)]
    if places is not None:
        lines += _devices(places, limit)
    budget = limit  # of blocks: a plan may have as many loops as nodes
    for indent, block in _blocks(layout):
        if budget == 0:
            lines.append("... more loops")
            break
        budget -= 1
        block_lines = _block(plan, block, limit, places)
        lines += ["  " * indent + line for line in block_lines]
    devices = () if places is None else places.devices
    lines += lowering_report(plan, limit, devices, capabilities)
    lines += _order_edges(plan, limit)
    lines += _slots(plan, limit)
    return "\n".join(lines) + "\n"


def item_name(plan: LaunchGraphPlan, item: Item) -> str:
    """The name of an item's node or loop."""
    if item.kind == LOOP:
        return plan.loops[item.index].name
    return plan.nodes[item.index].name


def operation_name(plan: LaunchGraphPlan, node: int) -> str:
    """What a node does, in a word or two."""
    operation = plan.nodes[node].operation
    if isinstance(operation, KernelCall):
        return operation.entry.target
    return type(operation).__name__


def iterations(loop: LaunchGraphLoop) -> str:
    """How often a loop runs, in words."""
    if loop.condition is not None:
        most = loop.max_iterations
        bound = f", at most {_times(most)}" if most is not None else ""
        return f"while {loop.condition} is not 0{bound}"
    if isinstance(loop.count, RuntimeScalar):
        return f"as often as runtime scalar {loop.count.index} says"
    return _times(loop.count)


def _times(count: int | None) -> str:
    return f"{count} time{'s' * (count != 1)}"


def _list(names: Sequence[str], joint: str = ", ") -> str:
    shown = list(names[:_NAMES])
    if len(names) > _NAMES:
        shown.append(f"... {len(names) - _NAMES} more")
    return joint.join(shown) if shown else "none"


def _counts(plan: LaunchGraphPlan) -> str:
    kinds = Counter(type(node.operation).__name__ for node in plan.nodes)
    what = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
    edges = len(plan.dependencies)
    return (
        f"{_count(plan.nodes, 'node')} ({what or 'none'}), {edges} "
        f"{'dependency' if edges == 1 else 'dependencies'}, "
        f"{_count(plan.loops, 'loop')}, {_count(plan.slots, 'slot')}"
    )


def _count(things: Sized, what: str) -> str:
    return f"{len(things)} {what}{'s' * (len(things) != 1)}"


def _blocks(layout: BlockLayout) -> Iterator[tuple[int, BlockLayout]]:
    stack = [(0, layout)]
    while stack:
        indent, block = stack.pop()
        yield indent, block
        stack.extend(
            (indent + 1, item.body)
            for item in reversed(block.items)
            if item.body is not None
        )


def _devices(places: Whereabouts, limit: int) -> Iterator[str]:
    """What is on which device, and the ways between them."""
    counts = Counter(places.nodes)
    for number, name in enumerate(places.devices):
        yield f"device {name}: {_count(range(counts[number]), 'node')}"
    for route in places.routes[:limit]:
        yield f"copies {route}"


def _block(
    plan: LaunchGraphPlan, block: BlockLayout, limit: int, places: Whereabouts | None
) -> Iterator[str]:
    def name(item: int) -> str:
        return item_name(plan, block.items[item])

    if block.loop >= 0:
        loop = plan.loops[block.loop]
        carries = [f"{c.next} → {c.current}" for c in loop.carries]
        carried = f"; carries {_list(carries)}" if carries else ""
        yield f"loop {loop.name}, {iterations(loop)}{carried}"
    yield from _streams(block, places)
    yield _edges(block)
    if places is not None:
        yield _crossings(block)
    yield f"  critical path, {max(block.priority, default=0)} long: " + _list(
        [name(item) for item in _critical_path(block)], " → "
    )
    yield from _host_side(plan, block, name_of=[name(i) for i in _hosted(block)])
    for item in block.order[:limit]:
        yield f"  {name(item)}: {_placed(block, item, name)}"
    if len(block.order) > limit:
        yield f"  ... {len(block.order) - limit} more"


def _hosted(block: BlockLayout) -> list[int]:
    return [item for item, is_host in enumerate(block.is_host) if is_host]


def _streams(block: BlockLayout, places: Whereabouts | None) -> Iterator[str]:
    each = "" if places is None else " on each device"
    yield f"  streams: {block.stream_count}, of at most {block.max_streams}{each}"
    for number in range(block.stream_count):
        labels, priority = block.stream_labels[number], block.stream_priorities[number]
        if labels or priority or places is not None:
            of = f" of label {_list(labels)}" if labels else ""
            if places is not None:
                of += f" on {places.devices[block.stream_devices[number]]}"
            yield f"  stream {number}{of}, priority {priority}"


def _edges(block: BlockLayout) -> str:
    in_order = by_host = total = 0
    stream = block.stream
    for item, preds in enumerate(block.preds):
        total += len(preds)
        for pred in preds:
            if stream[item] < 0 or stream[pred] < 0:
                by_host += 1
            elif stream[item] == stream[pred]:
                in_order += 1
    if not total:
        return "  edges: none"
    implied = total - in_order - by_host - block.wait_count
    return (
        f"  edges: {total}, of which {in_order} by stream order, {block.wait_count} "
        f"by waiting (events: {block.event_count}), {implied} implied by those, "
        f"{by_host} by the host"
    )


def _crossings(block: BlockLayout) -> str:
    """How many of the edges go from one device to another."""
    on = [block.stream_devices[s] if s >= 0 else None for s in block.stream]
    count = sum(
        1
        for item, preds in enumerate(block.preds)
        for pred in preds
        if None not in (on[item], on[pred]) and on[item] != on[pred]
    )
    return f"  edges between devices: {count}, by events of the one for the other"


def _critical_path(block: BlockLayout) -> list[int]:
    path: list[int] = []
    candidates: Sequence[int] = block.order[:1]
    while candidates:
        item = max(candidates, key=lambda i: (block.priority[i], -i))
        path.append(item)
        candidates = block.succs[item]
    return path


def _host_side(
    plan: LaunchGraphPlan, block: BlockLayout, name_of: Sequence[str]
) -> Iterator[str]:
    if not name_of:
        yield "  static: nothing is resolved on the host"
        return
    yield f"  resolved on the host: {_list(name_of)}"
    for item in _hosted(block)[:_NAMES]:
        kind, index, _ = block.items[item]
        if kind != LOOP:
            continue
        loop = plan.loops[index]
        why = (
            f"its condition {loop.condition} may be read back before each iteration"
            if loop.condition is not None
            else "something within it is"
        )
        yield f"    loop {loop.name}: {why}"


def _placed(block: BlockLayout, item: int, name: _Name) -> str:
    follows = block.follows[item]
    before = name(follows) if follows >= 0 else "nothing"
    choice = block.choice[item]
    if choice == HOST_SIDE or block.items[item].kind == HOST:
        awaits = [name(other) for other in block.awaits.get(item, ())]
        return f"on the host, when these are done: {_list(awaits)}"
    why = {
        LABELLED: "as its label says",
        CONTINUES: f"goes on from {before}",
        REUSES: f"comes after {before} anyway",
        OPENS: "opens it" if follows < 0 else f"opens it after {before}",
        SHARES: f"shares it, after {before}: no more streams",
    }[choice]
    waits = block.waits[item]
    waiting = f"; waits for {_list([name(w) for w in waits])}" if waits else ""
    event = "; records an event" if block.records[item] else ""
    return f"stream {block.stream[item]}, {why}{waiting}{event}"


def _order_edges(plan: LaunchGraphPlan, limit: int) -> Iterator[str]:
    edges = plan.order_edges
    if not edges:
        return
    yield f"edges besides the dependencies: {len(edges)}"
    for edge in edges[:limit]:
        one, two = plan.nodes[edge.before].name, plan.nodes[edge.after].name
        yield f"  {one} → {two} by {edge.why}"
    if len(edges) > limit:
        yield f"  ... {len(edges) - limit} more"


def _slots(plan: LaunchGraphPlan, limit: int) -> Iterator[str]:
    """Who uses which slot, in the plan's order; validation proved it an order."""
    users: list[list[str]] = [[] for _ in plan.slots[:limit]]
    counts = [0] * len(users)
    for node, uses in zip(plan.nodes, plan.uses, strict=True):
        for slot, how in uses:
            if slot < len(users):
                counts[slot] += 1
                if counts[slot] <= _NAMES:
                    verb = "written" if how & WRITES else "read"
                    users[slot].append(f"{verb} by {node.name}")
    for named, mine, count in zip(plan.slots, users, counts, strict=False):
        if count > _NAMES:
            mine.append(f"... {count - _NAMES} more")
        yield f"slot {named.name}: {', '.join(mine) if mine else 'unused'}"
    if len(plan.slots) > limit:
        yield f"... {len(plan.slots) - limit} more slots"
