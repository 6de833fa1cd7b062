"""Contractions of one row or one column as sums over rows.

A tile of a matrix product would be idle but for one of its rows. As products of
elements that are summed along the contracting axes they go the way of reductions,
which read each element once, as fast as memory gives it.
"""

from __future__ import annotations

from accy_async.compiler import semantic
from accy_async.compiler.kernelization.products import extents_of, find_product
from accy_async.compiler.semantic import (
    Function,
    FunctionBuilder,
    Operation,
    Value,
    rewrite,
)
from accy_async.dtypes import DType

__all__ = ["as_sums", "is_of_vectors"]

_HALVES = (DType.F16, DType.BF16)


def is_of_vectors(function: Function) -> bool:
    """Whether the contraction of a function has one row or one column, and elements."""
    entry, op = find_product(function)
    size = extents_of(entry, op)
    return min(size.m, size.n) == 1 and size.elements > 0


def as_sums(function: Function) -> Function:
    """The function with its contraction written as products and a sum."""

    def rule(
        f: FunctionBuilder, entry: Operation, operands: tuple[Value, ...]
    ) -> list[Value] | None:
        if not isinstance(entry.op, semantic.DotGeneral):
            return None
        return [_sum(f, entry.op, *operands)]

    return rewrite(function, rule)


def _sum(f: FunctionBuilder, op: semantic.DotGeneral, lhs: Value, rhs: Value) -> Value:
    """The axes are the batch axes, then free axes and depth.

    The depth comes last where it does in the larger operand, so that the sums go along
    its memory.
    """
    kept = DType.F32 if op.accumulate in _HALVES else op.accumulate
    lhs_free, rhs_free = op.free_axes(lhs.type, rhs.type)
    is_lhs = lhs.type.element_count >= rhs.type.element_count
    larger, depth = (lhs, op.lhs_contracting) if is_lhs else (rhs, op.rhs_contracting)
    wide = [axis for axis, extent in enumerate(larger.shape) if extent != 1]
    last = not wide or wide[-1] in depth
    sides = (
        (lhs, op.lhs_batch, lhs_free, op.lhs_contracting),
        (rhs, op.rhs_batch, rhs_free, op.rhs_contracting),
    )
    batch, own, others = len(op.lhs_batch), len(lhs_free), len(rhs_free)
    deep = len(op.lhs_contracting)
    free = batch if last else batch + deep
    contracted = range(batch + own + others, batch + own + others + deep)
    if not last:
        contracted = range(batch, batch + deep)
    targets = range(free, free + own), range(free + own, free + own + others)
    shape = [0] * (batch + own + others + deep)
    axes = []
    for (value, batches, frees, depths), target in zip(sides, targets, strict=True):
        named = dict(zip(batches, range(batch), strict=True))
        named |= dict(zip(frees, target, strict=True))
        named |= dict(zip(depths, contracted, strict=True))
        axes.append(named)
        for axis, place in named.items():
            shape[place] = value.shape[axis]
    left, right = (
        _placed(f, f.convert(side[0], kept), named, shape)
        for side, named in zip(sides, axes, strict=True)
    )
    total = f.reduce(f.mul(left, right), "sum", list(contracted), accumulate=kept)
    return f.convert(total, op.result)


def _placed(
    f: FunctionBuilder, value: Value, axes: dict[int, int], shape: list[int]
) -> Value:
    """The value repeated to fill a shape, with each of its axes where it is to be."""
    order = sorted(axes, key=axes.__getitem__)
    return f.broadcast(f.transpose(value, order), shape, sorted(axes.values()))
