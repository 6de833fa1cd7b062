"""Scatters whose sums have an order, from lists of the updates of each place.

The updates' numbers are sorted by where they go. Then each element of the result has a
thread that adds the element's own updates in their order, and looks at no others: the
sum is to the bit that of a thread which goes through all updates. All lines along the
axis use the same lists.
"""

from __future__ import annotations

from accy_async.compiler.form import select
from accy_async.compiler.kernelization import operations
from accy_async.compiler.kernelization.scattercode import ScatterWork
from accy_async.compiler.kernelization.sorts import Scratch, Sort, on_buffers, words
from accy_async.compiler.kernelization.work import (
    BufferOrigin,
    KernelStep,
    StepBuffer,
)
from accy_async.compiler.semantic import TensorType
from accy_async.dtypes import DType

__all__ = ["listed"]

_AT_ONCE = 4
"""Updates of an element that are on their way before one is added."""


def listed(work: ScatterWork) -> tuple[list[KernelStep], list[TensorType]]:
    """The kernels, and the types of what passes between them."""
    lines, scratch = work.lines, Scratch()
    # Those that fall outside go behind the axis, where nobody looks.
    sort = Sort(count=lines.updates, bound=lines.extent + 1)
    targets, numbers = (scratch.take(words(sort.count)) for _ in range(2))
    first = on_buffers(_targets(work), targets, numbers)
    sorting, targets, numbers = sort.steps(
        work.item, work.profile, scratch, targets, numbers
    )
    begins = scratch.take(words(lines.extent + 1))
    found = on_buffers(_begins(work), begins, targets)
    result = StepBuffer(origin=BufferOrigin.RESULT, index=0)
    last = on_buffers(_sums(work), result, numbers, begins)
    return [first, *sorting, found, last], scratch.types


def _targets(work: ScatterWork) -> KernelStep:
    """Where each update goes, and its number."""
    count = work.lines.updates
    code = work.code("scatter_targets", count, written=[words(count)] * 2)
    targets, numbers = code.a.results
    with code.a.thread_tasks(count) as update:
        inside, at = code.target(update)
        at = select(inside, at, code.a.number(work.lines.extent))
        targets[update] = at.cast(DType.U32)
        numbers[update] = update.cast(DType.U32)
    return code.step(count)


def _begins(work: ScatterWork) -> KernelStep:
    """Where among the sorted updates those of each place along the axis begin.

    A bisection: how many go to a place before.
    """
    count, updates = work.lines.extent + 1, work.lines.updates
    written, read = [words(count)], [words(updates)]
    code = work.code("scatter_begins", count, written=written, read=read)
    a, k, targets = code.a, code.a.k, code.a.partials[0]
    with a.thread_tasks(count) as at:
        low = k.variable("low", a.number(0))
        high = k.variable("high", a.number(updates))
        halvings = k.count("halving", 0, updates.bit_length())
        with halvings, a.places.scope(), k.when(low.value < high.value):
            middle = k.let(None, (low.value + high.value) / 2)
            with k.when(a.wide(targets[middle]) < at):
                low.set(middle + 1)
            with k.otherwise():
                high.set(middle)
        a.results[0][at] = low.value.cast(DType.U32)
    return code.step(count)


def _sums(work: ScatterWork) -> KernelStep:
    """Each element and its own updates."""
    lines = work.lines
    count = lines.count * lines.extent
    read = [words(lines.updates), words(lines.extent + 1)]
    code = work.code(lines.name, count, read=read)
    a, k, (numbers, begins) = code.a, code.a.k, code.a.partials
    with a.thread_tasks(count) as own:
        line, at = code.place(own, lines.extent)
        begin = k.let("begin", a.wide(begins[at]))
        end = k.let("end", a.wide(begins[at + 1]))
        whole = k.let("whole", (end - begin) / _AT_ONCE * _AT_ONCE + begin)
        total = k.variable("total", code.before(own))
        for first, last, each in ((begin, whole, _AT_ONCE), (whole, end, 1)):
            with k.count(a.fresh("at"), first, last, each) as one, a.places.scope():
                found = [k.let(None, a.wide(numbers[one + i])) for i in range(each)]
                for value in [code.update_of(line, number) for number in found]:
                    total.set(operations.combine("sum", total.value, value))
        a.results[0][own] = total.value
    return code.step(count)
