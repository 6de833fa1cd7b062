"""All schedules in turn, or some at random."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import attrs
import numpy as np

from accy_async.tuning.search.space import MOST_ENUMERATED, Schedule, SearchSpace
from accy_async.tuning.search.strategies.base import (
    LEAST_ROUNDS,
    History,
    Proposal,
    Proposer,
)
from accy_async.values import integer

__all__ = ["Exhaustive", "RandomSearch", "in_random_order"]

_SEED = integer(0, 2**63 - 1)
_MOST_REPEATED = 2000
"""Draws that bring nothing new, after which a large space counts as seen."""


@attrs.frozen(kw_only=True)
class Exhaustive:
    """Every schedule of the space, in its order.

    Attributes:
        rounds: that each is measured in.
    """

    rounds: int = attrs.field(default=LEAST_ROUNDS, validator=integer(LEAST_ROUNDS))

    def begin(self, space: SearchSpace) -> Proposer:
        """Set to work."""
        return _InOrder(space.schedules(), self.rounds)


@attrs.frozen(kw_only=True)
class RandomSearch:
    """Schedules at random, none twice.

    Attributes:
        rounds: that each is measured in.
        seed: of the order.
    """

    rounds: int = attrs.field(default=LEAST_ROUNDS, validator=integer(LEAST_ROUNDS))
    seed: int = attrs.field(default=0, validator=_SEED)

    def begin(self, space: SearchSpace) -> Proposer:
        """Set to work."""
        return _InOrder(in_random_order(space, self.seed), self.rounds)


class _InOrder:
    """Proposes schedules as an iterator brings them."""

    def __init__(self, schedules: Iterator[Schedule], rounds: int) -> None:
        self._schedules = schedules
        self._rounds = rounds

    def propose(self, history: History, count: int) -> Proposal | None:
        """The next ones that are not known yet."""
        wanted = (
            one
            for one in self._schedules
            if one not in history or self._is_wanting(history, one)
        )
        found = tuple(islice(wanted, count))
        return Proposal(found, self._rounds) if found else None

    def _is_wanting(self, history: History, schedule: Schedule) -> bool:
        known = history[schedule]
        is_settled = known.is_rejected or known.is_baseline
        return not is_settled and known.rounds < self._rounds


def in_random_order(space: SearchSpace, seed: int) -> Iterator[Schedule]:
    """The schedules of a space at random, none twice.

    All of them where there are not too many to be listed; of a larger space until
    there is hardly a new one to be drawn.
    """
    generator = np.random.default_rng(seed)
    if space.combinations <= MOST_ENUMERATED:
        listed = list(space.schedules())
        yield from (listed[int(n)] for n in generator.permutation(len(listed)))
        return
    seen: set[Schedule] = set()
    repeated = 0
    while repeated < _MOST_REPEATED:
        drawn = space.draw(generator)
        repeated += 1
        if drawn not in seen:
            repeated = 0
            seen.add(drawn)
            yield drawn
