"""Racing the candidates of one benchmark, and what a report says of it.

`Races.done` is at any time what was found so far, the benchmark that goes on included.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import anyio
import attrs

from accy_async.bench.costs import bytes_of_kernel, bytes_of_plan, flops_of_function
from accy_async.bench.declare import FragmentBenchmark
from accy_async.bench.invoking import Invocations, open_invocations
from accy_async.bench.kernels import open_candidates
from accy_async.bench.options import LEAST_SAMPLES, BenchOptions, Watcher
from accy_async.bench.report import BenchmarkReport
from accy_async.bench.summary import Standings, summarize
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

__all__ = ["Races"]


class Races:
    """Measures benchmarks one by one.

    Args:
        options: how.
        watcher: told how far each has come.

    Attributes:
        done: what was found, by name.
    """

    def __init__(self, options: BenchOptions, watcher: Watcher) -> None:
        self.done: dict[str, BenchmarkReport] = {}
        self._options = options
        self._watcher = watcher

    async def race_kernels(
        self,
        session: Session,
        blank: BenchmarkReport,
        candidates: Mapping[str, Variant | Callable[..., Variant]],
        bindings: Sequence[Any],
        check: ResultCheck | None,
    ) -> None:
        """Measure the candidates of a kernel.

        Args:
            session: where.
            blank: what the report says of it before.
            candidates: by name.
            bindings: what they work on.
            check: how results are compared; None for not at all.
        """
        self._watcher.begin(blank.name, self._options.samples)
        self.done[blank.name] = attrs.evolve(blank, is_complete=False)
        async with open_candidates(
            session, candidates, bindings, limit_s=self._options.build_limit_s
        ) as (fit, failed):
            await self._race(session, blank, tuple(candidates), fit, failed, check)

    async def _race(
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
            self.done[blank.name] = summarize(
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
                self.done[blank.name] = summarize(
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

    async def race_fragment(
        self, session: Session, benchmark: FragmentBenchmark, inputs: Sequence[Any]
    ) -> None:
        """Measure a fragment's candidates, and the first one's kernels."""
        blank = BenchmarkReport(
            name=benchmark.name,
            kind="fragment",
            declared=benchmark.declared,
            bytes_moved=benchmark.bytes_moved,
            flops=benchmark.flops,
        )
        self._watcher.begin(blank.name, self._options.samples)
        self.done[blank.name] = attrs.evolve(blank, is_complete=False)
        began = anyio.current_time()
        async with open_invocations(
            session,
            benchmark,
            inputs,
            self._options.rules,
            time_limit_s=self._options.time_limit_s,
            build_limit_s=self._options.build_limit_s,
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
                self.done[blank.name] = summarize(
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
        if name in self.done:
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
        await self.race_kernels(
            session, blank, candidates, bindings.buffers_for_kernel(index), check
        )


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
