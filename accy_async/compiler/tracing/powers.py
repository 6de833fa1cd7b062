"""Powers: exact where the exponent is a small whole number, else by logarithms."""

from __future__ import annotations

from typing import Any

import numpy as np

from accy_async.compiler.semantic import FunctionBuilder, Value
from accy_async.compiler.tracing.array import TracedArray
from accy_async.compiler.tracing.places import refusal
from accy_async.compiler.tracing.promotion import broadcast_shape, lift, resolve
from accy_async.compiler.tracing.state import current

__all__ = ["MAX_MULTIPLIED", "traced_power"]

MAX_MULTIPLIED = 64
"""Whole exponents up to this are multiplied out."""


def traced_power(base: object, exponent: object) -> TracedArray:
    """numpy.power.

    A constant whole exponent up to `MAX_MULTIPLIED` is multiplied out; 0.5 is a
    square root. Otherwise the result is ``exp(exponent * log(|base|))`` with the
    sign and the NaNs that numpy gives, and a relative error of
    ``|exponent * log(base)|`` units in the last place.

    Raises:
        InvalidProgram: integers to the power of a traced or a negative exponent.
    """
    dtypes = resolve(np.power, (base, exponent))
    shape = broadcast_shape("power", (base, exponent))
    builder = current().builder
    constant = _constant(exponent)
    if constant is not None and isinstance(base, TracedArray):
        x = lift(base, dtypes[0], shape)
        result = _by_constant(builder, x, constant)
        if result is not None:
            return TracedArray(current(), result)
    if not dtypes[0].is_float:
        raise refusal(
            f"integers take constant exponents from 0 to {MAX_MULTIPLIED}; convert to "
            "floats for others",
            operation="power",
        )
    x, y = (lift(v, d, shape) for v, d in zip((base, exponent), dtypes, strict=False))
    return TracedArray(current(), _by_logarithm(builder, x, y))


def _constant(exponent: object) -> float | None:
    if isinstance(exponent, TracedArray) or np.size(exponent) != 1:  # type: ignore[arg-type]
        return None
    value: Any = np.asarray(exponent).item()
    return float(value)


def _by_constant(f: FunctionBuilder, x: Value, exponent: float) -> Value | None:
    if exponent.is_integer() and abs(exponent) <= MAX_MULTIPLIED:
        if exponent < 0 and not x.dtype.is_float:
            return None
        product = _multiplied(f, x, int(abs(exponent)))
        return f.div(1.0, product) if exponent < 0 else product
    if exponent == 0.5 and x.dtype.is_float:
        return f.sqrt(x)
    return None


def _multiplied(f: FunctionBuilder, x: Value, times: int) -> Value:
    """Squares, and the product of those that the exponent's bits name."""
    product: Value | None = None
    square = x
    while times:
        if times & 1:
            product = square if product is None else f.mul(product, square)
        times >>= 1
        if times:
            square = f.mul(square, square)
    if product is not None:
        return product
    return f.constant(1.0 if x.dtype.is_float else 1, x.type)


def _by_logarithm(f: FunctionBuilder, x: Value, y: Value) -> Value:
    size = f.exp(f.mul(y, f.log(f.abs(x))))
    size = f.select(f.compare(y, 0.0, "eq"), 1.0, size)
    size = f.select(f.compare(x, 1.0, "eq"), 1.0, size)
    whole = f.compare(f.unary("floor", y), y, "eq")
    half = f.mul(y, 0.5)
    odd = f.compare(f.unary("floor", half), half, "ne")
    signed = f.select(odd, f.neg(size), size)
    below = f.select(whole, signed, float("nan"))
    return f.select(f.compare(x, 0.0, "lt"), below, size)
