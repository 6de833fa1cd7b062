"""What a builder hands out: names for the slots, nodes and loops of its graph."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypedDict, cast

import attrs

from accy_async.backends.handles import BufferAccess
from accy_async.errors import GraphError, InvalidType, InvalidValue
from accy_async.graph.nodes import BufferSlot, BufferUse, HostSlot
from accy_async.values import listed

__all__ = [
    "GraphBuffer",
    "GraphHost",
    "LoopRef",
    "NodeOptions",
    "NodeRef",
    "Ref",
    "Slots",
    "check_name",
    "own_name",
    "own_names",
    "own_pairs",
    "refuse_other",
    "steps_before",
]

Slots = Mapping[str, BufferSlot | HostSlot]
"""A builder's slots, by name."""


@attrs.frozen
class GraphBuffer:
    """A buffer of the graph being built; give a kernel one of its uses."""

    slot: BufferSlot

    @property
    def name(self) -> str:
        """The slot's name."""
        return self.slot.name

    @property
    def read(self) -> BufferUse:
        """The buffer as a kernel that only reads it uses it."""
        return BufferUse(self.slot.name, BufferAccess.READ_ONLY, self.slot)

    @property
    def write(self) -> BufferUse:
        """The buffer as a kernel that only writes it uses it."""
        return BufferUse(self.slot.name, BufferAccess.WRITE_ONLY, self.slot)

    @property
    def read_write(self) -> BufferUse:
        """The buffer as a kernel that changes it uses it."""
        return BufferUse(self.slot.name, BufferAccess.READ_WRITE, self.slot)


@attrs.frozen
class GraphHost:
    """Host memory of the graph being built."""

    slot: HostSlot

    @property
    def name(self) -> str:
        """The slot's name."""
        return self.slot.name


def check_name(call: str, given: object) -> None:
    """Refuse what cannot name anything.

    Raises:
        InvalidType, InvalidValue: it is no string, or an empty one.
    """
    expected = "a non-empty string"
    if not isinstance(given, str):
        raise InvalidType(call, given, expected)
    if not given:
        raise InvalidValue(call, given, expected)


def own_name(call: str, given: GraphBuffer | GraphHost, slots: Slots) -> str:
    """The name of a slot that a builder's call is given.

    Raises:
        InvalidType: it is none.
        GraphError: it is another builder's.
    """
    if not isinstance(given, (GraphBuffer, GraphHost)):
        raise InvalidType(call, given, "a slot that this builder has made")
    refuse_other(call, given.slot, slots)
    return given.name


def refuse_other(call: str, slot: BufferSlot | HostSlot, slots: Slots) -> None:
    """Refuse another builder's slot of a name that this one has too.

    One of a name that it has not is refused with its node.
    """
    if slots.get(slot.name, slot) is not slot:
        raise GraphError(f"{call}: slot {slot.name!r} is another builder's")


def own_names(call: str, given: object, slots: Slots) -> tuple[str, ...]:
    """`own_name` of each of several.

    Raises:
        InvalidType: they are none.
        GraphError: one is another builder's.
    """
    each = listed(call, cast("Iterable[GraphBuffer]", given), "slots of this builder")
    return tuple([own_name(call, one, slots) for one in each])


@attrs.frozen
class NodeRef:
    """A node that was added."""

    name: str


@attrs.define(eq=False)
class LoopRef:
    """A loop that was begun; ``first`` and ``last`` are known once it has ended."""

    name: str
    first: str | None = None
    last: str | None = None


Ref = NodeRef | LoopRef | str


def steps_before(after: object) -> tuple[Ref, ...]:
    """What a step comes after, as given: one, or several.

    Raises:
        InvalidType: they are no steps, nor names of any.
    """
    kinds, expected = (NodeRef, LoopRef, str), "steps of this builder, or their names"
    if isinstance(after, kinds):
        return (after,)
    befores = listed("after", cast("Iterable[Ref]", after), expected)
    for before in befores:
        if not isinstance(before, kinds):
            raise InvalidType("after", before, expected)
    return befores


def own_pairs(call: str, given: object, slots: Slots) -> tuple[tuple[str, str], ...]:
    """The names of pairs of slots.

    Raises:
        InvalidType, InvalidValue: they are no pairs, or not of slots.
        GraphError: a slot is another builder's.
    """
    expected = "pairs of this builder's buffers"
    pairs = []
    for pair in listed(call, cast("Iterable[object]", given), expected):
        names = own_names(call, pair, slots)
        if len(names) != 2:
            raise InvalidValue(call, pair, expected)
        pairs.append((names[0], names[1]))
    return tuple(pairs)


class NodeOptions(TypedDict, total=False):
    """What every step may be told besides what it does.

    ``name`` is made up if left out. ``after`` is what it waits for besides its
    data. For ``stream``, ``priority``, ``device``, ``wait`` (names of events) and
    ``signal`` see `LaunchGraphNode`.
    """

    name: str | None
    stream: str | None
    priority: int | None
    device: str | None
    after: Ref | Iterable[Ref]
    wait: str | Iterable[str]
    signal: str | None
