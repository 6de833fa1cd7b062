"""Measuring whole fragments: rounds of invocations, on buffers that stay.

Fragments have buffers of their own, so that nothing has to be restored between two
invocations; a sample is some of them back to back, between two events of the device
where it has a clock.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

import anyio
import attrs
import numpy as np

from accy_async.backends.cleanup import Cleanup
from accy_async.backends.completion import run_abandonable
from accy_async.backends.devicegraph import GraphNode, GraphRequest
from accy_async.bench.loading import where_of
from accy_async.errors import (
    DeviceLost,
    OutOfMemory,
    RuntimeUnavailable,
    SessionClosed,
)
from accy_async.fragment.submission import in_order, launches_alone
from accy_async.graph.options import LaunchOptions
from accy_async.tuning.measuring import CandidateStatus, TimeSource
from accy_async.tuning.race import Race, RaceRules

if TYPE_CHECKING:
    from accy_async.backends.handles import (
        EventHandle,
        GraphHandle,
        Handle,
        StreamHandle,
    )
    from accy_async.bench.declare import FragmentBenchmark
    from accy_async.fragment import InvocationBindings, LoadedFragment
    from accy_async.session import Session

__all__ = ["Entrant", "Invocations", "open_invocations"]

_LEAST_NS = {TimeSource.DEVICE: 20_000.0, TimeSource.HOST: 2_000_000.0}
_MOST_CALLS = 256
_MOST_NODES = 4096
_WARMUP = 2


@attrs.define
class Entrant:
    """A candidate, and what is known of it.

    Attributes:
        name: its own.
        status: whether it can be measured.
        reason: why not.
        fragment: as it was loaded.
        bindings: its buffers.
    """

    name: str
    status: CandidateStatus = CandidateStatus.NOT_TRIED
    reason: str = "not reached"
    fragment: LoadedFragment | None = None
    bindings: InvocationBindings | None = None


class Invocations:
    """Fragments in rounds against each other; from `open_invocations`.

    An async iterator as `Measuring` is: each turn checks one, or measures a round.
    """

    def __init__(
        self,
        session: Session,
        benchmark: FragmentBenchmark,
        inputs: Sequence[Any],
        rules: RaceRules,
        time_limit_s: float,
        build_limit_s: float,
        stack: AsyncExitStack,
    ) -> None:
        self._session = session
        self._backend = session.backend
        self._benchmark = benchmark
        self._inputs = inputs
        self._rules = rules
        self._time_limit_s = time_limit_s
        self._build_limit_s = build_limit_s
        self._stack = stack
        self._handles: list[Handle] = []
        self._stream: StreamHandle | None = None
        self._events: tuple[EventHandle, EventHandle] | None = None
        has_clock = self._backend.capabilities.timing_resolution_ns > 0.0
        self.source = TimeSource.DEVICE if has_clock else TimeSource.HOST
        self.calls = 1
        self.entrants = [Entrant(name) for name in benchmark.candidates]
        self.race: Race | None = None
        self.racers: list[int] = []
        self._to_check = list(range(len(self.entrants)))
        self._expected: list[Any] | None = None
        self._graphs: dict[str, tuple[GraphHandle | None, int]] = {}

    @property
    def is_over(self) -> bool:
        """True where nothing more is to be done."""
        return not self._to_check and (self.race is None or self.race.is_over)

    @property
    def baseline(self) -> Entrant | None:
        """The first that works."""
        fit = [one for one in self.entrants if one.status is CandidateStatus.MEASURED]
        return fit[0] if fit else None

    @property
    def handles(self) -> list[Handle]:
        """What it opened, the newest first."""
        return self._handles[::-1]

    def open(self) -> None:
        """Open a stream and events."""
        backend = self._backend
        self._stream = backend.create_stream(
            priority=backend.capabilities.priorities[0]
        )
        self._handles.append(self._stream)
        if self.source is TimeSource.DEVICE:
            begin = backend.create_event(timing=True)
            self._handles.append(begin)
            end = backend.create_event(timing=True)
            self._handles.append(end)
            self._events = begin, end

    def __aiter__(self) -> Invocations:
        return self

    async def __anext__(self) -> str:
        """Check the next candidate, or measure a round; says which.

        Raises:
            StopAsyncIteration: all is done.
            DeviceLost, SessionClosed, OutOfMemory: nothing more can be measured.

        Cancellation: the step is lost, what was measured before is kept.
        """
        if self.is_over:
            raise StopAsyncIteration
        if self._to_check:
            await self._check(self.entrants[self._to_check[0]])
            self._to_check.pop(0)
            if not self._to_check:
                await self._line_up()
            return "check"
        await self._round()
        return "round"

    # Within

    async def _check(self, entrant: Entrant) -> None:
        async def work() -> None:
            fragment = await self._load(entrant.name)
            entrant.fragment = fragment
            entrant.bindings = await self._stack.enter_async_context(
                await fragment.prepare_invocation_bindings(self._inputs)
            )
            await self._sample(entrant, 1)
            results = [
                await fragment.read_invocation_output(
                    entrant.bindings, index, options=self._options
                )
                for index in range(fragment.output_count)
            ]
            wrong = self._difference(results)
            if wrong:
                entrant.status, entrant.reason = CandidateStatus.WRONG_RESULT, wrong
            else:
                entrant.status, entrant.reason = CandidateStatus.MEASURED, ""
                if self._expected is None:
                    self._expected = results

        await self._blame(entrant, work)

    async def _load(self, name: str) -> LoadedFragment:
        program, options = self._benchmark.variant(name)
        with anyio.move_on_after(self._build_limit_s) as scope:
            compiled = await self._session.compile_fragment(
                program, *self._inputs, options=options
            )
        if scope.cancelled_caught:  # the thread stops at its next kernel
            raise RuntimeUnavailable(f"not compiled after {self._build_limit_s:g} s")
        return await self._stack.enter_async_context(
            await self._session.load_fragment(compiled, options=options)
        )

    def _difference(self, results: list[Any]) -> str:
        if self._expected is None:
            return ""
        if [one.shape for one in results] != [one.shape for one in self._expected]:
            return "its results have other shapes than the first candidate's"
        for index, (got, right) in enumerate(zip(results, self._expected, strict=True)):
            is_near = np.isclose(
                got.astype(np.float64),
                right.astype(np.float64),
                rtol=self._benchmark.relative,
                atol=self._benchmark.absolute,
                equal_nan=True,
            )
            if not is_near.all():
                first = int(np.flatnonzero(~is_near.reshape(-1))[0])
                return (
                    f"result {index} differs from the first candidate's, first in "
                    f"element {first}"
                )
        return ""

    async def _line_up(self) -> None:
        self.racers = [
            index
            for index, one in enumerate(self.entrants)
            if one.status is CandidateStatus.MEASURED
        ]
        if not self.racers:
            return
        base = self.entrants[self.racers[0]]
        await self._sample(base, 1)
        taken = min([await self._sample(base, 1) for _ in range(2)])
        wanted = int(_LEAST_NS[self.source] / max(taken, 1.0)) + 1
        self.calls = min(_MOST_CALLS, wanted)
        for index in self.racers:
            for _ in range(_WARMUP):
                await self._sample(self.entrants[index], self.calls)
        self.race = Race(len(self.racers), self._rules)

    async def _round(self) -> None:
        race = self.race
        assert race is not None
        samples: dict[int, float] = {}
        for number in race.next_order():
            entrant = self.entrants[self.racers[number]]

            async def sample(entrant: Entrant = entrant, number: int = number) -> None:
                samples[number] = await self._sample(entrant, self.calls)

            await self._blame(entrant, sample)
            if entrant.status is CandidateStatus.MEASURED:
                continue
            if number == race.baseline:  # all that was told is told against it
                self.race = None
                await self._line_up()
                return
            race.reject(number)
        if all(taken > 0.0 for taken in samples.values()):
            race.tell(samples)
        elif self.calls < _MOST_CALLS:
            self.calls = min(_MOST_CALLS, 4 * self.calls)
            self.race = Race(len(self.racers), self._rules)
        else:
            self.source, self._events, self.calls = TimeSource.HOST, None, 1
            await self._line_up()

    async def _sample(self, entrant: Entrant, calls: int) -> float:
        """What one call takes, in nanoseconds; 0.0 where the clock shows nothing."""
        fragment, bindings = entrant.fragment, entrant.bindings
        assert fragment is not None
        assert bindings is not None
        backend, stream, options = self._backend, self._stream, self._options
        graph = await self._graph(entrant, calls)
        started = time.perf_counter_ns()
        if self._events is not None:
            backend.record_event(self._events[0], stream)
        if graph is not None:
            backend.launch_graph(graph, stream)
        else:
            for _ in range(calls):
                fragment.submit_invocation(bindings, options)
        if self._events is not None:
            backend.record_event(self._events[1], stream)
        with anyio.fail_after(self._time_limit_s):
            await backend.wait_stream(self._stream_handle)
        if self._events is None:
            return (time.perf_counter_ns() - started) / calls
        return backend.elapsed_ns(*self._events) / calls

    async def _graph(self, entrant: Entrant, calls: int) -> GraphHandle | None:
        """The calls as one graph of the device; None where single launches serve.

        So that the device never waits for this process between two kernels.
        """
        if not self._backend.capabilities.device_graphs:
            return None
        graph, of = self._graphs.get(entrant.name, (None, 0))
        if of == calls:
            return graph
        fragment, bindings = entrant.fragment, entrant.bindings
        assert fragment is not None
        assert bindings is not None
        launches = launches_alone(
            bindings.prepared(fragment.graph, self._options), in_order(fragment.graph)
        )
        count = 0 if launches is None else calls * len(launches)
        made: GraphHandle | None = None
        if launches is not None and 1 < count <= _MOST_NODES:
            request = GraphRequest(
                tuple(
                    GraphNode(launch, after=(place - 1,) if place else ())
                    for place, launch in enumerate(launches * calls)
                )
            )
            made = await run_abandonable(  # some 10 us a node
                lambda: self._backend.create_graph(request),
                self._backend.abandon,
                name="make a batch",
            )
            self._handles.append(made)
        self._graphs[entrant.name] = made, calls
        return made

    async def _blame(self, entrant: Entrant, work: Callable[[], Any]) -> None:
        """Turn what goes wrong with a candidate into its rejection."""
        try:
            await work()
        except (DeviceLost, SessionClosed, OutOfMemory):
            raise
        except TimeoutError:
            entrant.status = CandidateStatus.TIMED_OUT
            entrant.reason = f"not done after {self._time_limit_s:g} s"
            self.open()  # what never ends keeps its stream
        except Exception as error:  # noqa: BLE001 - its program is code of the file's
            file = self._benchmark.declared.rpartition(":")[0]
            at = where_of(error, file, " ")
            entrant.status = CandidateStatus.FAILED
            entrant.reason = f"{at}: {type(error).__name__}: {error}".lstrip(" :")

    async def settle(self) -> None:
        """Return when the stream is idle; who never ended is on another one."""
        if self._stream is not None and self._backend.is_alive(self._stream):
            await self._backend.wait_stream(self._stream)

    @property
    def _stream_handle(self) -> StreamHandle:
        assert self._stream is not None
        return self._stream

    @property
    def _options(self) -> LaunchOptions:
        return LaunchOptions(stream=self._stream)


@asynccontextmanager
async def open_invocations(
    session: Session,
    benchmark: FragmentBenchmark,
    inputs: Sequence[Any],
    rules: RaceRules,
    *,
    time_limit_s: float,
    build_limit_s: float,
) -> AsyncIterator[Invocations]:
    """Begin to measure a fragment's candidates.

    Args:
        session: where.
        benchmark: whose candidates.
        inputs: the arguments.
        rules: of the race.
        time_limit_s: after which a call is given up.
        build_limit_s: after which compiling a candidate is given up.

    Cancellation: an ordinary exit: what is on the stream is awaited for the grace at
        most, and everything that was opened is destroyed.
    """
    async with AsyncExitStack() as stack:
        running = Invocations(
            session, benchmark, inputs, rules, time_limit_s, build_limit_s, stack
        )
        primary: BaseException | None = None
        try:
            running.open()
            yield running
        except BaseException as error:  # noqa: BLE001 - raised by the cleanup
            primary = error
        backend = session.backend
        await Cleanup(backend, "a benchmark", None).leave(
            primary,
            wait=running.settle if backend.is_healthy else None,
            handles=running.handles,
        )
