"""A plan made ready once, to be run again and again at little more than a launch.

`Session.prepare` gives a `PreparedPlan`. Where the plan can be lowered, a run of it is
one launch of a device graph on a stream of its own and one wait: there is no task, no
`Run`, and nothing is kept for each node. A plan with calls on the host is several
graphs, and a run goes from one to the next as `Session.run` does. What cannot be
lowered is run just so.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import anyio
import attrs

from accy_async.backends.base import SettleTimeout
from accy_async.backends.cleanup import overtake, raise_together
from accy_async.backends.closing import ClosedOnExit
from accy_async.backends.timeline import Mark
from accy_async.errors import GraceExpired, GraphError, InvalidType, SessionClosed
from accy_async.graph.job import title_of
from accy_async.graph.lowering.lowered import LoweredGraph
from accy_async.graph.lowering.parted import LoweredParts
from accy_async.graph.lowering.policy import follow
from accy_async.graph.lowering.verdicts import LimitedMark
from accy_async.graph.nodes import HostSlot

if TYPE_CHECKING:
    from accy_async.backends.base import Backend
    from accy_async.backends.handles import StreamHandle
    from accy_async.dtypes import ScalarArgument
    from accy_async.graph.bindings import Binding, Memory
    from accy_async.graph.lowering.obstacle import Obstacle
    from accy_async.graph.options import LaunchOptions
    from accy_async.graph.prepared import PreparedGraph

__all__ = ["PlainRun", "PreparedPlan"]

PlainRun = Callable[
    [Mapping[str, "Binding"], "LaunchOptions", "PreparedGraph | None"],
    Awaitable[object],
]
"""Runs the plan with these bindings and options, as `Session.run` does; as what it was
made ready for them, if anything."""

Check = Callable[
    [Mapping[str, "Binding"], "LaunchOptions"],
    tuple[Mapping[str, "Binding"], Mapping[str, "Memory"]],
]
"""Checks bindings and options; gives the bindings, what was foreign adopted, and the
buffers and arrays behind them."""


class PreparedPlan(ClosedOnExit):
    """A plan with its buffers, ready to be run; `Session.prepare` makes one.

    It belongs to its session, and to the task that uses it: runs of one prepared plan
    come one after the other, in the order of the calls.

    Attributes:
        obstacles: what kept it from being lowered; empty where it is.
    """

    def __init__(
        self,
        backend: Backend,
        prepared: PreparedGraph,
        check: Check,
        bindings: Mapping[str, Binding],
        run_plainly: PlainRun,
        grace_s: float,
    ) -> None:
        self.obstacles: tuple[Obstacle, ...] = prepared.obstacles
        self._backend = backend
        self._prepared = prepared
        self._check = check
        self._bindings = dict(bindings)
        self._run_plainly = run_plainly
        self._grace_s = grace_s
        lowered = prepared.lowered
        self._lowered = lowered if isinstance(lowered, LoweredGraph) else None
        self._parts = lowered if isinstance(lowered, LoweredParts) else None
        # Of changes, and of runs in parts: they come one after the other.
        self._turn = anyio.Lock()
        self._stream: StreamHandle | None = None
        if self._lowered is not None:
            self._stream = backend.create_stream()
            self._line = backend.mark(self._stream).timeline
        self._last = 0
        self._awaited = 0  # runs, which may have no flag behind them
        self._limited: LimitedMark | None = None
        self._is_closed = False
        self._follow_shape()

    def __repr__(self) -> str:
        plan = self._prepared.plan
        how = "closed" if self._is_closed else "lowered" if self.is_lowered else "plain"
        return f"<PreparedPlan of {len(plan.nodes)} nodes: {how}>"

    @property
    def is_lowered(self) -> bool:
        """True where a run is one launch of a device graph, or of one for each part."""
        return self._lowered is not None or self._parts is not None

    @property
    def _has_ended(self) -> bool:
        """True where the last run is done, whatever its stream waits for since."""
        return self._line.is_idle or self._line.has_reached(self._last)

    @property
    def stream(self) -> StreamHandle | None:
        """The stream that its runs are launched on; None where it is not one graph."""
        return self._stream

    @property
    def made(self) -> int:
        """How often a device graph was made for it; changes in place make none."""
        lowered = self._lowered or self._parts
        return 0 if lowered is None else lowered.made

    async def run(self) -> None:
        """Run the plan, and return when all of it is done.

        Raises:
            DeviceError: a node failed, by name where the device tells.
            ExceptionGroup: everything that failed, where the plan is not one graph; and
                the loops that reached their ``max_iterations``.
            InvalidGraph: something that it uses was destroyed.
            SessionClosed: it was closed, or its session was.

        Cancellation: what was submitted is awaited for the session's grace, then
            left to the reaper, with a `GraceExpired` in an ExceptionGroup; a plan
            that is left so is closed.
        """
        if self._lowered is None:
            await self._run_with_others()
            return
        while self._has_arrays and not self._line.is_idle:  # others may come first
            await self._line.wait_reached(self._line.submitted)
        position = self._launch(is_awaited=True)
        limited = self._limited
        stream: StreamHandle = self._stream  # type: ignore[assignment]
        self._awaited += 1
        try:
            await self._backend.wait_stream(stream, position)
        except anyio.get_cancelled_exc_class() as cancelled:
            errors: list[Exception] = []
            primary = await self._settle(cancelled, errors)
            raise_together("a prepared plan", primary, errors)
            raise
        finally:
            self._awaited -= 1
        if limited is not None:
            limited.raise_failures()

    def submit(self) -> Mark:
        """Submit a run without waiting for it: ``await mark.wait()`` does. Sync.

        Runs that are submitted one after the other follow each other on the device.

        Raises:
            GraphError: the plan is not lowered, or has calls on the host; or it copies
                from or to arrays of the host, and its last run is not done.
            InvalidGraph: something that it uses was destroyed.
            SessionClosed: it was closed, or its session was.
        """
        position = self._launch(is_awaited=False)
        return self._limited or Mark(self._line, position)

    def _launch(self, *, is_awaited: bool) -> int:
        """Submit a run; see `submit`. Returns its position on the stream."""
        lowered = self._lowered
        if lowered is None or self._is_closed:
            self._refuse()
        if self._has_arrays and not self._has_ended:
            raise GraphError(
                "submit: the arrays of the last run are still in use; wait for it first"
            )
        assert lowered is not None
        if self._awaited:
            self._line.request(self._last)  # which ends before this one does
        if self._limited is not None:
            self._limited.look()
        if self._has_events:
            position = self._launch_with_events(lowered)
        else:
            stream: StreamHandle = self._stream  # type: ignore[assignment]
            position = lowered.launch_again(stream, is_awaited=is_awaited)
        self._last = position
        if self._has_arrays and lowered.limits:
            name = title_of(self._prepared.plan)
            self._limited = LimitedMark(self._line, position, name, lowered.errors)
        return position

    def share_stream(self, stream: StreamHandle) -> None:
        """Launch its runs on a stream of somebody else's, which goes with either."""
        assert self._stream is not None
        self._backend.discard(self._stream)
        self._stream = stream
        self._line = self._backend.mark(stream).timeline

    async def rebind(
        self,
        bindings: Mapping[str, Binding] | None = None,
        runtime_scalars: Sequence[ScalarArgument] | None = None,
    ) -> None:
        """Have the next runs use other buffers, arrays and scalars.

        Changes that are asked for at the same time are made one after the other. Each
        costs some 10 us for each node that it is for, and nothing for the rest; a loop
        of another number of iterations, or another array of the host, may take another
        device graph.

        Args:
            bindings: those that change; the others stay.
            runtime_scalars: all of the plan's; as they were if left out.

        Raises:
            LaunchArgumentMismatch, InvalidType: they do not fit the plan; it goes on
                as it was.
            GraphError: with these scalars it cannot be lowered; it is closed then.
            SessionClosed: it was closed, or its session was.

        Cancellation: before anything has changed.
        """
        self._merge(bindings, runtime_scalars)  # refuses at once what does not fit
        async with self._turn:
            while self._lowered is not None and not self._line.is_idle:
                await self._line.wait_reached(self._line.submitted)
            # What it is bound to may have changed since.
            merged, bound, options = self._merge(bindings, runtime_scalars)
            prepared = self._prepared
            if not self.is_lowered:
                self._bindings, prepared.options = dict(merged), options
                return
            if self._limited is not None:  # soon it may have no limits to ask about
                self._limited.look()
                self._limited = None
            try:
                follow(prepared, prepared.rebind(bound, options))
                self._follow_shape()
            except BaseException as error:
                errors: list[Exception] = []
                self.close_now(errors)
                raise_together("rebinding a plan", error, errors)
                raise
            self._bindings = dict(merged)

    def end(self) -> None:
        """Refuse all further use: its session ends, which destroys what it has."""
        self._is_closed = True
        self._lowered = self._parts = None

    async def aclose(self) -> None:
        """Give back what it has; work in flight is awaited for the session's grace.

        Idempotent; the session does it at the latest.

        Raises:
            GraceExpired: the work did not end in time; it is left to the reaper.

        Cancellation: shielded from it, for the grace.
        """
        if self._is_closed:
            return
        errors: list[Exception] = []
        primary: BaseException | None = None
        if self.is_lowered and self._backend.is_healthy:
            primary = await self._settle(None, errors)
        self.close_now(errors)
        raise_together("closing a prepared plan", primary, errors)

    def _merge(
        self,
        bindings: Mapping[str, Binding] | None,
        runtime_scalars: Sequence[ScalarArgument] | None,
    ) -> tuple[Mapping[str, Binding], Mapping[str, Memory], LaunchOptions]:
        """What it is bound to now, with these changes; see `rebind`."""
        if self._is_closed:
            self._refuse()
        options = self._prepared.options
        if runtime_scalars is not None:
            if not isinstance(runtime_scalars, Sequence):
                raise InvalidType("rebind.runtime_scalars", runtime_scalars, "a list")
            options = attrs.evolve(options, runtime_scalars=tuple(runtime_scalars))
        changes = {} if bindings is None else bindings
        if not isinstance(changes, Mapping):
            raise InvalidType("rebind.bindings", changes, "a mapping from names")
        merged, bound = self._check({**self._bindings, **changes}, options)
        return merged, bound, options

    def _follow_shape(self) -> None:
        """See what a launch has to do besides launching: most have nothing."""
        lowered = self._lowered
        if lowered is not None:
            shape = lowered.shape
            self._has_events = bool(shape.waits or shape.signals)
            # The device writes to the host: one run at a time.
            self._has_arrays = bool(shape.limits) or any(
                isinstance(slot, HostSlot) for slot in self._prepared.plan.slots
            )

    def _refuse(self) -> None:
        if self._is_closed:
            raise SessionClosed("this prepared plan is closed")
        if self._parts is not None:
            raise GraphError(
                "submit: the plan has calls on the host, which somebody has to await: "
                "use run"
            )
        named = "; ".join(map(str, self.obstacles))
        raise GraphError(f"submit: the plan is not lowered: {named}")

    def _launch_with_events(self, lowered: LoweredGraph) -> int:
        backend, events = self._backend, self._prepared.events
        for name in lowered.shape.waits:
            backend.stream_wait_event(self._stream, events[name])
        position = lowered.launch(self._stream, None)
        for name in lowered.shape.signals:
            position = backend.record_event(events[name], self._stream)
        return position

    async def _run_with_others(self) -> None:
        """Run it as a run of its session's."""
        if self._is_closed:
            self._refuse()
        if self._parts is None:
            await self._run_plainly(self._bindings, self._prepared.options, None)
            return
        async with self._turn:
            if self._is_closed:
                self._refuse()
            prepared = self._prepared
            try:
                await self._run_plainly(self._bindings, prepared.options, prepared)
            finally:
                if prepared.is_closed:  # as something of it was left in flight
                    self.end()

    async def _wait_idle(self) -> None:
        """Return when nothing of it is in flight."""
        if self._lowered is not None:
            await self._line.wait_reached(self._line.submitted)
            return
        async with self._turn:
            pass

    async def _settle(
        self, primary: BaseException | None, errors: list[Exception]
    ) -> BaseException | None:
        """Wait for what is in flight; close where the grace is not enough.

        Args:
            primary: what there is to raise.
            errors: gets what went wrong.

        Returns:
            What there is to raise now.
        """
        settled, cancelled = await self._backend.settle_whole(
            self._wait_idle, self._grace_s
        )
        if isinstance(settled, SettleTimeout):
            errors.append(
                GraceExpired("a prepared plan", self._grace_s, (self._name(),))
            )
            reaper = self._backend.reaper
            held_before = reaper.held()
            self.close_now(errors)
            reaper.give_up(set(reaper.held()).difference(held_before), self._grace_s)
        return primary if cancelled is None else overtake(primary, cancelled, errors)

    def _name(self) -> str:
        return f"a graph of {len(self._prepared.plan.nodes)} nodes"

    def close_now(self, errors: list[Exception]) -> None:
        """Give back what it has, and wait for nothing: what is in use is the reaper's.

        What the device refuses goes to ``errors``.
        """
        if self._is_closed:
            return
        self._is_closed = True
        self._lowered = self._parts = None
        try:
            self._prepared.close()
        except Exception as error:  # noqa: BLE001 - raised by the caller
            errors.append(error)
        if self._stream is not None:
            self._backend.discard(self._stream)
