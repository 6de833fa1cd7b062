"""Awaiting a GPU through the public API, beside C++ and the bare bindings.

One run prints: launching an empty kernel and awaiting it, on each loop, each round on
another processor; what happens behind a kernel of 10 ms (how late the task runs after
the device is done, and the part of a core that the process takes meanwhile); and a
ticker of 1 ms beside 1,000 tasks that await events. Medians and 99th percentiles of an
empty kernel, how many times those of C++ in the same round they are, and the part of a
core, are the median round's. Beneath each figure that has a target stands whether it is
met.
"""

from __future__ import annotations

import os
import statistics
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import cast

import anyio

import accy_async
from accy_async.artifact.geometry import FixedLaunch
from accy_async.backends import LaunchRequest, StreamHandle
from accy_async.backends.cuda import CudaBackend
from accy_async.backends.cuda.timeline import CudaTimeline
from accy_async.backends.launch import PreparedLaunch
from accy_async.dtypes import ScalarArgument
from benchmarks.gpu.bare import Bare, Cpp, artifact, cpp_program
from benchmarks.gpu.tables import verdict
from benchmarks.gpu.ways import LONG_NS, LOOPS, Observer, quantile

ROUNDS = 12
"""In each of which every way to await an empty kernel has its turn."""

WAKES = 1000
"""Of each way in a round, after half as many that do not count."""

LONG_WAKES = 60
Rounds = list[tuple[float, float]]
"""A median and a 99th percentile of each round, us."""

WAITERS = 1000
STREAMS = 8

CPP = "C++, launch and synchronise"
BINDINGS = "cuda.bindings, launch and synchronise"
RUN = "a bound launch, run"
"""Our way for what is launched and awaited again and again: it has the targets."""

MOST_TIMES = {"asyncio": 1.4, "uvloop": 1.4, "trio": 1.7}
"""How many times C++'s launch and synchronise ours may take, p50 and p99, by loop."""

MOST_BUSY_PERCENT = 3.0
"""Of a core, while a kernel of 10 ms is awaited: from its launch to the task's turn."""

MOST_LATE_US = 35.0
"""The median from the device's end to the task that runs on, after 10 ms."""

MOST_THREADS = 2
"""Of ours, however many wait."""

MOST_TICK_LATE_US = 2000.0
"""The ticker's p99 beside all the waits."""


class Subject:
    """A backend, a stream, and launches of ours."""

    def __init__(self) -> None:
        self.backend = CudaBackend()
        self.stream = self.backend.create_stream()
        self.loaded = {
            name: self.backend.load_artifact(artifact(name))
            for name in ("empty", "spin")
        }

    def request(self, nanoseconds: int = 0) -> LaunchRequest:
        name = "spin" if nanoseconds else "empty"
        return LaunchRequest(
            artifact=artifact(name),
            loaded=self.loaded[name],
            buffers=(),
            scalars=(ScalarArgument.u64(nanoseconds),) if nanoseconds else (),
            geometry=FixedLaunch(grid=(1, 1, 1), threadgroup=(1, 1, 1)),
            stream=self.stream,
        )

    def prepared(self, nanoseconds: int = 0) -> PreparedLaunch:
        return self.backend.prepare_launch(self.request(nanoseconds))


