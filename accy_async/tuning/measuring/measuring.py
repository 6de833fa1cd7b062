"""Measuring candidates: checked first, then in rounds, each sample awaited.

A `Measuring`, from `open_measurement`, is an async iterator: each turn checks one
candidate, warms one up, or runs one round, and tells how far it has come. It holds no
task and no scope between turns, so it may be left at any sample, and go on later from
`Measuring.kept`.

* **Checked.** Each candidate runs once on poisoned private buffers. What it leaves is
  compared with the reference, if there is one, and with what the baseline left. The
  baseline is the first candidate that passes.
* **Rejected** is what fails, takes too long, or is wrong; with its reason, for good.
  After a failure or a time-out the others go on on a new stream with new buffers.
* **Stopped** is all of it where a candidate takes the device with it: `TuningStopped`
  names it, and who was not tried.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import anyio.lowlevel

from accy_async.backends.completion import run_abandonable
from accy_async.tuning.measuring.candidate import (
    CandidateStatus,
    KeptRounds,
    MeasureOutcome,
    MeasureProgress,
)
from accy_async.tuning.measuring.core import MeasuringCore
from accy_async.tuning.measuring.reporting import outcome_of
from accy_async.tuning.measuring.workspace import first_wrong
from accy_async.tuning.race import Race

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from accy_async.backends.launch import PreparedLaunch


__all__ = ["Measuring"]

_COMPARED_ON_THE_LOOP = 1 << 18

_MOST_TRIALS = 4
"""Times that it is tried how many launches a sample is to be of."""


class Measuring(MeasuringCore):
    """A measurement that is going on; from `open_measurement`."""

    def __aiter__(self) -> Measuring:
        return self

    async def __anext__(self) -> MeasureProgress:
        """Take the next step.

        Raises:
            StopAsyncIteration: all is done.
            TuningStopped: a candidate took the device with it.
            SessionClosed: the session was left.

        Cancellation: the step is lost, all before it is kept; the next turn does it
            again.
        """
        if self.is_over:
            raise StopAsyncIteration
        if self._to_check:
            await self._check(self._to_check[0])
            self._to_check.pop(0)
            if not self._to_check:
                self._line_up()
            return self._progress("check")
        if self._to_warm:
            await self._warm_up(self._to_warm[0])
            self._to_warm.pop(0)
            return self._progress("warm up")
        await self._round()
        return self._progress("round")

    @property
    def is_over(self) -> bool:
        """True where nothing more is to be done."""
        if self._is_stopped or not self._has_work:
            return True
        return not self._to_check and (self._race is None or self._race.is_over)

    @property
    def kept(self) -> KeptRounds:
        """What was measured so far, to go on from in another measurement."""
        rounds = () if self._race is None else self._race.rounds
        names = self.racers
        return KeptRounds(
            rounds=tuple(
                {names[number]: value for number, value in row.items()}
                for row in rounds
            ),
            launches=max(1, self._sampler.launches),
            source=self._sampler.source,
        )

    @property
    def spent_ns(self) -> float:
        """What it has taken of the device so far, in nanoseconds.

        Samples by the clock that they were measured with, warming up included, and the
        launches of checks; what failed, as long as it was waited for. Copies and what
        flushes caches are not in it.
        """
        return self._spent_ns

    @property
    def rejected(self) -> dict[str, tuple[CandidateStatus, str]]:
        """Who is out for good: status and reason, by name."""
        return {
            entry.candidate.name: (entry.status, entry.reason)
            for entry in self._entries
            if entry.status not in (CandidateStatus.MEASURED, CandidateStatus.NOT_TRIED)
        }

    @property
    def last_sampled(self) -> str | None:
        """Whose sample was the last that was taken: what a pace is told of."""
        index = self._last_sampled
        return None if index is None else self._entries[index].candidate.name

    @property
    def racers(self) -> tuple[str, ...]:
        """The names of the candidates of the race, by their numbers in its verdict."""
        return tuple(self._entries[index].candidate.name for index in self._racers)

    @property
    def baseline(self) -> str | None:
        """The first candidate that works; None until one was found."""
        index = self._baseline
        return None if index is None else self._entries[index].candidate.name

    def outcome(self) -> MeasureOutcome:
        """What is known now; final when `is_over`."""
        return outcome_of(
            [(e.candidate.name, e.status, e.reason) for e in self._entries],
            baseline=self._baseline,
            race=self._race,
            racers=self._racers,
            kept=self.kept,
            is_over=self.is_over and not self._is_stopped and self._has_work,
            doubts=self._doubts(),
        )

    # Steps

    async def _check(self, index: int) -> None:
        entry = self._entries[index]
        with self._blaming(index) as blame:
            if self._pace is not None:
                await self._pace(0.0)
            entry.prepared = self._prepare(entry)
            results = await self._run_once(entry.prepared)
            wrong = await self._compare(results)
            if wrong:
                self._reject(index, CandidateStatus.WRONG_RESULT, wrong)
                return
            entry.status, entry.reason = CandidateStatus.MEASURED, ""
            if self._baseline is None:
                self._baseline, self._expected = index, results
        if blame.is_hung:
            self._give_up_where_held()

    async def _run_once(self, prepared: PreparedLaunch) -> dict[int, NDArray[np.uint8]]:
        """What a candidate leaves in poisoned buffers."""
        backend, stream, pair = self._backend, self._sampler.stream, self._sampler.pair
        begun = time.perf_counter_ns()
        taken: float | None = None
        try:
            self._workspace.prepare_check(stream)
            if pair is not None:
                backend.record_event(pair[0], stream)
            backend.submit_launch(prepared, stream)
            if pair is not None:
                backend.record_event(pair[1], stream)
            results = self._workspace.read_results(stream)
            await self._sampler.settle()
            if pair is not None:
                taken = backend.elapsed_ns(*pair)
        finally:
            # What fails, or never ends, was waited for at least.
            waited = float(time.perf_counter_ns() - begun)
            self._spent_ns += waited if taken is None else taken
        return results

    async def _compare(self, results: dict[int, NDArray[np.uint8]]) -> str:
        size = sum(array.nbytes for array in results.values())
        if size <= _COMPARED_ON_THE_LOOP:
            return self._difference(results)
        return await run_abandonable(
            lambda: self._difference(results), lambda _: None, name="compare results"
        )

    def _difference(self, results: dict[int, NDArray[np.uint8]]) -> str:
        import numpy as np

        check = self._options.check
        if check is None:
            return ""
        for place, got in results.items():
            dtype = check.dtypes[place] if place < len(check.dtypes) else None
            against = []
            if place in check.reference:
                right = np.frombuffer(check.reference[place], np.uint8)
                against.append(("the reference", right))
            if self._expected is not None:
                against.append(("the baseline", self._expected[place]))
            for whose, expected in against:
                index = first_wrong(got, expected, dtype, check)
                if index is not None:
                    what = "byte" if dtype is None else "element"
                    where = f"first in {what} {index}"
                    return f"buffer {place} differs from {whose}'s, {where}"
        return ""

    def _line_up(self) -> None:
        """Everyone was checked: begin the race of those that passed."""
        fit = [
            index
            for index, entry in enumerate(self._entries)
            if entry.status is CandidateStatus.MEASURED
        ]
        if self._baseline is None or not fit:
            return
        self._racers = fit
        self._race = Race(
            len(fit),
            self._options.rules,
            baseline=fit.index(self._baseline),
            rounds=self._rounds_to_go_on_from(),
        )
        if not self._race.is_over:
            self._to_warm = list(fit)

    def _rounds_to_go_on_from(self) -> list[dict[int, float]]:
        kept, sampler = self._kept, self._sampler
        assert self._baseline is not None
        base = self._entries[self._baseline].candidate.name
        if kept is None or kept.source is not sampler.source:
            return []
        numbers = {
            self._entries[index].candidate.name: number
            for number, index in enumerate(self._racers)
        }
        return [
            {numbers[name]: ns for name, ns in row.items() if name in numbers}
            for row in kept.rounds
            if base in row
        ]

    async def _warm_up(self, index: int) -> None:
        with self._blaming(index):
            if not self._sampler.launches:
                await self._choose_launches()
            for _ in range(self._options.warmup):
                await self._sample(index)

    async def _choose_launches(self) -> None:
        """From the baseline, so that all samples are of equally many launches.

        A launch in a batch may take a fraction of what one alone seems to, as that
        holds what beginning and ending a sample take: so what was chosen is tried.
        """
        assert self._baseline is not None
        sampler = self._sampler
        sampler.launches = 1
        await self._sample(self._baseline)
        for _ in range(_MOST_TRIALS):
            before = sampler.launches
            taken = min([await self._sample(self._baseline) for _ in range(2)])
            sampler.choose_launches(taken)
            if sampler.launches <= max(1.25 * before, 1):
                break

    async def _round(self) -> None:
        race = self._race
        assert race is not None
        samples: dict[int, float] = {}
        for number in race.next_order():
            index = self._racers[number]
            taken = 0.0
            with self._blaming(index):
                taken = await self._sample(index)
                if not taken > 0.0:
                    self._use_a_finer_measure()
                    return
            if self._race is not race:  # the baseline went
                return
            if self._entries[index].status is CandidateStatus.MEASURED:
                samples[number] = taken
        if not race.is_over:
            for _ in race.tell_in_steps(samples):
                await anyio.lowlevel.checkpoint()  # each step is some computing

    async def _sample(self, index: int) -> float:
        prepared = self._entries[index].prepared
        assert prepared is not None
        if self._pace is not None:
            await self._pace(self._last_ns)
        taken = await self._sampler.take(prepared)
        self._last_sampled = index
        self._last_ns = taken * max(1, self._sampler.launches)
        self._spent_ns += self._last_ns
        return taken

    def _use_a_finer_measure(self) -> None:
        """The clock showed nothing: take more launches, and then another clock."""
        self._sampler.make_coarser()
        self._begin_again()

    def _progress(self, step: str) -> MeasureProgress:
        race = self._race
        return MeasureProgress(
            step=step,
            rounds=0 if race is None else race.round_count,
            contestants=tuple(
                self._entries[self._racers[number]].candidate.name
                for number in sorted(() if race is None else race.contestants)
            ),
            rejected=tuple(self.rejected),
        )
