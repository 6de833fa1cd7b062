"""Searching: heats until the budget is nearly spent, then a race for the best.

A `Searching`, from `open_search`, is an async iterator: each turn measures one heat,
the last one runs the final race. Between turns it holds no task and no scope, only
threads that compile ahead; it may be left at any sample, and go on later from
`Searching.kept`.

The final race begins from nothing: schedules were chosen because they looked fast, so
that the samples which made them look so would flatter them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import attrs
import numpy as np

from accy_async.backends.cleanup import Cleanup
from accy_async.errors import TuningStopped
from accy_async.tuning.measuring import (
    Candidate,
    CandidateStatus,
    KeptRounds,
    MeasureOutcome,
)
from accy_async.tuning.pacing import BudgetSpent, SampleTooLong
from accy_async.tuning.race import RaceRules, Standing
from accy_async.tuning.search.explorer import Explorer, Heat
from accy_async.tuning.search.jobs import Job, Workers
from accy_async.tuning.search.ledger import Ledger
from accy_async.tuning.search.options import (
    SearchOptions,
    SearchOutcome,
    SearchProgress,
)
from accy_async.tuning.search.space import Schedule, SearchSpace
from accy_async.tuning.search.strategies import Strategy
from accy_async.tuning.search.track import Track
from accy_async.tuning.search.trial import KeptSearch, Trial
from accy_async.tuning.search.workshop import Build, BuildFailed, Workshop
from accy_async.tuning.statistics import median

if TYPE_CHECKING:
    from accy_async.backends.base import Backend
    from accy_async.backends.handles import BufferBinding
    from accy_async.tuning.measuring import Measuring, Pace

__all__ = ["Searching"]

_HEATS_AHEAD = 2
_ROUNDS_TO_DECIDE = 1.5
"""Of the fewest that a race has."""

_MOST_KEPT = 64
"""Schedules whose code is kept at hand, beside those that are queued."""


class Searching:
    """A search that is going on; from `open_search`."""

    def __init__(
        self,
        backend: Backend,
        space: SearchSpace,
        build: Build,
        buffers: Sequence[BufferBinding],
        *,
        baseline: Schedule,
        strategy: Strategy,
        options: SearchOptions,
        kept: KeptSearch | None,
        pace: Pace | None,
    ) -> None:
        self._backend = backend
        self._options = options
        self._baseline = baseline
        self._explorer = Explorer(
            space,
            strategy,
            baseline,
            size=options.heat,
            trials=() if kept is None else kept.trials,
        )
        self._workshop = Workshop(
            backend, build, buffers, options.workers, options.build_limit_s
        )
        self._thinkers = Workers(1, "choose what to measure")
        self._thinking: Job[None] | None = None
        self._launches = 0 if kept is None else kept.launches
        has_clock = backend.capabilities.timing_resolution_ns > 0.0
        self._ledger = Ledger(options, has_clock=has_clock)
        self._track = Track(backend, self._workshop, self._ledger, baseline, pace)
        self._baseline_s = 0.0
        self._is_exploring = True
        self._is_over = False
        self._final: MeasureOutcome | None = None
        self._final_kept: KeptRounds | None = None

    def __aiter__(self) -> Searching:
        return self

    async def __anext__(self) -> SearchProgress:
        """Measure the next heat, or run the final race.

        Raises:
            StopAsyncIteration: all is done.
            UnsupportedOperation: the baseline cannot be built or measured.
            TuningStopped: a schedule took the device with it; `kept` knows which.
            SessionClosed: the session was left.

        Cancellation: the sample is lost, all rounds before it are kept; the next turn
            goes on from there.
        """
        if self._is_over:
            raise StopAsyncIteration
        with self._ledger.turn():
            trials = await self._turn()
        return self._progress(trials)

    @property
    def is_over(self) -> bool:
        """True where nothing more is to be done."""
        return self._is_over

    @property
    def spent_s(self) -> float:
        """Seconds of the budget that are spent."""
        return self._ledger.spent_s

    @property
    def kept(self) -> KeptSearch:
        """What was measured so far, to go on from in another search."""
        return KeptSearch(
            baseline=self._baseline,
            trials=self._explorer.trials,
            launches=max(1, self._launches),
        )

    def outcome(self) -> SearchOutcome:
        """What is known now; final when `is_over`."""
        final = self._final
        if final is not None:
            why_not = final.why_not
        elif not self._is_over:
            why_not = "not searched to the end"
        elif self._explorer.is_exhausted:
            why_not = "no other schedule works"
        else:
            why_not = "the budget was spent"
        winner, standing = self._baseline, Standing.UNDECIDED
        if final is not None:
            standing = final.standing
            names = {str(one): one for one in self._explorer.history}
            winner = names[final.winner or str(self._baseline)]
        rejected = (one for one in self._explorer.trials if not one.is_measured)
        return SearchOutcome(
            winner=winner,
            baseline=self._baseline,
            standing=standing,
            final=final,
            trials=(*self._explorer.ranked(), *rejected),
            is_exhausted=self._explorer.is_exhausted,
            spent_s=self.spent_s,
            source=self._ledger.source,
            kept=self.kept,
            is_storable=not why_not,
            why_not=why_not,
        )

    async def leave(self, primary: BaseException | None) -> None:
        """Compile nothing more, and unload everything."""
        self._workshop.close()
        self._thinkers.close()
        await Cleanup(self._backend, "searching", None).leave(
            primary, wait=None, handles=self._workshop.loaded
        )

    # Turns

    async def _turn(self) -> tuple[Trial, ...]:
        while self._is_exploring:
            await self._think()
            heat = self._explorer.next_heat()
            if heat is None or self._ledger.is_spent(self._ledger.explore_share):
                self._is_exploring = False
                break
            for queued in self._explorer.queued:
                for schedule in queued.schedules:
                    self._workshop.begin(schedule)
            trials = await self._run_heat(heat)
            if trials:
                return trials
        finalists = self._finalists()
        if finalists:
            await self._run_final(finalists)
        self._is_over = True
        history = self._explorer.history
        return tuple(history[one] for one in finalists)

    async def _think(self) -> None:
        """Have the strategy propose, on a thread."""
        if self._thinking is None:
            self._thinking = self._thinkers.submit(
                lambda: self._explorer.fill(_HEATS_AHEAD)
            )
        # Where this is cancelled it thinks on, and nobody else touches the explorer
        # before it has been awaited.
        await self._thinking.result()
        self._thinking = None

    async def _run_heat(self, heat: Heat) -> tuple[Trial, ...]:
        base = await self._track.baseline()
        changed: dict[Schedule, Trial] = {}
        candidates: dict[str, Candidate] = {}
        schedules: dict[str, Schedule] = {}
        for schedule in heat.schedules:
            try:
                candidate = await self._workshop.candidate(schedule)
            except BuildFailed as error:
                changed[schedule] = self._explorer.reject(
                    schedule, CandidateStatus.FAILED, f"not built: {error}"
                )
            else:
                candidates[candidate.name] = candidate
                schedules[candidate.name] = schedule
        if not candidates:
            return tuple(changed.values())
        rules = RaceRules(
            min_rounds=heat.rounds,
            max_rounds=heat.rounds,
            repeats=0,
            fixed=True,
            seed=self._options.measure.rules.seed,
        )
        share = self._ledger.explore_share
        options = attrs.evolve(self._options.measure, rules=rules, warmup=1)
        try:
            async with self._track.open(
                [base, *candidates.values()], options, share, self._kept_launches()
            ) as measuring:
                try:
                    await self._track.run(measuring)
                except BudgetSpent:
                    self._is_exploring = False
                except SampleTooLong as error:
                    one = self._reject_last(measuring, schedules, error)
                    changed[one.schedule] = one
                finally:
                    self._collect(measuring, schedules, changed)
        except TuningStopped as error:
            if error.candidate in schedules:
                self._explorer.reject(
                    schedules[error.candidate], CandidateStatus.FAILED, str(error)
                )
            raise
        self._workshop.keep(
            {
                self._baseline,
                *self._explorer.finalists(_MOST_KEPT),
                *(one for heat in self._explorer.queued for one in heat.schedules),
            }
        )
        self._workshop.trim()
        self._ledger.reserve_s = self._final_s(self._explorer.finalists(1))
        return tuple(changed.values())

    async def _run_final(self, finalists: Sequence[Schedule]) -> None:
        candidates = [await self._track.baseline()]
        schedules: dict[str, Schedule] = {}
        for schedule in finalists:
            try:
                candidates.append(await self._workshop.candidate(schedule))
                schedules[str(schedule)] = schedule
            except BuildFailed as error:
                self._explorer.reject(
                    schedule, CandidateStatus.FAILED, f"not built: {error}"
                )
        was_spent = was_too_long = False
        kept = self._final_kept or self._kept_launches()
        async with self._track.open(
            candidates, self._options.measure, 1.0, kept
        ) as measuring:
            try:
                await self._track.run(measuring)
            except BudgetSpent:
                was_spent = True
            except SampleTooLong as error:
                self._reject_last(measuring, schedules, error)
                was_too_long = True
            finally:
                self._final_kept = measuring.kept
            outcome = measuring.outcome()
        if was_too_long:  # the others again, from what is known of them
            fit = [one for one in finalists if not self._is_rejected(one)]
            await self._run_final(fit)
            return
        if was_spent:
            outcome = attrs.evolve(
                outcome, is_storable=False, why_not="the budget was spent"
            )
        self._final = outcome

    # Within

    def _finalists(self) -> tuple[Schedule, ...]:
        """The best, as many as the budget has room for; one at least."""
        for count in range(self._options.finalists, 1, -1):
            chosen = self._explorer.finalists(count)
            if self._final_s(chosen) <= self._ledger.left_s:
                return chosen
        return self._explorer.finalists(1)

    def _final_s(self, finalists: Sequence[Schedule]) -> float:
        """What a race of these takes, in seconds, as far as is known.

        If it is decided by its second look.
        """
        options = self._options.measure
        rounds = 2 + options.warmup + _ROUNDS_TO_DECIDE * options.rules.min_rounds
        history = self._explorer.history
        ratios = [math.exp(history[one].estimate) for one in finalists]
        return rounds * self._baseline_s * (1.0 + sum(ratios))

    def _reject_last(
        self, measuring: Measuring, schedules: dict[str, Schedule], error: SampleTooLong
    ) -> Trial:
        """Who was sampled last takes longer than the caller's pace lets it."""
        schedule = schedules.get(measuring.last_sampled or "")
        if schedule is None:
            raise self._track.unmeasured(error) from error
        return self._explorer.reject(schedule, CandidateStatus.TIMED_OUT, str(error))

    def _collect(
        self,
        measuring: Measuring,
        schedules: dict[str, Schedule],
        changed: dict[Schedule, Trial],
    ) -> None:
        base = str(self._baseline)
        taken = [row[base] for row in measuring.kept.rounds if base in row]
        if taken:
            self._launches = measuring.kept.launches
            self._baseline_s = median(np.array(taken)) * self._launches * 1e-9
        for name, (status, reason) in measuring.rejected.items():
            if name in schedules:
                schedule = schedules[name]
                changed[schedule] = self._explorer.reject(schedule, status, reason)
        kept = measuring.kept
        for name, schedule in schedules.items():
            if name in measuring.rejected or self._is_rejected(schedule):
                continue
            differences = [
                math.log(row[name] / row[base])
                for row in kept.rounds
                if name in row and base in row
            ]
            if differences:
                changed[schedule] = self._explorer.tell(schedule, differences)

    def _is_rejected(self, schedule: Schedule) -> bool:
        known = self._explorer.history.get(schedule)
        return known is not None and known.is_rejected

    def _kept_launches(self) -> KeptRounds | None:
        """As many launches to a sample as before: they need not be chosen again."""
        if not self._launches:
            return None
        return KeptRounds(launches=self._launches, source=self._ledger.source)

    def _progress(self, trials: tuple[Trial, ...]) -> SearchProgress:
        known = self._explorer.trials
        return SearchProgress(
            step="final" if self._is_over else "heat",
            trials=trials,
            measured=sum(one.is_measured for one in known),
            rejected=sum(one.is_rejected for one in known),
            best=self._explorer.best(),
            spent_s=self.spent_s,
            budget_s=self._options.budget_s,
        )
