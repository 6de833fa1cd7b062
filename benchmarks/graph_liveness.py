"""What a large graph does to a program that wants to do something every millisecond.

A task sleeps until the next full millisecond, again and again, and notes the longest
time between two of its turns: while nothing else happens, while a graph of 100,000
launches runs for the first time (loaded, laid out, prepared and submitted), and while
it runs again. The recording backend completes everything at once, so that the run
never has to wait and gives way only because it wants to.

The garbage collector stops everything while it walks through all objects, those of
the plan among them: a service tells it to pass them by with ``gc.freeze()`` once it
has built its plans. Both are shown.
"""

from __future__ import annotations

import gc
import itertools
import time
from collections.abc import Awaitable, Callable

import anyio

import accy_async
from accy_async.graph import LaunchGraphPlan
from benchmarks.graph_plans import STREAMS, bindings, random_parts, recording_session
from benchmarks.measuring import Figure, show

NODES = 100_000
IDLE_S = 1.0
PERIOD_S = 0.001


async def _beside(work: Callable[[], Awaitable[object]]) -> list[float]:
    """The times between a ticker's turns, in ms, while some work goes on."""
    turns: list[float] = []

    async def tick() -> None:
        due = anyio.current_time()
        while True:
            turns.append(time.perf_counter())
            due = max(due + PERIOD_S, anyio.current_time())
            await anyio.sleep_until(due)

    async with anyio.create_task_group() as group:
        group.start_soon(tick)
        await anyio.sleep(5 * PERIOD_S)
        await work()
        await anyio.sleep(5 * PERIOD_S)
        group.cancel_scope.cancel()
    return [(after - before) * 1e3 for before, after in itertools.pairwise(turns)]


async def _measure(plan: LaunchGraphPlan) -> list[Figure]:
    gaps: dict[str, list[float]] = {}

    async def idle() -> None:
        await anyio.sleep(IDLE_S)

    async def measure(name: str, work: Callable[[], Awaitable[object]]) -> None:
        gaps[name] = await _beside(work)

    await measure("idle", idle)
    async with recording_session() as session:
        given = bindings(session)

        async def run() -> None:
            await session.run(plan, given)

        await measure("first run", run)
        await measure("run again", run)
    async with recording_session() as session:
        given = bindings(session)
        gc.collect()
        gc.freeze()
        try:
            await measure("first run in a new session, frozen", run)
            gc.freeze()
            await measure("run again, frozen", run)
        finally:
            gc.unfreeze()
    return [Figure(_title(name, found), tuple(found)) for name, found in gaps.items()]


def _title(name: str, gaps: list[float]) -> str:
    late = sum(gap > 10 for gap in gaps)
    return f"{name} ({sum(gaps) / 1e3:.1f} s, {late} gaps above 10 ms)"


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
