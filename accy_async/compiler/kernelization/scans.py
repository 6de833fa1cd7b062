"""Cumulative scans as kernels.

A *line* is all elements along the scanned axis at one place of the others.

* *Alone*: a thread goes along a line by itself, as numpy does; `scanalone` has how.
* *Together*: a block's threads scan a line, a tile at a time; `scantiles` has how.

On GPUs long lines that are few are cut into *segments*: a first kernel leaves each
one's total, a second scans each onto the totals of those before it. So what is long is
read twice and written once.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from accy_async.artifact.formats import ArtifactFormat
from accy_async.artifact.resources import LaunchResourceClass
from accy_async.artifact.tiles import LaunchTile, LaunchTileKind
from accy_async.compiler import semantic
from accy_async.compiler.form import Expression, minimum
from accy_async.compiler.kernelization.assembly import (
    Assembly,
    ceil_div,
    grid_candidates,
    is_cpu,
    power_of_two,
)
from accy_async.compiler.kernelization.lines import around, last_operation
from accy_async.compiler.kernelization.places import Coordinate
from accy_async.compiler.kernelization.profile import TargetProfile
from accy_async.compiler.kernelization.scanalone import ScanAlone
from accy_async.compiler.kernelization.scancode import ScanCode, ScanLines
from accy_async.compiler.kernelization.scantiles import ScanTiles
from accy_async.compiler.kernelization.schedules import (
    GeneratedScanSchedule,
)
from accy_async.compiler.kernelization.work import (
    BufferOrigin,
    KernelizedWork,
    KernelStep,
    WorkItem,
)
from accy_async.compiler.semantic import Function, TensorType

__all__ = ["kernelize_scan"]

_NARROW = 8
"""Lines next to each other from which on threads go along them by themselves."""
_BLOCKS = 128
"""Lines that keep a GPU busy without being cut."""
_SHORT = 64
"""Elements of a line up to which a thread on a GPU goes along it by itself."""
_AT_ONCE = 8
"""Elements that a thread on a GPU takes at a time where it goes along a line."""
_THREADS = 2**17
"""Threads that go along lines, as far as cutting those gives so many."""
_LEAST = 128
"""Elements of a segment then, at least."""
_SEGMENTS = 2048
"""Segments in all that lines are cut into, which even out what blocks take."""
_EACH = 4
"""Neighbours that a thread takes at a time: 16 bytes of f32."""
_GROUPS = 4
"""Groups of neighbours that a thread takes at a time."""
_SHARED_BYTES = 24 * 1024
"""Of shared memory for a tile's totals: most devices have 32 KiB in all."""


def kernelize_scan(
    item: WorkItem,
    profile: TargetProfile,
    schedule: GeneratedScanSchedule | None = None,
) -> KernelizedWork:
    """The kernel of a scan, with elementwise work before it; of few long lines two.

    Raises:
        UnsupportedOperation: the function is not elementwise work that ends in a scan.
    """
    lines = _lines(item.function)
    if schedule is None:
        schedule = _schedule(lines, profile)
    layout = _layout(lines, profile, schedule)
    steps: tuple[KernelStep, ...]
    scratch: tuple[TensorType, ...] = ()
    if layout.segments > 1:
        totals = TensorType(lines.op.accumulate, (layout.segments, lines.count))
        scratch = (totals,)
        steps = (
            _totals(item, profile, lines, layout, totals),
            _scan(item, profile, lines, layout, totals),
        )
    else:
        steps = (_scan(item, profile, lines, layout),)
    return KernelizedWork.of(item, steps, scratch)


def _lines(function: Function) -> ScanLines:
    entry, op = last_operation(function, semantic.Scan)
    return ScanLines(entry, op, *around(entry.result.shape, op.axis))


def _schedule(lines: ScanLines, profile: TargetProfile) -> GeneratedScanSchedule:
    """What is taken untuned.

    Threads of a block that go along lines by themselves read at the same time what lies
    next to each other, if the lines do.
    """
    is_near = lines.inner < _NARROW
    if is_cpu(profile):
        return GeneratedScanSchedule(threads=1 if is_near else 64, lines_per_block=True)
    if is_near and lines.extent > _SHORT:
        threads = power_of_two(ceil_div(lines.extent, _EACH), 32, 256)
        return GeneratedScanSchedule(threads=threads)
    return GeneratedScanSchedule(threads=64, lines_per_block=True)


