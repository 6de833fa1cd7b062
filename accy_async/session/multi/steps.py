"""The parts of a plan on several devices, made ready there, and their submission.

Parts of one number are one step: a device graph or a copy. A run submits each part
behind what it comes after: the devices wait for each other's streams, the host for
none.

Each step has a stream of its own, but for one that goes on with that of a step which it
comes after, as the last that does: nothing which comes after the one alone waits for
both then.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import attrs

from accy_async.backends.cleanup import destroy_all
from accy_async.backends.timeline import Mark
from accy_async.graph.nodes import HostSlot
from accy_async.graph.options import Lowering
from accy_async.session.multi.marks import SpanningMark

if TYPE_CHECKING:
    from accy_async.backends.base import Backend
    from accy_async.backends.handles import BufferHandle, StreamHandle
    from accy_async.backends.timeline import Timeline
    from accy_async.dtypes import ScalarArgument
    from accy_async.graph.bindings import Binding
    from accy_async.graph.lowering.splitting import SpanPart
    from accy_async.graph.options import LaunchOptions
    from accy_async.graph.replaying import PreparedPlan
    from accy_async.session.single import Session

__all__ = ["Ends", "Step", "Steps"]

Ends = Callable[[str], tuple["BufferHandle", "Backend"]]
"""Gives the buffer of a slot as it is now, and its device."""


@attrs.frozen(eq=False)
class Step:
    """A graph or a copy on its device.

    Attributes:
        part: the first part that it is.
        backend: its device.
        stream: what it is submitted to.
        line: the stream's timeline.
        prepared: a piece; None for a copy.
    """

    part: SpanPart
    backend: Backend
    stream: StreamHandle
    line: Timeline
    prepared: PreparedPlan | None = None

    @property
    def has_arrays(self) -> bool:
        """Whether it copies to arrays of the host, or from them.

        Then the host has something to do once it is done, which no other device sees.
        """
        plan = self.part.plan
        return plan is not None and any(isinstance(s, HostSlot) for s in plan.slots)


class Steps:
    """The parts of one plan, ready on their devices; owns graphs and streams.

    Args:
        parts: the parts.
        seats: the sessions on the devices, by the parts' numbers of these.
        ends: looks up what copies are from and to.
    """

    def __init__(
        self, parts: Sequence[SpanPart], seats: Sequence[Session], ends: Ends
    ) -> None:
        self.parts = tuple(parts)
        self._seats = seats
        self._ends_of = ends
        self._steps: list[Step] = []
        # Each part's step, and the steps that it follows.
        self._order: list[tuple[Step, tuple[Step, ...]]] = []
        self._first: list[Step] = []
        self._last: list[Step] = []

    def __iter__(self) -> Iterator[Step]:
        return iter(self._steps)

    @property
    def graphs(self) -> int:
        """How many device graphs there are."""
        return sum(step.prepared is not None for step in self._steps)

    @property
    def made(self) -> int:
        """How often device graphs were made for it."""
        return sum(step.prepared.made for step in self._steps if step.prepared)

    async def open(
        self, memory: Callable[[str], Binding], options: LaunchOptions
    ) -> None:
        """Make the device graphs and streams.

        Args:
            memory: what a slot has at the beginning of a run.
            options: the plan's.

        Raises:
            AccyError: a part cannot be made. `close_now` gives back what was made, as
                on cancellation.
        """
        places: list[Step] = []
        by_number: dict[int, Step] = {}
        leaders = _leaders(self.parts)
        for part, leader in zip(self.parts, leaders, strict=True):
            step = by_number.get(part.number)
            if step is None:
                stream = None if leader is None else places[leader].stream
                step = await self._open(part, stream, memory, options)
                by_number[part.number] = step
                if not part.after:
                    self._first.append(step)
            self._order.append((step, tuple(places[place] for place in part.after)))
            places.append(step)
        followed = {place for part in self.parts for place in part.after}
        last = {part.number: place for place, part in enumerate(self.parts)}
        self._last = [
            places[at]
            for at in last.values()
            if at not in followed or places[at].has_arrays
        ]

    async def _open(
        self,
        part: SpanPart,
        stream: StreamHandle | None,
        memory: Callable[[str], Binding],
        options: LaunchOptions,
    ) -> Step:
        seat = self._seats[part.device]
        backend, prepared = seat.backend, None
        if part.plan is None:
            stream = stream or backend.create_stream()
        else:
            tuning = {n: c for n, c in options.tuning.items() if n in part.nodes}
            mine = attrs.evolve(options, lowering=Lowering.ALWAYS, tuning=tuning)
            names = (slot.name for slot in part.plan.slots)
            bound = {name: memory(part.memories.get(name, name)) for name in names}
            prepared = await seat.prepare(part.plan, bound, mine)
            if stream is not None:
                prepared.share_stream(stream)
            stream = prepared.stream
            assert stream is not None
        line = backend.mark(stream).timeline
        step = Step(part, backend, stream, line, prepared)
        self._steps.append(step)
        return step

    def submit(self, previous: SpanningMark) -> SpanningMark:
        """Submit a run behind the previous one, part by part; sync.

        Raises:
            AccyError: a device refused; what was submitted before is under way.
        """
        if not previous.is_past:
            lines = {mark.timeline for mark in previous.ends}
            ends = {step.line: step for step in self._steps if step.line in lines}
            for step in self._first:
                _follow(step, tuple(ends.values()))
        for step, before in self._order:
            _follow(step, before)
            if step.prepared is not None:
                step.prepared.submit()
            else:
                assert step.part.copy is not None
                (source, one), (target, two) = map(self._ends_of, step.part.copy)
                one.copy_to_peer(source, target, two, stream=step.stream)
        return SpanningMark(_marks(self._last), _marks(self._steps))

    def mark(self) -> SpanningMark:
        """All that was submitted until now, whatever follows what."""
        marks = _marks(self._steps)
        return SpanningMark(marks, marks)

    async def rebind(
        self,
        merged: Mapping[str, Binding],
        changes: Mapping[str, Binding],
        runtime_scalars: Sequence[ScalarArgument] | None,
    ) -> None:
        """Have the graphs use other buffers, arrays and scalars.

        Args:
            merged: what the plan is bound to from now on.
            changes: of that, what has changed.
            runtime_scalars: all of the plan's; None if they stay.

        Raises:
            AccyError: a graph could not follow; others may have.
        """
        for step in self._steps:
            if step.prepared is None:
                continue
            assert step.part.plan is not None
            first = step.part.memories
            given = {
                slot.name: merged[name]
                for slot in step.part.plan.slots
                if (name := first.get(slot.name, slot.name)) in changes
            }
            await step.prepared.rebind(given, runtime_scalars)

    def close_now(self, errors: list[Exception]) -> None:
        """Give back what there is; what is in use is the reaper's.

        What a device refuses goes to ``errors``.
        """
        for step in self._steps:
            if step.prepared is not None:
                step.prepared.close_now(errors)
            else:
                destroy_all(step.backend, (step.stream,), errors)


def _leaders(parts: Sequence[SpanPart]) -> list[int | None]:
    """Of each part, the one whose stream it goes on with, if any; see the module."""
    count = Counter(part.number for part in parts)
    last_after: dict[int, int] = {}
    for place, part in enumerate(parts):
        last_after.update(dict.fromkeys(part.after, place))
    return [
        next(
            (
                before
                for before in part.after
                if parts[before].device == part.device
                and last_after[before] == place
                and count[part.number] == count[parts[before].number] == 1
            ),
            None,
        )
        for place, part in enumerate(parts)
    ]


def _follow(step: Step, leaders: Sequence[Step]) -> None:
    """Have a step wait for what others were given until now."""
    for leader in leaders:
        if leader.line is not step.line:
            step.backend.follow_stream(step.stream, leader.stream, leader.backend)


def _marks(steps: Sequence[Step]) -> tuple[Mark, ...]:
    return tuple([Mark(step.line, step.line.submitted) for step in steps])
