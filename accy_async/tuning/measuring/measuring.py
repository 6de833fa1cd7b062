"""Measuring candidates: checked first, then in rounds, each sample awaited.

A `Measuring`, from `open_measurement`, is an async iterator: each turn checks one
candidate, warms one up, or runs one round, and tells how far it has come. It holds no
task and no scope between turns, so it may be left at any sample, and go on later from
`Measuring.kept`.

* **Checked.** Each candidate runs once on poisoned private buffers. What it leaves is
  compared with the reference, if there is one, and with what the baseline left. The
  baseline is the first candidate that passes.
* **Rejected** is what fails, takes too long, or is wrong; with its reason, for good.
  After a failure or a time-out the others go on on a new stream with new buffers.
* **Stopped** is all of it where a candidate takes the device with it: `TuningStopped`
  names it, and who was not tried.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

import attrs

from accy_async.backends.cleanup import Cleanup, destroy_all
from accy_async.backends.completion import run_abandonable
from accy_async.errors import (
    AccyError,
    DeviceError,
    DeviceLost,
    OutOfMemory,
    SessionClosed,
    TuningStopped,
)
from accy_async.tuning.measuring.candidate import (
    CacheState,
    Candidate,
    CandidateStatus,
    KeptRounds,
    MeasureOptions,
    MeasureOutcome,
    MeasureProgress,
)
from accy_async.tuning.measuring.reporting import outcome_of
from accy_async.tuning.measuring.sampling import Sampler, SampleTimeout
from accy_async.tuning.measuring.workspace import Workspace, first_wrong
from accy_async.tuning.race import Race

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from accy_async.backends.base import Backend
    from accy_async.backends.handles import Handle, StreamHandle
    from accy_async.backends.launch import PreparedLaunch

__all__ = ["Measuring", "Pace"]

Pace = Callable[[float], Awaitable[None]]
"""Awaited before each sample, with what the sample before took in nanoseconds."""

_COMPARED_ON_THE_LOOP = 1 << 20


@attrs.define
class _Entry:
    """A candidate, and what is known of it."""

    candidate: Candidate
    status: CandidateStatus = CandidateStatus.NOT_TRIED
    reason: str = "not reached"
    prepared: PreparedLaunch | None = None


class Measuring:
    """A measurement that is going on; from `open_measurement`."""

    def __init__(
        self,
        backend: Backend,
        candidates: Sequence[Candidate],
        options: MeasureOptions,
        kept: KeptRounds | None,
        pace: Pace | None,
    ) -> None:
        self._backend = backend
        self._options = options
        self._entries = [_Entry(one) for one in candidates]
        self._workspace = Workspace(backend, candidates)
        self._kept = kept
        self._sampler = Sampler(
            backend, self._workspace, options, 0 if kept is None else kept.launches
        )
        self._pace = pace
        self._last_ns = 0.0
        self._to_check = list(range(len(candidates)))
        self._to_warm: list[int] = []
        self._expected: dict[int, NDArray[np.uint8]] | None = None
        self._baseline: int | None = None
        self._race: Race | None = None
        self._racers: list[int] = []
        self._hung: dict[str, StreamHandle] = {}
        self._is_stopped = False
        self._has_work = all(one.request.geometry.block_count > 0 for one in candidates)
        if not self._has_work:
            self._to_check = []
            for entry in self._entries:
                entry.reason = "there is no work"

    def __aiter__(self) -> Measuring:
        return self

    async def __anext__(self) -> MeasureProgress:
        """Take the next step.

        Raises:
            StopAsyncIteration: all is done.
            TuningStopped: a candidate took the device with it.
            SessionClosed: the session was left.

        Cancellation: the step is lost, all before it is kept; the next turn does it
            again.
        """
        if self.is_over:
            raise StopAsyncIteration
        if self._to_check:
            await self._check(self._to_check[0])
            self._to_check.pop(0)
            if not self._to_check:
                self._line_up()
            return self._progress("check")
        if self._to_warm:
            await self._warm_up(self._to_warm[0])
            self._to_warm.pop(0)
            return self._progress("warm up")
        await self._round()
        return self._progress("round")

    @property
    def is_over(self) -> bool:
        """True where nothing more is to be done."""
        if self._is_stopped or not self._has_work:
            return True
        return not self._to_check and (self._race is None or self._race.is_over)

    @property
    def kept(self) -> KeptRounds:
        """What was measured so far, to go on from in another measurement."""
        rounds = () if self._race is None else self._race.rounds
        names = [self._entries[index].candidate.name for index in self._racers]
        return KeptRounds(
            rounds=tuple(
                {names[number]: value for number, value in row.items()}
                for row in rounds
            ),
            launches=max(1, self._sampler.launches),
            source=self._sampler.source,
        )

    def outcome(self) -> MeasureOutcome:
        """What is known now; final when `is_over`."""
        return outcome_of(
            [(e.candidate.name, e.status, e.reason) for e in self._entries],
            baseline=self._baseline,
            race=self._race,
            racers=self._racers,
            kept=self.kept,
            is_over=self.is_over and not self._is_stopped and self._has_work,
            doubts=self._doubts(),
        )

    # Opening and leaving

    def open(self) -> None:
        """Open the stream and the buffers."""
        if not self._has_work:
            return
        is_cold = self._options.cache is CacheState.COLD
        self._workspace.open(self._options.flush_bytes if is_cold else 0)
        self._sampler.open()

    async def leave(self, primary: BaseException | None) -> None:
        """Wait for the stream, for the grace, and destroy everything."""
        handles: list[Handle] = [*self._sampler.handles, *self._workspace.handles]
        stream = self._sampler.open_stream
        wait = None
        if (
            stream is not None
            and self._backend.is_healthy
            and not self._is_idle(stream)
        ):
            wait = partial(self._backend.wait_stream, stream)
        await Cleanup(self._backend, "measuring", None).leave(
            primary, wait=wait, handles=handles
        )

    # Steps

    async def _check(self, index: int) -> None:
        entry = self._entries[index]
        with self._blaming(index) as blame:
            entry.prepared = self._prepare(entry)
            stream = self._sampler.stream
            self._workspace.prepare_check(stream)
            self._backend.submit_launch(entry.prepared, stream)
            results = self._workspace.read_results(stream)
            await self._sampler.settle()
            wrong = await self._compare(results)
            if wrong:
                self._reject(index, CandidateStatus.WRONG_RESULT, wrong)
                return
            entry.status, entry.reason = CandidateStatus.MEASURED, ""
            if self._baseline is None:
                self._baseline, self._expected = index, results
        if blame.is_hung:
            self._give_up_where_held()

    async def _compare(self, results: dict[int, NDArray[np.uint8]]) -> str:
        size = sum(array.nbytes for array in results.values())
        if size <= _COMPARED_ON_THE_LOOP:
            return self._difference(results)
        return await run_abandonable(
            lambda: self._difference(results), lambda _: None, name="compare results"
        )

    def _difference(self, results: dict[int, NDArray[np.uint8]]) -> str:
        import numpy as np

        check = self._options.check
        if check is None:
            return ""
        for place, got in results.items():
            dtype = check.dtypes[place] if place < len(check.dtypes) else None
            against = []
            if place in check.reference:
                right = np.frombuffer(check.reference[place], np.uint8)
                against.append(("the reference", right))
            if self._expected is not None:
                against.append(("the baseline", self._expected[place]))
            for whose, expected in against:
                index = first_wrong(got, expected, dtype, check)
                if index is not None:
                    what = "byte" if dtype is None else "element"
                    where = f"first in {what} {index}"
                    return f"buffer {place} differs from {whose}'s, {where}"
        return ""

    def _line_up(self) -> None:
        """Everyone was checked: begin the race of those that passed."""
        fit = [
            index
            for index, entry in enumerate(self._entries)
            if entry.status is CandidateStatus.MEASURED
        ]
        if self._baseline is None or not fit:
            return
        self._racers = fit
        self._race = Race(
            len(fit),
            self._options.rules,
            baseline=fit.index(self._baseline),
            rounds=self._rounds_to_go_on_from(),
        )
        if not self._race.is_over:
            self._to_warm = list(fit)

    def _rounds_to_go_on_from(self) -> list[dict[int, float]]:
        kept, sampler = self._kept, self._sampler
        assert self._baseline is not None
        base = self._entries[self._baseline].candidate.name
        if kept is None or kept.source is not sampler.source:
            return []
        numbers = {
            self._entries[index].candidate.name: number
            for number, index in enumerate(self._racers)
        }
        return [
            {numbers[name]: ns for name, ns in row.items() if name in numbers}
            for row in kept.rounds
            if base in row
        ]

    async def _warm_up(self, index: int) -> None:
        prepared = self._entries[index].prepared
        assert prepared is not None
        assert self._baseline is not None
        with self._blaming(index):
            if not self._sampler.launches:
                await self._choose_launches()
            for _ in range(self._options.warmup):
                await self._sample(prepared)

    async def _choose_launches(self) -> None:
        """From the baseline, so that all samples are of equally many launches."""
        assert self._baseline is not None
        prepared = self._entries[self._baseline].prepared
        assert prepared is not None
        self._sampler.launches = 1
        await self._sample(prepared)
        taken = min([await self._sample(prepared) for _ in range(2)])
        self._sampler.choose_launches(taken)

    async def _round(self) -> None:
        race = self._race
        assert race is not None
        samples: dict[int, float] = {}
        for number in race.next_order():
            index = self._racers[number]
            prepared = self._entries[index].prepared
            assert prepared is not None
            taken = 0.0
            with self._blaming(index):
                taken = await self._sample(prepared)
                if not taken > 0.0:
                    self._use_a_finer_measure()
                    return
            if self._race is not race:  # the baseline went
                return
            if self._entries[index].status is CandidateStatus.MEASURED:
                samples[number] = taken
        if not race.is_over:
            race.tell(samples)

    async def _sample(self, prepared: PreparedLaunch) -> float:
        if self._pace is not None:
            await self._pace(self._last_ns)
        taken = await self._sampler.take(prepared)
        self._last_ns = taken * max(1, self._sampler.launches)
        return taken

    def _use_a_finer_measure(self) -> None:
        """The clock showed nothing: take more launches, and then another clock."""
        self._sampler.make_coarser()
        self._begin_again()

    def _begin_again(self) -> None:
        """Samples so far are of another measure, or against another baseline."""
        assert self._baseline is not None
        self._kept = None
        self._racers = [
            index
            for index in self._racers
            if self._entries[index].status is CandidateStatus.MEASURED
        ]
        self._race = Race(
            len(self._racers),
            self._options.rules,
            baseline=self._racers.index(self._baseline),
        )

    # What goes wrong

    @contextmanager
    def _blaming(self, index: int) -> Iterator[_Blame]:
        """Turn what goes wrong with a candidate into its rejection."""
        blame = _Blame()
        entry = self._entries[index]
        try:
            yield blame
        except SampleTimeout as error:
            self._hung[entry.candidate.name] = self._sampler.stream
            blame.is_hung = True
            self._reject(index, CandidateStatus.TIMED_OUT, str(error))
            self._renew()
        except DeviceLost as error:
            raise self._stop(index, error) from error
        except (OutOfMemory, SessionClosed):
            raise
        except DeviceError as error:
            self._reject(index, CandidateStatus.FAILED, str(error))
            self._renew()
        except AccyError as error:
            self._reject(index, CandidateStatus.FAILED, str(error))

    def _reject(self, index: int, status: CandidateStatus, reason: str) -> None:
        entry = self._entries[index]
        entry.status, entry.reason, entry.prepared = status, reason, None
        if index in self._to_warm and self._to_warm[0] != index:
            self._to_warm.remove(index)
        if self._race is None or index not in self._racers:
            return
        if index != self._baseline:
            self._race.reject(self._racers.index(index))
            return
        others = [
            other
            for other in self._racers
            if self._entries[other].status is CandidateStatus.MEASURED
        ]
        self._baseline = others[0] if others else None
        if others:
            self._begin_again()
        else:
            self._race, self._racers = None, []

    def _renew(self) -> None:
        """Leave stream and buffers to what is on them, and take others."""
        errors: list[Exception] = []
        left = (*self._sampler.abandon(), *self._workspace.abandon())
        hung = set(self._hung.values())
        destroy_all(self._backend, [one for one in left if one not in hung], errors)
        if errors:
            raise ExceptionGroup("measuring: what failed could not be left", errors)
        self.open()
        for entry in self._entries:
            if entry.prepared is not None:
                entry.prepared = self._prepare(entry)

    def _prepare(self, entry: _Entry) -> PreparedLaunch:
        return self._backend.prepare_launch(
            self._workspace.bind(entry.candidate.request)
        )

    def _give_up_where_held(self) -> None:
        """Of two that never end, the second may wait for the first: try no more."""
        held = [
            name for name, stream in self._hung.items() if not self._is_idle(stream)
        ]
        if len(held) < 2:
            return
        for index in self._to_check[1:]:
            self._entries[index].reason = f"the device is held by {held[0]!r}"
        del self._to_check[1:]

    def _is_idle(self, stream: StreamHandle) -> bool:
        return not self._backend.is_alive(stream) or self._backend.is_stream_idle(
            stream
        )

    def _stop(self, index: int, error: DeviceLost) -> TuningStopped:
        name = self._entries[index].candidate.name
        self._is_stopped = True
        untried = [
            entry
            for entry in self._entries
            if entry.status is CandidateStatus.NOT_TRIED
            and entry is not self._entries[index]
        ]
        self._entries[index].status = CandidateStatus.FAILED
        self._entries[index].reason = str(error)
        for entry in untried:
            entry.reason = f"{name!r} took the device with it"
        return TuningStopped(
            f"candidate {name!r} took the device with it: {error.message}",
            candidate=name,
            not_tried=tuple(entry.candidate.name for entry in untried),
            code=error.code,
            call=error.call,
            node=error.node,
            kernel=error.kernel,
            stream=error.stream,
        )

    def _doubts(self) -> str:
        held = [name for name, one in self._hung.items() if not self._is_idle(one)]
        return f"measured beside {held[0]!r}, which never ended" if held else ""

    def close_hung(self) -> None:
        """Destroy the streams of those that never ended: the reaper has them then."""
        errors: list[Exception] = []
        destroy_all(self._backend, self._hung.values(), errors)

    def _progress(self, step: str) -> MeasureProgress:
        race = self._race
        return MeasureProgress(
            step=step,
            rounds=0 if race is None else race.round_count,
            contestants=tuple(
                self._entries[self._racers[number]].candidate.name
                for number in sorted(() if race is None else race.contestants)
            ),
            rejected=tuple(
                entry.candidate.name
                for entry in self._entries
                if entry.status
                not in (CandidateStatus.MEASURED, CandidateStatus.NOT_TRIED)
            ),
        )


@attrs.define
class _Blame:
    """Whether a candidate never ended."""

    is_hung: bool = False
