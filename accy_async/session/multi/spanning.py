"""A plan on several devices, prepared: a device graph of each, the copies between."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import anyio
import attrs

from accy_async.backends.array import DeviceArray
from accy_async.backends.base import SettleTimeout
from accy_async.backends.cleanup import destroy_all, overtake, raise_together
from accy_async.backends.closing import ClosedOnExit
from accy_async.backends.handles import BufferBinding
from accy_async.errors import (
    AccyError,
    GraceExpired,
    GraphError,
    InvalidType,
    LaunchArgumentMismatch,
    SessionClosed,
)
from accy_async.graph.lowering.spanning import SpanPart
from accy_async.graph.nodes import BufferSlot, HostSlot
from accy_async.session.multi.marks import SpanningMark
from accy_async.session.multi.steps import Steps

if TYPE_CHECKING:
    from accy_async.backends.base import Backend
    from accy_async.backends.handles import BufferHandle
    from accy_async.dtypes import ScalarArgument
    from accy_async.graph.bindings import Binding
    from accy_async.graph.crossing import CrossingExecutive
    from accy_async.graph.lowering.obstacle import Obstacle
    from accy_async.graph.options import LaunchOptions
    from accy_async.graph.plan import LaunchGraphPlan
    from accy_async.graph.whereabouts import Whereabouts
    from accy_async.session.single import Session

__all__ = ["SpanningPlan"]


Split = Callable[["LaunchOptions"], "tuple[SpanPart, ...] | tuple[Obstacle, ...]"]
"""Gives a plan's parts for these options, or what is in the way."""


