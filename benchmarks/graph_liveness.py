"""What a large graph does to a program that wants to do something every millisecond.

A task sleeps until the next full millisecond, again and again, and notes the longest
time between two of its turns: while nothing else happens, while a graph of 100,000
launches runs for the first time (loaded, laid out, prepared and submitted), and while
it runs again. The recording backend completes everything at once, so that the run
never has to wait and gives way only because it wants to.

The garbage collector stops everything while it walks through all objects, those of
the plan among them. A service tells it to pass them by with ``gc.freeze()`` once it
has built its plans; the first run is shown so, and without the collector, too. On a
machine that others use as well, the longest stretch of the loop's own work between
two turns says more than the clock on the wall: it stands behind each name.
"""

from __future__ import annotations

import gc
import itertools
import time
from collections.abc import Awaitable, Callable
from functools import partial

import anyio

import accy_async
from accy_async.graph import LaunchGraphPlan
from benchmarks.graph_plans import STREAMS, bindings, random_parts, recording_session
from benchmarks.measuring import Figure, show

NODES = 100_000
IDLE_S = 1.0
PERIOD_S = 0.001


async def _beside(name: str, work: Callable[[], Awaitable[object]]) -> Figure:
    """The times between a ticker's turns, in ms, while some work goes on."""
    turns: list[float] = []
    own: list[float] = []

    async def tick() -> None:
        due = anyio.current_time()
        while True:
            turns.append(time.perf_counter())
            own.append(time.thread_time())
            due = max(due + PERIOD_S, anyio.current_time())
            await anyio.sleep_until(due)

    async with anyio.create_task_group() as group:
        group.start_soon(tick)
        await anyio.sleep(5 * PERIOD_S)
        await work()
        await anyio.sleep(5 * PERIOD_S)
        group.cancel_scope.cancel()
    gaps = [(after - before) * 1e3 for before, after in itertools.pairwise(turns)]
    most = max(after - before for before, after in itertools.pairwise(own)) * 1e3
    late = sum(gap > 10 for gap in gaps)
    return Figure(f"{name} ({late} above 10; own work {most:.1f})", tuple(gaps))


async def _measure(plan: LaunchGraphPlan) -> list[Figure]:
    async def idle() -> None:
        await anyio.sleep(IDLE_S)

    figures = [await _beside("idle", idle)]
    for what in ("", ", plan frozen", ", no collector"):
        gc.collect()
        if "frozen" in what:
            gc.freeze()
        if "collector" in what:
            gc.disable()
        try:
            async with recording_session() as session:
                run = partial(session.run, plan, bindings(session))
                figures.append(await _beside(f"first run{what}", run))
                figures.append(await _beside(f"run again{what}", run))
        finally:
            gc.enable()
            gc.unfreeze()
    return figures


def main() -> None:
    for loop in ("trio", "asyncio", "uvloop"):
        # Each loop begins with a plan that was never laid out.
        plan = random_parts(NODES).plan()
        try:
            figures = accy_async.run(_measure, plan, loop=loop)
        except ImportError as error:
            print(f"{loop}: left out, {error}")
            continue
        show(
            f"Time between two turns of a ticker of 1 ms on {loop}, ms "
            f"({NODES:,} nodes, {STREAMS} streams)",
            figures,
            unit="ms",
        )


if __name__ == "__main__":
    main()
