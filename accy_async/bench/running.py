"""Running a benchmark file: the ceilings first, then each benchmark.

`BenchRun.report` is at any time what was found so far, so that a run which is broken
off has something to show.
"""

from __future__ import annotations

import platform
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import anyio
import attrs
import numpy as np

from accy_async.bench.ceilings import CeilingKernel, ceiling_kernels, ceiling_of
from accy_async.bench.costs import bytes_of_kernel, bytes_of_plan, flops_of_function
from accy_async.bench.declare import Benchmark, FragmentBenchmark, KernelBenchmark
from accy_async.bench.invoking import Invocations, open_invocations
from accy_async.bench.kernels import (
    Arguments,
    bytes_of_arguments,
    check_of,
    made,
    open_candidates,
)
from accy_async.bench.loading import where_of
from accy_async.bench.options import LEAST_SAMPLES, BenchOptions, Watcher
from accy_async.bench.report import BenchmarkReport, DeviceReport, Report
from accy_async.bench.summary import Standings, summarize
from accy_async.errors import AccyError, DeviceLost, InvalidType, SessionClosed
from accy_async.tuning.measuring import (
    Candidate,
    Measuring,
    ResultCheck,
    open_measurement,
)
from accy_async.tuning.search import Variant

if TYPE_CHECKING:
    from accy_async.artifact.planned import PlannedKernel
    from accy_async.fragment import InvocationBindings, LoadedFragment
    from accy_async.session import Session

__all__ = ["BenchRun", "device_report"]


