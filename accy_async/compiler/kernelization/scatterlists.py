"""Scatters that first find for each place along the axis the updates that go there.

The updates' numbers are sorted by where they go. Then each element of the result has a
thread that takes the element's own updates in their order, and looks at no others: the
result is to the bit that of a thread which goes through all updates. All lines along
the axis use the same lists.
"""

from __future__ import annotations

from collections.abc import Sequence

from accy_async.artifact.resources import LaunchResourceClass
from accy_async.artifact.tiles import LaunchTile, LaunchTileKind
from accy_async.compiler.form import Expression, select
from accy_async.compiler.kernelization import operations
from accy_async.compiler.kernelization.assembly import (
    Assembly,
    ceil_div,
    grid_candidates,
)
from accy_async.compiler.kernelization.profile import TargetProfile
from accy_async.compiler.kernelization.scattercode import ScatterCode, ScatterLines
from accy_async.compiler.kernelization.sorts import (
    MOST_NUMBERS,
    Scratch,
    Sort,
    on_buffers,
)
from accy_async.compiler.kernelization.work import (
    BufferOrigin,
    KernelStep,
    StepBuffer,
    WorkItem,
)
from accy_async.compiler.semantic import TensorType
from accy_async.dtypes import DType

__all__ = ["can_list", "list_steps"]

_THREADS = 128
_AT_ONCE = 4
"""Updates of an element that are on their way before one is added."""


def can_list(lines: ScatterLines) -> bool:
    """Whether there is something to sort, and not too much."""
    sizes = (lines.count, lines.extent, lines.updates)
    return min(sizes) > 0 and max(lines.extent, lines.updates) < MOST_NUMBERS


def list_steps(
    item: WorkItem, profile: TargetProfile, lines: ScatterLines, threads: int
) -> tuple[list[KernelStep], Sequence[TensorType]]:
    """The kernels, and the types of what passes between them.

    Args:
        item: what is computed.
        profile: what for.
        lines: the scatter's; `can_list` says that they can be sorted.
        threads: of a block of the last kernel.
    """
    scratch = Scratch()
    # Those that fall outside go behind the axis, where nobody looks.
    sort = Sort(count=lines.updates, bound=lines.extent + 1)
    targets, numbers = scratch.words(sort.count), scratch.words(sort.count)
    first = on_buffers(_targets(item, profile, lines), targets, numbers)
    sorting, targets, numbers = sort.steps(item, profile, scratch, targets, numbers)
    begins = scratch.words(lines.extent + 1)
    found = on_buffers(_begins(item, profile, lines), begins, targets)
    result = StepBuffer(origin=BufferOrigin.RESULT, index=0)
    last = on_buffers(_apply(item, profile, lines, threads), result, numbers, begins)
    return [first, *sorting, found, last], scratch.types


def _targets(item: WorkItem, profile: TargetProfile, lines: ScatterLines) -> KernelStep:
    """Where each update goes, and its number."""
    words = [_words(lines.updates)] * 2
    a = _assembly(item, profile, "scatter_targets", lines.updates, written=words)
    with a.thread_tasks(lines.updates) as update:
        inside, at = ScatterCode(a, lines).target(update)
        at = select(inside, at, a.number(lines.extent))
        a.results[0][update] = at.cast(DType.U32)
        a.results[1][update] = update.cast(DType.U32)
    return _step(a, lines.updates)


def _begins(item: WorkItem, profile: TargetProfile, lines: ScatterLines) -> KernelStep:
    """Where among the sorted updates those of each place along the axis begin.

    A bisection: the number of those that go to a place before.
    """
    count = lines.extent + 1
    a = _assembly(
        item,
        profile,
        "scatter_begins",
        count,
        written=[_words(count)],
        read=[_words(lines.updates)],
    )
    k, targets = a.k, a.partials[0]
    with a.thread_tasks(count) as at:
        low = k.variable("low", a.number(0))
        high = k.variable("high", a.number(lines.updates))
        halvings = k.count("halving", 0, lines.updates.bit_length())
        with halvings, a.places.scope(), k.when(low.value < high.value):
            middle = k.let(None, (low.value + high.value) / 2)
            with k.when(a.wide(targets[middle]) < at):
                low.set(middle + 1)
            with k.otherwise():
                high.set(middle)
        a.results[0][at] = low.value.cast(DType.U32)
    return _step(a, count)


def _apply(
    item: WorkItem, profile: TargetProfile, lines: ScatterLines, threads: int
) -> KernelStep:
    """Each element with its own updates."""
    count = lines.count * lines.extent
    a = _assembly(
        item,
        profile,
        "scatter_add" if lines.adds else "scatter",
        count,
        read=[_words(lines.updates), _words(lines.extent + 1)],
        threads=threads,
    )
    code, (numbers, begins) = ScatterCode(a, lines), a.partials
    out = a.results[0]

    def updates(line: Expression, places: Sequence[Expression]) -> list[Expression]:
        found = [a.k.let(None, a.wide(numbers[place])) for place in places]
        return [code.update(line, number) for number in found]

    with a.thread_tasks(count) as own:
        line, at = _place(a, lines, own)
        begin = a.k.let("begin", a.wide(begins[at]))
        end = a.k.let("end", a.wide(begins[at + 1]))
        if not lines.adds:
            with a.k.when(begin < end), a.places.scope():
                (out[own],) = updates(line, [end - 1])
            with a.k.otherwise(), a.places.scope():
                out[own] = code.before(own)
        else:
            total = a.k.variable("total", code.before(own))
            whole = a.k.let("whole", (end - begin) / _AT_ONCE * _AT_ONCE + begin)
            for first, last, each in ((begin, whole, _AT_ONCE), (whole, end, 1)):
                steps = a.k.count(a.fresh("at"), first, last, each)
                with steps as one, a.places.scope():
                    for value in updates(line, [one + i for i in range(each)]):
                        total.set(operations.combine("sum", total.value, value))
            out[own] = total.value
    return _step(a, count)


def _place(
    a: Assembly, lines: ScatterLines, own: Expression
) -> tuple[Expression, Expression]:
    """An element's line, and where in it the element is."""
    places = a.places
    row = places.quotient(own, lines.extent * lines.inner)
    at = places.remainder(places.quotient(own, lines.inner), lines.extent)
    column = places.remainder(own, lines.inner)
    line = places.add(places.multiply(row, lines.inner), column)
    return a.k.let("line", places.number(line)), places.number(at)


def _words(count: int) -> TensorType:
    return TensorType(DType.U32, (count,))


def _assembly(
    item: WorkItem,
    profile: TargetProfile,
    what: str,
    count: int,
    *,
    written: Sequence[TensorType] = (),
    read: Sequence[TensorType] = (),
    threads: int = _THREADS,
) -> Assembly:
    results = [(BufferOrigin.SCRATCH, type) for type in written]
    return Assembly(
        item,
        profile,
        what,
        (threads, 1, 1),
        element_count=count,
        results=results or None,
        partials=read,
    )


def _step(a: Assembly, count: int) -> KernelStep:
    resources = grid_candidates(
        a.profile,
        ceil_div(count, a.threads),
        (a.threads, 1, 1),
        LaunchResourceClass.GATHER_SCATTER,
    )
    return a.step(resources, LaunchTile(kind=LaunchTileKind.ELEMENTWISE))
