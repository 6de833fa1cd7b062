"""A plan on several devices, prepared: a device graph of each, the copies between."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import anyio
import attrs

from accy_async.backends.array import DeviceArray
from accy_async.backends.base import SettleTimeout
from accy_async.backends.cleanup import destroy_all, raise_together
from accy_async.backends.closing import ClosedOnExit
from accy_async.backends.handles import BufferBinding
from accy_async.errors import (
    AccyError,
    GraceExpired,
    InvalidType,
    LaunchArgumentMismatch,
    SessionClosed,
)
from accy_async.graph.lowering.spanning import SpanPart
from accy_async.graph.nodes import BufferSlot
from accy_async.graph.options import Lowering

if TYPE_CHECKING:
    from accy_async.backends.base import Backend
    from accy_async.backends.handles import BufferHandle, EventHandle, StreamHandle
    from accy_async.dtypes import ScalarArgument
    from accy_async.graph.bindings import Binding
    from accy_async.graph.crossing import CrossingExecutive
    from accy_async.graph.lowering.obstacle import Obstacle
    from accy_async.graph.options import LaunchOptions
    from accy_async.graph.plan import LaunchGraphPlan
    from accy_async.graph.replaying import PreparedPlan
    from accy_async.graph.whereabouts import Whereabouts
    from accy_async.session.single import Session

__all__ = ["SpanningPlan"]


@attrs.define(eq=False)
class _Step:
    """A part on its device.

    Attributes:
        part: the part.
        seat: the session on its device.
        stream: what it is submitted to.
        prepared: a piece; None for a copy.
        event: recorded behind it, where another part comes after it.
    """

    part: SpanPart
    seat: Session
    stream: StreamHandle
    prepared: PreparedPlan | None = None
    event: EventHandle | None = None

    @property
    def backend(self) -> Backend:
        """Of its device."""
        return self.seat.backend


class SpanningPlan(ClosedOnExit):
    """A plan on several devices, ready to be run; `MultiSession.prepare` makes one.

    A run launches one device graph for each part that is of one device, and each copy
    from one device to another; the devices wait for each other, the host for none. It
    belongs to its session. Runs come one after the other.
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
        grace_s: float,
    ) -> None:
        self._plan = plan
        self._places = places
        self._seats = tuple(seats)
        self._check_bound = check
        self._grace_s = grace_s
        self._steps: list[_Step] = []
        self._scratch: dict[str, DeviceArray] = {}
        self._bindings: dict[str, Binding] = {}
        self._options: LaunchOptions | None = None
        self._lock = anyio.Lock()
        self._is_closed = False

    def __repr__(self) -> str:
        pieces = sum(step.prepared is not None for step in self._steps)
        how = f"{pieces} graphs, {len(self._steps) - pieces} copies"
        return (
            f"<SpanningPlan of {len(self._plan.nodes)} nodes: "
            f"{'closed' if self._is_closed else how}>"
        )

    @property
    def made(self) -> int:
        """How often device graphs were made for it; changes in place make none."""
        return sum(step.prepared.made for step in self._steps if step.prepared)

    @property
    def parts(self) -> tuple[SpanPart, ...]:
        """Its parts, in the order in which they are submitted."""
        return tuple(step.part for step in self._steps)

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
            errors: list[Exception] = []
            try:
                self._submit()
            except AccyError as error:
                errors.append(error)
            primary: BaseException | None = None
            try:
                if not errors:
                    for step in self._steps:
                        if self._is_closed:  # while this waited
                            raise SessionClosed("this prepared plan was closed")
                        await step.backend.wait_stream(step.stream)
            except AccyError as error:
                errors.append(error)
            except BaseException as error:  # noqa: BLE001 - raised below
                primary = error
            if errors or primary is not None:
                await self._settle(errors)
            self._raise(primary, errors)

    async def rebind(
        self,
        bindings: Mapping[str, Binding] | None = None,
        runtime_scalars: Sequence[ScalarArgument] | None = None,
    ) -> None:
        """Have the next runs use other buffers, arrays and scalars.

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
            with anyio.CancelScope(shield=True):
                try:
                    for step in self._steps:
                        if step.prepared is not None:
                            given = _used(step, merged, changes)
                            await step.prepared.rebind(given, runtime_scalars)
                except Exception as error:  # noqa: BLE001 - raised together below
                    errors.append(error)
                    self.close_now(errors)
            raise_together("rebinding a plan", None, errors)
            self._bindings, self._options = dict(merged), options

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
        with anyio.CancelScope(shield=True):
            await self._settle(errors)
            self.close_now(errors)
        raise_together("closing a prepared plan", None, errors)

    # Within

    async def open(
        self,
        parts: Sequence[SpanPart],
        bindings: Mapping[str, Binding],
        options: LaunchOptions,
    ) -> None:
        """Allocate scratch, make the device graphs, streams and events.

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
        followed = {place for part in parts for place in part.after}
        for place, part in enumerate(parts):
            seat = self._seats[part.device]
            if part.plan is None:
                step = _Step(part, seat, seat.backend.create_stream())
                self._steps.append(step)
            else:
                tuning = {n: c for n, c in options.tuning.items() if n in part.nodes}
                mine = attrs.evolve(options, lowering=Lowering.ALWAYS, tuning=tuning)
                bound = {s.name: self._memory(s.name) for s in part.plan.slots}
                prepared = await seat.prepare(part.plan, bound, mine)
                assert prepared.stream is not None
                step = _Step(part, seat, prepared.stream, prepared)
                self._steps.append(step)
            if place in followed:
                step.event = seat.backend.create_event()

    def _memory(self, slot: str) -> Binding:
        scratch = self._scratch.get(slot)
        return self._bindings[slot] if scratch is None else scratch

    def _submit(self) -> None:
        """Submit every part behind those that it comes after."""
        for step in self._steps:
            backend = step.backend
            for place in step.part.after:
                before = self._steps[place]
                assert before.event is not None
                backend.wait_for_peer(step.stream, before.event, before.backend)
            if step.prepared is not None:
                step.prepared.submit()
            else:
                assert step.part.copy is not None
                source, target = map(self._handle, step.part.copy)
                one, two = map(self._backend_of, step.part.copy)
                one.copy_to_peer(source, target, two, stream=step.stream)
            if step.event is not None:
                backend.record_event(step.event, step.stream)

    def _handle(self, slot: str) -> BufferHandle:
        memory = self._memory(slot)
        if isinstance(memory, (DeviceArray, BufferBinding)):
            memory = memory.handle
        return memory  # type: ignore[return-value]

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

    async def _settle(self, errors: list[Exception]) -> None:
        """Wait for what is in flight; close where the grace is not enough."""
        late = []
        until = anyio.current_time() + self._grace_s
        for step in self._steps:
            backend = step.backend
            if not backend.is_healthy or not backend.is_alive(step.stream):
                continue
            line = backend.mark(step.stream).timeline
            left_s = max(until - anyio.current_time(), 0.0)
            wait = partial(line.wait_reached, line.submitted)
            settled = await backend.settle(wait, left_s)
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
        for step in self._steps:
            if step.prepared is not None:
                step.prepared.close_now(errors)
            else:
                destroy_all(step.backend, (step.stream,), errors)
            if step.event is not None:
                destroy_all(step.backend, (step.event,), errors)
        for name, array in self._scratch.items():
            destroy_all(self._backend_of(name), (array.handle,), errors)


def _used(
    step: _Step, merged: Mapping[str, Binding], changes: Mapping[str, Binding]
) -> dict[str, Binding]:
    """Of what changes, that which a piece uses."""
    assert step.part.plan is not None
    names = {slot.name for slot in step.part.plan.slots}
    return {name: merged[name] for name in changes if name in names}
