"""What a run of 100,000 small nodes does to a run of 10 that starts after it.

Both submit from one thread, to a device that they share. On the recording backend,
which completes everything at once, only the turns at submitting are shared; on the
CPU backend the room for work in flight is, too. The small run is a chain, so it
takes ten kernels' time in any case.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

import anyio

import accy_async
from accy_async import KernelCallArtifact, Session, open_session
from accy_async.graph import LaunchGraphBuilder, LaunchGraphPlan, LaunchOptions
from benchmarks.graph_kernels import add_grind, grind, scratch
from benchmarks.graph_plans import bindings, random_parts, recording_session
from benchmarks.measuring import Figure, show

LARGE, SMALL = 100_000, 10
WEIGHTS = (None, 1.0, 4.0, 16.0)
"""The small run's weight beside the large one's 1.0; None without the large run."""

_ROUNDS = 7
_CHAINS, _STREAMS, _TURNS = 8, 9, 1_000


async def _delays(
    session: Session,
    large: tuple[LaunchGraphPlan, Mapping[str, object]],
    small: tuple[LaunchGraphPlan, Mapping[str, object]],
    weight: float | None,
) -> list[float]:
    """Milliseconds that the small run takes, again and again, beside the large one."""
    options = LaunchOptions(weight=weight or 1.0)
    took: list[float] = []
    await session.run(*small)  # prepared, so that it is all submitting
    beside = None if weight is None else session.start(*large)
    await anyio.sleep(0.05)
    for _ in range(_ROUNDS):
        if beside is not None and beside.is_done:
            beside = session.start(*large)
            await anyio.sleep(0.05)
        started = time.perf_counter()
        await session.run(*small, options)
        took.append((time.perf_counter() - started) * 1e3)
        await anyio.sleep(0.01)
    if beside is not None and not beside.is_done:
        beside.cancel()
        await beside.wait_over()
    return took


def _title(weight: float | None) -> str:
    return "alone" if weight is None else f"beside {LARGE:,}, weight {weight:g} to 1"


async def _recording() -> list[Figure]:
    plans = [random_parts(count).plan() for count in (LARGE, SMALL)]
    figures = []
    for weight in WEIGHTS:
        async with recording_session() as session:
            given = dict(bindings(session))
            large, small = ((plan, given) for plan in plans)
            await session.run(*large)
            took = await _delays(session, large, small, weight)
            figures.append(Figure(_title(weight), tuple(took)))
    return figures


def _chains(kernel: KernelCallArtifact, chains: int, length: int) -> LaunchGraphPlan:
    graph = LaunchGraphBuilder()
    for chain in range(chains):
        out, source = scratch(graph, f"o{chain}"), scratch(graph, f"s{chain}")
        for _ in range(length):
            add_grind(graph, kernel, out, source, _TURNS)
    return graph.build()


async def _cpu() -> list[Figure]:
    kernel = grind()
    large = _chains(kernel, _CHAINS, LARGE // _CHAINS), dict[str, object]()
    small = _chains(kernel, 1, SMALL), dict[str, object]()
    large[0].layout(_CHAINS)
    figures = []
    for weight in WEIGHTS:
        async with open_session("cpu", max_streams=_STREAMS) as session:
            took = await _delays(session, large, small, weight)
            figures.append(Figure(_title(weight), tuple(took)))
    return figures


def main() -> None:
    for name, measure in (("recording", _recording), ("cpu", _cpu)):
        show(
            f"A run of {SMALL} nodes on the {name} backend",
            accy_async.run(measure),
            unit="ms",
        )


if __name__ == "__main__":
    main()
