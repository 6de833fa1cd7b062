"""Running the demo: one session, one pool, many launches, one cancelled.

Launches go out in rounds. Within a round each has a result array of its own, and
all are in flight together, dealt out to the streams; scratch belongs to a
stream, whose launches follow each other. Between rounds every result is
compared, then overwritten, so that a launch that does nothing is found out, and
numpy's turn is taken, so that both see the same machine.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import anyio.to_thread
import attrs
import numpy as np

from accy_async.artifact.entry import KernelCallRegistry
from accy_async.backends.array import DeviceArray
from accy_async.backends.completion import run_abandonable
from accy_async.backends.recording import RecordingBackend
from accy_async.cli.demo.bench import Bench, Watcher
from accy_async.cli.demo.cancel import cancel_one
from accy_async.cli.demo.check import distance_from_exact, first_difference, reference
from accy_async.cli.demo.outcome import (
    CheckOutcome,
    DemoOptions,
    DemoOutcome,
    InputFacts,
    Spread,
    Timing,
)
from accy_async.cli.demo.source import Source, read_source, sensor_source
from accy_async.compiler.kernels import scan_pipeline
from accy_async.dtypes import ScalarArgument
from accy_async.pipeline import allocate_pipeline_intermediates
from accy_async.session import Session, open_session

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from accy_async.backends.handles import StreamHandle
    from accy_async.pipeline import PipelineLaunch

__all__ = ["run_demo"]

RESULT_BYTES = 640 << 20
"""What the result arrays of one round may take together."""

LEAST_ROUNDS = 4
"""Rounds, where there are launches enough: fewer would show no spread."""

MOST_IN_FLIGHT = 256
"""Launches of one round."""

WARM_UP = 3
"""Launches before the first round, in which kernels' costs are learned."""

NUMPY_SAMPLES = 9
"""How often numpy is timed, spread over the rounds."""

_T = TypeVar("_T")


async def run_demo(options: DemoOptions, watcher: Watcher) -> DemoOutcome:
    """Do all of it.

    Raises:
        UsageError: the input file cannot be used.
        BackendUnavailable: the backend cannot run here.
        DeviceError, OutOfMemory: the device failed.

    Cancellation: an ordinary exit: what was submitted is awaited for the grace
        at most, and everything is destroyed.
    """
    begun = time.perf_counter()
    prepare_s: dict[str, float] = {}

    async def timed(what: str, work: Callable[[], _T]) -> _T:
        watcher.begin(what, 1)
        started = time.perf_counter()
        result = await _off_loop(work)
        prepare_s[what] = time.perf_counter() - started
        watcher.step()
        return result

    path = options.input
    if path is None:
        source = await timed("values", partial(sensor_source, options.length))
    else:
        source = await timed("values", partial(read_source, path))
    values = source.values
    async with open_session(options.backend, max_streams=options.streams) as session:
        executes = not isinstance(session.backend, RecordingBackend)
        expected = None
        if executes:
            expected = await timed("reference", lambda: reference(values))
        watcher.begin("compile", 1)
        started = time.perf_counter()
        # LLVM must not be left at work when the process ends: await it, always.
        registry = await anyio.to_thread.run_sync(_compile, source, session)
        prepare_s["compile"] = time.perf_counter() - started
        watcher.step()
        pipeline = scan_pipeline(source.dtype)
        started = time.perf_counter()
        async with await session.load_pipeline(pipeline, registry) as pool:
            prepare_s["load"] = time.perf_counter() - started
            started = time.perf_counter()
            operand = await session.upload(values)
            prepare_s["upload"] = time.perf_counter() - started
            bench = Bench(
                session, source, pipeline, registry, pool, operand, executes, watcher
            )
            timing, check = await _launch_rounds(bench, options, expected)
            watcher.begin("cancel", 1)
            result = session.allocate(values.shape, source.dtype)
            cancel = await cancel_one(bench, result, timing.launch.median_s)
            watcher.step()
    return DemoOutcome(
        backend=str(session.backend.kind) if executes else "recording",
        capabilities=session.capabilities,
        executes=executes,
        loop=options.loop,
        streams=options.streams,
        input=InputFacts(
            description=source.description,
            dtype=str(source.dtype),
            length=len(values),
            byte_size=values.nbytes,
            checksum=source.checksum,
        ),
        prepare_s=prepare_s,
        timing=timing,
        check=check,
        cancel=cancel,
        live_at_end=session.live_objects(),
        total_s=time.perf_counter() - begun,
    )


def _compile(source: Source, session: Session) -> KernelCallRegistry:
    from accy_async.compiler.kernels.catalogue import library_registry

    pipeline = scan_pipeline(source.dtype)
    return library_registry(
        session.backend.default_format,
        dtype=source.dtype,
        targets=[stage.target for stage in pipeline.stages],
    )


