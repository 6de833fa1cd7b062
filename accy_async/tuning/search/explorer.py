"""The deciding part of a search: pure, without device, clock or loop.

An `Explorer` asks its strategy what to measure, and says it as *heats*: a few schedules
that are measured together with the baseline, for so many rounds. It is told how they
did, or that one is out, and knows who deserves to be in the final race.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

import attrs

from accy_async.tuning.measuring import CandidateStatus
from accy_async.tuning.search.space import Schedule, SearchSpace
from accy_async.tuning.search.strategies import History, Proposal, Proposer, Strategy
from accy_async.tuning.search.strategies.base import LEAST_ROUNDS
from accy_async.tuning.search.trial import Trial

__all__ = ["Explorer", "Heat"]


@attrs.frozen
class Heat:
    """Schedules to be measured together with the baseline.

    Attributes:
        schedules: which; never the baseline.
        rounds: how many rounds.
    """

    schedules: tuple[Schedule, ...]
    rounds: int


class Explorer:
    """A strategy, and what is known so far.

    Args:
        space: what it looks through.
        strategy: how.
        baseline: what everything is compared with.
        size: schedules of a heat at most.
        trials: what is known from earlier; of schedules of another space nothing is
            taken.
    """

    def __init__(
        self,
        space: SearchSpace,
        strategy: Strategy,
        baseline: Schedule,
        *,
        size: int = 8,
        trials: Iterable[Trial] = (),
    ) -> None:
        self.space = space
        self.baseline = baseline
        self._size = size
        self._proposer: Proposer = strategy.begin(space)
        self._queue: deque[Heat] = deque()
        self._is_exhausted = False
        self._bounds: dict[Schedule, tuple[int, float]] = {}
        self._history: dict[Schedule, Trial] = {
            baseline: Trial(
                schedule=baseline, status=CandidateStatus.MEASURED, is_baseline=True
            )
        }
        for trial in trials:
            if trial.schedule != baseline and trial.schedule in space:
                self._history[trial.schedule] = trial

    @property
    def history(self) -> History:
        """What is known, the baseline first."""
        return self._history

    @property
    def trials(self) -> tuple[Trial, ...]:
        """The same without the baseline."""
        return tuple(one for one in self._history.values() if not one.is_baseline)

    @property
    def is_exhausted(self) -> bool:
        """True where the strategy has nothing left to propose."""
        return self._is_exhausted

    @property
    def queued(self) -> tuple[Heat, ...]:
        """Heats that were proposed and not begun."""
        return tuple(self._queue)

    def fill(self, heats: int) -> None:
        """Ask the strategy until so many heats are queued, or it waits for those.

        May compute for some milliseconds a heat.
        """
        self._drop_settled()
        while not self._is_exhausted and len(self._queue) < heats:
            proposal = self._proposer.propose(self._history, self._size)
            if proposal is None:
                self._is_exhausted = True
            elif not proposal.schedules:
                return
            else:
                self._enqueue(proposal)

    def next_heat(self) -> Heat | None:
        """What to measure now; None where nothing is queued.

        It stays queued until all of its schedules are known, so that a heat that was
        broken off goes on.
        """
        self._drop_settled()
        if not self._queue:
            return None
        heat = self._queue[0]
        wanting = self._wanting(heat.schedules, heat.rounds)
        missing = heat.rounds - min(self._rounds(one) for one in wanting)
        return Heat(tuple(wanting), max(LEAST_ROUNDS, missing))

    def tell(self, schedule: Schedule, differences: Sequence[float]) -> Trial:
        """How a schedule compared with the baseline in some more rounds."""
        known = self._history.get(schedule, Trial(schedule=schedule))
        found = attrs.evolve(
            known,
            status=CandidateStatus.MEASURED,
            differences=(*known.differences, *differences),
        )
        self._history[schedule] = found
        return found

    def reject(self, schedule: Schedule, status: CandidateStatus, reason: str) -> Trial:
        """A schedule is out for good, whatever is known of it."""
        known = self._history.get(schedule, Trial(schedule=schedule))
        found = attrs.evolve(known, status=status, reason=reason)
        self._history[schedule] = found
        return found

    def ranked(self) -> list[Trial]:
        """All that were measured, the baseline among them, the best first.

        By what they hardly exceed: see `Trial.bound`.
        """
        known = [one for one in self._history.values() if one.is_measured]
        return sorted(known, key=self._bound)

    def best(self) -> Trial:
        """The first of `ranked`; the baseline where none seems faster."""
        return self.ranked()[0]

    def finalists(self, count: int) -> tuple[Schedule, ...]:
        """Who is to be raced against the baseline: the first of `ranked`.

        Who seems no faster than the baseline is no finalist, but for the best: that it
        is none is to be known as well.
        """
        others = [one for one in self.ranked() if not one.is_baseline]
        promising = [one for one in others if one.estimate < 0.0] or others[:1]
        return tuple(one.schedule for one in promising[:count])

    # Within

    def _rounds(self, schedule: Schedule) -> int:
        known = self._history.get(schedule)
        return 0 if known is None else known.rounds

    def _bound(self, trial: Trial) -> float:
        rounds, bound = self._bounds.get(trial.schedule, (-1, 0.0))
        if rounds != trial.rounds:
            bound = trial.bound
            self._bounds[trial.schedule] = trial.rounds, bound
        return bound

    def _drop_settled(self) -> None:
        """Forget the heats at the front of which everything is known."""
        while self._queue:
            heat = self._queue[0]
            if self._wanting(heat.schedules, heat.rounds):
                return
            self._queue.popleft()

    def _wanting(self, schedules: Iterable[Schedule], rounds: int) -> list[Schedule]:
        """Those that are still to be measured until they were in so many rounds."""
        found = []
        for schedule in schedules:
            known = self._history.get(schedule, Trial(schedule=schedule))
            is_settled = known.is_rejected or known.is_baseline
            if not is_settled and known.rounds < rounds:
                found.append(schedule)
        return found

    def _enqueue(self, proposal: Proposal) -> None:
        wanted = self._wanting(proposal.schedules, proposal.rounds)
        for begin in range(0, len(wanted), self._size):
            chunk = wanted[begin : begin + self._size]
            self._queue.append(Heat(tuple(chunk), proposal.rounds))
