"""Measuring a planned kernel's launch candidates.

`measure_launch_candidates` is the plain way: so many launches of each candidate, one
at a time, on the caller's own buffers and stream. `tune_launch` is the thorough one:
private buffers, checked results, rounds until it is known which is best.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import attrs
import numpy as np

from accy_async.artifact.planned import PlannedKernel
from accy_async.backends.cleanup import Cleanup, overtake, raise_together
from accy_async.backends.launch import LaunchRequest
from accy_async.errors import InvalidType
from accy_async.tuning.choice import LaunchCandidateMeasurement
from accy_async.tuning.launches.cache import is_tunable
from accy_async.tuning.launches.candidates import (
    LaunchCandidateBenchmarkOptions,
    LaunchCandidateRecord,
    LaunchCandidateSynchronization,
    launch_candidate_record,
)
from accy_async.tuning.measuring import (
    Candidate,
    CandidateStatus,
    KeptRounds,
    MeasureOptions,
    MeasureOutcome,
    Pace,
    measure,
)

if TYPE_CHECKING:
    from accy_async.backends.base import Backend
    from accy_async.backends.handles import (
        BufferBinding,
        BufferHandle,
        EventHandle,
        Handle,
        LoadedArtifact,
        StreamHandle,
    )
    from accy_async.backends.launch import PreparedLaunch
    from accy_async.dtypes import ScalarArgument

__all__ = [
    "LaunchTuningOutcome",
    "launch_candidates",
    "launch_requests",
    "measure_launch_candidates",
    "tune_launch",
    "winning_records",
]

_WHAT = "measuring launch candidates"


def launch_requests(
    kernel: PlannedKernel,
    loaded: LoadedArtifact,
    buffers: Sequence[BufferBinding],
    scalars: Sequence[ScalarArgument] = (),
    stream: StreamHandle | None = None,
) -> tuple[LaunchRequest, ...]:
    """A launch for each of a kernel's candidates, in their order.

    Args:
        kernel: the kernel.
        loaded: the same, as the device has it.
        buffers: its buffer arguments, the element count's among them.
        scalars: its scalar arguments.
        stream: where they run.
    """
    return tuple(
        LaunchRequest(
            artifact=kernel.artifact,
            loaded=loaded,
            geometry=candidate.geometry,
            buffers=tuple(buffers),
            scalars=tuple(scalars),
            stream=stream,
            diagnostic_id=f"{kernel.entry_name} candidate {index}",
        )
        for index, candidate in enumerate(kernel.launch_resources.candidates)
    )


async def measure_launch_candidates(
    backend: Backend,
    kernel: PlannedKernel,
    loaded: LoadedArtifact,
    buffers: Sequence[BufferBinding],
    scalars: Sequence[ScalarArgument] = (),
    options: LaunchCandidateBenchmarkOptions | None = None,
) -> tuple[LaunchCandidateMeasurement, ...]:
    """Launch every candidate ``warmup + samples`` times, and wait after each.

    Buffers that are only written are written. Those that are read and written have
    their contents again afterwards, and before each launch.

    Args:
        backend: the device.
        kernel: whose candidates.
        loaded: the kernel, as the device has it.
        buffers: its buffer arguments, the element count's among them.
        scalars: its scalar arguments.
        options: how often, on which stream, and what to wait for.

    Returns:
        The median of each candidate's samples, in the candidates' order; nothing
        where there is only one, or no work.

    Raises:
        LaunchArgumentMismatch, CapabilityMismatch: a candidate cannot be launched.
        DeviceError: one failed.

    Cancellation: what was launched is awaited for the grace at most, and read-write
        buffers are given their contents again.
    """
    how = options or LaunchCandidateBenchmarkOptions()
    if not is_tunable(kernel):
        return ()
    stream = how.base_options.stream
    run = _PlainRun(backend, stream, how)
    requests = launch_requests(kernel, loaded, buffers, scalars, stream)
    prepared = [backend.prepare_launch(request) for request in requests]
    samples: list[list[float]] = [[] for _ in prepared]
    primary: BaseException | None = None
    try:
        run.open(buffers)
        for turn in range(how.warmup + how.samples):
            for taken, launch in zip(samples, prepared, strict=True):
                elapsed_ns = await run.sample(launch)
                if turn >= how.warmup:
                    taken.append(elapsed_ns)
    except BaseException as error:  # noqa: BLE001 - raised by the cleanup
        primary = error
    await run.leave(primary)
    return tuple(
        LaunchCandidateMeasurement(
            kernel_id=kernel.kernel_id,
            candidate_index=index,
            median_ns=round(float(np.median(taken))),
            sample_count=len(taken),
        )
        for index, taken in enumerate(samples)
    )


@attrs.frozen(kw_only=True)
class LaunchTuningOutcome:
    """What tuning a kernel's launch came to.

    Attributes:
        measured: everything that was found; None where there was nothing to choose.
        records: the winner's; none where its time may not be kept.
    """

    measured: MeasureOutcome | None
    records: tuple[LaunchCandidateRecord, ...] = ()


async def tune_launch(
    backend: Backend,
    kernel: PlannedKernel,
    loaded: LoadedArtifact,
    buffers: Sequence[BufferBinding],
    scalars: Sequence[ScalarArgument] = (),
    options: MeasureOptions | None = None,
    *,
    kept: KeptRounds | None = None,
    pace: Pace | None = None,
) -> LaunchTuningOutcome:
    """Find a kernel's best launch candidate; see `accy_async.tuning.measure`.

    The records are for `LaunchTuningCache.record_candidates`. There is only the
    winner's, which is the baseline where candidates do not differ: nobody takes noise
    for a winner.

    Raises:
        InvalidType: ``kernel`` is no planned kernel.
        TuningStopped: a candidate took the device with it; nothing is to be kept.
        OutOfMemory: there is no room for private buffers.

    Cancellation: as `accy_async.tuning.open_measurement`; the caller's buffers were
        never written.
    """
    if not isinstance(kernel, PlannedKernel):
        raise InvalidType(
            "tune_launch.kernel",
            kernel,
            "a PlannedKernel, as fragment.planned_kernel(i) gives",
        )
    if not is_tunable(kernel):
        return LaunchTuningOutcome(measured=None)
    candidates = launch_candidates(kernel, loaded, buffers, scalars)
    found = await measure(backend, candidates, options, kept=kept, pace=pace)
    return LaunchTuningOutcome(measured=found, records=winning_records(kernel, found))


def launch_candidates(
    kernel: PlannedKernel,
    loaded: LoadedArtifact,
    buffers: Sequence[BufferBinding],
    scalars: Sequence[ScalarArgument] = (),
) -> list[Candidate]:
    """A kernel's launch candidates to measure, named by their numbers.

    Args:
        kernel: the kernel.
        loaded: the same, as the device has it.
        buffers: its buffer arguments, the element count's among them.
        scalars: its scalar arguments.
    """
    return [
        Candidate(name=str(index), request=request)
        for index, request in enumerate(
            launch_requests(kernel, loaded, buffers, scalars)
        )
    ]


def winning_records(
    kernel: PlannedKernel, found: MeasureOutcome
) -> tuple[LaunchCandidateRecord, ...]:
    """The winner of `launch_candidates`, for `LaunchTuningCache.record_candidates`.

    None where its time may not be kept. Where candidates do not differ the winner is
    the first: nobody takes noise for one.
    """
    if not found.is_storable or found.winner is None:
        return ()
    winner = found.candidate(found.winner)
    if winner.status is not CandidateStatus.MEASURED or winner.median_ns is None:
        return ()
    index = int(winner.name)
    return (
        launch_candidate_record(
            kernel,
            kernel.launch_resources.candidate(index),
            LaunchCandidateMeasurement(
                kernel_id=kernel.kernel_id,
                candidate_index=index,
                median_ns=round(winner.median_ns),
                sample_count=winner.sample_count,
            ),
        ),
    )


class _PlainRun:
    """One launch at a time on the caller's stream."""

    def __init__(
        self,
        backend: Backend,
        stream: StreamHandle | None,
        how: LaunchCandidateBenchmarkOptions,
    ) -> None:
        self._backend = backend
        self._stream = stream
        self._how = how
        self._events: tuple[EventHandle, EventHandle] | None = None
        self._saved: list[tuple[BufferHandle, BufferHandle]] = []

    def open(self, buffers: Sequence[BufferBinding]) -> None:
        """Open what is needed, and save what is read and written."""
        backend = self._backend
        for binding in buffers:
            original = binding.handle
            known = {one.id for one, _ in self._saved}
            if binding.access.value != "read_write" or original.id in known:
                continue
            copy = backend.allocate_buffer(original.byte_size)
            self._saved.append((original, copy))
            backend.copy_buffer(original, copy, stream=self._stream)
        if backend.capabilities.timing_resolution_ns > 0.0:
            begin = backend.create_event(timing=True)
            self._events = begin, begin  # owned from here on
            self._events = begin, backend.create_event(timing=True)

    async def sample(self, prepared: PreparedLaunch) -> float:
        """What one launch takes, in nanoseconds."""
        backend, stream = self._backend, self._stream
        self._restore()
        started = time.perf_counter_ns()
        if self._events is None:
            backend.submit_launch(prepared, stream)
            await self._synchronize()
            return float(time.perf_counter_ns() - started)
        begin, end = self._events
        backend.record_event(begin, stream)
        backend.submit_launch(prepared, stream)
        backend.record_event(end, stream)
        await self._synchronize()
        return backend.elapsed_ns(begin, end)

    async def leave(self, primary: BaseException | None) -> None:
        """Restore, wait where that is needed, and destroy what was opened."""
        is_well = self._backend.is_healthy
        if is_well:
            try:
                self._restore()
            except Exception as error:  # noqa: BLE001 - raised by the cleanup
                primary = _together(primary, error)
            except BaseException as interrupt:  # noqa: BLE001 - likewise
                primary = overtake(primary, interrupt, [])
        handles: list[Handle] = [*(self._events or ())]
        handles += [copy for _, copy in reversed(self._saved)]
        has_work = is_well and not self._backend.is_stream_idle(self._stream)
        await Cleanup(self._backend, _WHAT, None).leave(
            primary,
            wait=self._wait_stream if has_work else None,
            handles=handles,
        )

    def _restore(self) -> None:
        for original, copy in self._saved:
            if original.byte_size:
                self._backend.copy_buffer(copy, original, stream=self._stream)

    async def _synchronize(self) -> None:
        if self._how.synchronize is LaunchCandidateSynchronization.DEVICE:
            await self._backend.wait_device()
        else:
            await self._wait_stream()

    async def _wait_stream(self) -> None:
        if self._stream is None:
            await self._backend.wait_default_stream()
        else:
            await self._backend.wait_stream(self._stream)


def _together(primary: BaseException | None, error: Exception) -> BaseException:
    """What is to be raised where putting contents back failed as well."""
    try:
        raise_together(_WHAT, primary, [error])
    except BaseException as both:  # noqa: BLE001 - raised by the cleanup
        return both
    raise AssertionError("there is an error to raise")
