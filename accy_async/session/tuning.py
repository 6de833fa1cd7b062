"""Tuning in a session: beside its real work, or alone."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, TypeVar

import attrs

from accy_async.backends.cleanup import raise_together
from accy_async.backends.completion import run_abandonable
from accy_async.errors import InvalidType, InvalidValue, SessionClosed
from accy_async.session.background import (
    BackgroundTuning,
    TuningProgress,
    TuningResults,
)
from accy_async.session.core import SessionCore
from accy_async.session.records import (
    LAUNCH_KIND,
    SessionRecords,
    chosen_store,
)
from accy_async.tuning.launches import LaunchTuningCache, tune_launch
from accy_async.tuning.measuring import MeasureOptions, measure
from accy_async.tuning.pacing import SharedPace, TuningBudget
from accy_async.tuning.store import TuningStore

if TYPE_CHECKING:
    from accy_async.artifact.planned import PlannedKernel
    from accy_async.backends.handles import BufferBinding, LoadedArtifact
    from accy_async.dtypes import ScalarArgument
    from accy_async.fragment import FragmentFunction, LoadedFragment
    from accy_async.fragment.tuning import KernelTuning
    from accy_async.tuning.launches import (
        LaunchTuningCacheRecord,
        LaunchTuningOutcome,
    )
    from accy_async.tuning.measuring import Candidate, KeptRounds, MeasureOutcome
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
        """Why fragments could not be tuned, by their names."""
        return dict(self._background.skipped) if self._background else {}

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
        if record is not None:
            await self._keep(record)
        return outcome

    async def _keep(self, record: LaunchTuningCacheRecord) -> None:
        """Have everybody know a record: the session, and other processes."""
        self.cache.import_records([record])
        self._session._learn([record])  # noqa: SLF001 - as above
        store = self.store
        if store is not None:
            await run_abandonable(
                lambda: store.keep(LAUNCH_KIND, [record]),
                lambda _: None,
                name="keep tuning records",
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
            options=options,
            judge=judge,
            keep=self._keep,
            observer=session.observer,
        )
        assert session._group is not None  # noqa: SLF001
        session._group.start_soon(self._background.run)  # noqa: SLF001
        await self._background.wait_listening()

    async def _end(self) -> Exception | None:
        """Stop; returns what went wrong in the background, where nobody was told."""
        self._is_over = True
        if self._background is None:
            return None
        await self._background.stop()
        return self._background.take_error()

    def _judged(self, found: _OutcomeT, beside: int) -> _OutcomeT:
        disturbed = self.pace.samples_beside_work - beside
        if not self.is_exclusive or not disturbed:
            return found
        why = f"not alone: {disturbed} samples were taken beside other work"
        return attrs.evolve(found, is_storable=False, why_not=found.why_not or why)


class SessionTuning(SessionRecords):
    """The tuning of a session.

    Attributes:
        works_beside: whether the device has work that this session does not know of,
            for a seat of a session over several devices; None for others.
    """

    works_beside: Callable[[], bool] | None = None

    @asynccontextmanager
    async def tuning(
        self,
        *fragments: LoadedFragment | FragmentFunction,
        budget: TuningBudget | None = None,
        exclusive: bool = False,
        store: bool | TuningStore | None = True,
        inputs: Sequence[object] | None = None,
        options: MeasureOptions | None = None,
    ) -> AsyncIterator[Tuner]:
        """Tune beside the session's work, or alone.

        ::

            async with session.tuning(fragment, budget=TuningBudget(share=0.05)):
                await serve(fragment)

        Fragments are tuned in the background, kernel by kernel. A winner is used by
        every invocation that begins after it was found; those in flight keep what
        they began with. It is also kept for later loads, in this process and others
        on such a device. Each fragment is measured with the arguments of the first
        call in the block, which are copied once. When the block is left, tuning ends
        at its sample; what was measured of that kernel is gone on from in the
        session's next block.

        Samples run on a stream of the least urgent priority, while nothing else of
        the session is in flight, as the budget says. Awaits, first, a thread that
        reads the store.

        Args:
            fragments: loaded in this session; of a function, what is loaded now.
            budget: what samples may take.
            exclusive: for benchmarks: wait for the device to be idle first, then take
                sample after sample; what ran beside other work of the session is
                found out, and not to be stored.
            store: where records are read from and kept: True for the user's own (see
                `accy_async.tuning.default_tuning_store`), None or False for nowhere.
            inputs: what to measure the one fragment given with, as
                `LoadedFragment.prepare_invocation_bindings` takes it, instead of a
                call's arguments.
            options: how the fragments' candidates are measured.

        Raises:
            SessionClosed: the session is not open.
            InvalidType, InvalidValue: an argument is none; nothing was begun.
            TuningStopped, DeviceError: tuning ended so, and nobody was told before;
                where the block is left.

        Cancellation: an ordinary exit; no kernel is half tuned, and nothing is left.
        """
        self._check("tuning")
        background_of = _fragments_of(self, fragments, inputs)
        allowed = _budget(budget, exclusive=exclusive)
        known = chosen_store("tuning.store", store)
        cache = LaunchTuningCache(self.capabilities)
        if known is not None:
            cache.import_records(await self._read_store(known))
        pace = SharedPace(allowed, self._is_working)
        tuner = Tuner(self, cache, known, pace, is_exclusive=exclusive)
        for fragment in background_of:
            fragment.learn_launch_tuning(cache)
        if exclusive:
            await self.backend.wait_device()
        primary: BaseException | None = None
        try:
            if background_of:
                given = options or MeasureOptions()
                await tuner._begin(background_of, inputs, given)  # noqa: SLF001
            yield tuner
        except BaseException as error:  # noqa: BLE001 - raised below
            primary = error
        undelivered = await tuner._end()  # noqa: SLF001 - its life is this block
        raise_together("tuning", primary, [undelivered] if undelivered else [])

    def _is_working(self) -> bool:
        """Whether work of the session is in flight."""
        self._forget_completed()
        streams = self._fragment_streams
        return (
            bool(self._in_flight)
            or self._runs.in_flight > 0
            or (streams is not None and streams.in_use > 0)
            or (self.works_beside is not None and self.works_beside())
        )


def _budget(budget: TuningBudget | None, *, exclusive: bool) -> TuningBudget:
    if budget is not None and not isinstance(budget, TuningBudget):
        raise InvalidType("tuning.budget", budget, "a TuningBudget")
    given = budget or TuningBudget()
    return attrs.evolve(given, share=1.0, most_wait_s=0.0) if exclusive else given


def _fragments_of(
    session: SessionCore,
    given: Sequence[LoadedFragment | FragmentFunction],
    inputs: Sequence[object] | None,
) -> list[LoadedFragment]:
    """The loaded fragments of what `Session.tuning` was given."""
    if not given:
        if inputs is not None:
            raise InvalidValue("tuning.inputs", inputs, "a fragment to use them for")
        return []
    from accy_async.fragment import FragmentFunction, LoadedFragment

    found: list[LoadedFragment] = []
    for place, one in enumerate(given):
        name = f"tuning.fragments[{place}]"
        if isinstance(one, FragmentFunction):
            found += one.fragments
        elif isinstance(one, LoadedFragment):
            found.append(one)
        else:
            raise InvalidType(name, one, "a LoadedFragment or a FragmentFunction")
        for loaded in found:
            if loaded.backend is not session.backend:
                raise InvalidValue(name, one, "a fragment that this session loaded")
            if loaded.is_closed:
                raise SessionClosed(f"{name}: fragment {loaded.name!r} was closed")
    if inputs is not None and len(found) != 1:
        raise InvalidValue("tuning.fragments", len(found), "one, with inputs")
    return list(dict.fromkeys(found))