class SpanningPlan(ClosedOnExit):
    """A plan on several devices, ready to be run; `MultiSession.prepare` makes one.

    A run launches one device graph for each part that is of one device, and each copy
    from one device to another; the devices wait for each other, the host for none. It
    belongs to its session. Runs come one after the other, on the devices.
    """

    obstacles: tuple[Obstacle, ...] = ()
    """What kept it from being lowered: nothing."""

    is_lowered = True
    """True: each device's part is a device graph."""

    def __init__(
        self,
        plan: LaunchGraphPlan,
        places: Whereabouts,
        seats: Sequence[Session],
        check: CrossingExecutive,
        split: Split,
        grace_s: float,
    ) -> None:
        self._plan = plan
        self._places = places
        self._seats = tuple(seats)
        self._check_bound = check
        self._split = split
        self._grace_s = grace_s
        self._steps = Steps((), self._seats, self._end)
        self._made_before = 0
        self._last = SpanningMark()
        self._has_arrays = any(isinstance(slot, HostSlot) for slot in plan.slots)
        self._scratch: dict[str, DeviceArray] = {}
        self._bindings: dict[str, Binding] = {}
        self._options: LaunchOptions | None = None
        self._lock = anyio.Lock()
        self._is_changing = False
        self._is_closed = False

    def __repr__(self) -> str:
        pieces = self._steps.graphs
        how = f"{pieces} graphs, {len(list(self._steps)) - pieces} copies"
        return (
            f"<SpanningPlan of {len(self._plan.nodes)} nodes: "
            f"{'closed' if self._is_closed else how}>"
        )

    @property
    def made(self) -> int:
        """How often device graphs were made for it; changes in place make none."""
        return self._made_before + self._steps.made

    @property
    def parts(self) -> tuple[SpanPart, ...]:
        """Its parts, in the order in which they are submitted."""
        return self._steps.parts

    async def run(self) -> None:
        """Run the plan, and return when all of it is done, on all devices.

        Raises:
            DeviceError: a part failed.
            ExceptionGroup: several parts did.
            InvalidGraph, InvalidBuffer: something that it uses was destroyed.
            SessionClosed: it was closed, or its session was.

        Cancellation: what was submitted is awaited for the session's grace, then left
            to the reaper, with a `GraceExpired` in an ExceptionGroup; a plan that is
            left so is closed.
        """
        async with self._lock:
            self._refuse_closed()
            while self._has_arrays and not self._last.is_reached:
                await self._last.wait_reached()
                self._refuse_closed()
            errors: list[Exception] = []
            primary: BaseException | None = None
            try:
                await self._submit().wait_reached()
                if self._is_closed:  # while this waited
                    raise SessionClosed("this prepared plan was closed")
                for step in self._steps:
                    if step.line.has_failed:
                        await step.backend.wait_stream(step.stream)
            except AccyError as error:
                errors.append(error)
            except BaseException as error:  # noqa: BLE001 - raised below
                primary = error
            if errors or primary is not None:
                primary = await self._settle(primary, errors)
            self._raise(primary, errors)
            for seat in self._seats:  # what this wait showed to be idle
                seat.backend.reaper.sweep()

    def submit(self) -> SpanningMark:
        """Submit a run without waiting for it: ``await mark.wait()`` does. Sync.

        Runs that are submitted one after the other follow each other on the devices:
        each begins on all of them when the one before has ended on all.

        Raises:
            GraphError: it copies from or to arrays of the host, and its last run is not
                done; or it is being rebound.
            DeviceError: a device refused a part, or is lost; those before it are under
                way.
            InvalidGraph, InvalidBuffer: something that it uses was destroyed.
            SessionClosed: it was closed, or its session was.
        """
        self._refuse_closed()
        if self._is_changing:
            raise GraphError("submit: the plan is being rebound; wait for that first")
        if self._has_arrays and not self._last.is_reached:
            raise GraphError(
                "submit: the arrays of the last run are still in use; wait for it first"
            )
        return self._submit()

    async def rebind(
        self,
        bindings: Mapping[str, Binding] | None = None,
        runtime_scalars: Sequence[ScalarArgument] | None = None,
    ) -> None:
        """Have the next runs use other buffers, arrays and scalars.

        Runs that are under way are waited for, and none can be submitted meanwhile.
        Where scalars count the turns of loops over several devices, or of such with
        carries, other scalars may take other device graphs.

        Args:
            bindings: those that change, each on the device of the one before; the
                others stay.
            runtime_scalars: all of the plan's; as they were if left out.

        Raises:
            LaunchArgumentMismatch, InvalidType: they do not fit the plan, or are on
                other devices; it goes on as it was.
            GraphError: with these scalars it cannot be lowered; it is closed then.
            SessionClosed: it was closed, or its session was.

        Cancellation: before anything has changed, or once all of it has.
        """
        async with self._lock:
            self._refuse_closed()
            changes = {} if bindings is None else bindings
            if not isinstance(changes, Mapping):
                raise InvalidType("rebind.bindings", changes, "a mapping from names")
            options = self._options
            assert options is not None
            if runtime_scalars is not None:
                if not isinstance(runtime_scalars, Sequence):
                    raise InvalidType(
                        "rebind.runtime_scalars", runtime_scalars, "a list"
                    )
                options = attrs.evolve(options, runtime_scalars=tuple(runtime_scalars))
            merged, _ = self._check_bound.check(
                self._plan, {**self._bindings, **changes}, options
            )
            self._check_places(merged)
            errors: list[Exception] = []
            self._is_changing = True
            try:
                await self._last.wait_reached()
                self._refuse_closed()
                with anyio.CancelScope(shield=True):
                    try:
                        await self._change(merged, changes, options, runtime_scalars)
                    except Exception as error:  # noqa: BLE001 - raised together below
                        errors.append(error)
                        self.close_now(errors)
            finally:
                self._is_changing = False
            raise_together("rebinding a plan", None, errors)

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
        primary = await self._settle(None, errors)
        self.close_now(errors)
        raise_together("closing a prepared plan", primary, errors)

    # Within

    async def open(
        self,
        parts: Sequence[SpanPart],
        bindings: Mapping[str, Binding],
        options: LaunchOptions,
    ) -> None:
        """Allocate scratch, make the device graphs and streams.

        Raises:
            LaunchArgumentMismatch, InvalidType: bindings or options do not fit.
            AccyError: a part cannot be made. `close_now` gives back what was made, as
                on cancellation.
        """
        given, _ = self._check_bound.check(self._plan, bindings, options)
        self._bindings, self._options = dict(given), options
        for slot, device in zip(self._plan.slots, self._places.slots, strict=True):
            if isinstance(slot, BufferSlot) and slot.is_scratch:
                backend = self._seats[device].backend
                self._scratch[slot.name] = DeviceArray.allocate(
                    backend, slot.shape, slot.dtype
                )
        await self._open_steps(parts)

    async def _open_steps(self, parts: Sequence[SpanPart]) -> None:
        assert self._options is not None
        self._steps = Steps(parts, self._seats, self._end)
        await self._steps.open(self._memory, self._options)

    async def _change(
        self,
        merged: Mapping[str, Binding],
        changes: Mapping[str, Binding],
        options: LaunchOptions,
        runtime_scalars: Sequence[ScalarArgument] | None,
    ) -> None:
        """Follow what it is bound to from now on; see `rebind`."""
        parts: Sequence[SpanPart] = self._steps.parts
        if runtime_scalars is not None:
            found = self._split(options)
            parts = [one for one in found if isinstance(one, SpanPart)]
            if len(parts) < len(found):
                named = "; ".join(map(str, found))
                raise GraphError(f"with these scalars it cannot be lowered: {named}")
        shapes = [[one.shape for one in these] for these in (parts, self._steps.parts)]
        if shapes[0] == shapes[1]:
            await self._steps.rebind(merged, changes, runtime_scalars)
            self._bindings, self._options = dict(merged), options
            return
        self._made_before += self._steps.made
        errors: list[Exception] = []
        self._steps.close_now(errors)
        raise_together("rebinding a plan", None, errors)
        self._bindings, self._options = dict(merged), options
        self._last = SpanningMark()
        await self._open_steps(parts)

    def _memory(self, slot: str) -> Binding:
        scratch = self._scratch.get(slot)
        return self._bindings[slot] if scratch is None else scratch

    def _submit(self) -> SpanningMark:
        """Submit every part behind those that it comes after."""
        try:
            self._last = self._steps.submit(self._last)
        except BaseException:
            self._last = self._steps.mark()
            raise
        return self._last

    def _end(self, slot: str) -> tuple[BufferHandle, Backend]:
        """What a copy is from or to."""
        memory = self._memory(slot)
        if isinstance(memory, (DeviceArray, BufferBinding)):
            memory = memory.handle
        return memory, self._backend_of(slot)  # type: ignore[return-value]

    def _backend_of(self, slot: str) -> Backend:
        return self._seats[self._places.slots[self._plan.slot_index[slot]]].backend

    def _check_places(self, bindings: Mapping[str, Binding]) -> None:
        """Refuse buffers that are on other devices than the plan was prepared for."""
        for slot, device in zip(self._plan.slots, self._places.slots, strict=True):
            given = bindings.get(slot.name)
            if not isinstance(given, (DeviceArray, BufferBinding)) or device < 0:
                continue
            handle = given.handle
            seat = self._seats[device]
            if seat.backend.foreign(handle):
                theirs = seat.backend.foreign(handle).partition(", this one is")[0]
                raise LaunchArgumentMismatch(
                    f"rebind.bindings[{slot.name!r}]: it {theirs}, the plan was "
                    f"prepared for one of {seat.backend.device}"
                )

    def _refuse_closed(self) -> None:
        if self._is_closed or any(not seat.is_open for seat in self._seats):
            raise SessionClosed("this prepared plan is closed")

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
        late = []
        held_back: BaseException | None = None
        until = anyio.current_time() + self._grace_s
        for step in self._steps:
            backend = step.backend
            if not backend.is_healthy or not backend.is_alive(step.stream):
                continue
            line = step.line
            left_s = max(until - anyio.current_time(), 0.0)
            wait = partial(line.wait_reached, line.submitted)
            settled, cancelled = await backend.settle_whole(wait, left_s)
            held_back = held_back or cancelled
            if isinstance(settled, SettleTimeout):
                late.append(f"a part on {backend.device}")
        if late:
            errors.append(GraceExpired("a prepared plan", self._grace_s, late))
            reapers = [seat.backend.reaper for seat in self._seats]
            held_before = [reaper.held() for reaper in reapers]
            self.close_now(errors)
            for reaper, before in zip(reapers, held_before, strict=True):
                held = set(reaper.held()).difference(before)
                reaper.give_up(held, self._grace_s)
        return primary if held_back is None else overtake(primary, held_back, errors)

    def _raise(self, primary: BaseException | None, errors: list[Exception]) -> None:
        if primary is None and len(errors) > 1:
            raise ExceptionGroup("a plan on several devices", errors)
        raise_together("a plan on several devices", primary, errors)

    def close_now(self, errors: list[Exception]) -> None:
        """Give back what it has, and wait for nothing: what is in use is the reaper's.

        What a device refuses goes to ``errors``.
        """
        if self._is_closed:
            return
        self._is_closed = True
        self._steps.close_now(errors)
        for name, array in self._scratch.items():
            destroy_all(self._backend_of(name), (array.handle,), errors)
