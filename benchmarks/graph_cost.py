"""What a node of a graph costs on the host, beside a task a node and other ways.

A random graph of launches on eight streams, on the recording backend: each node
comes after one to three others. All ways make the same calls for it: the launch,
and the waits for events and records of them without which the order would not hold
on a device that takes its time. (Without them each would have to await the device,
at the cost of a wake-up a node; one row shows what is left then of the best other
way, where nobody cares.)

A figure is the least of its rounds, in which every way has its turn. Rounds of
small graphs take several runs.
"""

from __future__ import annotations

import gc
import time
import tracemalloc
from collections.abc import Callable

import attrs

import accy_async
from accy_async.graph import LaunchGraphPlan
from benchmarks.graph_peers import THREADS, Peers
from benchmarks.graph_plans import (
    STREAMS,
    bindings,
    random_parts,
    recording_session,
)
from benchmarks.measuring import machine

SIZES = {100: 15, 1_000: 7, 10_000: 5, 100_000: 2}
"""Nodes, and rounds."""

_LONG_S = 60.0
_MEMORY_NODES = 10_000


class _Ours:
    """Our own way: the first run of a plan in a session, and those after it."""

    def __init__(self, plan: LaunchGraphPlan) -> None:
        self.plan = plan

    def first_run(self, loop: str) -> float:
        async def main() -> float:
            async with recording_session() as session:
                given = bindings(session)
                started = time.perf_counter()
                await session.run(self.plan, given)
                return time.perf_counter() - started

        return accy_async.run(main, loop=loop)

    def again(self, loop: str) -> float:
        async def main() -> float:
            async with recording_session() as session:
                given = bindings(session)
                await session.run(self.plan, given)
                gc.collect()
                took = []
                for _ in range(3):
                    started = time.perf_counter()
                    await session.run(self.plan, given)
                    took.append(time.perf_counter() - started)
                return min(took)

        return accy_async.run(main, loop=loop)


BARE, CALLS = "the launches alone, in a loop", "the same calls, in a loop"
EMPTY, NURSERY = "empty trio task", "trio nursery"
FIRST, AGAIN = "ours, first run (trio)", "ours, run again (trio)"


@attrs.frozen
class _Size:
    """What was measured of one size of graph, in us a node."""

    count: int
    build: float
    validate: float
    layout: float
    events: float
    waits: float
    ways: dict[str, float]


def _measure(count: int, rounds: int) -> _Size:
    started = time.perf_counter()
    parts = random_parts(count)
    built = time.perf_counter()
    plan = parts.plan()
    validated = time.perf_counter()
    layout = plan.layout(STREAMS)
    laid_out = time.perf_counter()
    ours, peers = _Ours(plan), Peers(parts, plan)
    ways: dict[str, Callable[[], float]] = {
        BARE: peers.launches_alone,
        CALLS: peers.calls_alone,
        EMPTY: peers.empty_trio_tasks,
        FIRST: lambda: ours.first_run("trio"),
        AGAIN: lambda: ours.again("trio"),
        "ours, run again (asyncio)": lambda: ours.again("asyncio"),
        NURSERY: peers.trio_nursery,
        "anyio group (asyncio)": peers.anyio_group,
        "asyncio.gather": peers.asyncio_gather,
        "the same, order kept on the host only": peers.bare_asyncio_gather,
        f"graphlib, {THREADS} threads": peers.graphlib_threads,
        f"dask.threaded, {THREADS} threads": peers.dask_threads,
    }
    least = dict.fromkeys(ways, float("inf"))
    for _ in range(rounds):
        for name, way in ways.items():
            if _LONG_S / count * 1e6 < least[name] < float("inf"):
                continue  # a minute and more: once is enough
            gc.collect()
            least[name] = min(least[name], way() / count * 1e6)
    return _Size(
        count=count,
        build=(built - started) / count * 1e6,
        validate=(validated - built) / count * 1e6,
        layout=(laid_out - validated) / count * 1e6,
        events=layout.event_count / count,
        waits=layout.wait_count / count,
        ways=least,
    )


def _memory() -> list[tuple[str, float]]:
    """Bytes a node that each way allocates at most at a time, over the plan."""
    parts = random_parts(_MEMORY_NODES)
    tracemalloc.start()
    try:
        found = []

        def grown(name: str, call: Callable[[], object]) -> object:
            gc.collect()
            before = tracemalloc.get_traced_memory()[0]
            tracemalloc.reset_peak()
            result = call()
            peak = tracemalloc.get_traced_memory()[1]
            found.append((name, (peak - before) / _MEMORY_NODES))
            return result

        plan = grown("the plan, validated", parts.plan)
        assert isinstance(plan, LaunchGraphPlan)
        grown("its layout", lambda: plan.layout(STREAMS))
        ours, peers = _Ours(plan), Peers(parts, plan)
        grown("ours: prepared, and a run of it", lambda: ours.first_run("trio"))
        grown("trio nursery", peers.trio_nursery)
        grown("anyio group (asyncio)", peers.anyio_group)
        grown("asyncio.gather", peers.asyncio_gather)
        grown(f"graphlib, {THREADS} threads", peers.graphlib_threads)
        grown(f"dask.threaded, {THREADS} threads", peers.dask_threads)
        return found
    finally:
        tracemalloc.stop()


def main(sizes: dict[int, int] | None = None) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 110
    measured = [_measure(count, n) for count, n in (sizes or SIZES).items()]
    middle = next((s for s in measured if s.count == 10_000), measured[-1])
    at = f"at {middle.count:,}"
    table = Table(title="Host cost of a graph's node, us", title_justify="left")
    table.add_column("what")
    for size in measured:
        table.add_column(f"{size.count:,}", justify="right")
    for heading in (f"ratio {at}", "to empty task", "without its calls"):
        table.add_column(heading, justify="right")
    for way, cost in middle.ways.items():
        calls = middle.ways[BARE if "host only" in way else CALLS]
        is_whole = way not in (BARE, CALLS, EMPTY)
        table.add_row(
            way,
            *(f"{size.ways[way]:.2f}" for size in measured),
            f"{cost / middle.ways[NURSERY]:.2f}",
            f"{cost / middle.ways[EMPTY]:.2f}",
            f"{(cost - calls) / middle.ways[EMPTY]:.2f}" if is_whole else "",
        )
    console.print(table)
    console.print(
        f"{machine()}; least of the rounds; ratios to {NURSERY}, then to {EMPTY}, at "
        f"last of what is above the calls to {EMPTY}; less is better\n"
    )

    table = Table(title="Once for a plan, us a node", title_justify="left")
    for heading in ("nodes", "building", "validating", "layout"):
        table.add_column(heading, justify="right")
    for heading in ("events a node", "event waits a node"):
        table.add_column(heading, justify="right")
    for size in measured:
        figures = (size.build, size.validate, size.layout, size.events, size.waits)
        table.add_row(f"{size.count:,}", *(f"{figure:.2f}" for figure in figures))
    console.print(table)

    title = f"Memory at the most, of {_MEMORY_NODES:,} nodes"
    table = Table(title=title, title_justify="left")
    table.add_column("what")
    table.add_column("bytes a node", justify="right")
    for name, size_bytes in _memory():
        table.add_row(name, f"{size_bytes:,.0f}")
    console.print(table)


if __name__ == "__main__":
    main()
