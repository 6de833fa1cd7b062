"""What a device graph comes to on a queue: segments, levels, and parts to record.

A *segment* is what is submitted without asking the host in between. A new one begins
behind kernels that may fail, whose outcome decides whether what depends on them runs,
and where an event is to be known before the rest is done. Whatever depends on neither
stays in the segments before, so that there are no more of them than there must be.

Within a segment nodes lie in *levels*: those of one level need nothing of each other
and may overlap, the urgent ones begin first, and a barrier stands between two levels.
So there are as many barriers
as the longest chain has edges, in whatever order the nodes were given.

The nodes of a segment are recorded in *parts*, each a command buffer, so that only the
parts that are touched have to be recorded again for other buffers or scalars.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

import attrs

from accy_async.backends.devicegraph import GraphBody, GraphRecord

__all__ = ["MOST_OF_PART", "Part", "Segment", "plan_segments"]

MOST_OF_PART = 32
"""Nodes of a part. Recording a node takes the host some 20 us on a machine with two
busy cores, so that a touched node costs less than a millisecond; parts of 8 to 128
nodes were submitted in the same time on lavapipe."""


class Part(NamedTuple):
    """Nodes that are recorded together.

    Attributes:
        places: the nodes, by their places in the body.
        begins_level: of each, whether a barrier stands before it.
    """

    places: tuple[int, ...]
    begins_level: tuple[bool, ...]

    def isdisjoint(self, others: Collection[int]) -> bool:
        """True where none of its nodes is among these."""
        return not any(place in others for place in self.places)


@attrs.frozen
class Segment:
    """Nodes that are submitted together.

    Attributes:
        parts: the nodes, in the order in which the queue begins them.
        failing: those of them whose outcome what follows has to wait for.
        records: the nodes of events that are reached when the segment is done.
    """

    parts: tuple[Part, ...]
    failing: tuple[int, ...] = ()
    records: tuple[int, ...] = ()

    @property
    def places(self) -> Iterator[int]:
        """Its nodes, in order."""
        for part in self.parts:
            yield from part.places


def plan_segments(
    body: GraphBody, idle: Collection[int], failing: Collection[int]
) -> tuple[Segment, ...]:
    """Lay a body without loops out in segments; at least one.

    Args:
        body: the nodes.
        idle: those that come to no command, by their places.
        failing: those that may fail.
    """
    records = [
        place
        for place, node in enumerate(body)
        if isinstance(node.operation, GraphRecord)
    ]
    keys = _segment_keys(body, records, failing)
    numbers = {key: number for number, key in enumerate(sorted(set(keys)))}
    mine = [numbers[key] for key in keys]
    nodes: list[list[int]] = [[] for _ in numbers] or [[]]
    events: list[list[int]] = [[] for _ in nodes]
    for place, number in enumerate(mine):
        if place not in idle:
            nodes[number].append(place)
    for place in records:
        last = max((mine[before] for before in body[place].after), default=0)
        events[last].append(place)
    levels = _levels(body, mine, idle)

    def begins(place: int) -> tuple[int, int]:
        return levels[place], body[place].priority

    return tuple(
        Segment(
            tuple(_parts(sorted(found, key=begins), levels)),
            tuple(place for place in found if place in failing),
            tuple(told),
        )
        for found, told in zip(nodes, events, strict=True)
        if found or told or len(nodes) == 1
    )


def _segment_keys(
    body: GraphBody, records: Sequence[int], failing: Collection[int]
) -> list[tuple[int, int]]:
    """Of each node, what its segment's place among the others is decided by.

    First how many kernels that may fail come before it, one behind the other; then
    the first event that it has to be done for.
    """
    failures = [0] * len(body)
    for place, node in enumerate(body):
        for before in node.after:
            found = failures[before] + (before in failing)
            failures[place] = max(failures[place], found)
    stages = [len(records)] * len(body)
    for number, place in enumerate(records):
        stages[place] = number
    for place in range(len(body) - 1, -1, -1):
        for before in body[place].after:
            stages[before] = min(stages[before], stages[place])
    return list(zip(failures, stages, strict=True))


def _levels(
    body: GraphBody, segments: Sequence[int], idle: Collection[int]
) -> list[int]:
    """Of each node, how many levels of its own segment come before it."""
    levels = [0] * len(body)
    for place, node in enumerate(body):
        levels[place] = max(
            (
                levels[before] + (before not in idle)
                for before in node.after
                if segments[before] == segments[place]
            ),
            default=0,
        )
    return levels


def _parts(places: Sequence[int], levels: Sequence[int]) -> Iterator[Part]:
    """Nodes in the order of their levels, so many at a time."""
    level = -1  # the first one follows whatever the queue had before
    for first in range(0, len(places), MOST_OF_PART):
        mine = tuple(places[first : first + MOST_OF_PART])
        begins = []
        for place in mine:
            begins.append(levels[place] != level)
            level = levels[place]
        yield Part(mine, tuple(begins))
