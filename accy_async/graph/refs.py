"""What a builder hands out: names for the slots, nodes and loops of its graph."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypedDict

import attrs

from accy_async.backends.handles import BufferAccess
from accy_async.graph.nodes import BufferSlot, BufferUse, HostSlot

__all__ = ["GraphBuffer", "GraphHost", "LoopRef", "NodeOptions", "NodeRef", "Ref"]


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
        return BufferUse(self.slot.name, BufferAccess.READ_ONLY)

    @property
    def write(self) -> BufferUse:
        """The buffer as a kernel that only writes it uses it."""
        return BufferUse(self.slot.name, BufferAccess.WRITE_ONLY)

    @property
    def read_write(self) -> BufferUse:
        """The buffer as a kernel that changes it uses it."""
        return BufferUse(self.slot.name, BufferAccess.READ_WRITE)


@attrs.frozen
class GraphHost:
    """Host memory of the graph being built."""

    slot: HostSlot

    @property
    def name(self) -> str:
        """The slot's name."""
        return self.slot.name


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
