"""What a measurement holds, and what becomes of it where something goes wrong."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

import attrs

from accy_async.backends.cleanup import Cleanup, destroy_all
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
)
from accy_async.tuning.measuring.sampling import Sampler, SampleTimeout
from accy_async.tuning.measuring.workspace import Workspace
from accy_async.tuning.race import Race

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from accy_async.backends.base import Backend
    from accy_async.backends.handles import Handle, StreamHandle
    from accy_async.backends.launch import PreparedLaunch

__all__ = ["Entry", "MeasuringCore", "Pace"]

Pace = Callable[[float], Awaitable[None]]
"""Awaited before each sample, with what the sample before took in nanoseconds; before
each check of a result with 0."""


@attrs.define
class Entry:
    """A candidate, and what is known of it."""

    candidate: Candidate
    status: CandidateStatus = CandidateStatus.NOT_TRIED
    reason: str = "not reached"
    prepared: PreparedLaunch | None = None


class MeasuringCore:
    """The state of a measurement: its candidates, its race, its objects."""

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
        self._entries = [Entry(one) for one in candidates]
        self._workspace = Workspace(backend, candidates)
        self._kept = kept
        self._sampler = Sampler(
            backend,
            self._workspace,
            options,
            0 if kept is None else kept.launches,
            is_shared=pace is not None,
        )
        self._pace = pace
        self._last_ns = 0.0
        self._last_sampled: int | None = None
        self._spent_ns = 0.0
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
            self._renew_after(index)
        except DeviceLost as error:
            raise self._stop(index, error) from error
        except (OutOfMemory, SessionClosed):
            raise
        except DeviceError as error:
            self._reject(index, CandidateStatus.FAILED, str(error))
            self._renew_after(index)
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

    def _renew_after(self, index: int) -> None:
        """`_renew`; who took too long may have taken the device with it."""
        try:
            self._renew()
        except DeviceLost as error:
            raise self._stop(index, error) from error

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

    def _prepare(self, entry: Entry) -> PreparedLaunch:
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


@attrs.define
class _Blame:
    """Whether a candidate never ended."""

    is_hung: bool = False
