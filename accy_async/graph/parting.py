"""A run of a plan as device graphs around its calls on the host.

The parts and the calls are items of a block like any other: a part may be launched
when the parts before it are and the calls before it have returned; a call begins when
what it depends on has ended, which events in the parts' graphs tell. The end of a part
whose loops may fail by their limits is an item too: whether they did is looked up then.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from accy_async.graph.hostcalls import lost_call
from accy_async.graph.lowering.replay import MOST_SIDE_STREAMS, tell_of_watched
from accy_async.graph.order import HOST, LOOP
from accy_async.graph.runner import Runner
from accy_async.graph.state import BlockState

if TYPE_CHECKING:
    from collections.abc import Callable

    from accy_async.backends.base import Backend
    from accy_async.backends.handles import EventHandle, StreamHandle
    from accy_async.backends.timeline import Mark
    from accy_async.graph.bindings import Memory
    from accy_async.graph.governor import Governor
    from accy_async.graph.layout import BlockLayout
    from accy_async.graph.lowering.parted import LoweredParts
    from accy_async.graph.prepared import PreparedGraph
    from accy_async.graph.progress import RunProgress

__all__ = ["PartsRunner", "streams_of"]

_MOST_LANES = 4
"""Streams that the parts of a run are launched to, beside those that calls await."""


def streams_of(parted: LoweredParts) -> int:
    """How many streams a run makes use of."""
    watched = max(len(graph.watched) for graph in parted.graphs)
    lanes = min(_MOST_LANES, max(1, len(parted.graphs)))
    return lanes + min(MOST_SIDE_STREAMS, watched)


class PartsRunner(Runner):
    """Runs one prepared plan, part by part; see `Runner`.

    Args:
        backend, prepared, progress, streams, take_event, governor: as for `Runner`.
        parted: the plan's device graphs.
        layout: the plan's own, for as many streams.
    """

    def __init__(
        self,
        backend: Backend,
        prepared: PreparedGraph,
        parted: LoweredParts,
        progress: RunProgress,
        streams: list[StreamHandle],
        layout: BlockLayout,
        take_event: Callable[[StreamHandle], EventHandle],
        governor: Governor,
    ) -> None:
        super().__init__(
            backend, prepared, progress, streams, take_event, governor, None
        )
        self._parted = parted
        self._layout = layout
        self._parting = parted.shape
        self._block = prepared.plan.order.top
        self._streams = streams
        self._take_event = take_event
        watched = max(len(graph.watched) for graph in parted.graphs)
        sides = min(MOST_SIDE_STREAMS, watched, len(streams) - 1)
        self._lanes = len(streams) - sides
        # Of each part, the lane it is on, and the event behind it for other lanes.
        self._lane_of = _lanes_of(parted, self._lanes)
        self._behind: dict[int, EventHandle] = {}
        # The parts whose loops may fail by their limits, and where they end.
        self._limited = [n for n, graph in enumerate(parted.graphs) if graph.limits]
        self._ends: dict[int, Mark] = {}

    @property
    def memories(self) -> Sequence[Memory]:
        """What holds each slot's value when all of it is done."""
        return self._parted.memories

    async def run_parts(self) -> None:
        """Submit everything, and return when the last call is done.

        Cancellation: nothing further is submitted; host calls are cancelled.
        """
        preds, succs, is_host = self._edges()
        state = BlockState(range(len(preds)), preds, succs, is_host)
        with self._pace:
            await self._drive(
                state, is_host, self._submit_part, self._serve, self._lose
            )

    def _edges(
        self,
    ) -> tuple[list[list[int]], list[list[int]], list[bool]]:
        """The parts and calls as items of a block, in this order, then parts' ends."""
        parting, block = self._parting, self._block
        count = len(parting.parts)
        number = {item: count + i for i, item in enumerate(parting.calls)}
        preds: list[list[int]] = [
            [*part.parts, *(number[call] for call in part.calls)]
            for part in parting.parts
        ]
        for call in parting.calls:
            before = {number.get(p, parting.part_of[p]) for p in block.preds[call]}
            preds.append(sorted(before))
        preds += [[number] for number in self._limited]
        succs: list[list[int]] = [[] for _ in preds]
        for item, before_it in enumerate(preds):
            for one in before_it:
                succs[one].append(item)
        is_host = [False] * count + [True] * (len(preds) - count)
        return preds, succs, is_host

    async def _submit_part(self, number: int) -> None:
        part, graph = self._parting.parts[number], self._parted.graphs[number]
        progress, backend = self._progress, self._backend
        indices = self._indices(part.items)
        progress.judge()
        if progress.is_guarding:
            blocked = [index for index in indices if progress.blocks(index)]
            if len(blocked) == len(indices):
                for index in indices:
                    progress.skipped(index)
                return
        if self._prepared.rereads:
            await self._wait_for_parts_read(indices)
        lane = self._lane_of[number]
        others = [n for n in part.parts if self._lane_of[n] != lane]
        operations = 2 + len(graph.watched) + len(others)
        if not self._pace.has_room(operations):
            await self._pace.wait_for_room(operations)
        stream = self._streams[lane]
        for before in others:
            if before in self._behind:  # else it was skipped
                position = backend.stream_wait_event(stream, self._behind[before])
                progress.reached(lane, position)
                progress.event_waits += 1
        position = graph.launch(stream, progress.guard)
        progress.submitted_part(indices, lane, position)
        if graph.limits:
            progress.expect_verdicts(lane, position, graph.errors)
            self._ends[number] = progress.last_mark(lane)
        sides = self._streams[self._lanes :]
        if sides:
            tell_of_watched(
                backend,
                self._prepared,
                graph,
                progress,
                sides,
                self._lanes,
                self._layout,
            )
        if self._has_successors_elsewhere(number):
            event = self._behind[number] = self._take_event(stream)
            progress.reached(lane, backend.record_event(event, stream))
            progress.event_records += 1

    async def _wait_for_parts_read(self, indices: Sequence[int]) -> None:
        """Wait for what other parts copy to host memory that these nodes copy from."""
        mine = set(indices)
        for index, copies in self._prepared.rereads.items():
            if index in mine:
                for before in (copy for copy in copies if copy not in mine):
                    await self._progress.wait_device(before)

    async def _serve(self, number: int) -> None:
        """A call, once what it depends on has ended; or the end of a part."""
        item = self._item(number)
        if item < 0:
            if mark := self._ends.get(self._limited[~item]):  # else it was skipped
                await mark.wait_reached()
                self._progress.judge()
            return
        for before in self._block.preds[item]:
            if self._block.kinds[before] != HOST:
                await self._progress.wait_device(self._index(before))
        self._progress.judge()
        await self._call(self._block.indices[item])

    def _lose(self, number: int, error: BaseException | None) -> None:
        item = self._item(number)
        if item < 0:
            return  # the run's end looks it up, if nobody else does
        index = self._block.indices[item]
        self._progress.failed(
            index, lost_call(error, self._prepared.plan.nodes[index].name)
        )

    def _item(self, number: int) -> int:
        """The item that is a call; below 0, ``~`` the place of a part that may fail."""
        calls = self._parting.calls
        place = number - len(self._parting.parts)
        return calls[place] if place < len(calls) else ~(place - len(calls))

    def _has_successors_elsewhere(self, number: int) -> bool:
        return any(
            number in part.parts and self._lane_of[other] != self._lane_of[number]
            for other, part in enumerate(self._parting.parts)
        )

    def _index(self, item: int) -> int:
        index = self._block.indices[item]
        if self._block.kinds[item] == LOOP:
            return self._progress.relations.loop(index)
        return index

    def _indices(self, items: Sequence[int]) -> list[int]:
        """The nodes and loops of these items, and within them."""
        found = []
        for item in items:
            index = self._index(item)
            found.append(index)
            if self._block.kinds[item] == LOOP:
                found += self._progress.relations.within(index)
        return found


def _lanes_of(parted: LoweredParts, count: int) -> list[int]:
    """The lane of each part: that of one before it, if that is the last there."""
    lanes: list[int] = []
    last: dict[int, int] = {}
    for number, part in enumerate(parted.shape.parts):
        behind = [lane for lane, one in last.items() if one in part.parts]
        if behind:
            lane = behind[0]
        elif len(last) < count:
            lane = len(last)
        else:
            lane = number % count
        lanes.append(lane)
        last[lane] = number
    return lanes
