"""Cumulative scans as kernels.

A *line* is all elements along the scanned axis at one place of the others.

* *Alone*: a thread goes along a line by itself, as numpy does.
* *Together*: a block's threads scan a line, a tile of as many elements as threads at a
  time: Hillis and Steele's steps in shared memory, then what came before is added. Long
  lines that are few are cut into *segments*: a first kernel scans each by itself and
  leaves its total, a second scans the totals of each line, a third adds to each segment
  what came before it.
"""

from __future__ import annotations

from accy_async.artifact.resources import LaunchResourceClass
from accy_async.artifact.tiles import LaunchTile, LaunchTileKind
from accy_async.compiler import semantic
from accy_async.compiler.form import (
    constant,
    minimum,
)
from accy_async.compiler.kernelization.assembly import (
    Assembly,
    ceil_div,
    grid_candidates,
    is_cpu,
)
from accy_async.compiler.kernelization.elements import is_elementwise
from accy_async.compiler.kernelization.profile import TargetProfile
from accy_async.compiler.kernelization.scancode import ScanCode, ScanLines
from accy_async.compiler.kernelization.schedules import (
    GeneratedScanSchedule,
    scan_schedule_candidates,
)
from accy_async.compiler.kernelization.work import (
    BufferOrigin,
    KernelizedWork,
    KernelStep,
    StepBuffer,
    WorkItem,
)
from accy_async.compiler.semantic import Function, Operation, TensorType
from accy_async.dtypes import DType
from accy_async.errors import UnsupportedOperation

__all__ = ["kernelize_scan"]

_BLOCKS = 128
"""Lines that keep a GPU busy without being cut."""
_SEGMENT_TILES = 16
"""Tiles of a segment at least."""


def kernelize_scan(
    item: WorkItem,
    profile: TargetProfile,
    schedule: GeneratedScanSchedule | None = None,
) -> KernelizedWork:
    """The kernel of a scan, with elementwise work before it; of few long lines three.

    Raises:
        UnsupportedOperation: the function is not elementwise work that ends in a scan.
    """
    lines = _lines(item.function)
    if schedule is None:
        backend = profile.backend
        schedule = scan_schedule_candidates(lines.count, lines.extent, backend=backend)[
            0
        ]
        if is_cpu(profile) and lines.inner < 8:
            schedule = GeneratedScanSchedule(threads=1, lines_per_block=True)
    segments = _segments(lines, profile, schedule)
    steps: tuple[KernelStep, ...]
    scratch: tuple[TensorType, ...] = ()
    if segments > 1:
        totals = TensorType(lines.op.accumulate, (segments, lines.count))
        scratch = (totals, totals)
        if lines.op.accumulate is not lines.entry.result.dtype:
            scratch += (lines.entry.result.type.with_dtype(lines.op.accumulate),)
        steps = _three_steps(item, profile, lines, schedule, segments, scratch)
    else:
        steps = (_one_step(item, profile, lines, schedule),)
    return KernelizedWork(
        work_item_id=item.work_item_id,
        compile_launch=item.kind,
        op_count=item.op_count,
        steps=steps,
        scratch=scratch,
    )


def _lines(function: Function) -> ScanLines:
    scans = [e for e in function.operations if isinstance(e.op, semantic.Scan)]
    if len(scans) != 1 or function.results != (scans[0].result,):
        raise UnsupportedOperation("scan work has one scan, its only result")
    for entry in function.operations:
        if entry is not scans[0] and not is_elementwise(entry.op):
            raise UnsupportedOperation(
                f"{entry.op.opcode} is no elementwise operation before a scan"
            )
    (entry,) = scans
    op, shape = entry.op, entry.result.shape
    assert isinstance(op, semantic.Scan)
    outer = inner = 1
    for axis, extent in enumerate(shape):
        if axis < op.axis:
            outer *= extent
        elif axis > op.axis:
            inner *= extent
    return ScanLines(entry, op, outer, shape[op.axis], inner)


