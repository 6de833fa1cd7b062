"""Scatters as kernels: each element of the result has one thread that owns it.

* *Alone*: a thread owns the elements of one line along the axis, or of one part of it.
  It copies them from the operand, then goes through all indices in their order and
  applies the updates that fall into its part. Indices are read by every thread of a
  block alike, updates by neighbouring threads next to each other; more parts mean more
  threads, and as many readings of all indices.
* *By update*: on GPUs, where updates are many, each is looked at once. Where no order
  shows, all are applied at once, as `scattermarks` has it; where one does, they are
  sorted by where they go first, as `scatterlists` has it.

The result is the same bits each time: sums of floats are added in the order of the
updates, and of several updates that set one element the last stays, as numpy has it.
"""

from __future__ import annotations

from accy_async.artifact.resources import LaunchResourceClass
from accy_async.artifact.tiles import LaunchTile, LaunchTileKind
from accy_async.compiler.form import Expression, minimum
from accy_async.compiler.kernelization import operations
from accy_async.compiler.kernelization.assembly import (
    Assembly,
    ceil_div,
    grid_candidates,
    is_cpu,
)
from accy_async.compiler.kernelization.profile import TargetProfile
from accy_async.compiler.kernelization.scattercode import (
    ScatterCode,
    ScatterLines,
    ScatterWork,
)
from accy_async.compiler.kernelization.scatterlists import listed
from accy_async.compiler.kernelization.scattermarks import (
    added,
    marked,
    shows_no_order,
)
from accy_async.compiler.kernelization.schedules import (
    ScatterAddSchedule,
    ScatterSchedule,
    scatter_schedule_candidates,
)
from accy_async.compiler.kernelization.sorts import MOST_NUMBERS
from accy_async.compiler.kernelization.work import (
    KernelizedWork,
    KernelStep,
    WorkItem,
)
from accy_async.compiler.semantic import TensorType
from accy_async.errors import InvalidType

__all__ = ["kernelize_scatter"]


def kernelize_scatter(
    item: WorkItem, profile: TargetProfile, schedule: ScatterSchedule | None = None
) -> KernelizedWork:
    """The kernels of a scatter, with elementwise work before it.

    Raises:
        UnsupportedOperation: the function is not elementwise work and a scatter at its
            end.
        InvalidType: the schedule is that of a scatter that adds, and the scatter does
            not, or the other way round.
    """
    lines = ScatterLines.of(item.function)
    if schedule is None:
        schedule = scatter_schedule_candidates(
            lines.count,
            lines.extent,
            lines.updates,
            sorts=lines.adds and not shows_no_order(lines.entry.result.dtype),
            backend=profile.backend,
        )[0]
    elif isinstance(schedule, ScatterAddSchedule) is not lines.adds:
        expected = "a ScatterAddSchedule" if lines.adds else "a ScatterSchedule"
        raise InvalidType("kernelize.schedule", schedule, expected)
    if schedule.by_update and _can_be_by_update(lines):
        work = ScatterWork(item, profile, lines, schedule.threads)
        steps, scratch = _by_update(work)
    else:
        steps, scratch = [_alone(item, profile, lines, schedule)], []
    return KernelizedWork.of(item, steps, scratch)


def _can_be_by_update(lines: ScatterLines) -> bool:
    """Whether there is anything to do, and the updates can be numbered."""
    sizes = (lines.count, lines.extent, lines.updates)
    return min(sizes) > 0 and max(lines.extent, lines.updates) < MOST_NUMBERS


def _by_update(work: ScatterWork) -> tuple[list[KernelStep], list[TensorType]]:
    if not work.lines.adds:
        return marked(work)
    return (
        added(work) if shows_no_order(work.lines.entry.result.dtype) else listed(work)
    )


def _alone(
    item: WorkItem,
    profile: TargetProfile,
    lines: ScatterLines,
    schedule: ScatterSchedule,
) -> KernelStep:
    """The one kernel whose threads go through all indices."""
    threadgroup = (schedule.threads, 1, 1)
    count = lines.count * lines.extent
    a = Assembly(
        item, profile, lines.name, threadgroup, element_count=count, updated=lines.adds
    )
    blocks = 0
    if count:
        _Writer(a, lines, schedule).write()
        blocks = ceil_div(lines.count, schedule.threads) * schedule.segments
    resources = grid_candidates(
        profile, blocks, threadgroup, LaunchResourceClass.GATHER_SCATTER
    )
    return a.step(resources, LaunchTile(kind=LaunchTileKind.ELEMENTWISE))


class _Writer:
    def __init__(
        self, a: Assembly, lines: ScatterLines, schedule: ScatterSchedule
    ) -> None:
        self.a, self.lines, self.schedule = a, lines, schedule
        self.code = ScatterCode(a, lines)
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
            own = self.code.where(line, at, lines.extent)
            a.results[0][own] = self.code.before(own)
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
        out, value = self.a.results[0], self.code.update_of(line, update)
        where = self.code.where(line, at, self.lines.extent)
        if self.lines.adds:
            value = operations.combine("sum", out[where], value)
        out[where] = value

    def _inside(
        self, update: Expression, begin: Expression, end: Expression
    ) -> tuple[Expression, Expression]:
        """Whether an update falls into the part, and where in the line."""
        inside, at = self.code.target(update)
        return self.a.k.let(None, inside & (at >= begin) & (at < end)), at
