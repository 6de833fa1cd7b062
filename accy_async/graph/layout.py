"""Laying a graph onto streams: the fewest that keep its parallelism.

Each block is laid out by itself. Its items are taken in submission order: those
with the longest way still to go first (so every item comes after what it needs),
ties by the plan's order. An item goes on in a stream whose last item it comes
after anyway, and so orders nothing that was free; else it opens a stream; else,
where there are as many as allowed, it shares the one that is free first. Labels
and priorities that the plan gives come before all that.

What is known to be done when an item starts is kept as a vector clock: of each
stream, how many of its items. From it follow the events: an edge within a stream
needs none, nor does one to something that another edge of the item already
implies. Each event is recorded once, for all who wait for it.

Calls on the host complicate this. What depends on one is submitted after it has
returned, so nothing later in its stream may be taken to wait for it. Therefore
clocks count *lanes*: a stream is one lane where nothing is resolved on the host,
and otherwise each lane is a sequence of its items in which each is sure to be
submitted after the one before, because it waits for at least the same calls.
`BlockLayout.follows` is that order. (A loop that the host steps through is
submitted bit by bit, and counts like a call for what comes after it in a lane.)
After a call has returned, all that it waited for is known to be done, without an
event.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from accy_async.errors import GraphError, InvalidType
from accy_async.graph.nodes import LaunchGraphLoop, LaunchGraphNode
from accy_async.graph.order import HOST, LOOP, Block, GraphOrder
from accy_async.graph.placing import Placer

if TYPE_CHECKING:
    from accy_async.graph.whereabouts import Whereabouts

__all__ = ["BlockLayout", "Item", "Step", "lay_out"]

_T = TypeVar("_T")


class Item(NamedTuple):
    """One item of a block: its kind, its node or loop, and a loop's body."""

    kind: int
    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody wants
    body: BlockLayout | None


Step = tuple[int, "BlockLayout | None", int, tuple[int, ...], int]
"""An item as it is submitted: its node or loop, the loop's body, its stream, the
events to wait for before it and the one to record after it, by their numbers."""


class BlockLayout:
    """The streams and the submission order of one block. Immutable.

    All tuples but ``order``, ``ends`` and those of the streams are parallel to
    ``items``; whatever they name is an item, by its index.

    Attributes:
        loop: the loop whose body it is; -1 for the top block.
        items: nodes and loops, in the plan's order.
        order: the items as they are to be submitted. Each comes after all that
            it waits for.
        stream: the stream of each item; -1 for calls on the host.
        waits: the items whose events a stream waits for before each item.
        records: whether an event is recorded after each item, because another
            item waits for it, or the end of a loop's iteration does.
        events: the number of the event that each item records, -1 for none. Where
            items are submitted in the order given here, one event serves again
            once all who wait for it have been submitted: so there are as many
            events as waits are open at a time, not as items.
        steps: all that submitting the block in this order takes, where it is
            static: one `Step` after the other.
        follows: the item in the same stream that each must be submitted after
            though it may not depend on it; -1 for none.
        awaits: of each call on the host, the items that have to be awaited
            before it so that all that it depends on is done.
        preds, succs: the edges, to and from each item.
        priority: the longest way from each item to the end, itself included; a
            node counts 1 and a loop its body times its count, where known.
        choice: why each item is on its stream; see `placing`.
        ends: items that everything has been done after, when they are done.
        stream_count: how many streams there are.
        stream_labels: the plan's labels of each stream.
        stream_priorities: of each stream; 0 is normal.
        stream_devices: of each stream, its device's number.
        is_host: of each item, whether the host resolves it: calls, and loops that
            it has to step through; what depends on one starts when it has ended.
        is_static: True where nothing in it, however deep, is resolved on the
            host: no calls and no loops with a condition.
        most_streams: the most streams that this block or one within it has.
        most_on: the same on each device, by its number.
        max_streams: what it was laid out for.
    """

    __slots__ = (
        "awaits",
        "choice",
        "ends",
        "events",
        "follows",
        "is_host",
        "is_static",
        "items",
        "loop",
        "max_streams",
        "most_on",
        "most_streams",
        "order",
        "preds",
        "priority",
        "records",
        "steps",
        "stream",
        "stream_count",
        "stream_devices",
        "stream_labels",
        "stream_priorities",
        "succs",
        "waits",
    )

    loop: int
    items: tuple[Item, ...]
    order: tuple[int, ...]
    stream: tuple[int, ...]
    waits: tuple[tuple[int, ...], ...]
    records: tuple[bool, ...]
    events: tuple[int, ...]
    steps: tuple[Step, ...]
    follows: tuple[int, ...]
    awaits: dict[int, tuple[int, ...]]
    preds: tuple[tuple[int, ...], ...]
    succs: tuple[tuple[int, ...], ...]
    priority: tuple[int, ...]
    choice: tuple[int, ...]
    ends: tuple[int, ...]
    stream_count: int
    stream_labels: tuple[tuple[str, ...], ...]
    stream_priorities: tuple[int, ...]
    stream_devices: tuple[int, ...]
    is_host: tuple[bool, ...]
    is_static: bool
    most_streams: int
    most_on: tuple[int, ...]
    max_streams: int

    def __init__(self, **fields: object) -> None:
        for name in self.__slots__:
            object.__setattr__(self, name, fields.pop(name))
        assert not fields

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"BlockLayout.{name} cannot be set: layouts are immutable")

    def __len__(self) -> int:
        return len(self.items)

    @property
    def event_count(self) -> int:
        """How many events are recorded each time the block runs."""
        return sum(self.records)

    @property
    def wait_count(self) -> int:
        """How often a stream waits for an event each time the block runs."""
        return sum(map(len, self.waits))


