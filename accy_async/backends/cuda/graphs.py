"""Device graphs as CUDA graphs, built node by node.

Copies between the host and the device go by way of pinned memory of the graph's
own, a block for each array: what is copied in is read from the array when the graph
is launched, what is copied out is in the array when the graph, or a node behind it
that records an event, is known to be done.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from accy_async.backends.base import Backend
from accy_async.backends.cleanup import do_all
from accy_async.backends.cuda.graphnodes import GraphBuilder, Staging
from accy_async.backends.cuda.graphparameters import NodeUpdates
from accy_async.backends.cuda.thunks import address_of, make_thunk
from accy_async.backends.devicegraph import GraphRecord, walk
from accy_async.backends.hooks import GraphState, StreamState
from accy_async.backends.journal import JOURNAL_MASK, Label
from accy_async.backends.launch import PreparedLaunch
from accy_async.backends.loops import uninterrupted
from accy_async.backends.resources import Use
from accy_async.errors import AccyError

if TYPE_CHECKING:
    from accy_async.backends.cuda.conditions import Conditions
    from accy_async.backends.cuda.context import CudaContext
    from accy_async.backends.cuda.hub import Hub
    from accy_async.backends.cuda.memory import DeviceMemory, DevicePool, PinnedPool
    from accy_async.backends.cuda.objects import CudaEvent, CudaStream, MachineLaunch
    from accy_async.backends.cuda.timeline import CudaTimeline
    from accy_async.backends.devicegraph import GraphRequest
    from accy_async.backends.guards import GuardOf
    from accy_async.backends.handles import GraphHandle, Handle, StreamHandle
    from accy_async.backends.resources import Resource

__all__ = ["CudaGraph", "CudaGraphs"]

_LABELS_KEPT = 32
"""Launches of a graph that are named where a lost device has to be explained."""


class CudaGraph(GraphState):
    """A graph: the driver's handles, and what its nodes have of the host.

    Attributes:
        native: the graph, whose nodes are what can be updated.
        executable: what is launched.
        nodes: of each node of the request that is not within a loop, the driver's.
        staging: pinned memory, by the array that it stands for.
        counters: device memory of the loops that count.
        stores: of each event that a node records, what is in the host's arrays by
            then: the pinned memory, and whether no node behind the event writes it.
        work: the launches in it, for the journal.
        launch: launches it on a stream and returns the driver's code; None before it
            is launched first.
    """

    def __init__(self, request: GraphRequest) -> None:
        super().__init__(request)
        self.native: Any = None
        self.executable: Any = None
        self.nodes: list[tuple[Any, ...]] = []
        self.staging: dict[int, Staging] = {}
        self.counters: DeviceMemory | None = None
        self.stores: list[list[tuple[Staging, bool]]] = []
        self.work: tuple[Label, ...] = ()
        self.launch: Callable[[CudaStream], int] | None = None


class CudaGraphs(Backend):
    """The hooks of the backend for device graphs."""

    _context: CudaContext
    _driver: Any
    _pool: DevicePool
    _pinned: PinnedPool
    _conditions: Conditions
    _hub: Hub

    @abstractmethod
    def _launching_natively(
        self, address: int | None, arguments: tuple[int, int, int], keep: object
    ) -> MachineLaunch | None:
        """What makes a launch with a flag behind it; see `CudaWaiting`."""

    @abstractmethod
    def _blame(self, result: Any, call: str, stream: StreamState) -> AccyError:  # noqa: ANN401
        """The error of a submission."""

    def _open_graph(
        self, request: GraphRequest, objects: Mapping[Handle, Resource]
    ) -> GraphState:
        self._context.make_current()
        graph = CudaGraph(request)
        driver, check = self._driver, self._context.check
        try:
            graph.native = check(driver.cuGraphCreate(0), "cuGraphCreate")
            builder = GraphBuilder(
                self._context, self._pool, self._pinned, self._conditions, objects
            )
            try:
                graph.nodes = builder.build(graph.native, request.body)
            finally:
                graph.staging, graph.counters = builder.staging, builder.counters
            answer = driver.cuGraphInstantiate(graph.native, 0)
            graph.executable = check(answer, "cuGraphInstantiate")
        except BaseException:
            self._close_graph(graph)
            raise
        graph.work = _labels(request)
        graph.stores = list(_stores(request, list(graph.staging.values())))
        return graph

    def _update_graph(
        self,
        graph: GraphState,
        request: GraphRequest,
        objects: Mapping[Handle, Resource],
    ) -> bool:
        mine = cast("CudaGraph", graph)
        self._context.make_current()
        updates = NodeUpdates(self._context, mine.executable, objects, mine.staging)
        old, new = graph.request.body, request.body
        for natives, before, now in zip(mine.nodes, old, new, strict=True):
            was, will_be = before.operation, now.operation
            if was is will_be or was == will_be:
                continue
            if not updates.set(natives, will_be):
                return False  # a constraint of the driver's: another graph will do
        labels = _labels(request)
        if labels != mine.work:  # else waits know by it how long it takes
            mine.work = labels
        return True

    def _launch_graph(
        self, stream: StreamState, graph: GraphState, guard_of: GuardOf | None
    ) -> int:
        del guard_of  # a GPU asks nobody
        mine: CudaGraph = graph  # type: ignore[assignment]
        on: CudaStream = stream  # type: ignore[assignment]
        for staging in mine.staging.values():
            if staging.is_loaded:
                np.copyto(staging.block, staging.array_bytes)
        position = stream.timeline.advance()
        self._context.make_current()
        code = (mine.launch or self._launching(mine))(on)
        if code:
            raise self._refused_launch(code, on, position)
        on.journal.note(position, mine.work)
        if mine.staging or mine.events:
            self._after_launch(mine, on, position)
        return position

    def bind_graph(
        self, graph: GraphHandle, stream: StreamHandle
    ) -> Callable[[bool], int]:
        """Make what launches a graph again and again; see `Graphs.bind_graph`.

        A graph that copies to or from arrays, or records events, has more to do.
        """
        with self._lock:
            self._check("bind_graph")
            mine = cast("CudaGraph", self._table.get(graph).payload)
            on = cast("CudaStream", self._stream(stream))
            if mine.staging or mine.events:
                return super().bind_graph(graph, stream)
            return self._replaying(mine, on, partial(self._renew_graph, graph, stream))

    def _replaying(
        self, mine: CudaGraph, on: CudaStream, renew: Callable[[Use], None]
    ) -> Callable[[bool], int]:
        """A bound graph's function; its names are looked up here, once.

        Where the end is waited for, a flag is submitted right behind the launch: some
        3 us before whoever waits would come to that.
        """
        table, timeline, recent = self._table, on.flags, on.recent
        make_current, mask = self._context.make_current, JOURNAL_MASK
        use, launch = Use(timeline), mine.launch or self._launching(mine)
        arguments = int(mine.executable), on.number, 0
        machine = self._launching_natively(self._graph_launch_address, arguments, None)
        if machine is not None:
            machine.aim(on)

        @uninterrupted
        def submit(is_awaited: bool) -> int:
            lock = self._lock
            try:  # as a launcher's `submit`, which says why not `with`
                lock.acquire()
                if use.epoch is not table.epoch:
                    renew(use)
                timeline.submitted = use.position = position = timeline.submitted + 1
                make_current()
                if is_awaited and machine is not None:
                    code = machine.launch_flagged(timeline, position)
                else:
                    code = launch(on)
                if code > 0:
                    raise self._refused_launch(code, on, position)
                recent[position & mask] = mine.work
            except BaseException:
                try:  # it is not asked first: an interrupt could come behind that
                    lock.release()
                except RuntimeError:  # it was not had yet
                    pass
                raise
            lock.release()
            return position

        return submit

    def _refused_launch(self, code: int, on: CudaStream, position: int) -> AccyError:
        """The error of a launch that the driver refused: nothing is at its position."""
        on.journal.note(position, None)
        return self._blame(self._driver.CUresult(code), "cuGraphLaunch", on)

    def _launching(self, graph: CudaGraph) -> Callable[[CudaStream], int]:
        """What makes the driver's call for a graph; returns its code."""
        plain, executable = self._driver.cuGraphLaunch, graph.executable
        call: Any = None
        if self._graph_launch_address is not None:
            call = make_thunk(self._graph_launch_address, int(executable), 0, 0, None)
        if call is None:
            return lambda on: int(plain(executable, on.native)[0])
        record = call.record

        def launch(on: CudaStream) -> int:
            record.second = on.number
            code: int = call()
            return code

        graph.launch = launch
        return launch

    @cached_property
    def _graph_launch_address(self) -> int | None:
        """Where the driver's function is; None where the bindings' is to be called."""
        if self.is_debugging:
            return None
        return address_of(self._driver, "cuGraphLaunch")

    def _after_launch(self, graph: CudaGraph, on: CudaStream, position: int) -> None:
        """Have what the graph copies out stored, and its events known as recorded."""
        line: CudaTimeline = on.flags
        written = [(one, True) for one in graph.staging.values() if one.writers]
        pending = {staging for staging, _ in written}
        for event, stores in zip(graph.events, graph.stores, strict=True):
            state = cast("CudaEvent", event.payload)
            state.mark = (line, position)
            state.time_ns = None
            state.finisher = partial(_store, stores, pending) if stores else None
        if written:
            size = sum(one.byte_size for one in pending)
            line.finish_with(position, partial(_store, written, pending), size)
        elif graph.staging:  # it is read by the device until then
            line.request(position)

    def _close_graph(self, graph: CudaGraph) -> None:
        """Destroy what there is of a graph; nothing of it may be in use."""
        driver, check = self._driver, self._context.check
        executable, graph.executable = graph.executable, None
        graph.launch = None
        native, graph.native = graph.native, None
        counters, graph.counters = graph.counters, None
        for staging in graph.staging.values():
            self._pinned.give_back(staging.address, staging.byte_size)
        graph.staging = {}
        steps: list[Callable[[], object]] = []
        if counters is not None:
            steps.append(partial(self._pool.free, counters))
        if executable is not None:
            steps.append(
                lambda: check(
                    driver.cuGraphExecDestroy(executable), "cuGraphExecDestroy"
                )
            )
        if native is not None:
            steps.append(lambda: check(driver.cuGraphDestroy(native), "cuGraphDestroy"))
        do_all("destroying a device graph", steps)


def _store(stores: Sequence[tuple[Staging, bool]], pending: set[Staging]) -> None:
    """Copy what a launch has written to the arrays, each once it is whole."""
    for staging, is_whole in stores:
        if staging in pending:
            staging.store()
            if is_whole:
                pending.discard(staging)


def _stores(
    request: GraphRequest, staging: Sequence[Staging]
) -> Iterator[list[tuple[Staging, bool]]]:
    """What is in the host's arrays when each event is recorded."""
    body = request.body
    for node in body:
        if not isinstance(node.operation, GraphRecord):
            continue
        before: set[int] = set()
        todo = list(node.after)
        while todo:
            place = todo.pop()
            if place not in before:
                before.add(place)
                todo += body[place].after
        yield [
            (one, one.writers <= before)
            for one in staging
            if not one.writers.isdisjoint(before)
        ]


def _labels(request: GraphRequest) -> tuple[Label, ...]:
    """The launches of a graph, as a lost device's error names them; not too many."""
    found: list[Label] = []
    for node in walk(request.body):
        if isinstance(node.operation, PreparedLaunch):
            found.append(node.operation.label)
            if len(found) == _LABELS_KEPT:
                break
    return tuple(found)
