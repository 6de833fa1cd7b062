"""Kernels that depend on nothing of each other's run at the same time.

Graphs of kernels that spin for a millisecond, through the public API, beside their
longest chain of kernels, which is a graph of its own and takes turns with them. What a
graph takes beyond that is what launching, events and waking add to it.
"""

from __future__ import annotations

import time

import accy_async
from accy_async import ScalarArgument, open_session
from accy_async.graph import LaunchGraphBuilder, LaunchGraphPlan, NodeRef
from benchmarks.gpu.kernels import entry
from benchmarks.gpu.tables import Row, Target, show

ROUNDS = 7
SPIN_NS = 1_000_000
AT_MOST = 1.05


class _Spins:
    """A graph of spinning kernels."""

    def __init__(self) -> None:
        self._graph = LaunchGraphBuilder()
        self._spin = entry("spin")

    def add(self, *after: NodeRef) -> NodeRef:
        """One more kernel, after these."""
        return self._graph.kernel(
            self._spin, [], [ScalarArgument.u64(SPIN_NS)], after=after
        )

    def chain(self, length: int) -> None:
        """So many kernels, one after the other."""
        last: tuple[NodeRef, ...] = ()
        for _ in range(length):
            last = (self.add(*last),)

    def build(self) -> LaunchGraphPlan:
        """The plan."""
        return self._graph.build()


def chains(count: int, length: int) -> LaunchGraphPlan:
    """Independent chains."""
    spins = _Spins()
    for _ in range(count):
        spins.chain(length)
    return spins.build()


def wavefront(side: int) -> LaunchGraphPlan:
    """Each after its neighbours above and to the left."""
    spins = _Spins()
    made: dict[tuple[int, int], NodeRef] = {}
    for row in range(side):
        for column in range(side):
            places = [(row - 1, column), (row, column - 1)]
            before = [made[place] for place in places if place in made]
            made[row, column] = spins.add(*before)
    return spins.build()


def fork_join(width: int) -> LaunchGraphPlan:
    """One, so many after it, one after all of those."""
    spins = _Spins()
    first = spins.add()
    spins.add(*[spins.add(first) for _ in range(width)])
    return spins.build()


GRAPHS = {
    "4 chains of 10": (chains(4, 10), 10),
    "a 3 by 3 wavefront": (wavefront(3), 5),
    "fork-join of 16": (fork_join(16), 3),
    "fork-join of 64": (fork_join(64), 3),
}
"""Each with the length of its longest chain."""


async def measure() -> list[Row]:
    """Milliseconds of each graph and of its longest chain."""
    plans: dict[str, LaunchGraphPlan] = {}
    for name, (plan, longest) in GRAPHS.items():
        plans[f"the longest chain: {longest}"] = chains(1, longest)
        plans[name] = plan
    taken: dict[str, list[float]] = {name: [] for name in plans}
    async with open_session("cuda") as session:
        for number in range(ROUNDS + 2):
            for name, plan in plans.items():
                started = time.perf_counter()
                await session.run(plan)
                if number > 1:
                    taken[name].append((time.perf_counter() - started) * 1e3)
        streams = session.max_streams
    rows = [
        Row(f"the longest chain: {longest}", taken[f"the longest chain: {longest}"])
        for longest in sorted({longest for _, longest in GRAPHS.values()})
    ]
    for name, (plan, longest) in GRAPHS.items():
        target = Target(f"the longest chain: {longest}", AT_MOST)
        count = plan.layout(streams).stream_count
        rows.append(Row(name, taken[name], f"{count} streams", (target,)))
    return rows


def main() -> None:
    show(
        f"Graphs of kernels that spin for {SPIN_NS / 1e6:g} ms each",
        accy_async.run(measure),
        unit="ms",
    )


if __name__ == "__main__":
    main()