async def _short(subject: Subject, launch: Callable[[], object]) -> list[float]:
    backend, stream = subject.backend, subject.stream
    taken = []
    for number in range(WAKES * 3 // 2):
        begun = time.perf_counter_ns()
        launch()
        await backend.wait_stream(stream)
        if number >= WAKES // 2:
            taken.append((time.perf_counter_ns() - begun) / 1000)
    return taken


async def _running(run: Callable[[], Awaitable[None]]) -> list[float]:
    taken = []
    for number in range(WAKES * 3 // 2):
        begun = time.perf_counter_ns()
        await run()
        if number >= WAKES // 2:
            taken.append((time.perf_counter_ns() - begun) / 1000)
    return taken


def _spinning(bare: Bare) -> list[float]:
    driver, stream = bare.driver, bare.stream
    taken = []
    for number in range(WAKES * 3 // 2):
        begun = time.perf_counter_ns()
        bare.launch()
        driver.cuStreamSynchronize(stream)
        if number >= WAKES // 2:
            taken.append((time.perf_counter_ns() - begun) / 1000)
    return taken


async def _long(
    subject: Subject, bare: Bare
) -> tuple[list[float], tuple[float, float]]:
    backend, stream = subject.backend, subject.stream
    submit = backend.bind_launch(subject.request(LONG_NS)).submit
    line = cast("CudaTimeline", backend.mark(stream).timeline)
    late = []
    for number in range(LONG_WAKES + 10):
        # Before the launch, as to start a thread takes a part of a millisecond.
        seen = Observer(bare, line.submitted + 1, line.word_address)
        submit()
        await backend.wait_stream(stream)
        woken = time.monotonic_ns()
        done = seen.done_ns()
        if number >= 10:
            late.append((woken - done) / 1000)
    shares = []
    for _ in range(ROUNDS):
        parked, asleep = 0.0, 0.0
        busy, begun = time.process_time(), time.perf_counter()
        for _ in range(LONG_WAKES // 2):
            submit()
            parked -= time.process_time()
            asleep -= time.perf_counter()
            await backend.wait_stream(stream)
            parked += time.process_time()
            asleep += time.perf_counter()
        busy = time.process_time() - busy
        shares.append((parked / asleep, busy / (time.perf_counter() - begun)))
    return late, _middle(shares)


async def _tick(late_us: list[float], until: Callable[[], bool]) -> None:
    due = time.perf_counter()
    while not until():
        due += 0.001
        await anyio.sleep(max(0.0, due - time.perf_counter()))
        late_us.append((time.perf_counter() - due) * 1e6)


async def _waiters(subject: Subject) -> tuple[list[float], list[float], int]:
    backend = subject.backend
    idle: list[float] = []
    end = time.perf_counter() + 0.5
    await _tick(idle, lambda: time.perf_counter() > end)
    streams: list[StreamHandle] = [backend.create_stream() for _ in range(STREAMS)]
    prepared = subject.prepared(4_000_000)
    events = []
    for number in range(WAITERS):
        stream = streams[number % STREAMS]
        backend.submit_launch(prepared, stream)
        event = backend.create_event()
        backend.record_event(event, stream)
        events.append(event)
    busy: list[float] = []
    woken = 0

    async def wait(number: int) -> None:
        nonlocal woken
        await backend.wait_event(events[number])
        woken += 1

    async with anyio.create_task_group() as group:
        for number in range(WAITERS):
            group.start_soon(wait, number)
        await anyio.sleep(0.02)
        threads = sum(t.name.startswith("accy_async") for t in threading.enumerate())
        group.start_soon(_tick, busy, lambda: woken == WAITERS)
    for event in events:
        backend.destroy(event)
    for stream in streams:
        backend.destroy(stream)
    return idle, busy, threads


def _both(taken: list[float]) -> tuple[float, float]:
    return quantile(taken, 0.5), quantile(taken, 0.99)


def _middle(rounds: Rounds) -> tuple[float, float]:
    """The medians of what was found in each round."""
    middle, late = (statistics.median(found) for found in zip(*rounds, strict=True))
    return middle, late


def _times(rounds: Rounds, base: Rounds) -> tuple[float, float]:
    """How many times as long it took as something else in the same round, as above.

    A virtual machine's processors are slower for seconds at a time, where others use
    the same cores: so what is compared comes right after what it is compared with, on
    the same processor.
    """
    return _middle(
        [(a / b, c / d) for (a, c), (b, d) in zip(rounds, base, strict=True)]
    )


def _line(name: str, taken: list[float]) -> None:
    _print(name, _both(taken), None)


def _print(
    name: str, both: tuple[float, float], times: tuple[float, float] | None
) -> None:
    middle, late = both
    ratios = f"{times[0]:6.2f} {times[1]:6.2f}" if times else ""
    print(f"{name:44} {middle:8.1f} {late:8.1f} {ratios}")


def _say(what: str, said: str) -> None:
    print(f"    {what} {said}")


def _judge_short(loop: str, times: tuple[float, float]) -> None:
    for name, found in zip(("p50", "p99"), times, strict=True):
        _say(name, verdict(found, MOST_TIMES[loop], "x C++"))


def _judge_long(late: list[float], parked: float) -> None:
    _say("late, p50", verdict(quantile(late, 0.5), MOST_LATE_US, "us", digits=1))
    _say("busy", verdict(100 * parked, MOST_BUSY_PERCENT, "% of a core", digits=1))


def _judge_waiters(late: list[float], threads: int) -> None:
    _say("threads more", verdict(threads, MOST_THREADS, digits=0))
    found = quantile(late, 0.99)
    _say("the ticker's p99", verdict(found, MOST_TICK_LATE_US, "us late", digits=0))


def _each_on_its_processor(count: int) -> Iterator[int]:
    """So many rounds, each bound to another processor, and so what it starts."""
    allowed = os.sched_getaffinity(0)
    processors = sorted(allowed)
    try:
        for number in range(count):
            place = number * len(processors) // count
            os.sched_setaffinity(0, {processors[place % len(processors)]})
            yield number
    finally:
        os.sched_setaffinity(0, allowed)


def _compare_short(bare: Bare, subject: Subject, cpp: Cpp | None) -> None:
    """Launch and await an empty kernel, each way in turn, and print what it took."""
    request, prepared = subject.request(), subject.prepared()
    backend, stream = subject.backend, subject.stream
    launcher = backend.bind_launch(request)
    launches: dict[str, Callable[[], object]] = {
        "a bound launch": launcher.submit,
        "a prepared launch": lambda: backend.submit_launch(prepared, stream),
        "launch(request)": lambda: backend.launch(request),
    }
    ways: dict[str, Callable[[], Awaitable[list[float]]]] = {
        RUN: lambda: _running(launcher.run),
        **{name: partial(_short, subject, one) for name, one in launches.items()},
    }
    rounds: dict[tuple[str, str], Rounds] = {}
    for number in _each_on_its_processor(ROUNDS):
        first = number % len(LOOPS)  # whoever comes first finds the caches cold
        loops = (*LOOPS[first:], *LOOPS[:first])
        if cpp is not None:
            rounds.setdefault((CPP, ""), []).append(cpp.launch_and_synchronise())
        rounds.setdefault((BINDINGS, ""), []).append(_both(_spinning(bare)))
        for name, way in ways.items():
            for loop in loops:
                taken = accy_async.run(way, loop=loop)
                rounds.setdefault((name, loop), []).append(_both(taken))
    base = rounds.get((CPP, ""))
    for (name, loop), found in rounds.items():
        times = None if base is None else _times(found, base)
        _print(f"accy_async, {name}, {loop}" if loop else name, _middle(found), times)
        if name == RUN and times is not None:
            _judge_short(loop, times)


def main() -> None:
    with cpp_program() as cpp:
        _show(Bare(), Subject(), cpp)


def _show(bare: Bare, subject: Subject, cpp: Cpp | None) -> None:
    print(f"{'launch and await an empty kernel, us':44} {'p50':>8} {'p99':>8}  ratios")
    _compare_short(bare, subject, cpp)
    print("\nafter a kernel of 10 ms: busy, % of a core, and late, us (p50, p99)")
    if cpp is not None:
        shares = [cpp.sleep() for _ in range(ROUNDS)]
        share = statistics.median(shares)
        print(
            f"C++, asleep until shortly before the end: {share:.1f} % with its launch"
        )
    for loop in LOOPS:
        late, (parked, share) = accy_async.run(_long, subject, bare, loop=loop)
        shares = f"{100 * parked:.1f} % parked, {100 * share:.1f} % with its launch"
        _line(f"accy_async, {loop}: {shares}", late)
        _judge_long(late, parked)
    print(f"\na ticker of 1 ms, late, us (p50, p99): idle, and beside {WAITERS} waits")
    for loop in LOOPS:
        idle, busy, threads = accy_async.run(_waiters, subject, loop=loop)
        _line(f"{loop}, idle", idle)
        _line(f"{loop}, beside the waits; {threads} threads more", busy)
        _judge_waiters(busy, threads)
    subject.backend.close()


if __name__ == "__main__":
    main()
