"""A session over several devices: runs and launches that find their device."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import anyio
import anyio.lowlevel

from accy_async.errors import InvalidType, LaunchArgumentMismatch
from accy_async.graph.options import LaunchOptions, Lowering, refuse_whereabouts
from accy_async.graph.plan import LaunchGraphPlan
from accy_async.pipeline.request import check_request
from accy_async.pipeline.resolved import check_chain
from accy_async.session.core import harmless
from accy_async.session.multi.fragments import MultiFragments
from accy_async.session.multi.pools import PipelinePools
from accy_async.session.multi.preparing import prepare_spanning
from accy_async.session.multi.spanning import SpanningPlan
from accy_async.session.multi.tuning import MultiTuning
from accy_async.session.policy import PlacingPolicy, Work

if TYPE_CHECKING:
    from accy_async.artifact.entry import KernelCallRegistry
    from accy_async.artifact.formats import ArtifactFormat
    from accy_async.backends.handles import Handle
    from accy_async.graph.bindings import Binding
    from accy_async.graph.lowering.obstacle import Obstacle
    from accy_async.graph.outcome import RunStatistics
    from accy_async.graph.replaying import PreparedPlan
    from accy_async.graph.run import Run
    from accy_async.graph.whereabouts import Whereabouts
    from accy_async.observe.protocol import Observer
    from accy_async.pipeline.model import KernelCallPipeline
    from accy_async.pipeline.request import PipelineLaunch
    from accy_async.session.single import Session

__all__ = ["MultiSession"]


class MultiSession(MultiFragments, MultiTuning):
    """Several devices and what was made on them; `open_session` makes one.

    What `Session` offers is here too, and finds its device: by the arrays and streams
    that a call names, by ``device=``, or by the policy. `on` gives the seat on one
    device, which is a `Session` for that device alone.

    Attributes:
        grace_s: how long cleanup may wait for all of the devices together, in seconds.
        max_in_flight: for each device, and for each set of them that plans run on.
        observer: told of what happens, unless a call names another.
        policy: places what may go to any device.
    """

    def __init__(
        self,
        seats: Sequence[Session],
        *,
        policy: PlacingPolicy,
        grace_s: float,
        max_in_flight: int,
        observer: Observer | None = None,
    ) -> None:
        super().__init__(
            seats,
            policy=policy,
            grace_s=grace_s,
            max_in_flight=max_in_flight,
            observer=observer,
        )
        self._located = OrderedDict()

    def start(
        self,
        plan: LaunchGraphPlan,
        bindings: Mapping[str, Binding] | None = None,
        options: LaunchOptions | None = None,
        *,
        observer: Observer | None = None,
    ) -> Run:
        """Start a run of a plan where its data are; see `Session.start`.

        A plan on one device runs there as in that device's own session. One whose
        nodes are on several runs on all of them: each edge from one device to another
        is a wait of the one for the other.

        Raises:
            LaunchArgumentMismatch: also where parts are on devices that contradict each
                other; both are named.
            UnsupportedOperation: there is no way for a copy from a device to another.
            As `Session.start`.
        """
        group = self._check_here("start")
        if not isinstance(plan, LaunchGraphPlan):
            raise InvalidType("start.plan", plan, "a LaunchGraphPlan")
        given = self._adopt_bindings(plan, bindings)
        where = self._where(plan, given, options)
        if isinstance(where, int):
            self._ran[where][id(plan)] = plan
            return self._seats[where].start(plan, given, options, observer=observer)
        return self._crossing(where.used).start(
            group,
            plan,
            given,
            options or LaunchOptions(),
            self.observer if observer is None else harmless(observer),
            self._among(plan, where),
        )

    async def run(
        self,
        plan: LaunchGraphPlan,
        bindings: Mapping[str, Binding] | None = None,
        options: LaunchOptions | None = None,
        *,
        observer: Observer | None = None,
    ) -> RunStatistics:
        """Run a plan, and return when all of it is done; see `Session.run`.

        Raises:
            ExceptionGroup: everything that failed in the run.
            As `start`.

        Cancellation: cancels the run, and returns once it is over.
        """
        run = self.start(plan, bindings, options, observer=observer)
        return await run.wait_tied()

    async def prepare(
        self,
        plan: LaunchGraphPlan,
        bindings: Mapping[str, Binding] | None = None,
        options: LaunchOptions | None = None,
    ) -> PreparedPlan | SpanningPlan:
        """Make a plan ready to be run again and again; see `Session.prepare`.

        Of one on several devices, what is of one device becomes device graphs of that
        device, where it can be; the copies and the waits between the devices stay. Else
        its runs are those of `run`, and ``obstacles`` says why.

        Raises:
            GraphError: it must be lowered (``lowering="always"``) and cannot be; every
                obstacle is named.
            As `Session.prepare` and `start`.

        Cancellation: nothing is left of it but loaded kernels.
        """
        self._check("prepare")
        if not isinstance(plan, LaunchGraphPlan):
            raise InvalidType("prepare.plan", plan, "a LaunchGraphPlan")
        given = self._adopt_bindings(plan, bindings)
        where = self._where(plan, given, options)
        if isinstance(where, int):
            self._ran[where][id(plan)] = plan
            return await self._seats[where].prepare(plan, given, options)
        chosen = options or LaunchOptions()
        refuse_whereabouts(chosen)
        crossing, places = self._crossing(where.used), self._among(plan, where)
        obstacles: tuple[Obstacle, ...] = ()
        if chosen.lowering is not Lowering.NEVER:
            seats = [self._seats[number] for number in where.used]
            made = await prepare_spanning(
                plan, places, seats, crossing, given, chosen, self.grace_s
            )
            if isinstance(made, SpanningPlan):
                return made
            obstacles = made

        async def run_plainly(
            bindings: Mapping[str, Binding], options: LaunchOptions, _: object
        ) -> RunStatistics:
            return await self.run(plan, bindings, options)

        plain = await crossing.prepare(plan, given, chosen, run_plainly, places)
        plain.obstacles = obstacles
        return plain

    async def load_pipeline(
        self,
        pipeline: KernelCallPipeline,
        registry: KernelCallRegistry,
        format: ArtifactFormat | str | None = None,
    ) -> PipelinePools:
        """A pipeline's kernels for all devices, loaded on each when first launched.

        Args:
            pipeline: what `launch_pipeline` will launch.
            registry: its kernels.
            format: the format of the artifacts; each device's own if left out.

        Raises:
            SessionClosed: the session is not open.
        """
        self._check("load_pipeline")
        check_chain(pipeline, registry)
        await anyio.lowlevel.checkpoint()
        return PipelinePools(self.on, pipeline, registry, format)

    async def launch_pipeline(
        self, request: PipelineLaunch, pools: PipelinePools | None = None
    ) -> None:
        """Run a pipeline once where its data are; see `Session.launch_pipeline`.

        Args:
            request: what to launch, with what; on the device of its buffers, stream
                and pool, or where the policy says if it names none.
            pools: the kernels of all devices, in place of ``request.artifacts``.

        Raises:
            LaunchArgumentMismatch: its parts are on two devices, which are named; or
                both ``pools`` and ``request.artifacts`` are given.
            As `Session.launch_pipeline`.

        Cancellation: as there; while a pool is loaded, nothing has been launched.
        """
        self._check("launch_pipeline")
        check_request("launch_pipeline", request)
        if pools is not None and request.artifacts is not None:
            raise LaunchArgumentMismatch(
                "launch_pipeline: both pools and request.artifacts are given"
            )
        number = self._where_launched(request)
        if pools is not None:
            request = await pools.bound(request, number)
        self._ran[number][id(request.pipeline)] = request.pipeline
        await self._seats[number].launch_pipeline(request)

    # Within

    def _where(
        self,
        plan: LaunchGraphPlan,
        bindings: Mapping[str, Binding],
        options: LaunchOptions | None,
    ) -> int | Whereabouts:
        """The number of the one device that a plan is on, or where all of it is."""
        bound = self._bound_on(bindings)
        fixed = self._fixed_by(options)
        if not plan.names_devices:
            # Where it names none and its data are on one device, so is all of it.
            devices = set(bound.values())
            if fixed is not None and fixed >= 0:
                devices.add(fixed)
            if len(devices) == 1:
                return devices.pop()
            if not devices:
                work = Work(kind="run", name=_name(options))
                return self._choose(work, {}, id(plan))
        places = self._locate(plan, bound, _name(options))
        used = places.used
        if len(used) > 1:
            return places
        if used:
            return used[0]
        return max(places.chosen, 0)

    def _where_launched(self, request: PipelineLaunch) -> int:
        """The number of the device of all that a launch names.

        Raises:
            LaunchArgumentMismatch: these are two, or none of the session's.
        """
        named: dict[int, str] = {}
        for what, bindings in (
            ("operands", request.operands),
            ("results", request.results),
            ("intermediates", request.intermediates or ()),
        ):
            for index, binding in enumerate(bindings):
                handle: Handle | None = getattr(binding, "handle", None)
                if handle is None:  # another library's array
                    number = self._seats.index(self._seat_for(binding))
                    named.setdefault(number, f"{what}[{index}]")
                else:
                    self._note(named, f"{what}[{index}]", handle)
        if request.stream is not None:
            self._note(named, "the stream", request.stream)
        if request.artifacts is not None:
            for entry in request.artifacts.entries[:1]:
                self._note(named, "the artifact pool", entry.loaded)
        if len(named) > 1:
            (one, first), (two, second) = list(named.items())[:2]
            raise LaunchArgumentMismatch(
                f"pipeline {request.pipeline.target!r}: {first} is on "
                f"{self._names[one]} and {second} on {self._names[two]}"
            )
        if named:
            return next(iter(named))
        work = Work(kind="launch", name=request.pipeline.target)
        return self._choose(work, {}, id(request.pipeline))

    def _note(self, named: dict[int, str], what: str, handle: Handle) -> None:
        number = self._number_of(handle)
        if number is None:
            return
        if number < 0:
            why = self._seats[0].backend.foreign(handle).partition(", this one is")
            raise LaunchArgumentMismatch(
                f"launch_pipeline: {what} {why[0]}; the session's devices are "
                f"{', '.join(self._names)}"
            )
        named.setdefault(number, what)


def _name(options: LaunchOptions | None) -> str:
    return (options.name or "") if isinstance(options, LaunchOptions) else ""
