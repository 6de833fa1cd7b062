"""numpy's ufuncs, traced."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from accy_async.compiler.semantic import (
    BinaryKind,
    ComparisonKind,
    FunctionBuilder,
    ScanKind,
    UnaryKind,
    Value,
)
from accy_async.compiler.tracing.array import TracedArray
from accy_async.compiler.tracing.common import axes_of
from accy_async.compiler.tracing.places import refusal
from accy_async.compiler.tracing.powers import traced_power
from accy_async.compiler.tracing.promotion import (
    broadcast_shape,
    fits,
    lift,
    resolve,
    shape_of,
)
from accy_async.compiler.tracing.registry import FUNCTIONS
from accy_async.compiler.tracing.shifts import traced_left_shift, traced_right_shift
from accy_async.compiler.tracing.state import current
from accy_async.dtypes import DType

__all__ = ["SPECIAL", "UFUNCS", "apply_ufunc"]

Rule = Callable[..., Value]


def _binary(kind: BinaryKind) -> Rule:
    return lambda f, a, b: f.binary(kind, a, b)


def _logic(kind: BinaryKind, on_bool: BinaryKind) -> Rule:
    """Numpy adds truth values as "or", multiplies them as "and"."""
    return lambda f, a, b: f.binary(on_bool if a.dtype is DType.BOOL else kind, a, b)


def _unary(kind: UnaryKind) -> Rule:
    return lambda f, a: f.unary(kind, a)


def _compare(kind: ComparisonKind) -> Rule:
    def rule(f: FunctionBuilder, a: Value, b: Value) -> Value:
        if a.dtype is DType.BOOL and not kind.takes(DType.BOOL):
            a, b = f.convert(a, DType.U8), f.convert(b, DType.U8)
        return f.compare(a, b, kind)

    return rule


def _truth(rule: Rule) -> Rule:
    """On the operands' truth values."""
    return lambda f, *operands: rule(f, *(f.convert(v, DType.BOOL) for v in operands))


def _floor_divide(f: FunctionBuilder, a: Value, b: Value) -> Value:
    if a.dtype.is_float:
        endless = f.compare(f.abs(a), float("inf"), "eq")
        return f.select(endless, float("nan"), f.unary("floor", f.div(a, b)))
    quotient = f.div(a, b)
    if not a.dtype.is_signed:
        return quotient
    rest = f.sub(a, f.mul(quotient, b))
    zero = f.compare(b, 0, "ne")
    apart = f.compare(f.compare(rest, 0, "lt"), f.compare(b, 0, "lt"), "ne")
    low = f.logical_and(f.logical_and(f.compare(rest, 0, "ne"), apart), zero)
    return f.sub(quotient, f.convert(low, a.dtype))


def _remainder(f: FunctionBuilder, a: Value, b: Value) -> Value:
    """With the divisor's sign, as Python's."""
    if not a.dtype.is_float and not a.dtype.is_signed:
        return f.remainder(a, b)
    rest = f.sub(a, f.mul(_floor_divide(f, a, b), b))
    if a.dtype.is_float:
        return rest
    return f.select(f.compare(b, 0, "ne"), rest, 0)


def _fmod(f: FunctionBuilder, a: Value, b: Value) -> Value:
    if not a.dtype.is_float:
        return f.remainder(a, b)
    return f.sub(a, f.mul(f.unary("truncate", f.div(a, b)), b))


def _is_nan(f: FunctionBuilder, a: Value) -> Value:
    return f.compare(a, a, "ne")


def _number(kind: BinaryKind) -> Rule:
    """A NaN loses to a number."""

    def rule(f: FunctionBuilder, a: Value, b: Value) -> Value:
        both = _logic(kind, _ON_BOOL[kind])(f, a, b)
        if not a.dtype.is_float:
            return both
        return f.select(_is_nan(f, a), b, f.select(_is_nan(f, b), a, both))

    return rule


