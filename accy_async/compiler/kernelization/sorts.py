"""Numbers put in order as kernels, those that are equal in the order they came in.

They are sorted by one digit after the other, the last one first. In each pass a thread
has a stretch of the numbers to itself: it counts them by digit, a scan over the counts
of all threads, digit by digit, says where a thread's numbers of a digit go, and there
it puts them in their order. No thread meets another's counts in between, so the order
follows from the numbers alone, without atomics.

Digits are of any base, such as wastes no pass. A pass moves the digit that it sorted by
to the number's front: so all passes run the same kernels, and after the last one the
numbers are what they were.

Source: M. Zagha and G. E. Blelloch, "Radix sort for vector multiprocessors",
Supercomputing '91.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import attrs

from accy_async.artifact.planned import CompileLaunch
from accy_async.artifact.resources import LaunchResourceClass
from accy_async.artifact.tiles import LaunchTile
from accy_async.compiler.form import ArrayHandle, Expression, minimum
from accy_async.compiler.kernelization.assembly import (
    Assembly,
    ceil_div,
    grid_candidates,
)
from accy_async.compiler.kernelization.profile import TargetProfile
from accy_async.compiler.kernelization.scans import kernelize_scan
from accy_async.compiler.kernelization.work import (
    BufferOrigin,
    KernelStep,
    StepBuffer,
    WorkItem,
)
from accy_async.compiler.semantic import Builder, Function, TensorType
from accy_async.dtypes import DType

__all__ = ["MOST_NUMBERS", "Scratch", "Sort", "on_buffers", "words"]

MOST_NUMBERS = 2**30
"""So many can be sorted, and so large they can be: they are counted in 32 bits."""
_THREADS = 32
"""Of a block: few, for the shared memory that each takes."""
_MOST_DIGITS = 64
"""The largest base: a block's counts then take 8 KiB of shared memory."""
_LEAST_EACH = 16
"""Numbers of a thread, at least: no fewer than it has counts, if those are more."""
_NOTHING = Function("nothing", (), (), ())


class Scratch:
    """The buffers that pass between a work item's steps.

    Attributes:
        types: what those hold that were asked for so far.
    """

    def __init__(self) -> None:
        self.types: list[TensorType] = []

    def take(self, type: TensorType) -> StepBuffer:
        """One more of a type."""
        self.types.append(type)
        return StepBuffer(origin=BufferOrigin.SCRATCH, index=len(self.types) - 1)


def words(count: int) -> TensorType:
    """The type of so many numbers of 32 bits."""
    return TensorType(DType.U32, (count,))


def on_buffers(step: KernelStep, *buffers: StepBuffer) -> KernelStep:
    """A step whose first buffers are these."""
    arguments = (*buffers, *step.arguments[len(buffers) :])
    return attrs.evolve(step, arguments=arguments)