class BenchRun:
    """One run of a benchmark file in a session.

    Args:
        file: the file's name, for the report.
        benchmarks: what it declares.
        options: how.
        watcher: told how far it has come.
        version: this package's, for the report.
    """

    def __init__(
        self,
        file: str,
        benchmarks: Sequence[Benchmark],
        options: BenchOptions,
        watcher: Watcher,
        version: str,
    ) -> None:
        self._benchmarks = tuple(benchmarks)
        self._options = options
        self._watcher = watcher
        self._file = file
        self._version = version
        self._report: Report | None = None
        self._done: dict[str, BenchmarkReport] = {}

    @property
    def report(self) -> Report | None:
        """What was found so far; None before the device is known."""
        if self._report is None:
            return None
        return attrs.evolve(self._report, benchmarks=tuple(self._done.values()))

    async def run(self, session: Session) -> Report:
        """Measure everything.

        What is wrong with one benchmark is in its report, and the others go on.

        Raises:
            DeviceLost: the device is gone.
            SessionClosed: the session was left.

        Cancellation: `report` has what was measured, the one that was broken off too.
        """
        options = self._options
        self._report = Report(
            file=self._file,
            started=datetime.now(UTC).isoformat(timespec="seconds"),
            device=device_report(session),
            versions={
                "accy-async": self._version,
                "python": platform.python_version(),
                "numpy": np.__version__,
                "system": platform.platform(),
            },
            options={
                name: str(value)
                for name, value in attrs.asdict(options).items()
                if value is not None
            },
        )
        if options.exclusive:
            await session.backend.wait_device()
        for ceiling in ceiling_kernels(session.capabilities):
            await self._measure_ceiling(session, ceiling)
        for benchmark in self._benchmarks:
            try:
                await self._measure(session, benchmark)
            except (DeviceLost, SessionClosed):
                raise
            except Exception as error:  # noqa: BLE001 - code of the file's
                self._fail(benchmark, error)
        self._report = attrs.evolve(self._report, is_complete=True)
        return attrs.evolve(self._report, benchmarks=tuple(self._done.values()))

    # One after the other

    async def _measure_ceiling(self, session: Session, kernel: CeilingKernel) -> None:
        """What the device does at most; left out where that cannot be measured."""
        assert self._report is not None
        source = np.linspace(0.5, 1.0, kernel.elements, dtype=np.float32)
        try:
            arguments = await Arguments.upload(session, [source, source])
        except AccyError:
            return
        out, read = arguments.bindings
        blank = BenchmarkReport(
            name=f"{kernel.name} ceiling", kind="kernel", declared=""
        )
        try:
            await self._measure_kernel(
                session,
                blank,
                {kernel.name: kernel.variant},
                kernel.bindings(out, read),
                None,
            )
        finally:
            arguments.free()
            found = self._done.pop(blank.name, None)
        candidate = None if found is None else found.candidate(kernel.name)
        if candidate is None or candidate.median_ns is None:
            return
        assert candidate.low_ns is not None
        assert candidate.high_ns is not None
        ceiling = ceiling_of(
            kernel, candidate.median_ns, candidate.low_ns, candidate.high_ns
        )
        self._report = attrs.evolve(
            self._report, ceilings=(*self._report.ceilings, ceiling)
        )

    async def _measure(self, session: Session, benchmark: Benchmark) -> None:
        if isinstance(benchmark, FragmentBenchmark):
            inputs = await _given(benchmark, benchmark.inputs)
            await self._measure_fragment(session, benchmark, inputs)
            return
        given = await _given(benchmark, benchmark.arguments)
        moved = benchmark.bytes_moved
        blank = BenchmarkReport(
            name=benchmark.name,
            kind="kernel",
            declared=benchmark.declared,
            bytes_moved=bytes_of_arguments(given) if moved is None else moved,
            flops=benchmark.flops,
        )
        arguments = await Arguments.upload(session, given)
        try:
            await self._measure_kernel(
                session,
                blank,
                benchmark.candidates,
                arguments.bindings,
                check_of(benchmark, given),
            )
        finally:
            arguments.free()

    async def _measure_kernel(
        self,
        session: Session,
        blank: BenchmarkReport,
        candidates: Mapping[str, Variant | Callable[..., Variant]],
        bindings: Sequence[Any],
        check: ResultCheck | None,
    ) -> None:
        self._watcher.begin(blank.name, self._options.samples)
        self._done[blank.name] = attrs.evolve(blank, is_complete=False)
        async with open_candidates(session, candidates, bindings) as (fit, failed):
            await self._race_kernels(
                session, blank, tuple(candidates), fit, failed, check
            )

    async def _race_kernels(
        self,
        session: Session,
        blank: BenchmarkReport,
        names: Sequence[str],
        fit: Sequence[Candidate],
        failed: Mapping[str, str],
        check: ResultCheck | None,
    ) -> None:
        if not fit:
            entrants = [(name, "failed", failed[name]) for name in names]
            self._done[blank.name] = summarize(
                blank,
                Standings(
                    entrants=entrants,
                    racers=(),
                    rounds=(),
                    verdict=None,
                    source="device",
                    launches=1,
                ),
                self._options.confidence,
            )
            return
        options = self._options.measure_options(check)
        async with open_measurement(session.backend, fit, options) as measuring:
            try:
                async for step in self._until_enough(measuring):
                    if step == "round":
                        self._watcher.step()
                is_complete = True
            except BaseException:
                is_complete = False
                raise
            finally:
                standings = _standings_of(measuring, names, failed)
                self._done[blank.name] = summarize(
                    attrs.evolve(blank, is_complete=is_complete),
                    standings,
                    self._options.confidence,
                )

    async def _until_enough(self, measuring: Measuring) -> AsyncIterator[str]:
        began = anyio.current_time()
        async for progress in measuring:
            yield progress.step
            if progress.rounds >= LEAST_SAMPLES and self._is_late(began):
                return

    def _is_late(self, began: float) -> bool:
        seconds = self._options.seconds
        return seconds is not None and anyio.current_time() - began >= seconds

    # Fragments

    async def _measure_fragment(
        self, session: Session, benchmark: FragmentBenchmark, inputs: Sequence[Any]
    ) -> None:
        blank = BenchmarkReport(
            name=benchmark.name,
            kind="fragment",
            declared=benchmark.declared,
            bytes_moved=benchmark.bytes_moved,
            flops=benchmark.flops,
        )
        self._watcher.begin(blank.name, self._options.samples)
        self._done[blank.name] = attrs.evolve(blank, is_complete=False)
        began = anyio.current_time()
        async with open_invocations(
            session,
            benchmark,
            inputs,
            self._options.rules,
            time_limit_s=self._options.time_limit_s,
        ) as running:
            is_complete = False
            try:
                async for step in running:
                    if step == "round":
                        self._watcher.step()
                    rounds = 0 if running.race is None else running.race.round_count
                    if rounds >= LEAST_SAMPLES and self._is_late(began):
                        break
                is_complete = True
            finally:
                base = running.baseline
                if base is not None and base.fragment is not None:
                    blank = _with_costs(blank, base.fragment)
                self._done[blank.name] = summarize(
                    attrs.evolve(blank, is_complete=is_complete),
                    _standings_of_invocations(running),
                    self._options.confidence,
                )
            if benchmark.kernels and base is not None:
                assert base.fragment is not None
                assert base.bindings is not None
                for index in range(base.fragment.kernel_count):
                    await self._measure_fragment_kernel(
                        session, benchmark, base.fragment, base.bindings, index
                    )

    async def _measure_fragment_kernel(
        self,
        session: Session,
        benchmark: FragmentBenchmark,
        fragment: LoadedFragment,
        bindings: InvocationBindings,
        index: int,
    ) -> None:
        kernel = fragment.planned_kernel(index)
        plan = fragment.plan
        name = f"{benchmark.name}/{kernel.entry_name}"
        if name in self._done:
            name = f"{name}#{kernel.kernel_id}"
        blank = BenchmarkReport(
            name=name,
            kind="fragment kernel",
            declared=benchmark.declared,
            bytes_moved=bytes_of_kernel(plan, kernel),
        )
        scalars = fragment.scalars_for_kernel(index)
        candidates = {
            label: Variant(artifact=kernel.artifact, geometry=geometry, scalars=scalars)
            for label, geometry in _launches(kernel)
        }
        dtypes = tuple(plan.slot(one.slot_id).dtype for one in kernel.arguments)
        check = ResultCheck(
            dtypes=dtypes, relative=benchmark.relative, absolute=benchmark.absolute
        )
        await self._measure_kernel(
            session, blank, candidates, bindings.buffers_for_kernel(index), check
        )

    def _fail(self, benchmark: Benchmark, error: Exception) -> None:
        known = self._done.get(benchmark.name)
        where = where_of(error, benchmark.declared.rpartition(":")[0], "")
        at = where if where.rpartition(":")[2].isdigit() else benchmark.declared
        kind = "kernel" if isinstance(benchmark, KernelBenchmark) else "fragment"
        blank = BenchmarkReport(
            name=benchmark.name, kind=kind, declared=benchmark.declared
        )
        self._done[benchmark.name] = attrs.evolve(
            blank if known is None else known,
            is_complete=False,
            error=f"{at}: {type(error).__name__}: {error}",
        )


