"""A model of what is fast, by optuna's tree-structured Parzen estimator.

J. Bergstra et al., "Algorithms for Hyper-Parameter Optimization" (NIPS 2011): two
densities are fitted, one to the better schedules and one to the rest, and those are
proposed that are likely under the first and unlikely under the second. Parameters whose
values are numbers in order are ordered for the model too; others are names to it.

The model knows nothing of constraints. What it proposes against them is not measured:
it is told that this was slow, and asked again.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

import attrs

from accy_async.errors import RuntimeUnavailable
from accy_async.tuning.search.space import Schedule, SearchSpace
from accy_async.tuning.search.strategies.base import (
    LEAST_ROUNDS,
    History,
    Proposal,
    Proposer,
)
from accy_async.tuning.search.strategies.plain import in_random_order
from accy_async.values import integer

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.study import Study
    from optuna.trial import Trial as OptunaTrial

__all__ = ["ModelSearch"]

_MOST_ASKED = 8
"""Proposals of the model that bring nothing new, after which one is drawn."""

_PENALTY = math.log(2.0)
"""What is ruled out counts as slower than the slowest by this factor."""


@attrs.frozen(kw_only=True)
class ModelSearch:
    """Schedules that a model of the earlier ones takes for fast.

    Needs the extra ``accy-async[search]``.

    Attributes:
        rounds: that each is measured in.
        startup: schedules at random before the model is asked.
        seed: of both.
    """

    rounds: int = attrs.field(default=LEAST_ROUNDS, validator=integer(LEAST_ROUNDS))
    startup: int = attrs.field(default=16, validator=integer(1))
    seed: int = attrs.field(default=0, validator=integer(0, 2**63 - 1))

    def begin(self, space: SearchSpace) -> Proposer:
        """Set to work.

        Raises:
            RuntimeUnavailable: optuna is not installed.
        """
        return _Modelled(self, space)


class _Modelled:
    """Asks the model, and tells it."""

    def __init__(self, rules: ModelSearch, space: SearchSpace) -> None:
        self._rules = rules
        self._space = space
        self._study = _make_study(rules.seed)
        self._distributions = _distributions(space)
        self._drawn: Iterator[Schedule] = in_random_order(space, rules.seed)
        self._asked: dict[Schedule, OptunaTrial | None] = {}
        self._told: set[Schedule] = set()
        self._slowest = 0.0

    def propose(self, history: History, count: int) -> Proposal | None:
        """What the model takes for fast."""
        self._tell(history)
        found: list[Schedule] = []
        while len(found) < count:
            one = self._next(history)
            if one is None:
                break
            found.append(one)
        return Proposal(tuple(found), self._rules.rounds) if found else None

    def _tell(self, history: History) -> None:
        from optuna.trial import create_trial

        for schedule, trial in history.items():
            if schedule in self._told or not (trial.is_measured or trial.is_rejected):
                continue
            self._told.add(schedule)
            if trial.is_measured:
                value = trial.estimate
                self._slowest = max(self._slowest, value)
            else:
                value = self._penalty
            asked = self._asked.get(schedule)
            if asked is not None:
                self._study.tell(asked, value)
            else:
                self._study.add_trial(
                    create_trial(
                        params=dict(self._space.places(schedule)),
                        distributions=self._distributions,
                        value=value,
                    )
                )

    def _next(self, history: History) -> Schedule | None:
        """The next schedule that is new; None where there is none."""
        if len(self._told | set(self._asked)) >= self._rules.startup:
            for _ in range(_MOST_ASKED):
                trial = self._study.ask(self._distributions)
                schedule = self._space.from_places(trial.params)
                if schedule is None:
                    self._study.tell(trial, self._penalty)
                elif self._is_new(schedule, history):
                    self._asked[schedule] = trial
                    return schedule
                else:
                    self._repeat(trial, schedule, history)
        for schedule in self._drawn:
            if self._is_new(schedule, history):
                self._asked[schedule] = None
                return schedule
        return None

    def _repeat(self, trial: OptunaTrial, schedule: Schedule, history: History) -> None:
        """It is known already: the same again weighs more, and moves the model on."""
        from optuna.trial import TrialState

        known = history.get(schedule)
        if known is not None and known.is_measured:
            self._study.tell(trial, known.estimate)
        elif known is not None and known.is_rejected:
            self._study.tell(trial, self._penalty)
        else:
            self._study.tell(trial, state=TrialState.FAIL)

    def _is_new(self, schedule: Schedule, history: History) -> bool:
        if schedule in self._asked:
            return False
        known = history.get(schedule)
        if known is None:
            return True
        is_settled = known.is_rejected or known.is_baseline
        return not is_settled and known.rounds < self._rules.rounds

    @property
    def _penalty(self) -> float:
        return self._slowest + _PENALTY


def _distributions(space: SearchSpace) -> dict[str, BaseDistribution]:
    """A distribution for the place of each parameter's value."""
    from optuna.distributions import CategoricalDistribution, IntDistribution

    return {
        one.name: IntDistribution(0, len(one.values) - 1)
        if one.is_ordered
        else CategoricalDistribution(range(len(one.values)))
        for one in space.parameters
    }


def _make_study(seed: int) -> Study:
    try:
        import optuna
    except ImportError as error:
        raise RuntimeUnavailable(
            "ModelSearch: optuna is not installed; pip install 'accy-async[search]'"
        ) from error
    sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=1)
    # It logs each study that it makes, and has its own handler on the error stream.
    logger = logging.getLogger("optuna.storages._in_memory")
    logger.addFilter(_nothing)
    try:
        return optuna.create_study(sampler=sampler)
    finally:
        logger.removeFilter(_nothing)


def _nothing(record: logging.LogRecord) -> bool:
    return record.levelno > logging.INFO
