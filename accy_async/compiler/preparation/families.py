"""Families of ready-made kernels: their names, and which one serves an operation.

A registry may hold kernels that do just what an operation of the program does. Those
of the matrix product family are named after their sizes, dtype and thread block::

    accy.kernel.matrix_product.f32.5x7x3.t16x16

for ``[5, 3]`` by ``[3, 7]``, whose buffers are the result, the left and the right
operand.
"""

from __future__ import annotations

from accy_async.artifact.entry import KernelCallRegistry
from accy_async.compiler.kernelization.schedules import (
    MatrixProductSchedule,
    matrix_product_threads_for_extents,
)
from accy_async.compiler.preparation.schedules import MatrixExtents, Schedules
from accy_async.compiler.semantic import (
    DotGeneral,
    KernelCall,
    OperandEffect,
    TensorType,
)
from accy_async.dtypes import DType

__all__ = [
    "MATRIX_PRODUCT_FAMILY",
    "MATRIX_PRODUCT_VERSION",
    "matrix_product_call",
    "matrix_product_name",
    "matrix_product_target",
]

MATRIX_PRODUCT_FAMILY = "accy.kernel.matrix_product"
"""The family's name, with which its kernels' names begin."""

MATRIX_PRODUCT_VERSION = 1
"""The version of what the family's kernels take and give."""


def matrix_product_name(extents: MatrixExtents, dtype: DType) -> str:
    """A problem in the family's words: ``f32.5x7x3`` for m, n, k."""
    return f"{dtype}.{extents.m}x{extents.n}x{extents.k}"


def matrix_product_target(
    extents: MatrixExtents, dtype: DType, schedule: MatrixProductSchedule
) -> str:
    """The name of the family's kernel for a problem and a thread block."""
    threads = schedule.thread_blocks
    problem = matrix_product_name(extents, dtype)
    return f"{MATRIX_PRODUCT_FAMILY}.{problem}.t{threads.x}x{threads.y}"


def matrix_product_call(
    op: DotGeneral,
    lhs: TensorType,
    rhs: TensorType,
    registry: KernelCallRegistry,
    schedules: Schedules,
) -> KernelCall | None:
    """The call of the registry's kernel for a product; None if it has none.

    Which of the family's kernels: that of the schedule that was asked for or
    measured, else the one measured as the fastest of the family, else that of the
    heuristic's schedule.

    Raises:
        InvalidArtifact: what was measured as the fastest is no choice there is.
    """
    if not _is_plain(op, lhs, rhs):
        return None
    extents = MatrixExtents.of(op, lhs, rhs)
    schedule = schedules.matrix_product(op, lhs, rhs)
    target = None
    if schedule is None and schedules.family_tuning is not None:
        target = schedules.family_tuning.resolve(
            schedules.profile.format,
            MATRIX_PRODUCT_FAMILY,
            MATRIX_PRODUCT_VERSION,
            matrix_product_name(extents, lhs.dtype),
        )
    if target is None:
        threads = matrix_product_threads_for_extents(
            extents.m, extents.n, backend=schedules.profile.backend
        )
        target = matrix_product_target(
            extents,
            lhs.dtype,
            schedule or MatrixProductSchedule(thread_blocks=threads),
        )
    entry = registry.find(target, MATRIX_PRODUCT_VERSION, schedules.profile.format)
    if entry is None:
        return None
    return KernelCall(
        target,
        MATRIX_PRODUCT_VERSION,
        (OperandEffect.READ, OperandEffect.READ),
        op.result_types((lhs, rhs)),
        (None,),
    )


def _is_plain(op: DotGeneral, lhs: TensorType, rhs: TensorType) -> bool:
    """Whether it is ``[m, k]`` by ``[k, n]``, kept in the operands' own dtype."""
    return (
        lhs.rank == rhs.rank == 2
        and op.lhs_contracting == (1,)
        and op.rhs_contracting == (0,)
        and op.accumulate is op.result is lhs.dtype
    )
