"""Ready-made kernels of families in the registry, and which one serves an operation."""

from __future__ import annotations

import attrs

from accy_async.artifact.entry import KernelCallRegistry
from accy_async.compiler.kernelization import TargetProfile
from accy_async.compiler.kernels.linalg import (
    MATRIX_PRODUCT_FAMILY,
    MATRIX_PRODUCT_FAMILY_VERSION,
    MatrixProduct,
    matrix_product_family_target,
)
from accy_async.compiler.preparation.schedules import MatrixExtents, Schedules
from accy_async.compiler.semantic import (
    DotGeneral,
    KernelCall,
    OperandEffect,
    TensorType,
)
from accy_async.tuning.records import FamilyTuningKey

__all__ = ["is_plain_product", "matrix_product_call", "matrix_product_tuning_key"]


def matrix_product_tuning_key(
    profile: TargetProfile, product: MatrixProduct
) -> FamilyTuningKey:
    """Under which a measurement of the family's kernels for a problem is kept."""
    return FamilyTuningKey(
        device=profile.capabilities.fingerprint,
        format=profile.format,
        family=MATRIX_PRODUCT_FAMILY,
        version=MATRIX_PRODUCT_FAMILY_VERSION,
        problem=product.problem_name,
    )


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
    if not is_plain_product(op, lhs, rhs):
        return None
    extents = MatrixExtents.of(op, lhs, rhs)
    product = MatrixProduct(
        m=extents.m,
        n=extents.n,
        k=extents.k,
        dtype=lhs.dtype,
        accumulation_dtype=op.accumulate,
    )
    schedule = schedules.matrix_product(product.function())
    if schedule is not None:
        if schedule.tile is not None:  # the family has none
            return None
        product = attrs.evolve(product, threads=schedule.thread_blocks)
    target = None
    if schedule is None and schedules.family_tuning is not None:
        key = matrix_product_tuning_key(schedules.profile, product)
        target = schedules.family_tuning.resolve(key)
    if target is None:
        target = matrix_product_family_target(product, schedules.profile.backend)
    version = MATRIX_PRODUCT_FAMILY_VERSION
    if registry.find(target, version, schedules.profile.format) is None:
        return None
    return KernelCall(
        target,
        version,
        (OperandEffect.READ, OperandEffect.READ),
        op.result_types((lhs, rhs)),
        (None,),
    )


def is_plain_product(op: DotGeneral, lhs: TensorType, rhs: TensorType) -> bool:
    """Whether it is ``[m, k]`` by ``[k, n]``, given in the operands' own dtype."""
    return (
        lhs.rank == rhs.rank == 2
        and op.lhs_contracting == (1,)
        and op.rhs_contracting == (0,)
        and op.result is lhs.dtype
    )
