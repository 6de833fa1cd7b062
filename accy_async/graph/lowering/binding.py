"""An outline's nodes with buffers: the device graph that a device is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

import attrs

from accy_async.backends.devicegraph import (
    GraphBody,
    GraphBranch,
    GraphCopy,
    GraphDownload,
    GraphExchange,
    GraphFill,
    GraphJoin,
    GraphLoop,
    GraphNode,
    GraphOperation,
    GraphRecord,
    GraphRequest,
    GraphUpload,
)
from accy_async.graph.nodes import (
    CopyBuffer,
    CopyFromDevice,
    CopyToDevice,
    Fill,
    KernelCall,
)

if TYPE_CHECKING:
    import numpy as np

    from accy_async.backends.handles import BufferHandle, EventHandle
    from accy_async.backends.launch import PreparedLaunch
    from accy_async.graph.bindings import Memory
    from accy_async.graph.lowering.outline import Outline
    from accy_async.graph.lowering.outlinenode import OutlineNode
    from accy_async.graph.lowering.verdicts import Verdicts
    from accy_async.graph.prepared import PreparedGraph

__all__ = ["Binder"]


class Binder:
    """Gives the nodes of one plan's outlines the buffers that it is prepared for.

    A launch is packed once for each set of buffers that it has in the outline, and
    kept as long as these are what they are.
    """

    def __init__(self, prepared: PreparedGraph, verdicts: Verdicts) -> None:
        self._prepared = prepared
        self._verdicts = verdicts
        self._plan = prepared.plan
        self._uses = [tuple(slot for slot, _ in uses) for uses in prepared.plan.uses]
        self._launches: dict[tuple[int, ...], PreparedLaunch] = {}
        # By the outline's node, which is kept so that its identity is its own.
        self._nodes: dict[OutlineNode, GraphNode] = {}
        self._outline: Outline | None = None
        self._home: tuple[int, ...] | None = None  # every slot with its own memory

    def forget(self, nodes: Sequence[int]) -> None:
        """Make these nodes anew when they are asked for next."""
        gone = frozenset(nodes)
        self._launches = {k: v for k, v in self._launches.items() if k[0] not in gone}
        self._nodes = {k: v for k, v in self._nodes.items() if k.index not in gone}

    def bind(
        self, outline: Outline, events: Sequence[tuple[EventHandle, int]] = ()
    ) -> GraphRequest:
        """The device graph of an outline.

        Args:
            outline: the outline.
            events: events to record, each after an item of the plan's top block.

        Raises:
            LaunchArgumentMismatch, CapabilityMismatch, InvalidBuffer,
            InvalidArtifact: a launch does not fit its kernel, the device or what is
                alive.
        """
        if outline is not self._outline:
            self._nodes = {}
            self._outline = outline
            # Mostly all of the nodes have one and the same.
            first = outline.body[0].where if outline.body else ()
            is_home = all(slot == place for place, slot in enumerate(first))
            self._home = first if is_home else None
        body = self._body(outline.body)
        records = [(event, outline.ends[item]) for event, item in events]
        return GraphRequest(_with_records(body, records) if records else body)

    def memories(self, where: Sequence[int]) -> list[Memory]:
        """What holds each slot's value where the slots have these memories."""
        first = self._prepared.initial_memories
        return [first[slot] for slot in where]

    def _body(self, nodes: Sequence[OutlineNode]) -> GraphBody:
        made = self._nodes
        return tuple([made.get(node) or self._node(node) for node in nodes])

    def _node(self, node: OutlineNode) -> GraphNode:
        if node.turns:
            return self._loop(node)
        if node.branch:
            words = tuple(self._verdicts.buffer(loop) for loop in node.unless)
            return GraphNode(GraphBranch(self._body(node.branch), words), node.after)
        if node.tells:
            told = self._verdicts.download(node.index)
            return GraphNode(told, node.after)
        made = self._plan.nodes[node.index]
        self._nodes[node] = found = GraphNode(
            self._operation(node.index, node.where),
            node.after,
            node.index,
            made.name,
            made.priority or 0,
        )
        return found

    def _loop(self, node: OutlineNode) -> GraphNode:
        loop, first = self._plan.loops[node.index], self._prepared.initial_memories

        def buffer(slot: int) -> BufferHandle:
            return cast("BufferHandle", first[slot])

        turns = tuple(self._body(turn) for turn in node.turns)
        operation = GraphLoop(
            turns,
            node.count,
            tuple(buffer(slot) for slot in node.conditions),
            tuple(
                tuple(
                    GraphExchange(buffer(a), buffer(b), self._plan.slots[a].byte_size)
                    for a, b in pairs
                )
                for pairs in node.exchanges
            ),
            node.limit,
            None if node.limit is None else self._verdicts.buffer(node.index),
            tuple(self._verdicts.buffer(within) for within in node.limits),
        )
        return GraphNode(operation, node.after, -1, loop.name)

    def _operation(self, index: int, where: Sequence[int]) -> GraphOperation:
        operation = self._plan.nodes[index].operation
        if isinstance(operation, KernelCall):
            return self._launch(index, where)
        first, slots = self._prepared.initial_memories, self._plan.slot_index

        def buffer(name: str) -> BufferHandle:
            return cast("BufferHandle", first[where[slots[name]]])

        def array(name: str) -> np.ndarray:
            return cast("np.ndarray", first[where[slots[name]]])

        if isinstance(operation, CopyToDevice):
            return GraphUpload(array(operation.source), buffer(operation.target))
        if isinstance(operation, CopyFromDevice):
            return GraphDownload(buffer(operation.source), array(operation.target))
        if isinstance(operation, CopyBuffer):
            size = self._plan.slot(operation.target).byte_size
            return GraphCopy(buffer(operation.source), buffer(operation.target), size)
        if isinstance(operation, Fill):
            size = self._plan.slot(operation.target).byte_size
            pattern = operation.value.to_bytes()
            return GraphFill(buffer(operation.target), pattern, size)
        return GraphJoin()  # a named event: an edge of the graph, or its own affair

    def _launch(self, index: int, where: Sequence[int]) -> PreparedLaunch:
        prepared = self._prepared
        mine = self._uses[index]
        packed = prepared.launches[index]
        if packed is not None and (
            where is self._home or all(where[slot] == slot for slot in mine)
        ):
            return packed
        key = (index, *[where[slot] for slot in mine])
        found = self._launches.get(key)
        if found is None:
            found = prepared.make_launch(index, self.memories(where))
            self._launches[key] = found
        return found


def _with_records(
    body: GraphBody, records: Sequence[tuple[EventHandle, tuple[int, ...]]]
) -> GraphBody:
    """The body with events recorded, each directly behind what it comes after."""
    behind: dict[int, list[tuple[EventHandle, tuple[int, ...]]]] = {}
    for record in records:
        behind.setdefault(max(record[1], default=-1), []).append(record)
    found: list[GraphNode] = []
    places: list[int] = []

    def add_records(place: int) -> None:
        for event, ends in behind.get(place, ()):
            after = tuple([places[end] for end in ends])
            found.append(GraphNode(GraphRecord(event), after))

    add_records(-1)
    for place, node in enumerate(body):
        places.append(len(found))
        after = tuple([places[before] for before in node.after])
        found.append(attrs.evolve(node, after=after))
        add_records(place)
    return tuple(found)