_ON_BOOL = {BinaryKind.MINIMUM: BinaryKind.AND, BinaryKind.MAXIMUM: BinaryKind.OR}


def _in_f32(rule: Rule) -> Rule:
    """What takes several steps is not rounded to f16 or bf16 at each."""

    def wide(f: FunctionBuilder, *operands: Value) -> Value:
        if operands[0].dtype not in (DType.F16, DType.BF16):
            return rule(f, *operands)
        widened = (f.convert(operand, DType.F32) for operand in operands)
        return f.convert(rule(f, *widened), operands[0].dtype)

    return wide


def _sign(f: FunctionBuilder, a: Value) -> Value:
    one = f.select(f.compare(a, 0, "gt"), f.constant(1, a.type), f.constant(0, a.type))
    if a.dtype.is_signed:
        one = f.select(f.compare(a, 0, "lt"), -1, one)
    return f.select(_is_nan(f, a), a, one) if a.dtype.is_float else one


def _log1p(f: FunctionBuilder, a: Value) -> Value:
    """W. Kahan's: what rounding 1 + x took away, the quotient gives back.

    The quotient is near 1, and goes first: the product of x and the logarithm may be
    beyond what a float holds.
    """
    u = f.add(a, 1.0)
    exact = f.compare(u, 1.0, "eq")
    scaled = f.mul(f.log(u), f.div(a, f.sub(u, 1.0)))
    endless = f.compare(a, float("inf"), "eq")
    return f.select(f.logical_or(exact, endless), a, scaled)


def _expm1(f: FunctionBuilder, a: Value) -> Value:
    """As `_log1p`: (u - 1) (x / log(u)) for u = exp(x)."""
    u = f.exp(a)
    less = f.sub(u, 1.0)
    scaled = f.mul(less, f.div(a, f.log(u)))
    small = f.compare(u, 1.0, "eq")
    plain = f.logical_or(f.compare(less, -1.0, "eq"), f.compare(u, float("inf"), "eq"))
    return f.select(small, a, f.select(plain, less, scaled))


def _logaddexp(f: FunctionBuilder, a: Value, b: Value) -> Value:
    greater = f.maximum(a, b)
    apart = f.sub(a, b)
    # Equal infinities lie NaN apart, and are log(2) above neither.
    sum_ = f.add(greater, _log1p(f, f.exp(f.neg(f.abs(apart)))))
    return f.select(f.compare(a, b, "eq"), f.add(a, float(np.log(2.0))), sum_)