def lay_out(
    order: GraphOrder,
    nodes: Sequence[LaunchGraphNode],
    loops: Sequence[LaunchGraphLoop],
    max_streams: int,
    places: Whereabouts | None = None,
) -> BlockLayout:
    """Lay a plan's blocks onto at most ``max_streams`` streams each.

    With ``places``, that is on each device: what is on two has no stream in common.

    A loop takes one stream of the block that it is in. Its body has streams of
    its own; the first of them is that one, the others are forked from it and
    joined to it each iteration.

    Raises:
        GraphError: ``max_streams`` is below 1.
    """
    if isinstance(max_streams, bool) or not isinstance(max_streams, int):
        raise InvalidType("max_streams", max_streams, "an integer of at least 1")
    if max_streams < 1:
        raise GraphError(f"max_streams: got {max_streams}, expected at least 1")
    done: dict[Block, _Laid] = {}
    for block in reversed(order.blocks):  # bodies before what they lie in
        done[block] = _lay_out_block(block, done, nodes, loops, max_streams, places)
    return done[order.top].layout


class _Laid(NamedTuple):
    """A block that is done, and what it is like as one item of another."""

    layout: BlockLayout
    weight: int
    label: str | None
    priority: int | None


def _by_rank(ranks: Sequence[int]) -> list[int]:
    """The items, those of the highest rank first, ties in the plan's order.

    By hand: a sort of 100,000 items would keep the interpreter lock, and so every
    event loop, for some 15 ms, where this can be interrupted.
    """
    of_rank: dict[int, list[int]] = {}
    for item, rank in enumerate(ranks):
        of_rank.setdefault(rank, []).append(item)
    ordered: list[int] = []
    for rank in sorted(of_rank, reverse=True):
        ordered += of_rank[rank]
    return ordered