def device_report(session: Session) -> DeviceReport:
    """Which device a session has."""
    identity = session.capabilities.identity
    return DeviceReport(
        backend=str(identity.backend),
        name=identity.name,
        architecture=identity.architecture,
        compute_units=identity.compute_units,
        driver=identity.driver,
        fingerprint=f"{identity.fingerprint:016x}",
    )


async def _given(benchmark: Benchmark, inputs: object) -> list[Any]:
    """A benchmark's arrays, made on a thread where a function makes them."""
    if callable(inputs):
        inputs = await made(inputs, f"make inputs of {benchmark.name}")
    if not isinstance(inputs, (list, tuple)):
        raise InvalidType(
            f"inputs of {benchmark.name!r}", inputs, "a list or tuple of arrays"
        )
    return list(inputs)


def _launches(kernel: PlannedKernel) -> list[tuple[str, Any]]:
    """A kernel's launch candidates, by names that differ."""
    found: dict[str, Any] = {}
    for number, one in enumerate(kernel.launch_resources.candidates):
        label = one.label or f"{one.geometry.threads_per_block} threads"
        found[label if label not in found else f"{label} #{number}"] = one.geometry
    return list(found.items())


def _with_costs(blank: BenchmarkReport, fragment: LoadedFragment) -> BenchmarkReport:
    """What was not said of bytes and operations, as the program says it."""
    moved, flops = blank.bytes_moved, blank.flops
    if moved is None:
        moved = bytes_of_plan(fragment.plan)
    program = fragment.compiled.program
    if flops is None and program is not None:
        flops = flops_of_function(program.module.entry)
    return attrs.evolve(blank, bytes_moved=moved, flops=flops or None)


def _standings_of(
    measuring: Measuring, names: Sequence[str], failed: Mapping[str, str]
) -> Standings:
    outcome = measuring.outcome()
    known = {one.name: (str(one.status), one.reason) for one in outcome.candidates}
    kept = outcome.kept
    verdict = outcome.verdict if kept.rounds else None
    return Standings(
        entrants=[
            (name, "failed", failed[name]) if name in failed else (name, *known[name])
            for name in names
        ],
        racers=measuring.racers,
        rounds=kept.rounds,
        verdict=verdict,
        source=str(kept.source),
        launches=kept.launches,
    )


def _standings_of_invocations(running: Invocations) -> Standings:
    race = running.race
    names = [running.entrants[index].name for index in running.racers]
    rounds = () if race is None else race.rounds
    return Standings(
        entrants=[(one.name, str(one.status), one.reason) for one in running.entrants],
        racers=names,
        rounds=[{names[number]: ns for number, ns in row.items()} for row in rounds],
        verdict=race.verdict() if race is not None and rounds else None,
        source=str(running.source),
        launches=running.calls,
    )