def _segments(
    lines: ScanLines, profile: TargetProfile, schedule: GeneratedScanSchedule
) -> int:
    if is_cpu(profile) or schedule.lines_per_block or not lines.count:
        return 1
    least = schedule.threads * _SEGMENT_TILES
    return max(1, min(ceil_div(4 * _BLOCKS, lines.count), lines.extent // least))


def _one_step(
    item: WorkItem,
    profile: TargetProfile,
    lines: ScanLines,
    schedule: GeneratedScanSchedule,
) -> KernelStep:
    a = _assembly(item, profile, lines, schedule.threads, "")
    writer = ScanCode(a, lines, schedule.threads)
    tasks = lines.count if lines.extent else 0
    if schedule.lines_per_block:
        tasks = ceil_div(tasks, schedule.threads)
        if tasks:
            writer.alone()
    elif tasks:
        with writer.a.tasks(tasks) as line:
            writer.together(
                line,
                a.number(0),
                a.number(lines.extent),
                a.results[0],
                carry=writer.start,
            )
    return _step(a, lines, tasks)


def _three_steps(
    item: WorkItem,
    profile: TargetProfile,
    lines: ScanLines,
    schedule: GeneratedScanSchedule,
    segments: int,
    scratch: tuple[TensorType, ...],
) -> tuple[KernelStep, ...]:
    """Scan segments, scan their totals, add to each segment what came before.

    Where sums are wider than the results they pass in scratch of their own until the
    last step, so that each result is rounded once.
    """
    threads = schedule.threads
    size = ceil_div(ceil_div(lines.extent, segments), threads) * threads
    wide = len(scratch) > 2
    sums = (
        (BufferOrigin.SCRATCH, 2, scratch[2])
        if wide
        else (BufferOrigin.RESULT, 0, lines.entry.result.type)
    )
    first = _assembly(
        item,
        profile,
        lines,
        threads,
        "_segments",
        results=[(BufferOrigin.SCRATCH, scratch[0]), (sums[0], sums[2])],
    )
    first.arguments[1] = StepBuffer(origin=sums[0], index=sums[1])
    writer = ScanCode(first, lines, threads)
    with writer.a.tasks(segments * lines.count) as task:
        line, segment = task % lines.count, task / lines.count
        line, segment = first.k.let("line", line), first.k.let("segment", segment)
        begin = first.k.let("begin", segment * size)
        end = first.k.let("end", minimum(begin + size, lines.extent))
        total = writer.together(line, begin, end, first.results[1], carry=writer.start)
        with first.k.region(limit=constant(DType.U32, 1)):
            first.results[0][task] = total
    return (
        _step(first, lines, segments * lines.count),
        _totals(item, profile, lines, segments, scratch),
        _additions(item, profile, lines, threads, segments, size, scratch),
    )


def _totals(
    item: WorkItem,
    profile: TargetProfile,
    lines: ScanLines,
    segments: int,
    scratch: tuple[TensorType, ...],
) -> KernelStep:
    """For each segment what came before it; a thread a line, as they are few."""
    threads = 32
    a = Assembly(
        item,
        profile,
        "scan_totals",
        (threads, 1, 1),
        element_count=segments * lines.count,
        function=_nothing(item.function),
        results=[(BufferOrigin.SCRATCH, scratch[1])],
        partials=scratch[:1],
    )
    a.arguments[0] = StepBuffer(origin=BufferOrigin.SCRATCH, index=1)
    writer = ScanCode(a, lines, threads)
    total = a.k.thread_variable("total", writer.dtype)
    with writer.a.tasks(ceil_div(lines.count, threads)) as task:
        first = a.k.let("first", task * threads)
        left = a.k.let("left", a.left(a.number(lines.count), first))
        with a.k.region(limit=left):
            total.set(writer.start)
        with a.loop("segment", a.number(0), a.number(segments), limit=left) as segment:
            at = a.k.let(None, segment * lines.count + (first + a.thread))
            own = a.partials[0][at]
            a.results[0][at] = total.value
            total.set(writer.combine(total.value, own))
    return _step(a, lines, ceil_div(lines.count, threads))


def _additions(
    item: WorkItem,
    profile: TargetProfile,
    lines: ScanLines,
    threads: int,
    segments: int,
    size: int,
    scratch: tuple[TensorType, ...],
) -> KernelStep:
    wide = len(scratch) > 2
    a = Assembly(
        item,
        profile,
        "scan",
        (threads, 1, 1),
        element_count=lines.count * lines.extent,
        function=_nothing(item.function),
        results=[(BufferOrigin.RESULT, lines.entry.result.type)],
        partials=scratch[1:],
        updated=not wide,
    )
    for i in range(len(scratch) - 1):
        a.arguments[1 + i] = StepBuffer(origin=BufferOrigin.SCRATCH, index=1 + i)
    writer = ScanCode(a, lines, threads)
    sums = a.partials[1] if wide else a.results[0]
    with writer.a.tasks(segments * lines.count) as task:
        line = a.k.let("line", task % lines.count)
        begin = a.k.let("begin", task / lines.count * size)
        end = a.k.let("end", minimum(begin + size, lines.extent))
        before = a.k.let("before", a.partials[0].at(task))
        with a.loop("base", begin, end, threads) as base:
            own = a.k.let(None, base + a.thread)
            with a.k.when(own < end), a.places.scope():
                place = writer.place(line, own)
                at = a.places.number(a.places.linear(place))
                writer.store(a.results[0], place, writer.combine(before, sums[at]))
    return _step(a, lines, segments * lines.count)


def _nothing(function: Function) -> Function:
    """A function of the same results' types without parameters, for later steps."""
    constants = [
        Operation(
            semantic.Constant(type, bytes(type.dtype.size_bytes)),
            (),
            (semantic.Value(index, type),),
        )
        for index, type in enumerate(function.result_types)
    ]
    results = tuple(entry.result for entry in constants)
    return Function(function.name, (), tuple(constants), results)


def _assembly(
    item: WorkItem,
    profile: TargetProfile,
    lines: ScanLines,
    threads: int,
    what: str,
    *,
    results: list[tuple[BufferOrigin, TensorType]] | None = None,
) -> Assembly:
    return Assembly(
        item,
        profile,
        f"scan{what}",
        (threads, 1, 1),
        element_count=lines.count * lines.extent,
        results=results,
    )


def _step(a: Assembly, lines: ScanLines, tasks: int) -> KernelStep:
    threadgroup = (a.threads, 1, 1)
    resources = grid_candidates(a.profile, tasks, threadgroup, LaunchResourceClass.SCAN)
    dtype = lines.entry.result.dtype
    tile = LaunchTile(
        kind=LaunchTileKind.SCAN,
        m=1,
        n=a.threads,
        input_dtype=lines.entry.operands[0].dtype,
        output_dtype=dtype,
        input_tile_bytes=a.threads * lines.entry.operands[0].dtype.size_bytes,
        output_tile_bytes=a.threads * dtype.size_bytes,
    )
    return a.step(resources, tile)
