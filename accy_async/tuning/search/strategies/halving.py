"""Successive halving: a short look at many, a longer one at those that may be best.

After K. Jamieson, A. Talwalkar, "Non-stochastic Best Arm Identification and
Hyperparameter Optimization" (AISTATS 2016), with intervals in place of the half: a
schedule leaves where it is *known* to be slower than the best one, in whichever half it
is; and who may be the best stays, however many they are, for twice as many rounds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import islice

import attrs

from accy_async.errors import InvalidValue
from accy_async.tuning.search.space import Schedule, SearchSpace
from accy_async.tuning.search.strategies.base import (
    LEAST_ROUNDS,
    History,
    Proposal,
    Proposer,
)
from accy_async.tuning.search.strategies.plain import in_random_order
from accy_async.values import integer, number

__all__ = ["SuccessiveHalving"]


@attrs.frozen(kw_only=True)
class SuccessiveHalving:
    """Many for a few rounds, those that may be best for twice as many, and so on.

    Once few are left, or they have been in ``most_rounds``, it begins anew with others
    at random, beside the best so far.

    Attributes:
        population: schedules that it begins with.
        rounds: of the first look at them.
        most_rounds: of the last look.
        keep: how many are few.
        confidence: of the intervals that decide who leaves.
        seed: of who is looked at.
    """

    population: int = attrs.field(default=32, validator=integer(2, 1 << 16))
    rounds: int = attrs.field(default=LEAST_ROUNDS, validator=integer(LEAST_ROUNDS))
    most_rounds: int = attrs.field(default=32, validator=integer(LEAST_ROUNDS))
    keep: int = attrs.field(default=2, validator=integer(1))
    confidence: float = attrs.field(default=0.9, validator=number(0.5, 1.0 - 1e-6))
    seed: int = attrs.field(default=0, validator=integer(0, 2**63 - 1))

    def __attrs_post_init__(self) -> None:
        if self.most_rounds < self.rounds:
            raise InvalidValue(
                "SuccessiveHalving.most_rounds",
                self.most_rounds,
                f"at least rounds={self.rounds}",
            )

    def begin(self, space: SearchSpace) -> Proposer:
        """Set to work."""
        return _Halving(self, in_random_order(space, self.seed))


class _Halving:
    """One bracket after the other."""

    def __init__(self, rules: SuccessiveHalving, schedules: Iterator[Schedule]) -> None:
        self._rules = rules
        self._schedules = schedules
        self._rung: tuple[Schedule, ...] = ()
        self._rounds = rules.rounds
        self._to_propose: deque[Schedule] = deque()
        self._best: Schedule | None = None
        self._is_exhausted = False

    def propose(self, history: History, count: int) -> Proposal | None:
        """The rest of this rung, or the next rung once all of this one is known."""
        if not self._rung:
            self._begin_bracket()
        while not self._to_propose:
            if not self._rung:
                return None
            if not all(self._is_known(history, one) for one in self._rung):
                return Proposal(())
            self._climb(history)
        taken = [
            self._to_propose.popleft() for _ in range(min(count, len(self._to_propose)))
        ]
        return Proposal(tuple(taken), self._rounds)

    def _begin_bracket(self) -> None:
        fresh = tuple(islice(self._schedules, self._rules.population))
        self._rounds = self._rules.rounds
        if not fresh:
            self._rung = ()
            return
        champion = () if self._best is None else (self._best,)
        self._rung = tuple(dict.fromkeys((*champion, *fresh)))
        self._to_propose.extend(self._rung)

    def _climb(self, history: History) -> None:
        """Drop who is slower than the best; begin anew where hardly anyone is left."""
        known = [history[one] for one in self._rung if history[one].is_measured]
        bounds = {one.schedule: one.interval(self._rules.confidence) for one in known}
        if bounds:
            self._best = min(bounds, key=lambda one: bounds[one].high)
            limit = bounds[self._best].high
            self._rung = tuple(one for one in bounds if bounds[one].low <= limit)
        is_last = self._rounds >= self._rules.most_rounds
        if is_last or len(bounds) <= 1 or len(self._rung) <= self._rules.keep:
            self._begin_bracket()
            return
        self._rounds = min(2 * self._rounds, self._rules.most_rounds)
        self._to_propose.extend(self._rung)

    def _is_known(self, history: History, schedule: Schedule) -> bool:
        known = history.get(schedule)
        if known is None:
            return False
        is_settled = known.is_rejected or known.is_baseline
        return is_settled or known.rounds >= self._rounds
