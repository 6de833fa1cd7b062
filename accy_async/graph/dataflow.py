"""Edges from dataflow: who writes and who reads which slot, in the plan's order.

A node that reads a slot comes after the node that wrote it last. A node that
writes one comes after those that have read it since it was written, or, where
none has, after the one that wrote it. These are the fewest edges that give every
two conflicting nodes the order they are listed in.

A loop counts as one item, with the uses of all its nodes; its carries count as
read and written, since their buffers change places, and its condition as read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from accy_async.errors import GraphError
from accy_async.graph.nodes import (
    BufferSlot,
    HostSlot,
    LaunchGraphDependency,
    LaunchGraphLoop,
    LaunchGraphNode,
)
from accy_async.graph.order import Block, GraphOrder, nest_loops

__all__ = [
    "READS",
    "WRITES",
    "block_uses",
    "dataflow_dependencies",
    "loop_uses",
    "node_uses",
]

READS, WRITES = 1, 2

Uses = Sequence[tuple[int, int]]
"""Slots by index, each once, with `READS`, `WRITES` or both."""


def node_uses(node: LaunchGraphNode, slots: Mapping[str, int]) -> Uses:
    """The slots a node uses; one given to a kernel twice counts once, as both.

    Raises:
        GraphError: it names a slot that is not among ``slots``.
    """
    found: dict[int, int] = {}
    for name, access in node.uses():
        index = slots.get(name)
        if index is None:
            raise GraphError(f"node {node.name!r} uses slot {name!r}, which is unknown")
        how = (READS if access.reads else 0) | (WRITES if access.writes else 0)
        found[index] = found.get(index, 0) | how
    return tuple(found.items())


def loop_uses(loop: LaunchGraphLoop, slots: Mapping[str, int]) -> dict[int, int]:
    """The slots that a loop itself uses: its condition and its carries.

    Raises:
        GraphError: it names a slot that is not among ``slots``.
    """
    found: dict[int, int] = {}
    named = [] if loop.condition is None else [(loop.condition, READS)]
    for carry in loop.carries:
        named += [(carry.current, READS | WRITES), (carry.next, READS | WRITES)]
    for name, how in named:
        index = slots.get(name)
        if index is None:
            raise GraphError(f"loop {loop.name!r} uses slot {name!r}, which is unknown")
        found[index] = found.get(index, 0) | how
    return found


def block_uses(
    order: GraphOrder,
    uses: Sequence[Uses],
    loops: Sequence[LaunchGraphLoop],
    slots: Mapping[str, int],
) -> dict[Block, list[Uses]]:
    """Of every block, what each of its items uses, with all that is within it."""
    found: dict[Block, list[Uses]] = {}
    for block in reversed(order.blocks):  # those within before those around
        mine: list[Uses] = []
        for item, index in enumerate(block.indices):
            body = block.bodies.get(item)
            if body is None:
                mine.append(uses[index])
                continue
            union = loop_uses(loops[index], slots)
            for inner in found[body]:
                for slot, how in inner:
                    union[slot] = union.get(slot, 0) | how
            mine.append(tuple(union.items()))
        found[block] = mine
    return found


def dataflow_dependencies(
    nodes: Sequence[LaunchGraphNode],
    slots: Sequence[BufferSlot | HostSlot],
    loops: Sequence[LaunchGraphLoop] = (),
) -> tuple[LaunchGraphDependency, ...]:
    """The edges that follow from what the nodes read and write, in list order.

    Takes time linear in the number of uses. An edge of a loop is given as one of
    its first node (into the loop) or its last (out of it).

    Raises:
        GraphError: a node or loop names a slot or node that is unknown, a name
            is used twice, or loops cross.
    """
    names = _index("node", (node.name for node in nodes))
    slot_index = _index("slot", (slot.name for slot in slots))
    ranges = [loop_range(loop, names) for loop in loops]
    nest_loops([loop.name for loop in loops], ranges)
    order = GraphOrder([node.is_host for node in nodes], ranges)
    uses = [node_uses(node, slot_index) for node in nodes]
    edges: dict[tuple[int, int], None] = {}
    for block, items in block_uses(order, uses, loops, slot_index).items():
        for before, after in _conflicts(items):
            one = block.indices[before]
            two = block.indices[after]
            if before in block.bodies:
                one = ranges[one][1]
            if after in block.bodies:
                two = ranges[two][0]
            edges[one, two] = None
    return tuple(
        LaunchGraphDependency(nodes[one].name, nodes[two].name)
        for one, two in sorted(edges, key=lambda edge: (edge[1], edge[0]))
    )


def loop_range(loop: LaunchGraphLoop, nodes: Mapping[str, int]) -> tuple[int, int]:
    """The indices of a loop's first and last node.

    Raises:
        GraphError: one is unknown, or the first comes after the last.
    """
    for what, name in (("first", loop.first), ("last", loop.last)):
        if name not in nodes:
            raise GraphError(f"loop {loop.name!r}: its {what} node {name!r} is unknown")
    first, last = nodes[loop.first], nodes[loop.last]
    if first > last:
        raise GraphError(
            f"loop {loop.name!r}: its first node {loop.first!r} comes after its last, "
            f"{loop.last!r}, in the plan's order"
        )
    return first, last


def _index(what: str, names: Iterable[str]) -> dict[str, int]:
    found: dict[str, int] = {}
    for index, name in enumerate(names):
        if found.setdefault(name, index) != index:
            raise GraphError(f"two {what}s are named {name!r}; names are identities")
    return found


def _conflicts(items: Sequence[Uses]) -> Iterable[tuple[int, int]]:
    writers: dict[int, int] = {}
    readers: dict[int, list[int]] = {}
    for item, uses in enumerate(items):
        for slot, how in uses:
            since = readers.get(slot)
            writer = writers.get(slot)
            if how & WRITES:
                if since:
                    for reader in since:
                        yield reader, item
                    since.clear()
                elif writer is not None:
                    yield writer, item
                writers[slot] = item
            else:
                if writer is not None:
                    yield writer, item
                if since is None:
                    readers[slot] = [item]
                else:
                    since.append(item)
