"""Running a plan as it ran before: one launch and one wait, and no task.

`Session.run` gives nobody its run, so that nobody can look at single nodes while it
goes on. Where the plan is a device graph already, for these very bindings and options,
all that is left to do is to launch it and to wait; a record of nodes is made only where
something goes wrong, or where the device asks each node's guard. Then the run is told
and ended as any other is.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING

import anyio

from accy_async.backends.array import DeviceArray
from accy_async.backends.cleanup import raise_together
from accy_async.errors import DeviceError, LaunchArgumentMismatch
from accy_async.graph.bindings import check_array
from accy_async.graph.job import Job, title_of
from accy_async.graph.lowering.lowered import LoweredGraph
from accy_async.graph.nodes import HostSlot
from accy_async.graph.options import LaunchOptions, Lowering, OnError
from accy_async.graph.outcome import NodeState, RunStatistics
from accy_async.graph.progress import RunProgress
from accy_async.graph.run import Run

if TYPE_CHECKING:
    from accy_async.backends.base import Backend
    from accy_async.backends.handles import StreamHandle
    from accy_async.backends.streampool import StreamPool
    from accy_async.graph.bindings import Binding
    from accy_async.graph.governor import Governor
    from accy_async.graph.prepared import PreparedGraph
    from accy_async.graph.preparing import Preparer

__all__ = ["Repeated", "Repeater"]


class Repeated:
    """A run that is being repeated, as its session has to do with it.

    Attributes:
        scope: what its longer wait is in; None before, and where there is none.
    """

    __slots__ = ("_is_over", "_over", "is_cancelled", "scope")

    def __init__(self) -> None:
        self.scope: anyio.CancelScope | None = None
        self.is_cancelled = False
        self._over: anyio.Event | None = None
        self._is_over = False

    def cancel(self) -> None:
        """Give it up; it ends within the grace."""
        self.is_cancelled = True
        if self.scope is not None:
            self.scope.cancel()

    def open_scope(self) -> anyio.CancelScope:
        """What `cancel` ends from now on."""
        self.scope = scope = anyio.CancelScope()
        if self.is_cancelled:
            scope.cancel()
        return scope

    async def wait_over(self) -> None:
        """Return when it has ended, whatever became of it."""
        if self._over is None:
            self._over = anyio.Event()
        if not self._is_over:
            await self._over.wait()

    def end(self) -> None:
        """It has."""
        self._is_over = True
        if self._over is not None:
            self._over.set()


class Repeater:
    """Repeats runs on one device.

    Args:
        backend: the device.
        streams: what runs lease their streams from.
        governor: shares the room among runs.
        preparer: has the plans that ran.
        runs: those that are going on.
        finish: ends a run, and gives back what it has.
    """

    def __init__(
        self,
        backend: Backend,
        streams: StreamPool,
        governor: Governor,
        preparer: Preparer,
        runs: set[Run | Repeated],
        finish: Callable[[Job], Awaitable[None]],
    ) -> None:
        self._backend = backend
        self._streams = streams
        self._governor = governor
        self._preparer = preparer
        self._runs = runs
        self._finish = finish

    def repeat(
        self,
        plan: object,
        bindings: Mapping[str, Binding],
        options: LaunchOptions,
    ) -> Awaitable[RunStatistics] | None:
        """A run like one before it; None where there was none of the kind.

        What it gives is to be awaited at once. It returns and raises as `Session.run`.
        """
        prepared = self._take(plan, bindings, options)
        return None if prepared is None else self._run(prepared, bindings, options)

    def _take(
        self,
        plan: object,
        bindings: Mapping[str, Binding],
        options: LaunchOptions,
    ) -> PreparedGraph | None:
        """What it has to launch, in use from now on, if there is something."""
        if (
            type(bindings) is not dict
            or type(options) is not LaunchOptions
            or options.lowering is Lowering.NEVER
            or options.stream is not None
            or options.wait_events
            or options.signal_event is not None
            or not self._governor.may_submit_one()
        ):
            return None

        def fits(prepared: PreparedGraph) -> bool:
            return _fits(prepared, bindings, options)

        return self._preparer.take_ready(plan, fits)

    async def _run(
        self,
        prepared: PreparedGraph,
        bindings: Mapping[str, Binding],
        options: LaunchOptions,
    ) -> RunStatistics:
        """Launch it, and return when it is done."""
        lowered = prepared.lowered
        assert isinstance(lowered, LoweredGraph)
        going = Repeated()
        self._runs.add(going)
        self._governor.enter_one()
        attempt = _Attempt(self._backend, prepared, lowered, options)
        try:
            cancelled: BaseException | None = None
            try:
                stream = attempt.launch(self._streams)
                # Made while the device is at work.
                statistics = _statistics(len(prepared.plan.nodes))
                ended = await self._backend.ends_soon(stream)
                if not ended:
                    with going.open_scope():
                        ended = await attempt.wait(stream)
                if ended and not (lowered.limits and lowered.errors()):
                    attempt.stream = None
                    self._streams.give_back(stream)
                    prepared.is_in_use = False
                    return statistics
            except BaseException as error:  # noqa: BLE001 - raised below, or by the run
                if isinstance(error, Exception):
                    attempt.error = error
                else:
                    cancelled = error
            return await self._tell(attempt, bindings, going, cancelled)
        finally:
            self._governor.leave_one()
            self._runs.discard(going)
            going.end()

    async def _tell(
        self,
        attempt: _Attempt,
        bindings: Mapping[str, Binding],
        going: Repeated,
        cancelled: BaseException | None,
    ) -> RunStatistics:
        """End a run that did not go well as if it had been one from the beginning."""
        job = attempt.as_job(bindings, going.scope or anyio.CancelScope())
        run = job.run
        if cancelled is not None or going.is_cancelled:
            job.progress.stop()
            run.cancel()
        await self._finish(job)
        if cancelled is not None:
            if isinstance(cancelled, anyio.get_cancelled_exc_class()):
                raise_together(f"run {run.name!r}", cancelled, run.cleanup_errors())
            raise cancelled
        return await run.wait()


class _Attempt:
    """One run, as far as it came."""

    def __init__(
        self,
        backend: Backend,
        prepared: PreparedGraph,
        lowered: LoweredGraph,
        options: LaunchOptions,
    ) -> None:
        self._backend = backend
        self._prepared = prepared
        self._lowered = lowered
        self._options = options
        self.stream: StreamHandle | None = None
        self.position: int | None = None
        self.error: Exception | None = None
        self._progress: RunProgress | None = None

    def launch(self, streams: StreamPool) -> StreamHandle:
        """Submit it all; returns the stream that it leased."""
        self.stream = stream = streams.lease_or_share(0)
        if self._backend.asks_guards:
            self._progress = self._make_progress()
            self.position = self._lowered.launch(stream, self._progress.guard)
        else:
            self.position = self._lowered.launch_again(stream, is_awaited=True)
        return stream

    async def wait(self, stream: StreamHandle) -> bool:
        """Return when it has ended; True where all of it went well."""
        backend, position = self._backend, self.position
        assert position is not None
        line = backend.mark(stream).timeline
        if line.has_failed:
            await line.wait_reached(position)
        else:
            try:
                await backend.wait_stream(stream, position)
            except DeviceError:
                return False  # it is the nodes' own: whoever asks finds it there
        return not (
            (self._progress is not None and self._progress.errors)
            or (line.has_failed and line.error_at(position) is not None)
        )

    def as_job(self, bindings: Mapping[str, Binding], scope: anyio.CancelScope) -> Job:
        """The run that it would have been."""
        prepared, options = self._prepared, self._options
        progress = self._progress or self._make_progress()
        run = Run(options.name or title_of(prepared.plan), progress, lambda: None)
        job = Job(
            run,
            prepared.plan,
            dict(bindings),
            prepared.bound,
            options,
            progress,
            scope,
            None,
        )
        job.prepared = prepared
        if self.stream is not None:
            job.streams = job.leased = [self.stream]
            progress.use_streams([self._backend.mark(self.stream).timeline])
        if self.position is not None:
            progress.submitted_whole(0, self.position)
            progress.has_submitted_all = True
            if self._lowered.limits:
                progress.expect_verdicts(0, self.position, self._lowered.errors)
        if self.error is not None:
            run.failed_to_prepare(self.error)
            progress.abort(self.error)
        return job

    def _make_progress(self) -> RunProgress:
        prepared, options = self._prepared, self._options
        progress = RunProgress(
            prepared.plan, cancels_on_error=options.on_error is OnError.CANCEL
        )
        progress.unguarded = prepared.unguarded
        return progress


def _fits(
    prepared: PreparedGraph, bindings: Mapping[str, Binding], options: LaunchOptions
) -> bool:
    """True where a plan is a device graph for just these bindings and options.

    Arrays are looked at anew: they may have been freed, or changed in place.
    """
    lowered = prepared.lowered
    if (
        not isinstance(lowered, LoweredGraph)
        or not lowered.is_made
        or lowered.watched
        or prepared.awaited
        or prepared.events
        or prepared.places is not None
        or len(bindings) != len(prepared.bound)
    ):
        return False
    before = prepared.options
    if options is not before and (
        options.runtime_scalars != before.runtime_scalars
        or options.tuning != before.tuning
    ):
        return False
    for name, memory, slot in prepared.bound_slots:
        given = bindings.get(name)
        if type(given) is DeviceArray:
            if given.handle is not memory or given.dtype is not slot.dtype:
                return False
        elif given is not memory:
            return False
        elif type(slot) is HostSlot:
            try:
                check_array(name, prepared.plan, slot, given)
            except LaunchArgumentMismatch:
                return False
    return prepared.is_alive


def _statistics(nodes: int) -> RunStatistics:
    return RunStatistics(
        nodes={NodeState.FINISHED: nodes},
        submissions=1,
        in_flight=0,
        event_records=0,
        event_waits=0,
        streams=1,
        host_calls=0,
        yields=0,
        waits_for_room=0,
        submit_ns=0,
        is_lowered=True,
    )
