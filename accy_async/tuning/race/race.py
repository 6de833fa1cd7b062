"""Candidates in rounds against a baseline, until it is known which is best.

Every round measures the baseline and each candidate that is still in, once, in a
random order; the next round takes the same order backwards, so that a clock that
drifts favours none. After some rounds, and then seldomer and seldomer, the race looks:

* A candidate that is slower than the best one, by more than the tolerance and not by
  chance, is out: it is measured no more.
* The race is over when the best one is known to differ from the baseline, or not to,
  and all that are left are known to be worse than it or equal.
* Where the clocks drifted or neighbours disturbed it meanwhile, it is run again from
  its beginning, as often as the rules say. Where two attempts disagree, it is
  undecided.

A candidate that cannot be measured is rejected, and takes no further part. Where the
rules are fixed, nobody else leaves, and the number of rounds is what they say.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from accy_async.errors import InvalidValue
from accy_async.tuning.race.conditions import judge_conditions
from accy_async.tuning.race.rules import RaceRules
from accy_async.tuning.race.verdict import Comparison, RaceVerdict, Standing
from accy_async.tuning.statistics import Floats, Interval, midmean, paired_intervals

__all__ = ["Race"]


class Race:
    """One comparison of ``count`` candidates; see the module.

    Args:
        count: candidates, the baseline among them.
        rules: what it goes by.
        baseline: the baseline's number.
        rounds: what an earlier race of the same candidates was told; it goes on from
            there. Rounds are complete in themselves, so that those of another hour
            may stand beside new ones.

    Raises:
        InvalidValue: there is no such baseline, or no candidate.
    """

    def __init__(
        self,
        count: int,
        rules: RaceRules | None = None,
        *,
        baseline: int = 0,
        rounds: Sequence[Mapping[int, float]] = (),
    ) -> None:
        if count < 1:
            raise InvalidValue("Race.count", count, "1 or more")
        if not 0 <= baseline < count:
            raise InvalidValue("Race.baseline", baseline, f"from 0 to {count - 1}")
        self.rules = RaceRules() if rules is None else rules
        self.baseline = baseline
        self.count = count
        self._in = set(range(count))
        self._rejected: set[int] = set()
        self._generator = np.random.default_rng(self.rules.seed)
        self._rounds: list[Floats] = []
        self._order: list[int] = []
        self._rounds_before = 0
        self._attempts: list[RaceVerdict] = []
        self._is_over = count == 1 and not self.rules.fixed
        for samples in rounds:
            if self._is_over:
                break
            self.tell(samples)

    @property
    def is_over(self) -> bool:
        """True where nothing more is to be measured."""
        return self._is_over

    @property
    def rounds(self) -> tuple[dict[int, float], ...]:
        """What it was told in this attempt: times by candidate, for each round."""
        return tuple(
            {
                number: float(value)
                for number, value in enumerate(np.exp(row))
                if not math.isnan(value)
            }
            for row in self._rounds
        )

    @property
    def round_count(self) -> int:
        """Rounds in all, those of attempts given up included."""
        return self._rounds_before + len(self._rounds)

    @property
    def contestants(self) -> frozenset[int]:
        """Who is measured in the next round."""
        return frozenset(self._in) if not self._is_over else frozenset()

    def samples(self, candidate: int) -> Floats:
        """A candidate's times in this attempt, in the order of the rounds."""
        column = self._logarithms()[:, candidate]
        times: Floats = np.exp(column[~np.isnan(column)])
        return times

    def next_order(self) -> tuple[int, ...]:
        """Whom to measure in the next round, in this order; empty when it is over."""
        if self._is_over:
            return ()
        if self._order:
            order = [number for number in reversed(self._order) if number in self._in]
            self._order = []
        else:
            order = [int(n) for n in self._generator.permutation(sorted(self._in))]
            self._order = order
        return tuple(order)

    def reject(self, candidate: int) -> None:
        """A candidate cannot be measured: it is out, whatever it took before.

        Raises:
            InvalidValue: it is the baseline, without which there is nothing to tell.
        """
        if candidate == self.baseline:
            raise InvalidValue("Race.reject", candidate, "a candidate, no baseline")
        self._in.discard(candidate)
        self._rejected.add(candidate)
        self._end_if_alone()

    def tell(self, samples: Mapping[int, float]) -> None:
        """A round is done.

        Args:
            samples: what each took, in any unit; above 0. Who is not named was not
                measured.

        Raises:
            InvalidValue: the baseline is missing, a time is none, or it is of no
                candidate.
        """
        for _ in self.tell_in_steps(samples):
            pass

    def tell_in_steps(self, samples: Mapping[int, float]) -> Iterator[None]:
        """`tell`, for who has something else to do: yields between computations.

        To be taken to its end before anything else is asked of the race; where it is
        not, only who would have left the race may be in it for some rounds more.

        Raises:
            InvalidValue: as `tell`, before the first step.
        """
        row = np.full(self.count, np.nan)
        for number, value in samples.items():
            if not 0 <= number < self.count:
                raise InvalidValue(
                    "Race.tell.samples",
                    number,
                    f"candidates from 0 to {self.count - 1}",
                )
            if not (value > 0.0 and math.isfinite(value)):
                raise InvalidValue(f"Race.tell.samples[{number}]", value, "above 0")
            row[number] = math.log(value)
        if math.isnan(row[self.baseline]):
            raise InvalidValue("Race.tell.samples", sorted(samples), "the baseline too")
        if self._is_over:
            return
        self._rounds.append(row)
        if self.rules.is_look(len(self._rounds)):
            yield from self._look()

    def verdict(self) -> RaceVerdict:
        """What is known now; final when the race is over."""
        logarithms = self._logarithms()
        conditions = judge_conditions(logarithms)
        others = [
            number
            for number in range(self.count)
            if number != self.baseline and number not in self._rejected
        ]
        comparisons = tuple(
            Comparison(number, self._standing(interval, rounds), interval, rounds)
            for number, (interval, rounds) in self._against(self.baseline, others)
        )
        faster = [one for one in comparisons if one.standing is Standing.FASTER]
        winner = self.baseline
        if faster:
            # Of those that left early their time is known less well: the best that
            # stayed to the end comes first.
            best = min(
                faster,
                key=lambda one: (one.candidate not in self._in, one.interval.estimate),
            )
            winner, standing = best.candidate, Standing.FASTER
        elif all(
            one.standing in (Standing.NO_DIFFERENCE, Standing.SLOWER)
            for one in comparisons
            # Who left early was slower than one that is no faster than the baseline.
            if one.candidate in self._in
        ):
            standing = Standing.NO_DIFFERENCE
        else:
            standing = Standing.UNDECIDED
        if self._disagrees(winner, standing):
            winner, standing = self.baseline, Standing.UNDECIDED
        return RaceVerdict(
            standing=standing,
            winner=winner,
            comparisons=comparisons,
            conditions=conditions,
            rounds=self.round_count,
            is_repeated=bool(self._attempts),
        )

    # Within

    def _logarithms(self) -> Floats:
        return np.array(self._rounds).reshape(len(self._rounds), self.count)

    def _look(self) -> Iterator[None]:
        if self.rules.fixed:
            self._finish()
            return
        leader = self._leader()
        is_settled = True
        for reference in dict.fromkeys((leader, self.baseline)):
            rivals = sorted(self._in - {reference})
            for number, (interval, rounds) in self._against(reference, rivals):
                standing = self._standing(interval, rounds)
                if standing is Standing.SLOWER and number != self.baseline:
                    self._in.discard(number)
                elif standing is Standing.UNDECIDED:
                    is_settled = False
                yield
        if is_settled or len(self._rounds) >= self.rules.max_rounds:
            self._finish()

    def _finish(self) -> None:
        verdict = self.verdict()
        is_bad = not verdict.conditions.are_steady
        if is_bad and len(self._attempts) < self.rules.repeats:
            self._attempts.append(verdict)
            self._rounds_before += len(self._rounds)
            self._rounds.clear()
            self._order = []
            self._in = set(range(self.count)) - self._rejected
            return
        self._is_over = True

    def _end_if_alone(self) -> None:
        if self.rules.fixed:
            return
        if self._in == {self.baseline} and self._rejected:
            everyone = set(range(self.count)) - {self.baseline}
            self._is_over = self._is_over or everyone <= self._rejected

    def _disagrees(self, winner: int, standing: Standing) -> bool:
        """Whether an attempt that was given up had found one that is worse now."""
        return any(
            attempt.standing is Standing.FASTER
            and standing is Standing.FASTER
            and attempt.winner != winner
            and self._is_slower(attempt.winner, winner)
            for attempt in self._attempts
        )

    def _is_slower(self, candidate: int, than: int) -> bool:
        ((_, (interval, rounds)),) = self._against(than, [candidate])
        return self._standing(interval, rounds) is Standing.SLOWER

    def _leader(self) -> int:
        """Who is fastest by the estimates alone."""
        logarithms = self._logarithms()
        estimates = {self.baseline: 0.0}
        for number in sorted(self._in - {self.baseline}):
            row = logarithms[:, number] - logarithms[:, self.baseline]
            row = row[~np.isnan(row)]
            if len(row):  # who joined late may have no round with the baseline yet
                estimates[number] = float(midmean(row))
        return min(estimates, key=estimates.__getitem__)

    def _against(
        self, reference: int, others: Sequence[int]
    ) -> Iterator[tuple[int, tuple[Interval, int]]]:
        """The intervals of some against one, each over the rounds that both are in."""
        logarithms = self._logarithms()
        # Every candidate may be called different by chance.
        confidence = 1.0 - (1.0 - self.rules.confidence) / max(1, self.count - 1)
        for number in others:
            row = logarithms[:, number] - logarithms[:, reference]
            row = row[~np.isnan(row)]
            (interval,) = paired_intervals(
                row[None, :],
                confidence=confidence,
                resamples=self.rules.resamples,
                generator=np.random.default_rng((self.rules.seed, number, len(row))),
            )
            yield number, (interval, len(row))

    def _standing(self, interval: Interval, rounds: int) -> Standing:
        tolerance = math.log1p(self.rules.tolerance)
        if rounds < min(self.rules.min_rounds, self.rules.max_rounds):
            return Standing.UNDECIDED
        if interval.high < 0.0 and interval.estimate < -tolerance:
            return Standing.FASTER
        if interval.low > 0.0 and interval.estimate > tolerance:
            return Standing.SLOWER
        if interval.half_width <= tolerance:
            return Standing.NO_DIFFERENCE
        return Standing.UNDECIDED
