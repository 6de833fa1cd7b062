"""What a builder hands out: names for the slots, nodes and loops of its graph."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypedDict

import attrs

from accy_async.backends.handles import BufferAccess
from accy_async.errors import GraphError, InvalidType
from accy_async.graph.nodes import BufferSlot, BufferUse, HostSlot

__all__ = [
    "GraphBuffer",
    "GraphHost",
    "LoopRef",
    "NodeOptions",
    "NodeRef",
    "Ref",
    "Slots",
    "own_name",
    "refuse_other",
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
