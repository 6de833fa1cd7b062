"""A prepared plan as a device graph: made, kept up to date, launched, destroyed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from accy_async.backends.cleanup import destroy_all, raise_together
from accy_async.backends.handles import EventHandle, GraphHandle, Handle
from accy_async.graph.lowering.binding import Binder
from accy_async.graph.lowering.outline import Outline
from accy_async.graph.lowering.verdicts import Verdicts

if TYPE_CHECKING:
    from accy_async.backends.guards import GuardOf
    from accy_async.backends.handles import StreamHandle
    from accy_async.errors import GraphError
    from accy_async.graph.bindings import Memory
    from accy_async.graph.lowering.parts import Parting
    from accy_async.graph.prepared import PreparedGraph

__all__ = ["MOST_WATCHED", "LoweredGraph"]

MOST_WATCHED = 16
"""Items of a graph that record an event for those who await them."""

_STREAMS_KEPT = 8
"""Streams that a graph is bound to before it forgets them."""


class LoweredGraph:
    """The device graph of one prepared plan, which owns it.

    Args:
        prepared: the plan, its buffers and its launches.
        outline: the plan as one graph.
        verdicts: of its loops with limits, where others own them; else it makes its
            own.

    Attributes:
        shape: the plan as one graph, for the scalars that it has now.
        made: how often a device graph was made for it.
        updated: how often one was changed in place.
        watched: the items of the plan's top block that record an event, in the
            outline's order.
    """

    def __init__(
        self,
        prepared: PreparedGraph,
        outline: Outline,
        verdicts: Verdicts | None = None,
    ) -> None:
        self.shape = outline
        self.made = self.updated = 0
        self.watched: tuple[int, ...] = ()
        self._backend = prepared.backend
        self._prepared = prepared
        self._owned = Verdicts(self._backend, prepared.plan)
        self._verdicts = verdicts or self._owned
        self._binder = Binder(prepared, self._verdicts)
        self._graph: GraphHandle | None = None
        self._bound: dict[int, Callable[[bool], int]] = {}  # by the stream's id
        self._events: dict[int, EventHandle] = {}

    def make(self) -> None:
        """Make the device graph; an old one is destroyed. Any thread.

        Takes some 10 us a node.

        Raises:
            AccyError: the device refused; there is no device graph then.
        """
        self._drop_graph()
        request = self._binder.bind(self.shape, self._records())
        self._graph = self._backend.create_graph(request)
        self.made += 1

    def watch(self, items: Collection[int]) -> None:
        """Have events recorded after these items too.

        Where one is new there is no device graph until `make` is called. Items beyond
        `MOST_WATCHED` are left out, as are loops that may fail by their limit and what
        depends on them: how it went with those shows at the end.

        Raises:
            AccyError: the device refused to open an event.
        """
        limited = self.shape.limited
        fresh = [i for i in items if i not in self._events and i not in limited]
        fresh = fresh[: MOST_WATCHED - len(self._events)]
        for item in fresh:
            self._events[item] = self._backend.create_event()
        if fresh:
            self.watched = tuple(sorted(self._events))
            self._drop_graph()

    def change(self, shape: Outline | Parting, nodes: Sequence[int]) -> None:
        """Follow what the prepared plan has become.

        Args:
            shape: the plan as one graph, which may be another one now.
            nodes: those whose launches are others now.

        Raises:
            AccyError: the device refused; there is no device graph then.
        """
        assert isinstance(shape, Outline)
        self.shape = shape
        self._binder.forget(nodes)
        self._bound.clear()
        if self._graph is not None:
            request = self._binder.bind(shape, self._records())
            if self._backend.update_graph(self._graph, request):
                self.updated += 1
                return
        self.make()

    @property
    def node_count(self) -> int:
        """How many nodes it is made of, those within loops left out."""
        return self.shape.node_count

    @property
    def limits(self) -> tuple[int, ...]:
        """The loops that may fail by their limit, by the plan's numbers."""
        return self.shape.limits

    def errors(self) -> dict[int, GraphError | None]:
        """What such loops failed with in the last launch; see `Verdicts.errors`."""
        return self._verdicts.errors(self.shape.limits) if self.shape.limits else {}

    @property
    def is_made(self) -> bool:
        """True where there is a device graph to launch."""
        return self._graph is not None

    @property
    def memories(self) -> Sequence[Memory]:
        """What holds each slot's value after a launch."""
        return self._binder.memories(self.shape.where)

    @property
    def events(self) -> Mapping[int, EventHandle]:
        """The events that are recorded, by the item that each comes after."""
        return self._events

    def launch(self, stream: StreamHandle | None, guard_of: GuardOf | None) -> int:
        """Submit it all; returns its position on the stream.

        Raises:
            AccyError: something that it uses is not alive, or the device refused.
        """
        assert self._graph is not None
        if self.shape.limits:
            self._verdicts.clear(self.shape.limits)
        return self._backend.launch_graph(self._graph, stream, guard_of)

    def launch_again(self, stream: StreamHandle, *, is_awaited: bool) -> int:
        """`launch` on a stream that it is launched on again and again.

        Args:
            stream: the stream.
            is_awaited: whether its end is waited for at once.
        """
        launch = self._bound.get(stream.id)
        if launch is None:
            assert self._graph is not None
            if len(self._bound) >= _STREAMS_KEPT:
                self._bound.clear()
            launch = self._backend.bind_graph(self._graph, stream)
            self._bound[stream.id] = launch
        if self.shape.limits:
            self._verdicts.clear(self.shape.limits)
        return launch(is_awaited)

    def handles(self) -> Iterator[Handle]:
        """What it owns, as it is to be destroyed."""
        if self._graph is not None:
            yield self._graph
        yield from self._events.values()
        yield from self._owned.handles()

    def close(self) -> None:
        """Destroy it; what is in use goes to the reaper.

        Raises:
            ExceptionGroup: the device refused.
        """
        errors: list[Exception] = []
        handles = list(self.handles())
        self._graph = None
        self._bound.clear()
        self._events = {}
        self._owned.forget()
        destroy_all(self._backend, handles, errors)
        raise_together("closing a lowered plan", None, errors)

    def _records(self) -> list[tuple[EventHandle, int]]:
        return [(self._events[item], item) for item in self.watched]

    def _drop_graph(self) -> None:
        graph, self._graph = self._graph, None
        self._bound.clear()
        if graph is not None:
            self._backend.discard(graph)
