"""Tuning in a session: beside its real work, or alone."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, TypeVar

import attrs

from accy_async.backends.completion import run_abandonable
from accy_async.errors import InvalidType, SessionClosed
from accy_async.session.core import SessionCore
from accy_async.tuning.launches import LaunchTuningCache, tune_launch
from accy_async.tuning.measuring import measure
from accy_async.tuning.pacing import SharedPace
from accy_async.tuning.store import TuningStore

if TYPE_CHECKING:
    from accy_async.artifact.planned import PlannedKernel
    from accy_async.backends.handles import BufferBinding, LoadedArtifact
    from accy_async.dtypes import ScalarArgument
    from accy_async.tuning.launches import LaunchTuningOutcome
    from accy_async.tuning.measuring import (
        Candidate,
        KeptRounds,
        MeasureOptions,
        MeasureOutcome,
    )
    from accy_async.tuning.search import (
        KeptSearch,
        Schedule,
        SearchOptions,
        SearchOutcome,
        SearchSpace,
        Strategy,
    )
    from accy_async.tuning.search.workshop import Build

__all__ = ["SessionTuning", "Tuner"]

_KIND = "launch_tuning"
_OutcomeT = TypeVar("_OutcomeT", "MeasureOutcome", "SearchOutcome")


class Tuner:
    """Measures in a session, and keeps what it finds; from `Session.tuning`.

    Attributes:
        cache: the winners that are known.
        store: where they are kept for other processes; None for nowhere.
        pace: how real work is let go first.
        is_exclusive: whether nothing else is to run meanwhile.
    """

    def __init__(
        self,
        session: SessionCore,
        cache: LaunchTuningCache,
        store: TuningStore | None,
        pace: SharedPace,
        *,
        is_exclusive: bool,
    ) -> None:
        self.cache = cache
        self.store = store
        self.pace = pace
        self.is_exclusive = is_exclusive
        self._session = session
        self._is_over = False

    async def measure(
        self,
        candidates: Sequence[Candidate],
        options: MeasureOptions | None = None,
        *,
        kept: KeptRounds | None = None,
    ) -> MeasureOutcome:
        """Measure candidates; see `accy_async.tuning.measure`.

        In an exclusive tuner what ran beside other work is not to be stored.

        Raises:
            SessionClosed: the session is not open, or its block of tuning was left.
            TuningStopped: a candidate took the device with it.
        """
        self._check("measure")
        beside = self.pace.samples_beside_work
        found = await measure(
            self._session.backend, candidates, options, kept=kept, pace=self.pace
        )
        return self._judged(found, beside)

    async def tune_launch(
        self,
        kernel: PlannedKernel,
        loaded: LoadedArtifact,
        buffers: Sequence[BufferBinding],
        scalars: Sequence[ScalarArgument] = (),
        options: MeasureOptions | None = None,
        *,
        kept: KeptRounds | None = None,
    ) -> LaunchTuningOutcome:
        """Find a kernel's best launch candidate, and keep it.

        Awaits the measurement, and then a thread that writes to the store.

        Raises:
            InvalidType: ``kernel`` is no planned kernel.
            SessionClosed: the session is not open, or its block of tuning was left.
            TuningStopped: a candidate took the device with it; nothing was kept.

        Cancellation: nothing was kept.
        """
        self._check("tune_launch")
        beside = self.pace.samples_beside_work
        outcome = await tune_launch(
            self._session.backend,
            kernel,
            loaded,
            buffers,
            scalars,
            options,
            kept=kept,
            pace=self.pace,
        )
        if outcome.measured is not None:
            judged = self._judged(outcome.measured, beside)
            records = outcome.records if judged.is_storable else ()
            outcome = attrs.evolve(outcome, measured=judged, records=records)
        record = self.cache.record_candidates(kernel, outcome.records)
        store = self.store
        if record is not None and store is not None:
            await run_abandonable(
                lambda: store.keep(_KIND, [record]),
                lambda _: None,
                name="keep tuning records",
            )
        return outcome

    async def search(
        self,
        space: SearchSpace,
        build: Build,
        buffers: Sequence[BufferBinding],
        *,
        baseline: Schedule | None = None,
        strategy: Strategy | None = None,
        options: SearchOptions | None = None,
        kept: KeptSearch | None = None,
    ) -> SearchOutcome:
        """Search a space of schedules; see `accy_async.tuning.search.search`.

        In an exclusive tuner what ran beside other work is not to be stored.

        Raises:
            SessionClosed: the session is not open, or its block of tuning was left.
            TuningStopped: a schedule took the device with it.
            UnsupportedOperation: the baseline cannot be built or measured.
            InvalidType, InvalidValue, RuntimeUnavailable: as `open_search`.
        """
        from accy_async.tuning.search import search

        self._check("search")
        beside = self.pace.samples_beside_work
        found = await search(
            self._session.backend,
            space,
            build,
            buffers,
            baseline=baseline,
            strategy=strategy,
            options=options,
            kept=kept,
            pace=self.pace,
        )
        return self._judged(found, beside)

    def _check(self, call: str) -> None:
        if self._is_over:
            raise SessionClosed(f"{call}: the block of session.tuning() was left")
        self._session._check(call)  # noqa: SLF001 - it measures for the session

    def _end(self) -> None:
        self._is_over = True

    def _judged(self, found: _OutcomeT, beside: int) -> _OutcomeT:
        disturbed = self.pace.samples_beside_work - beside
        if not self.is_exclusive or not disturbed:
            return found
        why = f"not alone: {disturbed} samples were taken beside other work"
        return attrs.evolve(found, is_storable=False, why_not=found.why_not or why)


class SessionTuning(SessionCore):
    """The tuning of a session."""

    @asynccontextmanager
    async def tuning(
        self,
        *,
        share: float = 0.1,
        most_wait_s: float = 1.0,
        exclusive: bool = False,
        store: TuningStore | None = None,
    ) -> AsyncIterator[Tuner]:
        """Tune beside the session's work, or alone.

        Samples run on a stream of the least urgent priority, while no run and no
        pipeline launch of the session is in flight, and take at most ``share`` of the
        time. Awaits, first, a thread that reads the store.

        Args:
            share: the part of the time that samples may take.
            most_wait_s: how long a sample waits at most for the session's work to
                pause, in seconds.
            exclusive: for benchmarks: wait for the device to be idle first, then take
                sample after sample; what ran beside other work of the session is
                found out, and not to be stored.
            store: where records are read from and kept; None for nowhere, see
                `accy_async.tuning.default_tuning_store`.

        Raises:
            SessionClosed: the session is not open.
            InvalidValue: a number is out of range.
            InvalidType: ``store`` is no tuning store.

        Cancellation: nothing was changed.
        """
        self._check("tuning")
        if store is not None and not isinstance(store, TuningStore):
            raise InvalidType("tuning.store", store, "a TuningStore or None")
        cache = LaunchTuningCache(self.capabilities)
        pace = SharedPace(
            1.0 if exclusive else share,
            self._is_working,
            most_wait_s=0.0 if exclusive else most_wait_s,
        )
        if store is not None:
            known = store
            cache.import_records(
                await run_abandonable(
                    lambda: known.load(_KIND),
                    lambda _: None,
                    name="read tuning records",
                )
            )
        if exclusive:
            await self.backend.wait_device()
        tuner = Tuner(self, cache, store, pace, is_exclusive=exclusive)
        try:
            yield tuner
        finally:
            tuner._end()  # noqa: SLF001 - its life is this block

    def _is_working(self) -> bool:
        """Whether work of the session is in flight."""
        self._forget_completed()
        return bool(self._in_flight) or self._runs.in_flight > 0
