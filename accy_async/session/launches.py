"""Launching pipelines, and running graphs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from accy_async.graph.options import LaunchOptions
from accy_async.observe.protocol import phase
from accy_async.pipeline.launch import launch_pipeline
from accy_async.pipeline.pool import PipelineArtifactPool, load_pipeline_artifacts
from accy_async.pipeline.request import PipelineLaunch
from accy_async.pipeline.resolved import check_chain

if TYPE_CHECKING:
    from accy_async.artifact.entry import KernelCallRegistry
    from accy_async.artifact.formats import ArtifactFormat
    from accy_async.graph.bindings import Binding
    from accy_async.graph.outcome import RunStatistics
    from accy_async.graph.plan import LaunchGraphPlan
    from accy_async.graph.prepared import PreparedGraph
    from accy_async.graph.replaying import PreparedPlan
    from accy_async.graph.run import Run
    from accy_async.observe.protocol import Observer
    from accy_async.pipeline.model import KernelCallPipeline

from accy_async.session.core import InFlight, SessionCore, harmless

__all__ = ["SessionLaunches"]


_PLAIN = LaunchOptions()


class SessionLaunches(SessionCore):
    """The pipelines and graphs of a session."""

    async def load_pipeline(
        self,
        pipeline: KernelCallPipeline,
        registry: KernelCallRegistry,
        format: ArtifactFormat | str | None = None,
    ) -> PipelineArtifactPool:
        """Load a pipeline's kernels; see `load_pipeline_artifacts`.

        The format is the device's own if left out. The pool can be closed early;
        the session destroys its kernels at the latest.

        Raises:
            InvalidType: the pipeline or the registry is none.
            SessionClosed: the session is not open.
        """
        self._check("load_pipeline")
        check_chain(pipeline, registry)
        with phase(self.observer, "load", pipeline.target):
            return await load_pipeline_artifacts(
                self.backend, pipeline, registry, format or self.backend.default_format
            )

    async def launch_pipeline(self, request: PipelineLaunch) -> None:
        """Run a pipeline once; see `accy_async.pipeline.launch_pipeline`.

        Awaits, before anything else, that fewer than ``max_in_flight`` launches
        are in flight.

        Raises:
            SessionClosed: the session is not open.
            WrongEventLoop: the session is another loop's.

        Cancellation: while waiting for a place, nothing has happened.
        """
        self._check_here("launch_pipeline")
        await self._wait_for_place()
        self._launch_count += 1
        in_flight = InFlight()
        self._in_flight.append(in_flight)
        try:
            await launch_pipeline(self.backend, request, grace_s=self.grace_s)
        except BaseException:
            in_flight.finish(None)
            raise
        is_awaited = request.artifacts is None or request.intermediates is None
        in_flight.finish(None if is_awaited else self.backend.mark(request.stream))

    def start(
        self,
        plan: LaunchGraphPlan,
        bindings: Mapping[str, Binding] | None = None,
        options: LaunchOptions | None = None,
        *,
        observer: Observer | None = None,
    ) -> Run:
        """Start a run of a plan. Sync: it is checked now, and submitted in a task.

        Args:
            plan: what to run.
            bindings: an array or buffer for each slot that is not scratch, a
                numpy array for each host slot, an event for each external one.
            options: how this run differs from the plain one.
            observer: told of every node; the session's own if left out.

        Raises:
            LaunchArgumentMismatch: bindings or options do not fit the plan, or a slot
                or node of it names another device than the session's.
            InvalidType: a binding cannot be one.
            SessionClosed: the session is not open.
            WrongEventLoop: the session is another loop's.
        """
        return self._runs.start(
            self._check_here("start"),
            plan,
            bindings,
            _PLAIN if options is None else options,
            self.observer if observer is None else harmless(observer),
        )

    async def prepare(
        self,
        plan: LaunchGraphPlan,
        bindings: Mapping[str, Binding] | None = None,
        options: LaunchOptions | None = None,
    ) -> PreparedPlan:
        """Make a plan ready to be run again and again, with these bindings.

        Loads its kernels, allocates its scratch and, where it can be lowered, makes
        it one graph of the device: ``await prepared.run()`` is then little more than
        a launch and a wait. Of a plan with calls on the host it makes a graph for each
        part between them. Nobody observes such runs, and single nodes cannot be awaited
        in them.

        Args:
            plan: what to run.
            bindings: as for `start`.
            options: scalars, candidates and ``lowering``; no stream, no events.

        Raises:
            LaunchArgumentMismatch, InvalidType: as for `start`.
            GraphError: it must be lowered (``lowering="always"``) and cannot be.
            OutOfMemory, RuntimeUnavailable: no room, or a kernel could not be loaded.
            SessionClosed, WrongEventLoop: as for `start`.

        Cancellation: nothing is left of it but loaded kernels.
        """
        self._check_here("prepare")

        async def run_plainly(
            bindings: Mapping[str, Binding],
            options: LaunchOptions,
            prepared: PreparedGraph | None,
        ) -> RunStatistics:
            if prepared is None:
                return await self.run(plan, bindings, options)
            group = self._check_here("run")
            run = self._runs.start(group, plan, bindings, options, prepared=prepared)
            return await run.wait_tied()

        return await self._runs.prepare(
            plan,
            bindings,
            _PLAIN if options is None else options,
            run_plainly,
        )

    async def run(
        self,
        plan: LaunchGraphPlan,
        bindings: Mapping[str, Binding] | None = None,
        options: LaunchOptions | None = None,
        *,
        observer: Observer | None = None,
    ) -> RunStatistics:
        """Run a plan, and return when all of it is done.

        `start` and ``await``, tied together: so that `anyio.fail_after` and
        `anyio.move_on_after` around it stop the run itself.

        Raises:
            ExceptionGroup: everything that failed in the run.
            LaunchArgumentMismatch, InvalidType, SessionClosed, WrongEventLoop: as for
                `start`.

        Cancellation: cancels the run, and returns once it is over: within the
            grace, or with a `GraceExpired` in an ExceptionGroup.
        """
        options = _PLAIN if options is None else options
        if observer is None and self.observer is None:
            self._check_here("run")
            again = self._runs.repeater.repeat(
                plan, {} if bindings is None else bindings, options
            )
            if again is not None:
                return await again
        run = self.start(plan, bindings, options, observer=observer)
        return await run.wait_tied()
