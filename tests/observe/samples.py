"""Recordings to look at: a clock that is told the time, and the runs of C73."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

from accy_async.observe import Observer, SpanRecorder, Trace
from accy_async.observe.protocol import State

DAY_NS = 86_400 * 10**9
START_NS = 5_000_000_000


class Clock:
    """A host clock that stands still until it is moved."""

    def __init__(self, now_ns: int = START_NS) -> None:
        self.now_ns = now_ns

    def __call__(self) -> int:
        return self.now_ns


class Log(Observer):
    """Keeps every event it is told, as (name, arguments)."""

    def __init__(self) -> None:
        self.events: list[tuple[str, tuple[object, ...]]] = []

    def names(self) -> list[str]:
        return [name for name, _ in self.events]


def _keeper(event: str) -> Callable[..., None]:
    def keep(self: Log, *arguments: object) -> None:
        self.events.append((event, arguments))

    return keep


EVENTS = tuple(name for name in vars(Observer) if not name.startswith("_"))
for _event in EVENTS:
    setattr(Log, _event, _keeper(_event))


def tell_everything(observer: Observer) -> None:
    """One call of every method, in an order that a run could have."""
    failure = RuntimeError("bad")
    observer.phase_started(7, "compile", "scan", 1_000)
    observer.phase_finished(7, 2_000, "ok", None)
    observer.run_started(1, "plan", 3, 3_000)
    observer.run_edges(1, ((0, 1), (1, 2)))
    observer.node_submitted(1, 0, "load", "copy", 1, 4_000)
    observer.node_details(1, 0, 64, None, None)
    observer.node_started(1, 0, 5_000)
    observer.node_finished(1, 0, 6_000, "ok", None)
    observer.node_submitted(1, 1, "scan", "kernel", 2, 6_000)
    observer.node_details(1, 1, 128, (4, 1, 1), (32, 1, 1))
    observer.node_finished(1, 1, 8_000, "failed", failure)
    observer.node_skipped(1, 2, "store", "copy", 1, 8_500, "skipped", failure)
    observer.run_finished(1, 9_000, "failed", failure)


def cancelled_run(
    seed: int = 0, *, nodes: int = 100, streams: int = 4, cancelled: int = 10
) -> tuple[Trace, set[tuple[int, int]]]:
    """C73: 100 nodes on 4 streams, 10 of them cancelled, 5 failed; and its edges.

    Each node follows the one before it on its stream, and some follow one of
    another; device time runs apart from the host's, and is told late.
    """
    source = random.Random(seed)
    clock = Clock()
    recorder = SpanRecorder(clock=clock)
    fate: dict[int, State] = dict.fromkeys(range(nodes), "ok")
    chosen = source.sample(range(nodes), cancelled + 5)
    fate.update(dict.fromkeys(chosen[:cancelled], "cancelled"))
    fate.update(dict.fromkeys(chosen[cancelled:], "failed"))
    edges = {(node - streams, node) for node in range(streams, nodes)}
    for node in range(1, nodes):
        if source.random() < 0.3:
            edges.add((source.randrange(max(0, node - 8), node), node))
    begun = START_NS + 10
    recorder.run_started(1, "c73", nodes, begun)
    recorder.run_edges(1, tuple(sorted(edges)))
    ends: dict[int, int] = {}
    free = dict.fromkeys(range(streams), begun)
    told = []
    for node in range(nodes):
        stream = node % streams
        submitted = begun + node * 400
        recorder.node_submitted(1, node, f"n{node}", "kernel", stream + 1, submitted)
        before = [ends[source] for source, after in edges if after == node]
        started = max([submitted, free[stream], *before])
        ends[node] = free[stream] = started + source.randrange(0, 5_000)
        told.append((node, started, ends[node]))
    source.shuffle(told)
    for node, started, ended in told:
        error = RuntimeError("device") if fate[node] == "failed" else None
        recorder.node_started(1, node, started)
        recorder.node_finished(1, node, ended, fate[node], error)
    clock.now_ns = max(ends.values()) + 100
    recorder.run_finished(1, 0, "failed", None)
    recorder.close()
    return recorder.trace(), edges


def diamond() -> Trace:
    """Four nodes on two streams: one, two beside each other, one."""
    recorder = SpanRecorder(clock=Clock())
    recorder.run_started(1, "diamond", 4, START_NS + 1)
    recorder.run_edges(1, ((0, 1), (0, 2), (1, 3), (2, 3)))
    for node, stream, start, end in (
        (0, 1, 10, 1_010),
        (1, 1, 1_010, 3_010),
        (2, 2, 1_020, 2_020),
        (3, 1, 3_020, 4_020),
    ):
        name = ("split", "left", "right", "join")[node]
        recorder.node_submitted(1, node, name, "kernel", stream, START_NS + node + 1)
        recorder.node_details(1, node, 4096, (8, 1, 1), (128, 1, 1))
        recorder.node_started(1, node, START_NS + start)
        recorder.node_finished(1, node, START_NS + end, "ok", None)
    recorder.run_finished(1, START_NS + 4_100, "ok", None)
    return recorder.trace()


def files_in(folder: Path) -> list[str]:
    """What is in a folder, by name."""
    return sorted(path.name for path in folder.iterdir())
