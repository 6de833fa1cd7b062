"""Reductions, row pipelines and losses of rows as kernels.

`rowplan` says what is computed for each row, `rowcode` writes it; here is how rows are
laid out and launched.
"""

from __future__ import annotations

import attrs

from accy_async.artifact.formats import ArtifactFormat, BackendKind
from accy_async.artifact.planned import CompileLaunch
from accy_async.artifact.resources import LaunchResourceClass, LaunchResourcePlan
from accy_async.artifact.tiles import (
    LaunchReduction,
    LaunchReductionKind,
    LaunchTile,
    LaunchTileKind,
)
from accy_async.compiler import semantic
from accy_async.compiler.kernelization.assembly import (
    Assembly,
    ceil_div,
    grid_candidates,
    is_cpu,
    power_of_two,
)
from accy_async.compiler.kernelization.profile import TargetProfile
from accy_async.compiler.kernelization.rowcode import RowCode
from accy_async.compiler.kernelization.rowlayout import RowLayout
from accy_async.compiler.kernelization.rowplan import RowPlan, plan_rows
from accy_async.compiler.kernelization.schedules import (
    GeneratedRowPipelineSchedule,
    RowSparseCrossEntropySchedule,
    row_pipeline_schedule_candidates,
)
from accy_async.compiler.kernelization.work import (
    BufferOrigin,
    KernelizedWork,
    KernelStep,
    WorkItem,
)
from accy_async.compiler.semantic import Function, TensorType, expand
from accy_async.values import U32_MAX

__all__ = ["kernelize_rows"]

_WRITTEN_OUT = ("softmax", "row_sparse_cross_entropy", "mean")
_FEW = 1024
"""Elements in all up to which one small block takes many rows in turn."""
_SHORT = {True: 8, False: 32}
"""Rows up to this a thread takes alone; by whether the target is a CPU."""
_NARROW = {True: 8, False: 16}
"""Neighbouring columns from which on threads take columns, likewise."""
_MOST_LANES = 64
"""Threads that share a row while others of their block share another."""
_BLOCK_THREADS = 256
"""Of a block on a GPU, where they take several rows at once."""
_LIGHT = 24
"""Operations up to which a thread on a GPU takes several elements at a time."""
_ACCUMULATORS = 4
"""Results that a thread on a GPU keeps beside each other: sums do not wait for sums."""
_GROUPS = 4
"""Groups of neighbours that a thread takes at a time: all on their way at once."""
_DOWN = 8
"""Elements that a thread on a GPU takes at a time where it has a row by itself."""
_GPU_THREADS = 2**18
"""Threads that keep a large GPU busy: 132 multiprocessors of 2048 each."""

Schedule = GeneratedRowPipelineSchedule | RowSparseCrossEntropySchedule


def kernelize_rows(
    item: WorkItem, profile: TargetProfile, schedule: Schedule | None = None
) -> KernelizedWork:
    """The kernel of a reduction, row pipeline or loss; of a long reduction two.

    Raises:
        UnsupportedOperation: the function does not go by rows.
    """
    function = expand(item.function, _WRITTEN_OUT)
    plan = plan_rows(function)
    layout = _layout(plan, function, profile, schedule)
    if layout.parts == 1:
        steps = (_whole(item, profile, function, plan, layout),)
        return KernelizedWork.of(item, steps)
    scratch = tuple(
        TensorType(_reduce(entry).accumulate, (layout.parts, plan.rows))
        for entry in plan.stages[0]
    )
    return KernelizedWork.of(
        item,
        (
            _partial(item, profile, function, plan, layout, scratch),
            _final(item, profile, function, plan, layout, scratch),
        ),
        scratch,
    )


def _reduce(entry: semantic.Operation) -> semantic.Reduce:
    assert isinstance(entry.op, semantic.Reduce)
    return entry.op


