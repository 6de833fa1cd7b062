"""A prepared plan with calls on the host as device graphs: one for each part."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING

from accy_async.backends.cleanup import destroy_all, raise_together
from accy_async.graph.lowering.lowered import LoweredGraph
from accy_async.graph.lowering.parts import Parting
from accy_async.graph.lowering.verdicts import Verdicts

if TYPE_CHECKING:
    from accy_async.backends.handles import Handle
    from accy_async.graph.bindings import Memory
    from accy_async.graph.lowering.outline import Outline
    from accy_async.graph.prepared import PreparedGraph

__all__ = ["LoweredParts"]


class LoweredParts:
    """The device graphs of one prepared plan, which owns them.

    Args:
        prepared: the plan, its buffers and its launches.
        parting: the plan as parts and calls.

    Attributes:
        shape: the plan as parts and calls, as `change` said last.
        graphs: of each part, its device graph.
    """

    def __init__(self, prepared: PreparedGraph, parting: Parting) -> None:
        self._prepared = prepared
        self._verdicts = Verdicts(prepared.backend, prepared.plan)
        self.shape = parting
        self.graphs: tuple[LoweredGraph, ...] = ()
        self._set(parting)

    @property
    def made(self) -> int:
        """How often device graphs were made for it, those that it has."""
        return sum(graph.made for graph in self.graphs)

    @property
    def node_count(self) -> int:
        """How many nodes it is made of, those within loops left out."""
        return sum(graph.node_count for graph in self.graphs)

    @property
    def is_made(self) -> bool:
        """True where every graph is there to be launched."""
        return all(graph.is_made for graph in self.graphs)

    @property
    def memories(self) -> Sequence[Memory]:
        """What holds each slot's value when all parts are done."""
        first = self._prepared.initial_memories
        return [first[slot] for slot in self.shape.where]

    def watch(self, items: Collection[int]) -> None:
        """Have these items known to be done by themselves, too; `make` follows."""
        wanted: list[set[int]] = [set() for _ in self.graphs]
        for item in items:
            part = self.shape.part_of[item]
            if part >= 0:
                wanted[part].add(item)
        for graph, mine in zip(self.graphs, wanted, strict=True):
            graph.watch(mine)

    def make(self) -> None:
        """Make each graph that is not made. Any thread.

        Raises:
            AccyError: the device refused; there may be some of them then.
        """
        for graph in self.graphs:
            if not graph.is_made:
                graph.make()

    def change(self, shape: Outline | Parting, nodes: Sequence[int]) -> None:
        """Follow what the prepared plan has become; see `LoweredGraph.change`.

        Raises:
            AccyError: the device refused.
        """
        assert isinstance(shape, Parting)
        if len(shape.parts) != len(self.shape.parts):
            self.close()
            self._set(shape)
            self.make()
            return
        self.shape = shape
        for part, graph in zip(shape.parts, self.graphs, strict=True):
            graph.change(part.outline, nodes)

    def handles(self) -> Iterator[Handle]:
        """What it owns, as it is to be destroyed."""
        for graph in self.graphs:
            yield from graph.handles()
        yield from self._verdicts.handles()

    def close(self) -> None:
        """Destroy all of it; what is in use goes to the reaper.

        Raises:
            ExceptionGroup: the device refused.
        """
        errors: list[Exception] = []
        for graph in self.graphs:
            try:
                graph.close()
            except Exception as error:  # noqa: BLE001 - raised below, all together
                errors.append(error)
        handles = list(self._verdicts.handles())
        self._verdicts.forget()
        destroy_all(self._prepared.backend, handles, errors)
        raise_together("closing a lowered plan", None, errors)

    def _set(self, parting: Parting) -> None:
        self.shape = parting
        self.graphs = tuple(
            LoweredGraph(self._prepared, part.outline, self._verdicts)
            for part in parting.parts
        )
        for part, graph in zip(parting.parts, self.graphs, strict=True):
            graph.watch(part.awaited)
