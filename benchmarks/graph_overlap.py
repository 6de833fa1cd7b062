"""Kernels that depend on nothing of each other's run at the same time.

On the CPU backend, whose streams are threads: graphs of equal kernels that compute
on one core each, on as many streams as the layout finds, beside the same graph on a
single stream. With two cores a half is the least that two chains could take.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import accy_async
from accy_async import KernelCallArtifact, open_session
from accy_async.artifact.native.host import core_count
from accy_async.graph import LaunchGraphBuilder, LaunchGraphPlan, LaunchOptions
from accy_async.graph.plan import DEFAULT_MAX_STREAMS
from benchmarks.graph_kernels import add_grind, grind, scratch
from benchmarks.measuring import Figure, show

TURNS = 1_000_000
ROUNDS = 9
_CHAIN = 6


def two_chains(kernel: KernelCallArtifact) -> LaunchGraphPlan:
    """Two chains that share nothing."""
    graph = LaunchGraphBuilder()
    for name in "ab":
        out, source = scratch(graph, name), scratch(graph, f"{name}0")
        for _ in range(_CHAIN):
            add_grind(graph, kernel, out, source, TURNS)
    return graph.build()


def diamonds(kernel: KernelCallArtifact) -> LaunchGraphPlan:
    """One, two that depend on it, one that depends on both; three times over."""
    graph = LaunchGraphBuilder()
    top, left, right = (scratch(graph, name) for name in ("top", "left", "right"))
    for _ in range(3):
        add_grind(graph, kernel, top, left, TURNS)
        add_grind(graph, kernel, left, top, TURNS)
        add_grind(graph, kernel, right, top, TURNS)
        add_grind(graph, kernel, left, right, TURNS)
    return graph.build()


def fork_join(kernel: KernelCallArtifact) -> LaunchGraphPlan:
    """One, eight that depend on it, one that depends on all of them."""
    graph = LaunchGraphBuilder()
    first, last = scratch(graph, "first"), scratch(graph, "last")
    between = [scratch(graph, f"b{number}") for number in range(8)]
    add_grind(graph, kernel, first, last, TURNS)
    for one in between:
        add_grind(graph, kernel, one, first, TURNS)
    for one in between:
        add_grind(graph, kernel, last, one, 1)
    add_grind(graph, kernel, last, first, TURNS)
    return graph.build()


GRAPHS: dict[str, tuple[Callable[[KernelCallArtifact], LaunchGraphPlan], str]] = {
    f"2 chains of {_CHAIN}": (two_chains, "of 12 kernels, 6 one after the other"),
    "3 diamonds": (diamonds, "of 12 kernels, 9 one after the other"),
    "fork-join of 8": (fork_join, "of 10 kernels, 6 one after the other on 2 cores"),
}


async def _measure(plan: LaunchGraphPlan) -> list[Figure]:
    taken: dict[str, list[float]] = {
        "on one stream": [],
        f"on {plan.layout().stream_count} streams": [],
    }
    alone, spread = taken.values()
    async with (
        open_session("cpu", max_streams=DEFAULT_MAX_STREAMS + 1) as session,
        session.stream() as stream,
    ):
        for number in range(ROUNDS + 1):
            for options, times in (
                (LaunchOptions(stream=stream), alone),
                (LaunchOptions(), spread),
            ):
                started = time.perf_counter()
                await session.run(plan, options=options)
                if number:
                    times.append((time.perf_counter() - started) * 1e3)
    return [Figure(name, tuple(samples)) for name, samples in taken.items()]


def main() -> None:
    kernel = grind()
    for name, (make, shape) in GRAPHS.items():
        show(
            f"{name} on the CPU backend, {core_count()} cores ({shape})",
            accy_async.run(_measure, make(kernel)),
            unit="ms",
            baseline="on one stream",
        )


if __name__ == "__main__":
    main()
