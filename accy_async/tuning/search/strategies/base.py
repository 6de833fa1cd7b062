"""What a search asks of a strategy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import attrs

from accy_async.tuning.search.space import Schedule, SearchSpace
from accy_async.tuning.search.trial import Trial

__all__ = ["LEAST_ROUNDS", "History", "Proposal", "Proposer", "Strategy"]

LEAST_ROUNDS = 4
"""Rounds of a first impression: the fewest that a midmean is of."""

History = Mapping[Schedule, Trial]
"""What is known of every schedule that anything is known of."""


@attrs.frozen
class Proposal:
    """Schedules to know more of.

    Attributes:
        schedules: which; none to wait for what was proposed before.
        rounds: that each is to have been measured in, earlier ones included. Who has
            been in so many, or was rejected, is not measured again.
    """

    schedules: tuple[Schedule, ...]
    rounds: int = LEAST_ROUNDS


class Proposer(Protocol):
    """A strategy at work on one space."""

    def propose(self, history: History, count: int) -> Proposal | None:
        """What to measure next.

        It is asked ahead: not everything that it proposed before needs to be in the
        history. Called on worker threads, by one at a time.

        Args:
            history: what is known.
            count: how many schedules are measured together; an advice.

        Returns:
            None where it has nothing left to propose, for good.
        """
        ...


class Strategy(Protocol):
    """A way to search, as a value."""

    def begin(self, space: SearchSpace) -> Proposer:
        """Set to work; the same seed proposes the same, told the same.

        Raises:
            RuntimeUnavailable: a library that it needs is not installed.
        """
        ...