@attrs.frozen
class Sort:
    """How so many numbers below a bound are sorted.

    Attributes:
        count: how many there are, from 1 to `MOST_NUMBERS`.
        bound: what they are below, from 1 to `MOST_NUMBERS`.
    """

    count: int
    bound: int

    @property
    def passes(self) -> int:
        """Digits of a number."""
        passes = 1
        while _MOST_DIGITS**passes < self.bound:
            passes += 1
        return passes

    @property
    def base(self) -> int:
        """Values of a digit: the fewest with which there are digits enough."""
        base = max(1, int(self.bound ** (1 / self.passes)) - 1)
        while base**self.passes < self.bound:
            base += 1
        return base

    @property
    def each(self) -> int:
        """Numbers of a thread's stretch."""
        return max(_LEAST_EACH, self.base)

    @property
    def stretches(self) -> int:
        """Threads in all."""
        return ceil_div(self.count, self.each)

    def steps(
        self,
        item: WorkItem,
        profile: TargetProfile,
        scratch: Scratch,
        numbers: StepBuffer,
        order: StepBuffer,
    ) -> tuple[list[KernelStep], StepBuffer, StepBuffer]:
        """The kernels, which move each number's companion with it.

        Args:
            item: the work item that they are of.
            profile: what for.
            scratch: gets the buffers that they need.
            numbers: where the numbers are; they do not stay there.
            order: where their companions are, likewise.

        Returns:
            the kernels, and where both are in the end.
        """
        counts = scratch.take(words(self.base * self.stretches))
        begins = scratch.take(words(self.base * self.stretches))
        others = scratch.take(words(self.count)), scratch.take(words(self.count))
        count, place = self._count(item, profile), self._place(item, profile)
        scans = self._scans(item, profile, scratch, counts, begins)
        steps, now = [], (numbers, order)
        for _ in range(self.passes):
            steps.append(on_buffers(count, counts, now[0]))
            steps += scans
            steps.append(on_buffers(place, *others, *now, begins))
            now, others = others, now
        return steps, *now

    def _count(self, item: WorkItem, profile: TargetProfile) -> KernelStep:
        """The numbers of each stretch by their last digits."""
        numbers, counts = words(self.count), words(self.base * self.stretches)
        a = self._assembly(item, profile, "sort_counts", [counts], [numbers])
        with a.thread_tasks(self.stretches) as stretch:
            counters = self._counters(a)
            with self._digits(a, stretch) as (counter, _):
                counters[counter] = 0
            with self._along(a, stretch) as at:
                number = a.wide(a.partials[0][at])
                own = a.k.let(None, number % self.base * _THREADS + a.thread)
                counters[own] = counters[own] + 1
            with self._digits(a, stretch) as (counter, count):
                a.results[0][count] = counters[counter]
        return self._step(a)

    def _place(self, item: WorkItem, profile: TargetProfile) -> KernelStep:
        """Each number and its companion to where the last digit has them go."""
        pair, counts = [words(self.count)] * 2, words(self.base * self.stretches)
        a = self._assembly(item, profile, "sort", pair, [*pair, counts])
        numbers, order, begins = a.partials
        with a.thread_tasks(self.stretches) as stretch:
            counters = self._counters(a)
            with self._digits(a, stretch) as (counter, begin):
                counters[counter] = begins[begin]
            with self._along(a, stretch) as at:
                number, companion = a.wide(numbers[at]), order[at]
                digit = a.k.let(None, number % self.base)
                own = a.k.let(None, digit * _THREADS + a.thread)
                to = counters[own]
                counters[own] = to + 1
                turned = number / self.base + digit * self.base ** (self.passes - 1)
                a.results[0][to] = turned.cast(DType.U32)
                a.results[1][to] = companion
        return self._step(a)

    def _scans(
        self,
        item: WorkItem,
        profile: TargetProfile,
        scratch: Scratch,
        counts: StepBuffer,
        begins: StepBuffer,
    ) -> list[KernelStep]:
        """How many come before each count."""
        builder = Builder("counts")
        f = builder.begin_function("counts", [scratch.types[counts.index]])
        f.return_([f.scan(f.parameters[0], "sum", exclusive=True)])
        f.finish()
        work = kernelize_scan(
            WorkItem(
                work_item_id=item.work_item_id,
                kind=CompileLaunch.SCAN,
                function=builder.finish().entry,
            ),
            profile,
        )
        own = {
            BufferOrigin.RESULT: [begins],
            BufferOrigin.OPERAND: [counts],
            BufferOrigin.SCRATCH: [scratch.take(type) for type in work.scratch],
        }
        return [
            on_buffers(step, *(own[b.origin][b.index] for b in step.arguments))
            for step in work.steps
        ]

    def _assembly(
        self,
        item: WorkItem,
        profile: TargetProfile,
        what: str,
        written: Sequence[TensorType],
        read: Sequence[TensorType],
    ) -> Assembly:
        return Assembly(
            item,
            profile,
            what,
            (_THREADS, 1, 1),
            element_count=self.count,
            function=_NOTHING,
            results=[(BufferOrigin.SCRATCH, type) for type in written],
            partials=read,
        )

    def _counters(self, a: Assembly) -> ArrayHandle:
        """A count of each thread for each digit, threads next to each other."""
        return a.k.shared("counters", DType.U32, self.base * _THREADS)

    @contextmanager
    def _digits(
        self, a: Assembly, stretch: Expression
    ) -> Iterator[tuple[Expression, Expression]]:
        """For each digit a thread's count of it, in shared memory and in a buffer."""
        digits = a.k.count(a.fresh("digit"), a.number(0), a.number(self.base))
        with digits as digit, a.places.scope():
            yield digit * _THREADS + a.thread, digit * self.stretches + stretch

    @contextmanager
    def _along(self, a: Assembly, stretch: Expression) -> Iterator[Expression]:
        begin = a.k.let(None, stretch * self.each)
        end = a.k.let(None, minimum(begin + self.each, self.count))
        with a.k.count(a.fresh("at"), begin, end) as at, a.places.scope():
            yield at

    def _step(self, a: Assembly) -> KernelStep:
        resources = grid_candidates(
            a.profile,
            ceil_div(self.stretches, _THREADS),
            (_THREADS, 1, 1),
            LaunchResourceClass.GATHER_SCATTER,
            per_thread=self.each,
        )
        return a.step(resources, LaunchTile())