def _layout(
    plan: RowPlan,
    function: Function,
    profile: TargetProfile,
    schedule: Schedule | None,
) -> RowLayout:
    cpu, rows, extent = is_cpu(profile), plan.rows, plan.extent
    small = 32 if profile.backend is BackendKind.CUDA or cpu else 64
    if not cpu and rows * extent <= _FEW and not plan.full_results and not schedule:
        return RowLayout(small, rows_per_block=small)
    takes_several = not cpu and len(function.operations) <= _LIGHT
    unrolled = 4 if takes_several else 1
    if not schedule and (
        _by_columns(plan, cpu) or (extent <= _SHORT[cpu] and rows >= 64)
    ):
        threads = power_of_two(rows, 16, 1024) if cpu else 128
        if not cpu and rows < _GPU_THREADS:
            threads = power_of_two(rows, 32, 64)
        unrolled = 4 if extent >= 4 else 1
        if takes_several and extent >= _DOWN:
            unrolled = _DOWN
        layout = RowLayout(threads, lanes=1, unrolled=unrolled)
    else:
        candidates = row_pipeline_schedule_candidates(extent, backend=profile.backend)
        threads = schedule.threads if schedule else candidates[0].threads
        if cpu and not schedule:
            threads = power_of_two(extent, 8, threads)
        if extent < threads * unrolled * 2:
            unrolled = 1
        layout = RowLayout(threads, unrolled=unrolled)
        if not schedule:
            layout = _sharing(plan, threads, unrolled, cpu=cpu)
        layout = _with_neighbours(plan, layout, profile)
    if takes_several:
        accumulators = min(_ACCUMULATORS, layout.unrolled)
        layout = attrs.evolve(layout, accumulators=accumulators)
    return layout if schedule else _in_parts(plan, layout, cpu=cpu)


def _with_neighbours(
    plan: RowPlan, layout: RowLayout, profile: TargetProfile
) -> RowLayout:
    """Have threads take neighbours where an access can have all of them."""
    lie_in_rows = plan.axes == tuple(range(len(plan.kept), len(plan.shape)))
    takes_neighbours = (
        profile.format is ArtifactFormat.CUDA_PTX
        and layout.lanes is None
        and layout.unrolled > 1
        and lie_in_rows
        and plan.extent % layout.unrolled == 0
    )
    if not takes_neighbours:
        return layout
    each = layout.unrolled
    groups = 1 if plan.full_results else _GROUPS
    return attrs.evolve(layout, unrolled=groups * each, neighbours=each)


