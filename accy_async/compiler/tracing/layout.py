"""numpy's functions that move elements and join arrays, traced."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from accy_async.compiler.semantic import TensorType, Value
from accy_async.compiler.tracing.array import TracedArray
from accy_async.compiler.tracing.common import axes_of, plain, wrap
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

__all__ = ["whole_shape"]


def view(array: object, value: Value) -> TracedArray:
    """What numpy gives as a view, or may."""
    return as_array(array).viewed(value)


def whole_shape(shape: Any, size: int | None = None) -> tuple[int, ...]:  # noqa: ANN401
    """A shape as integers, with -1 made what the size leaves."""
    given = (shape,) if isinstance(shape, (int, np.integer)) else tuple(shape)
    extents = [operator.index(extent) for extent in given]
    if size is None or -1 not in extents:
        return tuple(extents)
    rest = 1
    for extent in extents:
        rest *= 1 if extent == -1 else extent
    if extents.count(-1) > 1 or rest == 0 or size % rest:
        raise refusal(
            f"{size} elements do not fill {list(extents)}", operation="reshape"
        )
    return tuple(size // rest if extent == -1 else extent for extent in extents)


@implements(np.reshape)
def _reshape(
    a: object,
    /,
    shape: object = None,
    order: str = "C",
    *,
    newshape: object = None,
    copy: object = None,
) -> TracedArray:
    if order != "C":
        raise refusal(f"order {order!r} is not traced", operation="reshape")
    x = lift(a)
    target = whole_shape(newshape if shape is None else shape, x.type.element_count)
    return view(a, current().builder.reshape(x, target))


@implements(np.ravel)
def _ravel(a: object, order: str = "C") -> TracedArray:
    return _reshape(a, -1, order)


@implements(np.transpose)
def _transpose(a: object, axes: Sequence[int] | None = None) -> TracedArray:
    x = lift(a)
    order = None if axes is None else axes_of(tuple(axes), x.rank, "transpose")
    return view(a, current().builder.transpose(x, order))


@implements(np.swapaxes)
def _swapaxes(a: object, axis1: int, axis2: int) -> TracedArray:
    rank = len(shape_of(a))
    first, second = axes_of((axis1, axis2), rank, "swapaxes")
    order = list(range(rank))
    order[first], order[second] = order[second], order[first]
    return _transpose(a, order)


@implements(np.moveaxis)
def _moveaxis(a: object, source: object, destination: object) -> TracedArray:
    rank = len(shape_of(a))
    taken = axes_of(source, rank, "moveaxis")
    placed = axes_of(destination, rank, "moveaxis")
    order = [axis for axis in range(rank) if axis not in taken]
    for target, axis in sorted(zip(placed, taken, strict=True)):
        order.insert(target, axis)
    return _transpose(a, order)


@implements(np.squeeze)
def _squeeze(a: object, axis: object = None) -> TracedArray:
    shape = shape_of(a)
    if axis is None:
        dropped = tuple(i for i, extent in enumerate(shape) if extent == 1)
    else:
        dropped = axes_of(axis, len(shape), "squeeze")
        for one in dropped:
            if shape[one] != 1:
                raise refusal(
                    f"axis {one} has {shape[one]} elements", operation="squeeze"
                )
    return _reshape(a, [e for i, e in enumerate(shape) if i not in dropped])


@implements(np.expand_dims)
def _expand_dims(a: object, axis: Any) -> TracedArray:  # noqa: ANN401
    shape = shape_of(a)
    count = 1 if isinstance(axis, (int, np.integer)) else len(axis)
    added = axes_of(axis, len(shape) + count, "expand_dims")
    rest = iter(shape)
    return _reshape(
        a, [1 if i in added else next(rest) for i in range(len(shape) + count)]
    )


@implements(np.atleast_1d)
def _atleast_1d(a: object) -> TracedArray:
    return as_array(a) if shape_of(a) else _reshape(a, 1)


@implements(np.atleast_2d)
def _atleast_2d(a: object) -> TracedArray:
    shape = shape_of(a)
    return as_array(a) if len(shape) > 1 else _reshape(a, (1, *(shape or (1,))))


@implements(np.broadcast_to)
def _broadcast_to(array: object, shape: object, subok: object = False) -> TracedArray:
    del subok
    return view(array, current().builder.broadcast(lift(array), whole_shape(shape)))


@implements(np.broadcast_arrays)
def _broadcast_arrays(*args: object, subok: object = False) -> tuple[TracedArray, ...]:
    shape = broadcast_shape("broadcast_arrays", args)
    return tuple(_broadcast_to(a, shape, subok) for a in args)


@implements(np.concatenate)
def _concatenate(
    arrays: Sequence[object],
    /,
    axis: int | None = 0,
    out: object = None,
    *,
    dtype: Any = None,  # noqa: ANN401
    **options: object,
) -> TracedArray:
    options.pop("casting", None)
    plain("concatenate", {"out": out, **options})
    if axis is None:
        return _concatenate([_ravel(a) for a in arrays], 0, dtype=dtype)
    wanted = promote(arrays) if dtype is None else DType.from_numpy(dtype)
    (place,) = axes_of(axis, len(shape_of(arrays[0])), "concatenate")
    return wrap(current().builder.concatenate([lift(a, wanted) for a in arrays], place))


@implements(np.stack)
def _stack(arrays: Sequence[object], axis: int = 0, **options: Any) -> TracedArray:
    if len({shape_of(a) for a in arrays}) > 1:
        listed = ", ".join(str(list(shape_of(a))) for a in arrays)
        raise refusal(f"shapes differ: {listed}", operation="stack")
    return _concatenate([_expand_dims(a, axis) for a in arrays], axis, **options)


@implements(np.vstack)
def _vstack(tup: Sequence[object], **options: Any) -> TracedArray:
    return _concatenate([_atleast_2d(a) for a in tup], 0, **options)


@implements(np.column_stack)
def _column_stack(tup: Sequence[object]) -> TracedArray:
    columns = [
        _reshape(a, (-1, 1)) if len(shape_of(a)) < 2 else as_array(a) for a in tup
    ]
    return _concatenate(columns, 1)


@implements(np.hstack)
def _hstack(tup: Sequence[object], **options: Any) -> TracedArray:
    arrays = [_atleast_1d(a) for a in tup]
    return _concatenate(arrays, 0 if arrays[0].ndim == 1 else 1, **options)


@implements(np.split)
def _split(ary: object, indices_or_sections: Any, axis: int = 0) -> list[TracedArray]:  # noqa: ANN401
    parts = _array_split(ary, indices_or_sections, axis)
    is_count = isinstance(indices_or_sections, (int, np.integer))
    if is_count and len({part.shape for part in parts}) > 1:
        raise refusal(
            f"{as_array(ary).shape} is not split into {len(parts)} equal parts; "
            "numpy.array_split makes unequal ones",
            operation="split",
        )
    return parts


@implements(np.array_split)
def _array_split(
    ary: object,
    indices_or_sections: Any,  # noqa: ANN401
    axis: int = 0,
) -> list[TracedArray]:
    x = as_array(ary)
    (place,) = axes_of(axis, x.ndim, "split")
    extent = x.shape[place]
    if isinstance(indices_or_sections, (int, np.integer)):
        parts = int(indices_or_sections)
        if parts < 1:
            raise refusal(f"{parts} parts, expected 1 or more", operation="split")
        sizes = [extent // parts + (i < extent % parts) for i in range(parts)]
        cuts = [sum(sizes[:i]) for i in range(1, parts)]
    else:
        cuts = [operator.index(cut) for cut in indices_or_sections]
    key: tuple[slice, ...] = (slice(None),) * place
    ends = zip([0, *cuts], [*cuts, extent], strict=True)
    return [x[(*key, slice(start, stop))] for start, stop in ends]


@implements(np.flip)
def _flip(m: object, axis: object = None) -> TracedArray:
    x = lift(m)
    axes = axes_of(axis, x.rank, "flip")
    return view(m, current().builder.reverse(x, axes))


@implements(np.roll)
def _roll(a: object, shift: Any, axis: Any = None) -> TracedArray:  # noqa: ANN401
    x = as_array(a)
    if axis is None:
        return _roll(_ravel(x), shift, 0).reshape(x.shape)
    axes = axes_of(axis, x.ndim, "roll")
    shifts = np.broadcast_to(shift, (len(axes),))
    for one, by in zip(axes, shifts, strict=True):
        extent = x.shape[one]
        cut = extent - int(by) % extent if extent else 0
        key: tuple[slice, ...] = (slice(None),) * one
        tail, head = x[(*key, slice(cut, None))], x[(*key, slice(None, cut))]
        x = _concatenate([tail, head], one)
    return x


@implements(np.pad)
def _pad(
    array: object,
    pad_width: Any,  # noqa: ANN401
    mode: str = "constant",
    **options: Any,
) -> TracedArray:
    if mode != "constant":
        raise refusal(f"mode {mode!r} is not traced", operation="pad")
    x = lift(array)
    widths = np.broadcast_to(pad_width, (x.rank, 2))
    value = options.pop("constant_values", 0)
    plain("pad", options)
    filler = lift(value, x.dtype, ())
    low, high = ([int(w) for w in side] for side in widths.T)
    return wrap(current().builder.pad(x, low, high, filler))


@implements(np.repeat)
def _repeat(a: object, repeats: Any, axis: int | None = None) -> TracedArray:  # noqa: ANN401
    if isinstance(repeats, TracedArray):
        raise refusal("the result's shape depends on values", operation="repeat")
    x = _ravel(a) if axis is None else as_array(a)
    (place,) = axes_of(0 if axis is None else axis, x.ndim, "repeat")
    indices = np.repeat(np.arange(x.shape[place]), repeats)
    if np.ndim(repeats) == 0:
        grown = _expand_dims(x, place + 1)
        shape = list(grown.shape)
        shape[place + 1] = int(repeats)
        wide = _broadcast_to(grown, shape)
        return wide.reshape(
            (*x.shape[:place], indices.size, *x.shape[place + 1 :])
        ).copy()
    return wrap(current().builder.gather(x.value, lift(indices), place))


@implements(np.tile)
def _tile(A: object, reps: Any) -> TracedArray:  # noqa: ANN401, N803
    x = as_array(A)
    times = whole_shape(reps)
    rank = max(x.ndim, len(times))
    shape = (1,) * (rank - x.ndim) + x.shape
    times = (1,) * (rank - len(times)) + times
    parts = [part for pair in zip([1] * rank, shape, strict=True) for part in pair]
    full = [part for pair in zip(times, shape, strict=True) for part in pair]
    total = [a * b for a, b in zip(times, shape, strict=True)]
    return _broadcast_to(x.reshape(parts), full).reshape(total).copy()


@implements(np.diagonal)
def _diagonal(
    a: object, offset: int = 0, axis1: int = 0, axis2: int = 1
) -> TracedArray:
    x = as_array(a)
    first, second = axes_of((axis1, axis2), x.ndim, "diagonal")
    rows, columns = x.shape[first], x.shape[second]
    begin = (max(-offset, 0), max(offset, 0))
    count = max(min(rows - begin[0], columns - begin[1]), 0)
    moved = _moveaxis(x, (first, second), (-2, -1))
    outer = moved.shape[:-2]
    flat = moved.reshape((*outer, rows * columns))
    start = begin[0] * columns + begin[1]
    stop = start + (count - 1) * (columns + 1) + 1 if count else start
    return flat[(..., slice(start, stop, columns + 1))]


@implements(np.trace)
def _trace(a: object, offset: int = 0, axis1: int = 0, axis2: int = 1) -> TracedArray:
    return _diagonal(a, offset, axis1, axis2).sum(-1)


def _triangle(m: object, k: int, *, lower: bool) -> TracedArray:
    """A mask that is computed, not a constant of the array's size."""
    x = as_array(m)
    if x.ndim < 2:
        raise refusal("takes two axes at least", operation="tril" if lower else "triu")
    builder = current().builder
    index = TensorType(DType.I64, x.shape)
    row = builder.iota(index, x.ndim - 2)
    column = builder.sub(builder.iota(index, x.ndim - 1), k)
    inside = builder.compare(column, row, "le" if lower else "ge")
    return wrap(
        builder.select(inside, x.value, False if dtype_of(x) is DType.BOOL else 0)
    )


