"""numpy's reductions and scans, and what chooses between elements, traced."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from accy_async.compiler.semantic import TensorType
from accy_async.compiler.tracing.array import TracedArray
from accy_async.compiler.tracing.common import (
    NOT_GIVEN,
    axes_of,
    call,
    is_set,
    plain,
    wrap,
)
from accy_async.compiler.tracing.places import refusal
from accy_async.compiler.tracing.promotion import (
    as_array,
    broadcast_shape,
    dtype_of,
    lift,
    promote,
    shape_of,
)
from accy_async.compiler.tracing.registry import implements
from accy_async.compiler.tracing.state import current
from accy_async.dtypes import DType

__all__: list[str] = []

_Reduction = Callable[..., TracedArray]


def _sum_dtype(dtype: DType) -> DType:
    """Numpy sums integers and truth values in the widest type of their kind."""
    if dtype.is_float or dtype.bits == 64:
        return dtype
    unsigned = dtype.is_integer and not dtype.is_signed
    return DType.U64 if unsigned else DType.I64


def _reduce(
    a: object,
    kind: str,
    axis: object,
    dtype: DType | None = None,
    *,
    keepdims: object,
) -> TracedArray:
    x = lift(a, dtype)
    axes = axes_of(axis, x.rank, kind)
    kept = is_set(keepdims)
    return wrap(current().builder.reduce(x, kind, axes, keepdims=kept))


def _wanted(dtype: object, default: DType) -> DType:
    if dtype is None:
        return default
    return dtype if isinstance(dtype, DType) else DType.from_numpy(dtype)


def _float_dtype(dtype: DType) -> DType:
    """Numpy computes means and the like of what is no float in f64."""
    return dtype if dtype.is_float else DType.F64


def _total(name: str, kind: str, default: Callable[[DType], DType]) -> _Reduction:
    """Reduces in the dtype that is asked for, else in ``default`` of the operand's."""

    def reduce(
        a: object,
        axis: object = None,
        dtype: object = None,
        out: object = None,
        keepdims: object = False,
        **options: object,
    ) -> TracedArray:
        plain(name, {"out": out, **options})
        wanted = _wanted(dtype, default(dtype_of(a)))
        return _reduce(a, kind, axis, wanted, keepdims=keepdims)

    return reduce


def _choice(name: str, reduced: Callable[..., TracedArray]) -> _Reduction:
    """Reduces to one of the elements, or to whether there is one, by ``reduced``."""

    def reduce(
        a: object,
        axis: object = None,
        out: object = None,
        keepdims: object = False,
        **options: object,
    ) -> TracedArray:
        plain(name, {"out": out, **options})
        return reduced(a, axis=axis, keepdims=keepdims)

    return reduce


def _truth(
    a: object, *, axis: object, keepdims: object, kind: str, empty: bool
) -> TracedArray:
    """Without elements none is true and all are, which no maximum or minimum knows."""
    x = lift(a, DType.BOOL)
    axes = axes_of(axis, x.rank, kind)
    if any(x.shape[one] == 0 for one in axes):
        shape = [
            1 if one in axes else extent
            for one, extent in enumerate(x.shape)
            if is_set(keepdims) or one not in axes
        ]
        return wrap(current().builder.constant(empty, TensorType(DType.BOOL, shape)))
    return _reduce(wrap(x), kind, axes, keepdims=keepdims)


_sum = implements(np.sum)(_total("sum", "sum", _sum_dtype))
_mean = implements(np.mean)(_total("mean", "mean", _float_dtype))
_max = implements(np.max, np.amax)(_choice("max", partial(_reduce, kind="maximum")))
_min = implements(np.min, np.amin)(_choice("min", partial(_reduce, kind="minimum")))
implements(np.prod)(_total("prod", "product", _sum_dtype))
implements(np.any)(_choice("any", partial(_truth, kind="maximum", empty=False)))
implements(np.all)(_choice("all", partial(_truth, kind="minimum", empty=True)))