UFUNCS: Mapping[np.ufunc, Rule] = {
    np.add: _logic(BinaryKind.ADD, BinaryKind.OR),
    np.subtract: _binary(BinaryKind.SUBTRACT),
    np.multiply: _logic(BinaryKind.MULTIPLY, BinaryKind.AND),
    np.true_divide: _binary(BinaryKind.DIVIDE),
    np.floor_divide: _in_f32(_floor_divide),
    np.remainder: _in_f32(_remainder),
    np.fmod: _in_f32(_fmod),
    np.minimum: _logic(BinaryKind.MINIMUM, BinaryKind.AND),
    np.maximum: _logic(BinaryKind.MAXIMUM, BinaryKind.OR),
    np.fmin: _number(BinaryKind.MINIMUM),
    np.fmax: _number(BinaryKind.MAXIMUM),
    np.bitwise_and: _binary(BinaryKind.AND),
    np.bitwise_or: _binary(BinaryKind.OR),
    np.bitwise_xor: _binary(BinaryKind.XOR),
    np.invert: _unary(UnaryKind.NOT),
    np.logical_and: _truth(_binary(BinaryKind.AND)),
    np.logical_or: _truth(_binary(BinaryKind.OR)),
    np.logical_xor: _truth(_binary(BinaryKind.XOR)),
    np.logical_not: _truth(_unary(UnaryKind.NOT)),
    np.equal: _compare(ComparisonKind.EQ),
    np.not_equal: _compare(ComparisonKind.NE),
    np.less: _compare(ComparisonKind.LT),
    np.less_equal: _compare(ComparisonKind.LE),
    np.greater: _compare(ComparisonKind.GT),
    np.greater_equal: _compare(ComparisonKind.GE),
    np.negative: _unary(UnaryKind.NEGATE),
    np.positive: lambda _, a: a,
    np.absolute: lambda f, a: a if a.dtype is DType.BOOL else f.abs(a),
    np.fabs: _unary(UnaryKind.ABSOLUTE),
    np.sign: _sign,
    np.square: lambda f, a: f.mul(a, a),
    np.reciprocal: lambda f, a: f.div(1, a) if not a.dtype.is_float else f.div(1.0, a),
    np.sqrt: _unary(UnaryKind.SQRT),
    np.exp: _unary(UnaryKind.EXP),
    np.exp2: _in_f32(lambda f, a: f.exp(f.mul(a, float(np.log(2.0))))),
    np.expm1: _in_f32(_expm1),
    np.log: _unary(UnaryKind.LOG),
    np.log2: _in_f32(lambda f, a: f.div(f.log(a), float(np.log(2.0)))),
    np.log10: _in_f32(lambda f, a: f.div(f.log(a), float(np.log(10.0)))),
    np.log1p: _in_f32(_log1p),
    np.logaddexp: _in_f32(_logaddexp),
    np.tanh: _unary(UnaryKind.TANH),
    np.floor: _unary(UnaryKind.FLOOR),
    np.ceil: _unary(UnaryKind.CEILING),
    np.trunc: _unary(UnaryKind.TRUNCATE),
    np.rint: _unary(UnaryKind.ROUND_EVEN),
    np.isnan: _is_nan,
    np.isinf: lambda f, a: f.compare(f.abs(a), float("inf"), "eq"),
    np.isfinite: lambda f, a: f.compare(f.abs(a), float("inf"), "lt"),
}
"""What records a ufunc on operands of one shape and the loop's dtypes."""

_COMPARISONS = frozenset(
    {np.equal, np.not_equal, np.less, np.less_equal, np.greater, np.greater_equal}
)
_ROUNDINGS = frozenset({np.floor, np.ceil, np.trunc, np.rint})
_QUESTIONS = {np.isnan: False, np.isinf: False, np.isfinite: True}


def _divmod(a: object, b: object) -> tuple[TracedArray, TracedArray]:
    return _call(np.floor_divide, (a, b)), _call(np.remainder, (a, b))


SPECIAL: dict[np.ufunc, Callable[..., Any]] = {
    np.power: traced_power,
    np.divmod: _divmod,
    np.left_shift: traced_left_shift,
    np.right_shift: traced_right_shift,
}
"""Ufuncs that are no matter of elements alone, or depend on constants."""

_FOLDS: Mapping[str, Mapping[np.ufunc, Callable[..., Any]]] = {
    "reduce": {
        np.add: np.sum,
        np.multiply: np.prod,
        np.minimum: np.min,
        np.maximum: np.max,
        np.logical_and: np.all,
        np.logical_or: np.any,
    },
    "accumulate": {np.add: np.cumsum, np.multiply: np.cumprod},
}

_SCANS = {np.minimum: ScanKind.MINIMUM, np.maximum: ScanKind.MAXIMUM}
"""What numpy has no function for, but ``accumulate`` of the ufunc."""


