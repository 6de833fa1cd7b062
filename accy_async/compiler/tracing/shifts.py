"""Shifts by any number of bits, as numpy's: what is shifted out is gone."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from accy_async.compiler.semantic import BinaryKind, FunctionBuilder, Value
from accy_async.compiler.tracing.array import TracedArray
from accy_async.compiler.tracing.promotion import broadcast_shape, lift, resolve
from accy_async.compiler.tracing.state import current

__all__ = ["traced_left_shift", "traced_right_shift"]


def _shift(
    ufunc: np.ufunc, rule: Callable[[FunctionBuilder, Value, Value, bool], Value]
) -> Callable[[object, object], TracedArray]:
    def traced(number: object, by: object) -> TracedArray:
        dtypes = resolve(ufunc, (number, by))
        shape = broadcast_shape(ufunc.__name__, (number, by))
        x, y = (
            lift(v, dtype, shape)
            for v, dtype in zip((number, by), dtypes, strict=False)
        )
        is_within = _is_constant_within(by, x.dtype.bits)
        return TracedArray(current(), rule(current().builder, x, y, is_within))

    return traced


def _is_constant_within(by: object, bits: int) -> bool:
    """True where every number of bits is known, and a shift by it well defined."""
    if isinstance(by, TracedArray):
        return False
    given = np.asarray(by)
    return bool(((given >= 0) & (given < bits)).all())


def _within(f: FunctionBuilder, y: Value) -> Value:
    """Whether it shifts by 0 to all bits but one; numpy takes less for more."""
    below = f.compare(y, y.dtype.bits, "lt")
    if not y.dtype.is_signed:
        return below
    return f.logical_and(below, f.compare(y, 0, "ge"))


def _left(f: FunctionBuilder, x: Value, y: Value, is_within: bool) -> Value:
    shifted = f.binary(BinaryKind.SHIFT_LEFT, x, y)
    return shifted if is_within else f.select(_within(f, y), shifted, 0)


def _right(f: FunctionBuilder, x: Value, y: Value, is_within: bool) -> Value:
    if is_within:
        return f.binary(BinaryKind.SHIFT_RIGHT, x, y)
    if x.dtype.is_signed:  # signs alone are left
        y = f.select(_within(f, y), y, x.dtype.bits - 1)
        return f.binary(BinaryKind.SHIFT_RIGHT, x, y)
    return f.select(_within(f, y), f.binary(BinaryKind.SHIFT_RIGHT, x, y), 0)


traced_left_shift = _shift(np.left_shift, _left)
"""numpy.left_shift: by as many bits as there are, by more or by less than 0, to 0."""

traced_right_shift = _shift(np.right_shift, _right)
"""numpy.right_shift: likewise to 0, or to -1 where the number is negative."""
