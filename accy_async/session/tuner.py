"""What tunes in a session: fragments in the background, the rest one by one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

import attrs

from accy_async.errors import SessionClosed
from accy_async.session.background import (
    BackgroundTuning,
    TuningProgress,
    TuningResults,
)
from accy_async.session.records import (
    LAUNCH_KIND,
    SessionRecords,
)
from accy_async.tuning.launches import LaunchTuningCache, tune_launch
from accy_async.tuning.measuring import MeasureOptions, measure
from accy_async.tuning.measuring.sampling import usual_sample_ns
from accy_async.tuning.pacing import SharedPace
from accy_async.tuning.records.schedule import schedule_kind
from accy_async.tuning.store import TuningStore

if TYPE_CHECKING:
    from accy_async.artifact.planned import PlannedKernel
    from accy_async.backends.handles import BufferBinding, LoadedArtifact
    from accy_async.compiler.preparation import FragmentCompilerOptions
    from accy_async.dtypes import ScalarArgument
    from accy_async.fragment import LoadedFragment
    from accy_async.fragment.compiling import Program
    from accy_async.fragment.schedules import ScheduleTuningOutcome
    from accy_async.fragment.tuning import KernelTuning
    from accy_async.tuning.launches import (
        LaunchTuningCacheRecord,
        LaunchTuningOutcome,
    )
    from accy_async.tuning.measuring import Candidate, KeptRounds, MeasureOutcome
    from accy_async.tuning.records import TuningRecord
    from accy_async.tuning.search import (
        KeptSearch,
        Schedule,
        SearchOptions,
        SearchOutcome,
        SearchSpace,
        Strategy,
    )
    from accy_async.tuning.search.workshop import Build

__all__ = ["Tuner"]

_OutcomeT = TypeVar("_OutcomeT", "MeasureOutcome", "SearchOutcome")


class Tuner:
    """Measures in a session, and keeps what it finds; from `Session.tuning`.

    Of the fragments that are tuned in the background it is an async iterator: each
    turn gives what became of one kernel, as soon as it is known.

    Attributes:
        cache: the winners that are known.
        store: where they are kept for other processes; None for nowhere.
        pace: how real work is let go first.
        is_exclusive: whether nothing else is to run meanwhile.
    """

    def __init__(
        self,
        session: SessionRecords,
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
        self._passed_over: dict[str, str] = {}
        self._background: BackgroundTuning | None = None

    # Fragments, in the background

    def __aiter__(self) -> TuningResults:
        """What becomes of each kernel from the first on, until all is done."""
        return TuningResults(self._background)

    @property
    def results(self) -> tuple[KernelTuning, ...]:
        """What became of the kernels of fragments so far."""
        return tuple(self._background.results) if self._background else ()

    @property
    def skipped(self) -> Mapping[str, str]:
        """Why fragments are not tuned, by their names; where nothing is to do, too."""
        failed = self._background.skipped if self._background else {}
        return {**self._passed_over, **failed}

    @property
    def progress(self) -> TuningProgress | None:
        """How far it has come; None where no fragment was given."""
        return self._background.progress if self._background else None

    @property
    def is_complete(self) -> bool:
        """True once every kernel of the fragments is tuned that can be."""
        return self._background is None or self._background.is_complete

    async def wait(self) -> None:
        """Return when the fragments are tuned, or the budget is spent.

        Raises:
            TuningStopped: a candidate took the device with it.
            DeviceError: a kernel failed where it is launched as usual.

        Cancellation: only the wait stops.
        """
        if self._background is not None:
            await self._background.wait()

    # Candidates and kernels, one by one

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
            self._session.backend,
            candidates,
            self._within_budget(options),
            kept=kept,
            pace=self.pace,
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
            self._within_budget(options),
            kept=kept,
            pace=self.pace,
        )
        if outcome.measured is not None:
            judged = self._judged(outcome.measured, beside)
            records = outcome.records if judged.is_storable else ()
            outcome = attrs.evolve(outcome, measured=judged, records=records)
        record = self.cache.record_candidates(kernel, outcome.records)
        if record is not None:
            await self._keep(record)
        return outcome

    async def _keep(self, record: LaunchTuningCacheRecord) -> None:
        """Have everybody know a record: the session, and other processes."""
        self.cache.import_records([record])
        self._session._learn([record])  # noqa: SLF001 - as above
        if self.store is not None:
            await self._session._keep_record(  # noqa: SLF001
                self.store, LAUNCH_KIND, record
            )

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

    async def tune_schedules(
        self,
        program: Program,
        *specs: object,
        compiler_options: FragmentCompilerOptions | None = None,
        options: MeasureOptions | None = None,
    ) -> ScheduleTuningOutcome:
        """Find a program's best schedules, and keep them for later compilations.

        Those of matrix products, scans and pipelines over rows, and ready-made kernels
        of products. Each choice is compiled on a worker thread. What is known already
        is not measured again. See `accy_async.fragment.scheduling.tune_schedules`.

        Raises:
            SessionClosed: the session is not open, or its block of tuning was left.
            TuningStopped: a candidate took the device with it; nothing was kept.
            As `Session.compile_fragment`; nothing was measured then.

        Cancellation: nothing was kept.
        """
        from accy_async.fragment.scheduling import tune_schedules

        self._check("tune_schedules")
        session = self._session
        beside = self.pace.samples_beside_work
        known = await session._choices_for(self.store)  # noqa: SLF001
        outcome = await tune_schedules(
            session.backend,
            program,
            *specs,
            compiler_options=compiler_options,
            options=self._within_budget(options),
            pace=self.pace,
            judge=lambda found: self._judged(found, beside),
            is_known=lambda key: key in known.get(schedule_kind(key.family), ()),
        )
        for result in outcome.results:
            if result.record is not None:
                await self._keep_choice(schedule_kind(result.family), result.record)
            if result.family_record is not None:
                await self._keep_choice("family_tuning", result.family_record)
        return outcome

    async def _keep_choice(self, kind: str, record: TuningRecord) -> None:
        self._session._learn_choices(kind, [record])  # noqa: SLF001
        if self.store is not None:
            await self._session._keep_record(self.store, kind, record)  # noqa: SLF001

    def _check(self, call: str) -> None:
        if self._is_over:
            raise SessionClosed(f"{call}: the block of session.tuning() was left")
        self._session._check(call)  # noqa: SLF001 - it measures for the session

    async def _begin(
        self,
        fragments: Sequence[LoadedFragment],
        inputs: Sequence[object] | None,
        options: MeasureOptions,
    ) -> None:
        """Tune fragments from now on, in a task of the session's."""
        session = self._session
        beside = self.pace.samples_beside_work

        def judge(found: MeasureOutcome) -> MeasureOutcome:
            nonlocal beside
            judged = self._judged(found, beside)
            beside = self.pace.samples_beside_work
            return judged

        self._background = BackgroundTuning(
            fragments,
            inputs,
            pace=self.pace,
            kept=session._kept_rounds,  # noqa: SLF001 - it measures for the session
            options=self._within_budget(options),
            judge=judge,
            keep=self._keep,
            observer=session.observer,
        )
        assert session._group is not None  # noqa: SLF001
        session._group.start_soon(self._background.run)  # noqa: SLF001
        await self._background.wait_listening()

    async def _end(self, errors: list[Exception]) -> BaseException | None:
        """Stop.

        Args:
            errors: gets what went wrong in the background, where nobody was told.

        Returns:
            A cancellation that came meanwhile, for the caller to raise.
        """
        self._is_over = True
        if self._background is None:
            return None
        cancelled = await self._background.stop()
        undelivered = self._background.take_error()
        if undelivered is not None:
            errors.append(undelivered)
        return cancelled

    def _within_budget(self, options: MeasureOptions | None) -> MeasureOptions:
        """Options whose samples of short kernels are as long as they may be."""
        options = options or MeasureOptions()
        if options.least_sample_ns is not None:
            return options
        resolution_ns = self._session.capabilities.timing_resolution_ns
        least_ns = usual_sample_ns(resolution_ns, is_shared=not self.is_exclusive)
        delay_s = self.pace.budget.most_delay_s
        if delay_s is not None:
            # Half of it: how many launches fill a sample is an estimate.
            least_ns = min(least_ns, delay_s * 0.5e9)
        return attrs.evolve(options, least_sample_ns=least_ns)

    def _judged(self, found: _OutcomeT, beside: int) -> _OutcomeT:
        disturbed = self.pace.samples_beside_work - beside
        if not self.is_exclusive or not disturbed:
            return found
        why = f"not alone: {disturbed} samples were taken beside other work"
        return attrs.evolve(found, is_storable=False, why_not=found.why_not or why)