@implements(np.tril)
def _tril(m: object, k: int = 0) -> TracedArray:
    return _triangle(m, k, lower=True)


@implements(np.triu)
def _triu(m: object, k: int = 0) -> TracedArray:
    return _triangle(m, k, lower=False)


def _filled(a: object, value: object, dtype: object, shape: Any) -> TracedArray:  # noqa: ANN401
    wanted = dtype_of(a) if dtype is None else DType.from_numpy(dtype)
    return wrap(
        lift(value, wanted, shape_of(a) if shape is None else whole_shape(shape))
    )


@implements(np.zeros_like, np.empty_like)
def _zeros_like(
    a: object,
    dtype: object = None,
    order: str = "K",
    subok: bool = True,
    shape: object = None,
    **_: object,
) -> TracedArray:
    return _filled(a, 0, dtype, shape)


@implements(np.ones_like)
def _ones_like(
    a: object,
    dtype: object = None,
    order: str = "K",
    subok: bool = True,
    shape: object = None,
    **_: object,
) -> TracedArray:
    return _filled(a, 1, dtype, shape)


@implements(np.full_like)
def _full_like(
    a: object,
    fill_value: object,
    dtype: object = None,
    order: str = "K",
    subok: bool = True,
    shape: object = None,
    **_: object,
) -> TracedArray:
    return _filled(a, fill_value, dtype, shape)


@implements(np.copy)
def _copy(a: object, order: str = "K", subok: object = False) -> TracedArray:
    return as_array(a).copy()


@implements(np.shape)
def _shape(a: object) -> tuple[int, ...]:
    return shape_of(a)


@implements(np.ndim)
def _ndim(a: object) -> int:
    return len(shape_of(a))


@implements(np.size)
def _size(a: object, axis: int | None = None) -> int:
    shape = shape_of(a)
    return as_array(a).size if axis is None else shape[axis]