@attrs.frozen
class _Layout:
    """How lines lie on blocks and threads.

    Attributes:
        threads: of a block.
        is_alone: whether a thread goes along a line by itself.
        each: elements of a group of neighbours; or those that a thread that is alone
            takes at a time.
        groups: of neighbours that a thread has in a tile.
        segments: that a line is cut into.
        size: of a segment, but for the last.
    """

    threads: int
    is_alone: bool = False
    each: int = 1
    groups: int = 1
    segments: int = 1
    size: int = 0


def _layout(
    lines: ScanLines, profile: TargetProfile, schedule: GeneratedScanSchedule
) -> _Layout:
    threads, extent, cpu = schedule.threads, lines.extent, is_cpu(profile)
    if schedule.lines_per_block or not lines.count:
        each = 1 if cpu else min(_AT_ONCE, max(extent, 1))
        layout = _Layout(threads, is_alone=True, each=each)
        wanted, least = ceil_div(_THREADS, max(lines.count, 1)), _LEAST
        is_enough = lines.inner < _NARROW or lines.count >= _THREADS
    else:
        each = _EACH if lines.inner == 1 and extent > threads else 1
        fitting = _SHARED_BYTES // (2 * threads * lines.op.accumulate.size_bytes)
        groups = max(1, min(_GROUPS, fitting, ceil_div(extent, threads * each)))
        layout = _Layout(threads, each=each, groups=groups)
        wanted, least = ceil_div(_SEGMENTS, lines.count), threads * each * groups
        is_enough = lines.count >= _BLOCKS
    segments = min(wanted, extent // least)
    if cpu or is_enough or segments < 2:
        return layout
    size = ceil_div(ceil_div(extent, segments), least) * least
    return attrs.evolve(layout, segments=ceil_div(extent, size), size=size)


def _writer(a: Assembly, lines: ScanLines, layout: _Layout) -> ScanAlone | ScanTiles:
    code = ScanCode(a, lines, layout.threads)
    if layout.is_alone:
        return ScanAlone(code, layout.each)
    a.k.takes_neighbours = (
        a.profile.format is ArtifactFormat.CUDA_PTX
        and lines.inner == 1
        and layout.each > 1
        and lines.extent % layout.each == 0
    )
    return ScanTiles(code, layout.each, layout.groups)


def _totals(
    item: WorkItem,
    profile: TargetProfile,
    lines: ScanLines,
    layout: _Layout,
    totals: TensorType,
) -> KernelStep:
    """Combine each segment by itself."""
    results = [(BufferOrigin.SCRATCH, totals)]
    what = "scan_totals"
    a = _assembly(item, profile, lines, layout, what, results=results)
    writer = _writer(a, lines, layout)
    tasks = layout.segments * writer.units
    with a.tasks(tasks) as task:
        unit, segment, begin, size = _stretch(a, lines, layout, task, writer.units)
        writer.leave_total(unit, segment, begin, size)
    return _step(a, lines, tasks)


def _scan(
    item: WorkItem,
    profile: TargetProfile,
    lines: ScanLines,
    layout: _Layout,
    totals: TensorType | None = None,
) -> KernelStep:
    """Scan each line, or each segment onto the totals of those before it."""
    partials = [] if totals is None else [totals]
    a = _assembly(item, profile, lines, layout, "scan", partials=partials)
    writer = _writer(a, lines, layout)
    tasks = layout.segments * writer.units if lines.extent else 0
    if totals is not None:
        with a.tasks(tasks) as task:
            unit, segment, begin, size = _stretch(a, lines, layout, task, writer.units)
            writer.scan(unit, begin, size, segment)
    elif tasks:
        with a.tasks(tasks) as unit:
            writer.scan(unit, a.number(0), lines.extent)
    return _step(a, lines, tasks)


def _stretch(
    a: Assembly, lines: ScanLines, layout: _Layout, task: Expression, units: int
) -> tuple[Expression, Expression, Expression, Coordinate]:
    """A task's unit and segment, where that begins and how many elements it has."""
    line = a.k.let("unit", task % units)
    segment = a.k.let("segment", task / units)
    begin = a.k.let("begin", segment * layout.size)
    if lines.extent % layout.size == 0:
        return line, segment, begin, layout.size
    end = minimum(begin + layout.size, lines.extent)
    return line, segment, begin, a.k.let("size", end - begin)


def _assembly(
    item: WorkItem,
    profile: TargetProfile,
    lines: ScanLines,
    layout: _Layout,
    what: str,
    *,
    results: list[tuple[BufferOrigin, TensorType]] | None = None,
    partials: Sequence[TensorType] = (),
) -> Assembly:
    return Assembly(
        item,
        profile,
        what,
        (layout.threads, 1, 1),
        element_count=lines.count * lines.extent,
        results=results,
        partials=partials,
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