def apply_ufunc(
    ufunc: np.ufunc, method: str, inputs: tuple[object, ...], options: dict[str, Any]
) -> object:
    """What numpy calls for a ufunc of which an input is traced."""
    out = options.pop("out", None)
    if options.pop("where", True) is not True:
        raise refusal("where= is not traced; use numpy.where", operation=ufunc.__name__)
    dtype = options.pop("dtype", None)
    if method == "__call__":
        options = {k: v for k, v in options.items() if k not in ("casting", "order")}
        if options:
            raise refusal(f"{', '.join(options)} not traced", operation=ufunc.__name__)
        result = _call(ufunc, inputs)
        result = result if dtype is None else result.astype(dtype)
    else:
        result = _fold(ufunc, method, inputs, {**options, "dtype": dtype})
    if out is None:
        return result
    (target,) = out
    if not isinstance(target, TracedArray):
        raise refusal("out= is a plain array", operation=ufunc.__name__)
    return target.change(result, ufunc.__name__)


def _call(ufunc: np.ufunc, inputs: tuple[object, ...]) -> Any:  # noqa: ANN401
    """An array; of a special ufunc, as many as it has outputs."""
    special = SPECIAL.get(ufunc)
    if special is not None:
        return special(*inputs)
    rule = UFUNCS.get(ufunc)
    if rule is None:
        raise refusal(f"numpy.{ufunc.__name__} is not traced")
    shape = broadcast_shape(ufunc.__name__, inputs)
    if len(inputs) == 1 and not resolve(ufunc, inputs)[0].is_float:
        # numpy gives whole numbers as they are, and never asks them for NaN.
        if ufunc in _ROUNDINGS:
            return TracedArray(current(), lift(inputs[0]))
        if ufunc in _QUESTIONS:
            return TracedArray(current(), lift(_QUESTIONS[ufunc], DType.BOOL, shape))
    dtypes = resolve(ufunc, inputs)
    if ufunc in _COMPARISONS and not all(map(fits, inputs, dtypes)):
        # It is as far from every element as from 0.
        lhs, rhs = (one if type(one) is int else 0 for one in inputs)
        return TracedArray(current(), lift(bool(ufunc(lhs, rhs)), DType.BOOL, shape))
    operands = [
        lift(operand, dtype, shape)
        for operand, dtype in zip(inputs, dtypes, strict=False)
    ]
    builder = current().builder
    result = builder.convert(rule(builder, *operands), dtypes[-1])
    return TracedArray(current(), result)


def _fold(
    ufunc: np.ufunc, method: str, inputs: tuple[object, ...], options: dict[str, Any]
) -> TracedArray:
    function = _FOLDS.get(method, {}).get(ufunc)
    if method == "outer":
        lhs, rhs = inputs
        outer = (*shape_of(lhs), *(1 for _ in shape_of(rhs)))
        product: TracedArray = _call(ufunc, (FUNCTIONS[np.reshape](lhs, outer), rhs))
        return product
    if method == "accumulate" and ufunc in _SCANS:
        return _scan(_SCANS[ufunc], ufunc.__name__, *inputs, **options)
    if function is None:
        raise refusal(
            f"numpy.{ufunc.__name__}.{method} is not traced"
            + ("; scatter_add of accy_async.compiler.tensor is" * (method == "at"))
        )
    # An axis of None is not one that was left out: it is all of them.
    options = {k: v for k, v in options.items() if v is not None or k == "axis"}
    options.setdefault("axis", 0)
    if len(inputs) > 1:
        options["axis"] = inputs[1]
    result: TracedArray = FUNCTIONS[function](inputs[0], **options)
    return result


def _scan(
    kind: ScanKind,
    name: str,
    operand: object,
    axis: object = 0,
    dtype: Any = None,  # noqa: ANN401 - what numpy takes for a dtype
) -> TracedArray:
    x = lift(operand, None if dtype is None else DType.from_numpy(np.dtype(dtype)))
    (place,) = axes_of(axis, x.rank, f"{name}.accumulate")
    builder = current().builder
    numbers = builder.convert(x, DType.U8) if x.dtype is DType.BOOL else x
    result = builder.scan(numbers, kind, place)
    return TracedArray(current(), builder.convert(result, x.dtype))


TracedArray.trace_ufunc = staticmethod(apply_ufunc)
