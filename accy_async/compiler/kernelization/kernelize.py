"""The one entrance: a work item of any generated kind to kernels."""

from __future__ import annotations

from collections.abc import Callable

from accy_async.artifact.planned import CompileLaunch
from accy_async.compiler.kernelization.dot_general import kernelize_dot_general
from accy_async.compiler.kernelization.elementwise import kernelize_elementwise
from accy_async.compiler.kernelization.profile import TargetProfile
from accy_async.compiler.kernelization.rows import kernelize_rows
from accy_async.compiler.kernelization.scans import kernelize_scan
from accy_async.compiler.kernelization.scatters import kernelize_scatter
from accy_async.compiler.kernelization.schedules import (
    GatherSchedule,
    GeneratedRowPipelineSchedule,
    GeneratedScanSchedule,
    MatrixProductSchedule,
    RowSparseCrossEntropySchedule,
    ScatterSchedule,
    Schedule,
)
from accy_async.compiler.kernelization.work import KernelizedWork, WorkItem
from accy_async.errors import InvalidType, UnsupportedOperation

__all__ = ["kernelize"]

_KINDS: dict[CompileLaunch, tuple[Callable[..., KernelizedWork], type | None]] = {
    CompileLaunch.ELEMENTWISE: (kernelize_elementwise, None),
    CompileLaunch.GATHER: (kernelize_elementwise, GatherSchedule),
    CompileLaunch.REDUCTION: (kernelize_rows, GeneratedRowPipelineSchedule),
    CompileLaunch.ROW_PIPELINE: (kernelize_rows, GeneratedRowPipelineSchedule),
    CompileLaunch.DOT_GENERAL: (kernelize_dot_general, MatrixProductSchedule),
    CompileLaunch.SCAN: (kernelize_scan, GeneratedScanSchedule),
    CompileLaunch.SCATTER: (kernelize_scatter, ScatterSchedule),
    CompileLaunch.CROSS_ENTROPY: (kernelize_rows, RowSparseCrossEntropySchedule),
}


def kernelize(
    item: WorkItem, profile: TargetProfile, schedule: Schedule | None = None
) -> KernelizedWork:
    """The kernels of a work item.

    Args:
        item: what is computed, and as what kind of kernel.
        profile: what it is made for.
        schedule: how it is laid out; None is the heuristic's choice.

    Raises:
        UnsupportedOperation: the kind has no generated kernels, or cannot hold an
            operation of the function; the message names it.
        InvalidType: the schedule is of another kind.
    """
    if item.kind not in _KINDS:
        raise UnsupportedOperation(f"no kernel is generated for {item.kind} work")
    make, takes = _KINDS[item.kind]
    if schedule is None:
        return make(item, profile)
    if takes is None or not isinstance(schedule, takes):
        expected = "None" if takes is None else f"a {takes.__name__} or None"
        raise InvalidType("kernelize.schedule", schedule, expected)
    return make(item, profile, schedule)
