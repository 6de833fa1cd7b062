"""One run of a lowered plan: a launch, and what it means for the run's nodes.

All nodes are submitted at once and are done when the graph is. One that was awaited
in an earlier run is told of by itself: the graph records an event after it, which
another stream of the run waits for.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from accy_async.graph.order import LOOP

if TYPE_CHECKING:
    from accy_async.backends.base import Backend
    from accy_async.backends.handles import StreamHandle
    from accy_async.graph.layout import BlockLayout
    from accy_async.graph.lowering.lowered import LoweredGraph
    from accy_async.graph.prepared import PreparedGraph
    from accy_async.graph.progress import RunProgress

__all__ = [
    "MOST_SIDE_STREAMS",
    "operations_of",
    "replay",
    "side_streams",
    "tell_of_watched",
    "watched_items",
]

MOST_SIDE_STREAMS = 4
"""Streams beside the graph's own, for nodes that are awaited by themselves."""


def side_streams(lowered: LoweredGraph) -> int:
    """How many streams a run makes use of beside the graph's own."""
    return min(MOST_SIDE_STREAMS, len(lowered.watched))


def operations_of(lowered: LoweredGraph) -> int:
    """How many operations of streams a run takes."""
    outline = lowered.shape
    return 1 + len(outline.waits) + len(lowered.watched) + len(outline.signals)


def watched_items(prepared: PreparedGraph, awaited: Iterable[int]) -> set[int]:
    """The items of the plan's top block that awaited nodes and loops lie in."""
    order, node_count = prepared.plan.order, len(prepared.plan.nodes)
    found = set()
    for index in awaited:
        if index < node_count:
            block, item = order.block_of[index], order.item_of[index]
        else:
            block, item = order.by_loop[index - node_count], -1
        while block.parent is not None:
            block, item = block.parent, block.parent_item
        found.add(item)
    return found


def replay(
    backend: Backend,
    prepared: PreparedGraph,
    lowered: LoweredGraph,
    progress: RunProgress,
    streams: Sequence[StreamHandle],
    layout: BlockLayout | None,
) -> None:
    """Submit a run: to the first stream, and to the others who waits for what.

    Args:
        backend: the device.
        prepared: the plan.
        lowered: it as a device graph.
        progress: what has become of its nodes.
        streams: of the run.
        layout: the plan's, for as many streams; None where there is but one.

    Raises:
        AccyError: the device refused, or something that it uses is not alive.
    """
    first, *others = streams
    for name in lowered.shape.waits:
        backend.stream_wait_event(first, prepared.events[name])
    position = lowered.launch(first, progress.guard)
    progress.submitted_whole(0, position)
    if lowered.limits:
        progress.expect_verdicts(0, position, lowered.errors)
    if others and layout is not None:
        tell_of_watched(backend, prepared, lowered, progress, others, 1, layout)
    for name in lowered.shape.signals:
        progress.reached(0, backend.record_event(prepared.events[name], first))


def tell_of_watched(
    backend: Backend,
    prepared: PreparedGraph,
    lowered: LoweredGraph,
    progress: RunProgress,
    others: Sequence[StreamHandle],
    first: int,
    layout: BlockLayout,
) -> None:
    """Have the other streams, whose lanes begin at ``first``, tell of watched items.

    What the layout has on one stream is told of by one.
    """
    top, node_count = prepared.plan.order.top, len(prepared.plan.nodes)
    for item in lowered.watched:
        number = max(0, layout.stream[item]) % len(others)
        lane, stream = first + number, others[number]
        position = backend.stream_wait_event(stream, lowered.events[item])
        indices = [top.indices[item]]
        if top.kinds[item] == LOOP:
            loop = node_count + top.indices[item]
            indices = [loop, *progress.relations.within(loop)]
        progress.moved(indices, lane, position)
