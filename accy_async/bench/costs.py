"""What a program moves and computes at least, counted in the program itself."""

from __future__ import annotations

import math

from accy_async.artifact.planned import ArtifactPlan, PlannedKernel
from accy_async.compiler.semantic import (
    Binary,
    DotGeneral,
    Function,
    KernelCall,
    Loop,
    Op,
    Operation,
    Reduce,
    Scan,
    Scatter,
    ScatterKind,
    Unary,
    expand,
)

__all__ = ["bytes_of_kernel", "bytes_of_plan", "flops_of_function"]


def bytes_of_plan(plan: ArtifactPlan) -> int:
    """Each input and each result once: what any way to compute it has to move."""
    slots = (*plan.input_slot_ids, *plan.output_slot_ids)
    return sum(plan.slot(slot).byte_size for slot in slots)


def bytes_of_kernel(plan: ArtifactPlan, kernel: PlannedKernel) -> int:
    """Each of a kernel's buffers once, twice where it is read and written."""
    return sum(
        plan.slot(one.slot_id).byte_size * (2 if one.access == "read_write" else 1)
        for one in kernel.arguments
        if plan.slot(one.slot_id).is_bound
    )


def flops_of_function(function: Function) -> float | None:
    """Operations on floats, each addition, product or function of one as one.

    A dot product is two for each pair of elements, a reduction or scan one for each
    element that it takes in. Comparisons, choices, conversions and moves are none.
    None where that cannot be counted: a kernel is called, or a loop ends when a value
    says so.
    """
    total = 0.0
    for entry in expand(function).operations:
        found = _flops(entry)
        if found is None:
            return None
        total += found
    return total


def _flops(entry: Operation) -> float | None:
    op: Op = entry.op
    match op:
        case KernelCall():
            return None
        case Loop(conditional=True):
            return None
        case Loop(count=count, body=body):
            each = flops_of_function(body)
            return None if each is None else count * each
        case _:
            pass
    if not entry.results[0].type.dtype.is_float:
        return 0.0
    made = entry.results[0].type.element_count
    match op:
        case Unary() | Binary():
            return float(made)
        case Reduce() | Scan():
            return float(entry.operands[0].type.element_count)
        case Scatter(kind=ScatterKind.ADD):
            return float(entry.operands[-1].type.element_count)
        case DotGeneral(lhs_contracting=axes):
            shape = entry.operands[0].type.shape
            return 2.0 * made * math.prod(shape[axis] for axis in axes)
        case _:
            return 0.0
