"""Starting runs, and ending each one whole: kernels, streams, events, scratch.

The executive belongs to a session and uses its task group, its stream pool and
its device. Every run is one task: it loads what is not loaded yet, leases
streams, submits, waits for the device, and gives everything back, whichever way
it ends.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import anyio
import anyio.lowlevel

from accy_async.backends.cleanup import destroy_all, raise_together
from accy_async.backends.handles import EventHandle
from accy_async.backends.loops import uninterrupted
from accy_async.backends.nativecancel import after_first_step
from accy_async.errors import GraceExpired, InvalidType
from accy_async.graph.bindings import Binding, Memory, adopt_bindings, check_bindings
from accy_async.graph.clock import DeviceClock
from accy_async.graph.governor import Governor
from accy_async.graph.job import Job, title_of
from accy_async.graph.leasing import lease_streams
from accy_async.graph.lowering.policy import FIRST_LOWERED_RUN, lower
from accy_async.graph.lowering.replay import watched_items
from accy_async.graph.options import (
    LaunchOptions,
    OnError,
    check_options,
    refuse_whereabouts,
)
from accy_async.graph.plan import LaunchGraphPlan
from accy_async.graph.prepared import PreparedGraph
from accy_async.graph.preparing import Preparer
from accy_async.graph.progress import RunProgress
from accy_async.graph.repeating import Repeated, Repeater
from accy_async.graph.replaying import PlainRun, PreparedPlan
from accy_async.graph.run import Run
from accy_async.graph.telling import Telling
from accy_async.graph.unobserved import UnobservedRuns
from accy_async.graph.ways import submit_job
from accy_async.graph.whereabouts import refuse_other_devices

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

    from accy_async.artifact.entry import KernelCallArtifact
    from accy_async.artifact.kernel import KernelArtifact
    from accy_async.backends.base import Backend
    from accy_async.backends.handles import LoadedArtifact, StreamHandle
    from accy_async.backends.streampool import StreamPool
    from accy_async.graph.whereabouts import Whereabouts
    from accy_async.observe.protocol import Observer

__all__ = ["GraphExecutive"]


@uninterrupted
class GraphExecutive:
    """Runs plans on one device.

    Args:
        backend: the device.
        streams: the pool that runs lease from.
        max_in_flight: operations that all runs may have in flight together.
        grace_s: how long a cancelled run may wait for the device, in seconds.

    Attributes:
        repeater: the short way for what ran before.
    """

    def __init__(
        self,
        backend: Backend,
        streams: StreamPool,
        max_in_flight: int,
        grace_s: float,
    ) -> None:
        self._backend = backend
        self._streams = streams
        self._grace_s = grace_s
        self._governor = Governor(max_in_flight)
        self._preparer = Preparer(backend)
        self._idle_events: list[EventHandle] = []
        # Takes the time for observers, on devices that ask no guards.
        self._clock: DeviceClock | None = None
        self._runs: set[Run | Repeated] = set()
        self.repeater = Repeater(
            backend,
            streams,
            self._governor,
            self._preparer,
            self._runs,
            self._finish,
        )
        self._plans: weakref.WeakSet[PreparedPlan] = weakref.WeakSet()
        self._unobserved = UnobservedRuns()

    def lend(
        self,
        entries: Sequence[KernelCallArtifact],
        kernels: Mapping[int, tuple[KernelArtifact, LoadedArtifact]],
    ) -> Callable[[list[Exception]], None]:
        """Have runs use kernels that somebody else has loaded; see `Preparer.lend`."""
        return self._preparer.lend(entries, kernels)

    @property
    def running(self) -> int:
        """Runs that are not done."""
        return len(self._runs)

    @property
    def in_flight(self) -> int:
        """Operations that all runs have in flight."""
        return self._governor.in_flight()

    def start(
        self,
        group: TaskGroup,
        plan: LaunchGraphPlan,
        bindings: Mapping[str, Binding] | None,
        options: LaunchOptions,
        observer: Observer | None = None,
        places: Whereabouts | None = None,
        prepared: PreparedGraph | None = None,
    ) -> Run:
        """Start a run in a task of the group. Sync; submits nothing yet.

        ``places`` says where everything is, for an executive of several devices. What
        is ``prepared`` is the plan as it was made ready for just that; no other run
        may use it meanwhile.

        Raises:
            InvalidType: ``plan`` is no plan, or a binding cannot be one.
            LaunchArgumentMismatch: bindings or options do not fit the plan, or it
                names another device.
        """
        if not isinstance(plan, LaunchGraphPlan):
            raise InvalidType("start.plan", plan, "a LaunchGraphPlan")
        if places is None:
            refuse_other_devices(plan, self._backend.device)
        bindings = adopt_bindings(
            self._backend, plan, {} if bindings is None else bindings
        )
        bound = check_bindings(self._backend, plan, bindings)
        check_options(self._backend, plan, options)
        progress = RunProgress(
            plan, cancels_on_error=options.on_error is OnError.CANCEL
        )
        scope = anyio.CancelScope()

        def cancel() -> None:
            progress.stop()
            scope.cancel()

        run = Run(options.name or title_of(plan), progress, cancel)
        self._runs.add(run)
        job = Job(
            run, plan, bindings, bound, options, progress, scope, observer, places
        )
        job.prepared = prepared
        group.start_soon(self._main, job)
        after_first_step(functools.partial(self._see_begun, job))
        return run

    async def prepare(
        self,
        plan: LaunchGraphPlan,
        bindings: Mapping[str, Binding] | None,
        options: LaunchOptions,
        run_plainly: PlainRun,
        places: Whereabouts | None = None,
    ) -> PreparedPlan:
        """Make a plan ready to be run again and again; see `Session.prepare`."""
        if not isinstance(plan, LaunchGraphPlan):
            raise InvalidType("prepare.plan", plan, "a LaunchGraphPlan")
        if places is None:
            refuse_other_devices(plan, self._backend.device)
        refuse_whereabouts(options)

        check = functools.partial(self.check, plan)
        given, bound = check({} if bindings is None else bindings, options)
        prepared = await self._preparer.make(plan, given, bound, options, places)
        try:
            prepared.runs = FIRST_LOWERED_RUN
            await lower(prepared, options, is_observed=False)
            if prepared.lowered is None:
                prepared.close()  # runs prepare it as they need it
            made = PreparedPlan(
                self._backend, prepared, check, given, run_plainly, self._grace_s
            )
            self._plans.add(made)
            return made
        except BaseException as error:
            errors: list[Exception] = []
            self._preparer.forget(prepared, errors)
            raise_together("preparing a plan", error, errors)
            raise

    def check(
        self,
        plan: LaunchGraphPlan,
        bindings: Mapping[str, Binding],
        options: LaunchOptions,
    ) -> tuple[Mapping[str, Binding], Mapping[str, Memory]]:
        """Bindings, what was foreign adopted, and the buffers and arrays behind them.

        Raises:
            LaunchArgumentMismatch, InvalidType: as for `start`.
        """
        adopted = adopt_bindings(self._backend, plan, bindings)
        bound = check_bindings(self._backend, plan, adopted)
        check_options(self._backend, plan, options)
        return adopted, bound

    def cancel_all(self) -> None:
        """Cancel every run that is going on, and refuse those of prepared plans."""
        for run in list(self._runs):
            run.cancel()
        for plan in list(self._plans):
            plan.end()

    async def wait_all(self) -> None:
        """Return when no run is going on any more."""
        while self._runs:
            await next(iter(self._runs)).wait_over()

    def unobserved_errors(self) -> list[Exception]:
        """What runs failed with that nobody awaited or cancelled; told once."""
        return self._unobserved.errors()

    # One run

    def _see_begun(self, job: Job) -> None:
        """End a run whose task was dropped before its first step: it was cancelled."""
        if not job.has_begun:
            job.progress.stop()
            job.progress.finish()
            self._runs.discard(job.run)

    async def _main(self, job: Job) -> None:
        job.has_begun = True
        try:
            with job.scope:
                forget = job.progress.has_failed.on_set(job.scope.cancel)
                try:
                    await self._run(job)
                except Exception as error:  # noqa: BLE001 - it is the run's outcome
                    job.run.failed_to_prepare(error)
                    job.progress.abort(error)
                finally:
                    forget()
        finally:
            await self._finish(job)

    async def _finish(self, job: Job) -> None:
        """End a run, whatever became of it, and give back what it has."""
        cleanup: list[Exception] = []
        self._governor.drain(job.progress)
        # Also on the way out of a cancellation from outside.
        job.progress.stop_unless_submitted()
        try:
            with anyio.CancelScope(shield=True):
                await self._give_back(job, cleanup)
        finally:
            self._governor.leave(job.progress)
            job.run.failed_to_clean_up(cleanup)
            job.progress.finish()
            self._runs.discard(job.run)
            if job.telling is not None:
                job.telling.close(*job.run.told_outcome())
            self._unobserved.keep(job.run)

    async def _run(self, job: Job) -> None:
        if job.prepared is None:
            job.prepared = await self._preparer.take(
                job.plan, job.bindings, job.bound, job.options, job.places
            )
        job.progress.unguarded = job.prepared.unguarded
        job.lowered = await lower(
            job.prepared, job.options, is_observed=job.observer is not None
        )
        await self._lease(job)
        backend, options = self._backend, job.options
        for event in options.wait_events:
            for lane, stream in enumerate(job.streams):
                job.progress.reached(lane, backend.stream_wait_event(stream, event))
        self._governor.enter(job.progress, options.weight)
        if job.observer is not None:
            if not backend.asks_guards and self._clock is None:
                self._clock = self._make_clock()
            job.telling = Telling(
                job.observer, job.run.name, job.prepared, job.progress, self._clock
            )
        memories = await submit_job(
            backend, self._governor, job, job.prepared, self._new_event
        )
        self._governor.drain(job.progress)
        if options.signal_event is not None:
            self._signal(job, options.signal_event)
        job.run.note_bindings(job.held(memories))
        job.progress.has_submitted_all = True
        if job.telling is not None:
            job.telling.all_submitted()
        await job.progress.wait_streams()

    async def _lease(self, job: Job) -> None:
        """Have the run's streams; see `leasing`."""
        await lease_streams(job, self._streams, self._backend)

    def _signal(self, job: Job, event: EventHandle) -> None:
        """Record the event on the first stream, behind all of the others."""
        backend, reached = self._backend, job.progress.reached
        first, *others = job.streams
        for lane, stream in enumerate(others, 1):
            joined = job.take_event(self._new_event)(stream)
            reached(lane, backend.record_event(joined, stream))
            backend.stream_wait_event(first, joined)
        reached(0, backend.record_event(event, first))

    async def _give_back(self, job: Job, errors: list[Exception]) -> None:
        backend = self._backend
        settled: Exception | None = None
        interrupt: BaseException | None = None
        if backend.is_answering and job.progress.in_flight():
            try:
                settled, interrupt = await backend.settle_whole(
                    job.progress.wait_streams, self._grace_s
                )
            except BaseException as error:  # noqa: BLE001 - raised below
                interrupt = error
        is_idle = not backend.is_answering or not job.progress.in_flight()
        # From here on to the end nobody else on this loop destroys anything.
        held_before = set(backend.reaper.held())
        for stream in reversed(job.leased):  # so that the next run has them in order
            try:
                self._streams.give_back(stream)
            except Exception as error:  # noqa: BLE001 - joined to the run's outcome
                errors.append(error)
        if settled is None and is_idle and backend.is_healthy:
            self._keep_events(job.events)
        else:
            destroy_all(backend, job.events, errors)
        if job.prepared is not None:
            job.prepared.is_in_use = False
            job.prepared.awaited |= watched_items(job.prepared, job.progress.awaited)
            if settled is not None or not is_idle:
                self._preparer.forget(job.prepared, errors)
        if settled is not None:
            held = [name for name in backend.reaper.held() if name not in held_before]
            errors.insert(0, GraceExpired(f"run {job.run.name!r}", self._grace_s, held))
            backend.reaper.give_up(held, self._grace_s)
        if interrupt is not None:
            raise interrupt

    def _make_clock(self) -> DeviceClock:
        return DeviceClock(self._backend)

    def _keep_events(self, events: list[EventHandle]) -> None:
        """Take events back that nothing waits for any more."""
        self._idle_events += events

    def _new_event(self, stream: StreamHandle) -> EventHandle:
        """An event to record on a stream."""
        del stream  # of this device, like all
        return (
            self._idle_events.pop()
            if self._idle_events
            else (self._backend.create_event())
        )