def _lay_out_block(
    block: Block,
    done: dict[Block, _Laid],
    nodes: Sequence[LaunchGraphNode],
    loops: Sequence[LaunchGraphLoop],
    max_streams: int,
    places: Whereabouts | None,
) -> _Laid:
    items: list[Item] = []
    weights: list[int] = []
    labels: list[str | None] = []
    priorities: list[int | None] = []
    is_host = [kind == HOST for kind in block.kinds]
    bodies = [done[body].layout for body in block.bodies.values()]
    for item, (kind, index) in enumerate(zip(block.kinds, block.indices, strict=True)):
        if kind == LOOP:
            body = done[block.bodies[item]]
            items.append(Item(kind, index, body.layout))
            weights.append(_loop_weight(loops[index], body.weight))
            labels.append(body.label)
            priorities.append(body.priority)
            is_host[item] = (
                not body.layout.is_static or loops[index].condition is not None
            )
        else:
            node = nodes[index]
            items.append(Item(kind, index, None))
            weights.append(1)
            labels.append(node.stream)
            priorities.append(node.priority)
    ranks = _ranks(block, weights)
    submission = _by_rank(ranks)
    label, priority = _common(block, labels), _common(block, priorities)
    placer = Placer(
        block=block,
        submission=submission,
        weights=weights,
        labels=labels,
        priorities=priorities,
        is_host=is_host,
        max_streams=max_streams,
        own_label=label,
        own_priority=priority,
        devices=None if places is None else places.of_items(block),
        own_device=0 if places is None or block.loop < 0 else places.loops[block.loop],
    )
    placer.place_all()
    is_static = not any(is_host)
    on = tuple(stream.device for stream in placer.streams)
    events = _number_events(placer, reuse=is_static)
    layout = BlockLayout(
        loop=block.loop,
        items=tuple(items),
        order=tuple(submission),
        stream=tuple(placer.stream),
        waits=tuple(placer.waits),
        records=tuple(placer.records),
        events=tuple(events),
        steps=tuple(_steps(items, placer, events)) if is_static else (),
        follows=tuple(placer.follows),
        awaits=placer.awaits,
        preds=block.preds,
        succs=block.succs,
        priority=tuple(ranks),
        choice=tuple(placer.choice),
        ends=placer.ends,
        stream_count=len(placer.streams),
        stream_labels=tuple(tuple(stream.labels) for stream in placer.streams),
        stream_priorities=tuple(stream.priority or 0 for stream in placer.streams),
        is_host=tuple(is_host),
        is_static=is_static,
        stream_devices=on,
        most_streams=max([len(placer.streams), *(b.most_streams for b in bodies)]),
        most_on=tuple(
            max([on.count(device), *(b.most_on[device] for b in bodies)])
            for device in range(1 if places is None else len(places.devices))
        ),
        max_streams=max_streams,
    )
    return _Laid(layout, max(ranks, default=1), label, priority)


def _loop_weight(loop: LaunchGraphLoop, body: int) -> int:
    return max(1, body * loop.count) if isinstance(loop.count, int) else body


def _ranks(block: Block, weights: Sequence[int]) -> list[int]:
    """The longest way from each item to the end; no predecessor has as much."""
    ranks = list(weights)
    succs = block.succs
    for item in reversed(block.topological):
        after = succs[item]
        if after:
            ranks[item] += max([ranks[s] for s in after])
    return ranks


def _number_events(placer: Placer, *, reuse: bool) -> list[int]:
    """The number of each item's event; see `BlockLayout.events`."""
    waits, records = placer.waits, placer.records
    numbers = [-1] * len(records)
    waiting = [0] * len(records)
    for awaited in waits:
        for signaller in awaited:
            waiting[signaller] += 1
    for item in placer.ends:
        waiting[item] += 1  # the end of a loop's iteration, after all items
    on = [stream.device for stream in placer.streams]
    free: list[list[int]] = [[] for _ in range(1 + max(on, default=0))]
    count = 0
    for item in placer.submission:
        for signaller in waits[item]:
            waiting[signaller] -= 1
            if reuse and not waiting[signaller]:
                free[on[placer.stream[signaller]]].append(numbers[signaller])
        if records[item]:
            mine = free[on[placer.stream[item]]]
            if mine:
                numbers[item] = mine.pop()
            else:
                numbers[item] = count
                count += 1
    return numbers


def _steps(
    items: Sequence[Item], placer: Placer, events: Sequence[int]
) -> Iterator[Step]:
    stream, waits = placer.stream, placer.waits
    for item in placer.submission:
        _, index, body = items[item]
        numbers = tuple([events[signaller] for signaller in waits[item]])
        yield index, body, stream[item], numbers, events[item]


def _common(block: Block, values: Sequence[_T | None]) -> _T | None:
    """What all items of the block on the device have in common; None if nothing."""
    found = {v for v, kind in zip(values, block.kinds, strict=True) if kind != HOST}
    return found.pop() if len(found) == 1 else None