def _sharing(plan: RowPlan, threads: int, unrolled: int = 1, *, cpu: bool) -> RowLayout:
    """Rows that so many threads share each: a block's, or on GPUs several rows'."""
    at_once = 1
    if threads <= _MOST_LANES and not cpu:
        at_once = power_of_two(plan.rows, 1, _BLOCK_THREADS // threads)
    if at_once == 1:
        return RowLayout(threads, unrolled=unrolled)
    return RowLayout(threads * at_once, lanes=threads, unrolled=unrolled)


def _by_columns(plan: RowPlan, cpu: bool) -> bool:
    """Whether elements next to each other in memory are of different rows."""
    last = 1
    for axis in reversed(range(len(plan.shape))):
        if axis in plan.axes:
            if plan.shape[axis] != 1:
                break
        else:
            last *= plan.shape[axis]
    return last >= _NARROW[cpu]


def _in_parts(plan: RowPlan, layout: RowLayout, *, cpu: bool) -> RowLayout:
    """Cut long rows where there are too few to keep the device busy."""
    if plan.full_results or len(plan.stages) > 1 or not plan.rows:
        return layout
    blocks = layout.tiles(plan.rows)
    wanted, least = (16, 65536) if cpu else (_GPU_THREADS // layout.threads, 8192)
    if layout.lanes == 1 and not cpu:
        wanted //= 2  # as each has several loads on its way
    if layout.lanes is not None:
        least = max(least // layout.rows_at_once, 64)
    parts = min(ceil_div(wanted, blocks), plan.extent // least)
    if parts < 2:
        return layout
    layout = attrs.evolve(layout, parts=parts)
    filled = ceil_div(plan.extent, layout.part_extent(plan.extent))
    return attrs.evolve(layout, parts=filled)


def _name(item: WorkItem, plan: RowPlan) -> str:
    if item.kind is CompileLaunch.REDUCTION:
        return f"reduction_{_reduce(plan.stages[0][0]).kind}"
    return str(item.kind)


def _whole(
    item: WorkItem,
    profile: TargetProfile,
    function: Function,
    plan: RowPlan,
    layout: RowLayout,
) -> KernelStep:
    is_reduction = item.kind is CompileLaunch.REDUCTION
    count = plan.rows * plan.extent
    a = Assembly(
        item,
        profile,
        _name(item, plan),
        (layout.threads, 1, 1),
        element_count=count,
        counted=is_reduction and count > 0,
        function=function,
    )
    if plan.rows:
        RowCode(a, plan, layout).write()
    return a.step(_launches(a, plan, layout), _tile(item, function, plan, layout))


def _partial(
    item: WorkItem,
    profile: TargetProfile,
    function: Function,
    plan: RowPlan,
    layout: RowLayout,
    scratch: tuple[TensorType, ...],
) -> KernelStep:
    a = Assembly(
        item,
        profile,
        _name(item, plan) + "_parts",
        (layout.threads, 1, 1),
        element_count=plan.rows * plan.extent,
        function=function,
        results=[(BufferOrigin.SCRATCH, type) for type in scratch],
    )
    RowCode(a, plan, layout).write()
    return a.step(_launches(a, plan, layout), _tile(item, function, plan, layout))


def _final(
    item: WorkItem,
    profile: TargetProfile,
    function: Function,
    plan: RowPlan,
    layout: RowLayout,
    scratch: tuple[TensorType, ...],
) -> KernelStep:
    if layout.lanes == 1:
        last = RowLayout(layout.threads, lanes=1)
    else:
        threads = power_of_two(layout.parts, 8 if is_cpu(profile) else 32, 256)
        last = RowLayout(threads)
    a = Assembly(
        item,
        profile,
        _name(item, plan),
        (last.threads, 1, 1),
        element_count=plan.rows * layout.parts,
        function=function,
        partials=scratch,
    )
    RowCode(a, plan, last, partials=a.partials, parts=layout.parts).write()
    tile = _tile(item, function, plan, last, read=layout.parts)
    return a.step(_launches(a, plan, last), tile)


def _launches(a: Assembly, plan: RowPlan, layout: RowLayout) -> LaunchResourcePlan:
    return grid_candidates(
        a.profile,
        layout.tiles(plan.rows) * layout.parts,
        (layout.threads, 1, 1),
        LaunchResourceClass.REDUCTION,
        per_thread=layout.unrolled,
    )


def _tile(
    item: WorkItem,
    function: Function,
    plan: RowPlan,
    layout: RowLayout,
    *,
    read: int | None = None,
) -> LaunchTile:
    """A block's work; ``read`` elements of a row, all of its part's if None."""
    entry = plan.stages[0][0]
    operand, result = entry.operands[0], function.results[0]
    m = layout.rows_at_once or layout.rows_per_block
    n = ceil_div(plan.extent, layout.parts) if read is None else read
    is_reduction = item.kind is CompileLaunch.REDUCTION
    out = 1 if plan.row_results else n
    return LaunchTile(
        kind=LaunchTileKind.REDUCTION if is_reduction else LaunchTileKind.ROW,
        m=m,
        n=min(n, U32_MAX),  # of a longer row the reduction's extent tells
        input_dtype=operand.dtype,
        output_dtype=result.dtype,
        input_tile_bytes=m * n * operand.dtype.size_bytes,
        output_tile_bytes=m * out * result.dtype.size_bytes,
        reduction=LaunchReduction(
            kind=_LAUNCH_KINDS[_reduce(entry).kind],
            rank=len(plan.shape),
            axis=min(plan.axes, default=0),
            extent=plan.extent,
        ),
    )


_LAUNCH_KINDS = {
    semantic.ReductionKind.SUM: LaunchReductionKind.SUM,
    semantic.ReductionKind.PRODUCT: LaunchReductionKind.PRODUCT,
    semantic.ReductionKind.MINIMUM: LaunchReductionKind.MIN,
    semantic.ReductionKind.MAXIMUM: LaunchReductionKind.MAX,
    semantic.ReductionKind.MEAN: LaunchReductionKind.MEAN,
}
