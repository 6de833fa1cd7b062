"""Where heats and the final race are run: measuring schedules within a budget."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING

from accy_async.errors import UnsupportedOperation
from accy_async.tuning.measuring import (
    Candidate,
    KeptRounds,
    MeasureOptions,
    Measuring,
    open_measurement,
)
from accy_async.tuning.pacing import BudgetSpent
from accy_async.tuning.search.workshop import BuildFailed

if TYPE_CHECKING:
    from accy_async.backends.base import Backend
    from accy_async.tuning.measuring import Pace
    from accy_async.tuning.search.ledger import Ledger
    from accy_async.tuning.search.space import Schedule
    from accy_async.tuning.search.workshop import Workshop

__all__ = ["Track"]


class Track:
    """Measures candidates beside the baseline, and counts what that takes.

    Args:
        backend: the device.
        workshop: makes the candidates.
        ledger: the budget.
        baseline: what everything is compared with.
        pace: the caller's, awaited before each sample.
    """

    def __init__(
        self,
        backend: Backend,
        workshop: Workshop,
        ledger: Ledger,
        baseline: Schedule,
        pace: Pace | None,
    ) -> None:
        self._backend = backend
        self._workshop = workshop
        self._ledger = ledger
        self._baseline = baseline
        self._user_pace = pace

    async def baseline(self) -> Candidate:
        """The baseline, built and loaded.

        Raises:
            UnsupportedOperation: it cannot be.
        """
        try:
            return await self._workshop.candidate(self._baseline)
        except BuildFailed as error:
            raise UnsupportedOperation(
                f"search: the baseline {self._baseline} cannot be built: {error}"
            ) from error

    def open(
        self,
        candidates: Sequence[Candidate],
        options: MeasureOptions,
        share: float,
        kept: KeptRounds | None,
    ) -> AbstractAsyncContextManager[Measuring]:
        """A measurement that stops where so much of the budget is spent.

        Args:
            candidates: the baseline, and others.
            options: how they are measured.
            share: of the budget that may be spent, with all that was before.
            kept: go on from there.
        """

        async def pace(last_ns: float) -> None:
            if self._ledger.is_spent(share, last_ns * 1e-9):
                raise BudgetSpent("no room for another sample")
            if self._user_pace is not None:
                await self._user_pace(last_ns)

        return open_measurement(
            self._backend,
            candidates,
            self._ledger.limited(options, share),
            kept=kept,
            pace=pace,
        )

    async def run(self, measuring: Measuring) -> None:
        """Measure to the end.

        Raises:
            BudgetSpent: there was no room for another sample.
            SampleTooLong: the one that was sampled last takes too long.
            UnsupportedOperation: the baseline cannot be measured.
        """
        with self._ledger.measurement(measuring):
            async for _ in measuring:
                # Everything is told by the baseline: there is none beside it.
                found = measuring.rejected.get(str(self._baseline))
                if found is not None:
                    status, reason = found
                    raise self.unmeasured(f"{status}: {reason}")

    def unmeasured(self, why: object) -> UnsupportedOperation:
        """What is raised where the baseline cannot be measured."""
        return UnsupportedOperation(
            f"search: the baseline {self._baseline} cannot be measured: {why}"
        )