@implements(np.ptp)
def _ptp(
    a: object, axis: object = None, out: object = None, keepdims: object = False
) -> TracedArray:
    plain("ptp", {"out": out})
    low, high = (f(a, axis, keepdims=keepdims) for f in (_min, _max))
    result: TracedArray = call(np.subtract, high, low)
    return result


@implements(np.average)
def _average(
    a: object,
    axis: object = None,
    weights: object = None,
    returned: object = None,
    *,
    keepdims: object = False,
) -> TracedArray:
    plain("average", {"returned": returned or None})
    if weights is None:
        return _mean(a, axis, keepdims=keepdims)
    if shape_of(weights) != shape_of(a):
        raise refusal("weights of another shape are not traced", operation="average")
    weighted = call(np.multiply, as_array(a), weights)
    total = _sum(weighted, axis, keepdims=keepdims)
    result: TracedArray = call(
        np.true_divide, total, _sum(weights, axis, keepdims=keepdims)
    )
    return result


@implements(np.nan_to_num)
def _nan_to_num(
    x: object,
    copy: object = True,
    nan: float = 0.0,
    posinf: float | None = None,
    neginf: float | None = None,
) -> TracedArray:
    dtype = dtype_of(x)
    if not dtype.is_float:
        return as_array(x).copy()
    high = dtype.maximum if posinf is None else posinf
    low = dtype.minimum if neginf is None else neginf
    result = call(np.where, call(np.isnan, x), nan, x)
    result = call(np.where, call(np.equal, x, float("inf")), high, result)
    result = call(np.where, call(np.equal, x, -float("inf")), low, result)
    return wrap(result.value)


@implements(np.var)
def _var(
    a: object,
    axis: object = None,
    dtype: object = None,
    out: object = None,
    ddof: float = 0,
    keepdims: object = False,
    **options: object,
) -> TracedArray:
    plain("var", {"out": out, **options})
    x = wrap(lift(a, _wanted(dtype, _float_dtype(dtype_of(a)))))
    apart = call(np.subtract, x, _mean(x, axis, keepdims=True))
    squares = call(np.square, apart)
    count = 1
    for one in axes_of(axis, x.ndim, "var"):
        count *= x.shape[one]
    total = _sum(squares, axis, keepdims=keepdims)
    result: TracedArray = call(np.true_divide, total, float(max(count - ddof, 0)))
    return result


@implements(np.std)
def _std(
    a: object,
    axis: object = None,
    dtype: object = None,
    out: object = None,
    ddof: float = 0,
    keepdims: object = False,
    **options: object,
) -> TracedArray:
    result: TracedArray = call(
        np.sqrt, _var(a, axis, dtype, out, ddof, keepdims, **options)
    )
    return result


def _arg(a: object, axis: object, keepdims: object, kind: str) -> TracedArray:
    """The first index of the extreme element; of a NaN, if there is one."""
    builder = current().builder
    x = lift(a)
    if x.dtype is DType.BOOL:
        x = builder.convert(x, DType.U8)
    shape: tuple[int, ...] = x.shape
    if axis is None:
        x = builder.reshape(x, (x.type.element_count,))
    (place,) = axes_of(0 if axis is None else axis, x.rank, f"arg{kind}")
    if x.shape[place] == 0:
        raise refusal(f"no elements along axis {place} of {x.type}", operation=kind)
    extreme = builder.broadcast(
        builder.reduce(x, kind, [place], keepdims=True), x.shape
    )
    found = builder.compare(x, extreme, "eq")
    if x.dtype.is_float:
        found = builder.logical_or(found, builder.compare(x, x, "ne"))
    index = builder.iota(TensorType(DType.I64, x.shape), place)
    first = builder.select(found, index, x.shape[place])
    result = builder.reduce(first, "minimum", [place], keepdims=is_set(keepdims))
    if axis is None and is_set(keepdims):
        result = builder.reshape(result, (1,) * len(shape))
    return wrap(result)


@implements(np.argmax)
def _argmax(
    a: object, axis: object = None, out: object = None, *, keepdims: object = False
) -> TracedArray:
    plain("argmax", {"out": out})
    return _arg(a, axis, keepdims, "maximum")