async def _launch_rounds(
    bench: Bench, options: DemoOptions, expected: NDArray[Any] | None
) -> tuple[Timing, CheckOutcome]:
    session, values = bench.session, bench.source.values
    room = max(options.streams, RESULT_BYTES // max(values.nbytes, 1))
    width = min(-(-options.launches // LEAST_ROUNDS), room, MOST_IN_FLIGHT)
    rounds = [
        min(width, options.launches - start)
        for start in range(0, options.launches, width)
    ]
    results = [session.allocate(values.shape, bench.source.dtype) for _ in range(width)]
    judge = _Judge(bench, expected, results)
    times = _Times()
    async with AsyncExitStack() as stack:
        streams = []
        for _ in range(options.streams):
            stream = await stack.enter_async_context(session.stream())
            scratch = await allocate_pipeline_intermediates(
                session.backend, bench.pipeline, (ScalarArgument.u32(len(values) or 1),)
            )
            streams.append((stream, await stack.enter_async_context(scratch)))
        requests = [
            bench.request(result, scratch, stream)
            for number, result in enumerate(results)
            for stream, scratch in (streams[number % len(streams)],)
        ]
        for _ in range(WARM_UP):
            await session.launch_pipeline(requests[0])
            await session.backend.wait_stream(streams[0][0])
        await judge.overwrite()
        bench.watcher.begin("launches", options.launches)
        for number, count in enumerate(rounds):
            if bench.executes and len(values):
                due = -(-NUMPY_SAMPLES * (number + 1) // len(rounds))
                samples = due - len(times.numpy)
                times.numpy += await _off_loop(partial(_time_numpy, values, samples))
            await _one_round(
                bench, requests[:count], [stream for stream, _ in streams], times
            )
            await judge.look(count)
    timing = Timing(
        launches=options.launches,
        rounds=len(rounds),
        peak_in_flight=times.peak,
        launch=Spread.of(times.shares),
        submit_us=Spread.of(times.submit).median_s * 1e6,
        numpy=Spread.of(times.numpy) if times.numpy else None,
        bytes_per_launch=2 * values.nbytes,
    )
    return timing, await judge.verdict()


@attrs.define
class _Times:
    """What is measured in the rounds, in seconds."""

    shares: list[float] = attrs.field(factory=list)
    submit: list[float] = attrs.field(factory=list)
    numpy: list[float] = attrs.field(factory=list)
    peak: int = 0


async def _one_round(
    bench: Bench,
    requests: list[PipelineLaunch],
    streams: list[StreamHandle],
    times: _Times,
) -> None:
    session, backend = bench.session, bench.session.backend
    if isinstance(backend, RecordingBackend):  # it would be done at once
        for stream in streams:
            backend.hold(stream)
    started = time.perf_counter()
    for request in requests:
        await session.launch_pipeline(request)
    times.submit.append((time.perf_counter() - started) / len(requests))
    times.peak = max(times.peak, session.statistics().launches_in_flight)
    for stream in streams:
        if isinstance(backend, RecordingBackend):
            backend.release(stream)
        await backend.wait_stream(stream)
    times.shares.append((time.perf_counter() - started) / len(requests))


class _Judge:
    """Compares results as they come, and overwrites them."""

    def __init__(
        self,
        bench: Bench,
        expected: NDArray[Any] | None,
        results: list[DeviceArray],
    ) -> None:
        self._bench = bench
        self._expected = expected
        self._results = results
        values = bench.source.values
        self._host = np.empty_like(values)
        # What no scan of these values gives everywhere: NaN, or all bits set.
        self._junk = np.full(len(values), 0xFFFFFFFF, np.uint32).view(values.dtype)
        self._checked = self._wrong = 0
        self._first_wrong = ""

    async def overwrite(self, count: int | None = None) -> None:
        """Make sure that no result of before is taken for a new one."""
        if self._expected is None:
            return
        for result in self._results[:count]:
            await self._bench.session.write(result, self._junk)

    async def look(self, count: int) -> None:
        """Compare the round's results."""
        expected, host = self._expected, self._host
        for number, result in enumerate(self._results[:count]):
            if expected is not None:
                await self._bench.session.download(result, out=host)
                place = await _off_loop(partial(first_difference, host, expected))
                self._checked += 1
                if place is not None:
                    self._wrong += 1
                    self._first_wrong = self._first_wrong or (
                        f"result {number}, element {place}: got {host[place]!r}, "
                        f"expected {expected[place]!r}"
                    )
            self._bench.watcher.step()
        await self.overwrite(count)

    async def verdict(self) -> CheckOutcome:
        """What came of it all."""
        expected = self._expected
        if expected is None:
            return CheckOutcome(skipped="the recording backend executes nothing")
        values = self._bench.source.values
        distance = await _off_loop(partial(distance_from_exact, values, expected))
        return CheckOutcome(
            checked=self._checked,
            wrong=self._wrong,
            first_wrong=self._first_wrong,
            distance=distance,
        )


async def _off_loop(work: Callable[[], _T]) -> _T:
    """Run numpy's long calls on a thread; a cancelled wait does not wait for it."""
    return await run_abandonable(work, lambda _: None, name="accy-async demo")


def _time_numpy(values: NDArray[Any], samples: int) -> list[float]:
    out = np.empty_like(values)
    times = []
    with np.errstate(all="ignore"):
        np.cumsum(values[: 1 << 16], dtype=values.dtype)
        out.fill(0)
        for _ in range(samples):
            started = time.perf_counter()
            np.cumsum(values, dtype=values.dtype, out=out)
            times.append(time.perf_counter() - started)
    return times
