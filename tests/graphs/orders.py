"""In which order a run's nodes ran, and whether that respects the graph."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Sequence

import attrs

from accy_async.graph.order import Block
from accy_async.graph.plan import LaunchGraphPlan
from accy_async.observe.protocol import Observer, State

__all__ = ["OrderRecorder", "check_order"]


class OrderRecorder(Observer):
    """Writes down the begin and the end of every node, one run's."""

    def __init__(self) -> None:
        self.log: list[tuple[str, str]] = []
        self.names: dict[int, str] = {}
        self._lock = threading.Lock()

    def node_submitted(
        self,
        run_id: int,
        node_id: int,
        name: str,
        kind: str,
        stream_id: int,
        time_ns: int,
    ) -> None:
        self.names[node_id] = name

    def node_started(self, run_id: int, node_id: int, time_ns: int) -> None:
        with self._lock:
            self.log.append(("begin", self.names[node_id]))

    def node_finished(
        self,
        run_id: int,
        node_id: int,
        time_ns: int,
        state: State,
        error: BaseException | None,
    ) -> None:
        with self._lock:
            self.log.append(("end", self.names[node_id]))

    def intervals(self) -> dict[str, list[tuple[int, int]]]:
        """When each node began and ended, each time it ran, in log places."""
        begun: dict[str, list[int]] = defaultdict(list)
        ended: dict[str, list[int]] = defaultdict(list)
        for place, (what, name) in enumerate(self.log):
            (begun if what == "begin" else ended)[name].append(place)
        assert begun.keys() == ended.keys()
        return {
            name: list(zip(times, ended[name], strict=True))
            for name, times in begun.items()
        }


@attrs.define
class _Walk:
    plan: LaunchGraphPlan
    counts: Sequence[int]
    intervals: dict[str, list[tuple[int, int]]]
    taken: dict[str, int] = attrs.field(factory=lambda: defaultdict(int))

    def block(self, block: Block, floor: int) -> int:
        """Check one running of a block, all of it after ``floor``; gives its end."""
        ends: list[int] = [floor] * len(block)
        for item in block.topological:
            after = max([floor, *(ends[pred] for pred in block.preds[item])])
            body = block.bodies.get(item)
            index = block.indices[item]
            if body is None:
                name = self.plan.nodes[index].name
                begin, end = self.intervals[name][self.taken[name]]
                self.taken[name] += 1
                assert begin > after, f"{name} began before what it depends on ended"
                ends[item] = end
                continue
            for _ in range(self.counts[index]):
                after = self.block(body, after)
            ends[item] = after
        return max([floor, *ends])


def check_order(
    plan: LaunchGraphPlan, recorder: OrderRecorder, counts: Sequence[int]
) -> None:
    """Assert that every node ran as often as it should, after what it depends on.

    Args:
        plan: what was run.
        recorder: what its run told.
        counts: the iterations of each of the plan's loops.
    """
    walk = _Walk(plan, counts, recorder.intervals())
    walk.block(plan.order.top, -1)
    ran = {name: len(times) for name, times in walk.intervals.items()}
    assert ran == {name: times for name, times in walk.taken.items() if times}