@implements(np.argmin)
def _argmin(
    a: object, axis: object = None, out: object = None, *, keepdims: object = False
) -> TracedArray:
    plain("argmin", {"out": out})
    return _arg(a, axis, keepdims, "minimum")


@implements(np.count_nonzero)
def _count_nonzero(
    a: object, axis: object = None, *, keepdims: object = False
) -> TracedArray:
    return _sum(wrap(lift(a, DType.BOOL)), axis, keepdims=keepdims)


def _scan(a: object, axis: object, dtype: object, kind: str, name: str) -> TracedArray:
    x = lift(a, _wanted(dtype, _sum_dtype(dtype_of(a))))
    builder = current().builder
    if axis is None:
        x, axis = builder.reshape(x, (x.type.element_count,)), 0
    (place,) = axes_of(axis, x.rank, name)
    return wrap(builder.scan(x, kind, place))


@implements(np.cumsum)
def _cumsum(
    a: object, axis: object = None, dtype: object = None, out: object = None
) -> TracedArray:
    plain("cumsum", {"out": out})
    return _scan(a, axis, dtype, "sum", "cumsum")


@implements(np.cumprod)
def _cumprod(
    a: object, axis: object = None, dtype: object = None, out: object = None
) -> TracedArray:
    plain("cumprod", {"out": out})
    return _scan(a, axis, dtype, "product", "cumprod")


@implements(np.linalg.norm)
def _norm(
    x: object,
    ord: object = None,
    axis: object = None,
    keepdims: object = False,
) -> TracedArray:
    """The root of the sum of squares, of all elements or along one axis."""
    if ord not in (None, 2) or (ord == 2 and axis is None and len(shape_of(x)) != 1):
        raise refusal(f"of order {ord!r} is not traced", operation="linalg.norm")
    array = wrap(lift(x, _float_dtype(dtype_of(x))))
    total = _sum(call(np.square, array), axis, keepdims=keepdims)
    result: TracedArray = call(np.sqrt, total)
    return result


@implements(np.where)
def _where(condition: object, *choices: object) -> TracedArray:
    if len(choices) != 2:
        raise refusal(
            "where with a condition alone gives an array whose shape its values decide",
            operation="where",
        )
    shape = broadcast_shape("where", (condition, *choices))
    dtype = promote(choices)
    flag = lift(condition, DType.BOOL, shape)
    on_true, on_false = (lift(choice, dtype, shape) for choice in choices)
    return wrap(current().builder.select(flag, on_true, on_false))


@implements(np.clip)
def _clip(
    a: object,
    a_min: object = None,
    a_max: object = None,
    out: object = None,
    *,
    min: object = None,
    max: object = None,
    **options: object,
) -> TracedArray:
    plain("clip", {"out": out, **options})
    low, high = (
        None if given is NOT_GIVEN else given
        for given in (min if a_min is None else a_min, max if a_max is None else a_max)
    )
    result: Any = as_array(a)
    dtype = dtype_of(result)
    if low is not None and not (type(low) is int and low < dtype.minimum):
        result = call(np.maximum, result, low)
    if high is not None and not (type(high) is int and high > dtype.maximum):
        result = call(np.minimum, result, high)
    return wrap(result.value)


@implements(np.round)
def _round(a: object, decimals: int = 0, out: object = None) -> TracedArray:
    plain("round", {"out": out})
    if decimals >= 0 and not dtype_of(a).is_float:
        return as_array(a).copy()
    if decimals == 0:
        result: TracedArray = call(np.rint, a)
        return result
    scale = 10.0 ** abs(decimals)
    ufuncs: list[np.ufunc] = [np.multiply, np.true_divide]
    up, down = ufuncs if decimals > 0 else reversed(ufuncs)
    scaled: TracedArray = call(down, call(np.rint, call(up, a, scale)), scale)
    dtype = dtype_of(a)
    return scaled if dtype.is_float else scaled.astype(dtype)
