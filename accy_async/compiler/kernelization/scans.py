"""Cumulative scans as kernels.

A *line* is all elements along the scanned axis at one place of the others.

* *Alone*: a thread goes along a line by itself, as numpy does.
* *Together*: a block's threads scan a line, a tile at a time; `scantiles` has how.
  Long lines that are few are cut into *segments*: a first kernel leaves each one's
  total, a second scans each onto the totals of those before it. So what is long is read
  twice and written once.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from accy_async.artifact.formats import ArtifactFormat
from accy_async.artifact.resources import LaunchResourceClass
from accy_async.artifact.tiles import LaunchTile, LaunchTileKind
from accy_async.compiler import semantic
from accy_async.compiler.form import Expression, constant, minimum
from accy_async.compiler.kernelization.assembly import (
    Assembly,
    ceil_div,
    grid_candidates,
    is_cpu,
    power_of_two,
)
from accy_async.compiler.kernelization.elements import is_elementwise
from accy_async.compiler.kernelization.places import Coordinate
from accy_async.compiler.kernelization.profile import TargetProfile
from accy_async.compiler.kernelization.scancode import ScanCode, ScanLines
from accy_async.compiler.kernelization.scantiles import ScanTiles
from accy_async.compiler.kernelization.schedules import (
    GeneratedScanSchedule,
    scan_schedule_candidates,
)
from accy_async.compiler.kernelization.work import (
    BufferOrigin,
    KernelizedWork,
    KernelStep,
    WorkItem,
)
from accy_async.compiler.semantic import Function, TensorType
from accy_async.dtypes import DType
from accy_async.errors import UnsupportedOperation

__all__ = ["kernelize_scan"]

_BLOCKS = 128
"""Lines that keep a GPU busy without being cut."""
_SHORT = 64
"""Elements of a line up to which a thread on a GPU goes along it by itself."""
_SEGMENTS = 2048
"""Segments in all that lines are cut into, which even out what blocks take."""
_EACH = 4
"""Neighbours that a thread takes at a time: 16 bytes of f32."""
_GROUPS = 4
"""Groups of neighbours that a thread takes at a time."""
_SHARED_BYTES = 40 * 1024
"""Of shared memory for a tile's totals: some is left of what every device has."""


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
            _segments(item, profile, lines, layout, totals),
        )
    elif schedule.lines_per_block:
        steps = (_alone(item, profile, lines, layout),)
    else:
        steps = (_together(item, profile, lines, layout),)
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


def _schedule(lines: ScanLines, profile: TargetProfile) -> GeneratedScanSchedule:
    """What is taken untuned: of the candidates, but for lines whose elements are near.

    On CPUs one thread is best for those; on GPUs threads that go along such lines by
    themselves would read from everywhere at once.
    """
    is_near = lines.inner < 8
    if is_cpu(profile) and is_near:
        return GeneratedScanSchedule(threads=1, lines_per_block=True)
    if not is_cpu(profile) and is_near and lines.extent > _SHORT:
        threads = power_of_two(ceil_div(lines.extent, _EACH), 32, 256)
        return GeneratedScanSchedule(threads=threads)
    backend = profile.backend
    return scan_schedule_candidates(lines.count, lines.extent, backend=backend)[0]


@attrs.frozen
class _Layout:
    """How lines lie on blocks and threads.

    Attributes:
        threads: of a block.
        each: elements of a group of neighbours.
        groups: of neighbours that a thread has in a tile.
        segments: that a line is cut into.
        size: of a segment, but for the last.
    """

    threads: int
    each: int = 1
    groups: int = 1
    segments: int = 1
    size: int = 0


def _layout(
    lines: ScanLines, profile: TargetProfile, schedule: GeneratedScanSchedule
) -> _Layout:
    threads, extent = schedule.threads, lines.extent
    if schedule.lines_per_block or not lines.count:
        return _Layout(threads)
    each = _EACH if lines.inner == 1 and extent > threads else 1
    fitting = _SHARED_BYTES // (2 * threads * lines.op.accumulate.size_bytes)
    groups = max(1, min(_GROUPS, fitting, ceil_div(extent, threads * each)))
    layout = _Layout(threads, each, groups)
    tile = threads * each * groups
    segments = min(ceil_div(_SEGMENTS, lines.count), extent // tile)
    if is_cpu(profile) or lines.count >= _BLOCKS or segments < 2:
        return layout
    size = ceil_div(ceil_div(extent, segments), tile) * tile
    return attrs.evolve(layout, segments=ceil_div(extent, size), size=size)


def _tiles(a: Assembly, lines: ScanLines, layout: _Layout) -> ScanTiles:
    a.k.takes_neighbours = (
        a.profile.format is ArtifactFormat.CUDA_PTX
        and lines.inner == 1
        and layout.each > 1
        and lines.extent % layout.each == 0
    )
    code = ScanCode(a, lines, layout.threads)
    return ScanTiles(code, layout.each, layout.groups)


def _alone(
    item: WorkItem, profile: TargetProfile, lines: ScanLines, layout: _Layout
) -> KernelStep:
    a = _assembly(item, profile, lines, layout, "scan")
    tasks = ceil_div(lines.count if lines.extent else 0, layout.threads)
    if tasks:
        ScanCode(a, lines, layout.threads).alone()
    return _step(a, lines, tasks)


def _together(
    item: WorkItem, profile: TargetProfile, lines: ScanLines, layout: _Layout
) -> KernelStep:
    a = _assembly(item, profile, lines, layout, "scan")
    tiles = _tiles(a, lines, layout)
    tasks = lines.count if lines.extent else 0
    if tasks:
        with a.tasks(tasks) as line:
            tiles.scan(line, a.number(0), lines.extent, tiles.code.start)
    return _step(a, lines, tasks)


def _totals(
    item: WorkItem,
    profile: TargetProfile,
    lines: ScanLines,
    layout: _Layout,
    totals: TensorType,
) -> KernelStep:
    """Combine each segment by itself."""
    a = _assembly(
        item,
        profile,
        lines,
        layout,
        "scan_totals",
        results=[(BufferOrigin.SCRATCH, totals)],
    )
    tiles = _tiles(a, lines, layout)
    tasks = layout.segments * lines.count
    with a.tasks(tasks) as task:
        line, _, begin, size = _stretch(a, lines, layout, task)
        total = tiles.combined(line, begin, size)
        with a.k.region(limit=constant(DType.U32, 1)):
            a.results[0][task] = total
    return _step(a, lines, tasks)


def _segments(
    item: WorkItem,
    profile: TargetProfile,
    lines: ScanLines,
    layout: _Layout,
    totals: TensorType,
) -> KernelStep:
    """Scan each segment onto the totals of those before it."""
    a = _assembly(item, profile, lines, layout, "scan", partials=[totals])
    tiles = _tiles(a, lines, layout)
    tasks = layout.segments * lines.count
    with a.tasks(tasks) as task:
        line, segment, begin, size = _stretch(a, lines, layout, task)
        before = tiles.preceding(a.partials[0], line, segment)
        tiles.scan(line, begin, size, before)
    return _step(a, lines, tasks)


def _stretch(
    a: Assembly, lines: ScanLines, layout: _Layout, task: Expression
) -> tuple[Expression, Expression, Expression, Coordinate]:
    """A task's line and segment, where that begins and how many elements it has."""
    line = a.k.let("line", task % lines.count)
    segment = a.k.let("segment", task / lines.count)
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
