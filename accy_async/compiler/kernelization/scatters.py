"""Scatters as kernels: each element of the result has one thread that owns it.

A thread owns the elements of one line along the axis, or of one part of it. It copies
them from the operand, then goes through all indices in their order and applies the
updates that fall into its part. There are no atomics: the result is the same bits each
time, sums are added in the order of the updates, and of several updates that set one
element the last stays, as numpy has it. Indices are read by every thread of a block
alike, updates by neighbouring threads next to each other; more parts mean more threads,
and as many readings of all indices.
"""

from __future__ import annotations

import attrs

from accy_async.artifact.resources import LaunchResourceClass
from accy_async.artifact.tiles import LaunchTile, LaunchTileKind
from accy_async.compiler import semantic
from accy_async.compiler.form import Expression, minimum
from accy_async.compiler.kernelization import operations
from accy_async.compiler.kernelization.assembly import (
    Assembly,
    ceil_div,
    grid_candidates,
    is_cpu,
)
from accy_async.compiler.kernelization.lines import around, last_operation
from accy_async.compiler.kernelization.places import Coordinate
from accy_async.compiler.kernelization.profile import TargetProfile
from accy_async.compiler.kernelization.schedules import (
    ScatterAddSchedule,
    ScatterSchedule,
    scatter_schedule_candidates,
)
from accy_async.compiler.kernelization.work import KernelizedWork, WorkItem
from accy_async.compiler.semantic import Function, Operation, ScatterKind
from accy_async.dtypes import DType
from accy_async.errors import InvalidType

__all__ = ["kernelize_scatter"]


@attrs.frozen
class _Lines:
    """The lines of a scatter: ``outer * inner`` of ``extent`` elements."""

    entry: Operation
    op: semantic.Scatter
    outer: int
    extent: int
    inner: int
    updates: int

    @property
    def count(self) -> int:
        return self.outer * self.inner


def kernelize_scatter(
    item: WorkItem, profile: TargetProfile, schedule: ScatterSchedule | None = None
) -> KernelizedWork:
    """The kernel of a scatter, with elementwise work before it.

    Raises:
        UnsupportedOperation: the function is not elementwise work and a scatter at its
            end.
        InvalidType: the schedule is that of a scatter that adds, and the scatter does
            not, or the other way round.
    """
    lines = _lines(item.function)
    adds = lines.op.kind is ScatterKind.ADD
    if schedule is None:
        schedule = scatter_schedule_candidates(
            lines.count, lines.extent, backend=profile.backend
        )[0]
    elif isinstance(schedule, ScatterAddSchedule) is not adds:
        expected = "a ScatterAddSchedule" if adds else "a ScatterSchedule"
        raise InvalidType("kernelize.schedule", schedule, expected)
    threadgroup = (schedule.threads, 1, 1)
    count = item.function.results[0].type.element_count
    name = "scatter_add" if adds else "scatter"
    a = Assembly(item, profile, name, threadgroup, element_count=count, updated=adds)
    blocks = 0
    if count:
        _Writer(a, lines, schedule).write()
        blocks = ceil_div(lines.count, schedule.threads) * schedule.segments
    resources = grid_candidates(
        profile, blocks, threadgroup, LaunchResourceClass.GATHER_SCATTER
    )
    step = a.step(resources, LaunchTile(kind=LaunchTileKind.ELEMENTWISE))
    return KernelizedWork(
        work_item_id=item.work_item_id,
        compile_launch=item.kind,
        op_count=item.op_count,
        steps=(step,),
    )


def _lines(function: Function) -> _Lines:
    entry, op = last_operation(function, semantic.Scatter)
    updates = entry.operands[1].type.element_count
    return _Lines(entry, op, *around(entry.result.shape, op.axis), updates)


class _Writer:
    def __init__(self, a: Assembly, lines: _Lines, schedule: ScatterSchedule) -> None:
        self.a, self.lines, self.schedule = a, lines, schedule
        self.segment = ceil_div(lines.extent, schedule.segments)

    def write(self) -> None:
        a, lines, threads = self.a, self.lines, self.schedule.threads
        groups = ceil_div(lines.count, threads)
        tasks = groups * self.schedule.segments
        with a.tasks(tasks) as task:
            self._task(task, groups)

    def _task(self, task: Expression, groups: int) -> None:
        a, lines = self.a, self.lines
        first = a.k.let("first", task % groups * self.schedule.threads)
        begin = a.k.let("begin", task / groups * self.segment)
        begin = a.k.let(None, minimum(begin, lines.extent))
        end = a.k.let("end", minimum(begin + self.segment, lines.extent))
        left = a.k.let("left", a.left(a.number(lines.count), first))
        line = first + a.thread
        with a.loop("at", begin, end, limit=left) as at:
            own = self._where(line, at, lines.extent)
            place = a.places.at(lines.entry.result.shape, own)
            a.results[0][own] = a.elements.value(lines.entry.operands[0], place)
        if not lines.updates:
            return
        bounds = a.number(0), a.number(lines.updates)
        if is_cpu(a.profile):
            # The block looks at each index once, for all its lines.
            with a.k.count("update", *bounds) as update, a.places.scope():
                inside, where = self._inside(update, begin, end)
                with a.k.when(inside), a.k.region(limit=left), a.places.scope():
                    self._apply(update, line, where)
        else:
            with a.loop("update", *bounds, limit=left) as update:
                inside, where = self._inside(update, begin, end)
                with a.k.when(inside), a.places.scope():
                    self._apply(update, line, where)

    def _apply(self, update: Expression, line: Expression, at: Expression) -> None:
        """Put one update of a line where it belongs."""
        a, lines = self.a, self.lines
        updates = lines.entry.operands[2]
        given = a.places.at(updates.shape, self._where(line, update, lines.updates))
        value = a.elements.value(updates, given)
        where = self._where(line, at, lines.extent)
        out = a.results[0]
        if lines.op.kind is ScatterKind.ADD:
            value = operations.combine("sum", out[where], value)
        out[where] = value

    def _inside(
        self, update: Expression, begin: Expression, end: Expression
    ) -> tuple[Expression, Expression]:
        """Whether an update falls into the part, and where in the line."""
        a = self.a
        indices = self.lines.entry.operands[1]
        index = a.elements.value(indices, a.places.at(indices.shape, update))
        wide = a.k.let(None, index.cast(_wide(index.dtype, a.index)))
        inside = wide < self.lines.extent
        if wide.dtype.is_signed:
            inside = (wide >= 0) & inside
        at = a.k.let(None, wide.cast(a.index))
        return a.k.let(None, inside & (at >= begin) & (at < end)), at

    def _where(self, line: Expression, at: Coordinate, extent: int) -> Expression:
        """The number of a line's element, in the result or in the updates."""
        a, inner = self.a, self.lines.inner
        at = a.places.number(at)
        if inner == 1:
            return a.k.let(None, line * extent + at)
        row, column = line / inner, line % inner
        return a.k.let(None, (row * extent + at) * inner + column)


def _wide(dtype: DType, index: DType) -> DType:
    """A dtype of its sign that holds an index and any number of elements."""
    if dtype.bits > index.bits:
        return dtype
    if dtype.is_signed:
        return DType.I32 if index is DType.U32 else DType.I64
    return index
