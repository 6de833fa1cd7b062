"""Indexing: what ``x[...]`` and numpy's take record."""

from __future__ import annotations

import operator
from types import EllipsisType
from typing import Any

import attrs
import numpy as np

from accy_async.compiler.semantic import TensorType, Value
from accy_async.compiler.tracing.array import TracedArray
from accy_async.compiler.tracing.common import axes_of, call, plain, wrap
from accy_async.compiler.tracing.places import refusal
from accy_async.compiler.tracing.promotion import (
    as_array,
    broadcast_shape,
    dtype_of,
    lift,
)
from accy_async.compiler.tracing.registry import implements
from accy_async.compiler.tracing.state import current
from accy_async.dtypes import DType

__all__ = ["normal_indices"]


@implements(TracedArray.__getitem__)
def _getitem(x: TracedArray, key: object) -> TracedArray:
    """Numpy's basic indexing, and one group of integer arrays beside each other."""
    parts = _expanded(x, key if isinstance(key, tuple) else (key,))
    plan = _Basic()
    arrays: list[tuple[int, Any]] = []
    axis = 0
    for part in parts:
        if part is None:
            plan.shape.append(1)
            continue
        extent = x.shape[axis]
        if isinstance(part, slice):
            plan.span(part, extent)
        elif _is_integer(part):
            plan.place(_checked(operator.index(part), extent, axis, x))
        else:
            arrays.append((len(plan.shape), part))
            plan.span(slice(None), extent)
        axis += 1
    value = plan.apply(x.value)
    if not arrays:
        return x.viewed(value)
    return wrap(_at_arrays(value, arrays))


def _is_integer(part: object) -> bool:
    return isinstance(part, (int, np.integer)) and not isinstance(
        part, (bool, np.bool_)
    )


def _expanded(x: TracedArray, key: tuple[object, ...]) -> list[Any]:
    """The key with its ellipsis, or its end, made full slices."""
    for part in key:
        boolean = isinstance(part, (bool, np.bool_)) or (
            isinstance(part, (TracedArray, np.ndarray, list))
            and dtype_of(part) is DType.BOOL
        )
        if boolean:
            raise refusal(
                "a mask as an index gives an array whose shape its values decide; "
                "numpy.where keeps the shape"
            )
    used = sum(part is not None and not isinstance(part, EllipsisType) for part in key)
    if used > x.ndim:
        raise refusal(f"{used} indices for {x.type}")
    dots = [i for i, part in enumerate(key) if isinstance(part, EllipsisType)]
    if len(dots) > 1:
        raise refusal("more than one '...' in an index")
    at = dots[0] if dots else len(key)
    full = [slice(None)] * (x.ndim - used)
    return [*key[:at], *full, *key[at + 1 :]]


def _checked(index: int, extent: int, axis: int, x: TracedArray) -> int:
    if not -extent <= index < extent:
        raise refusal(f"index {index} is outside {x.type} axis {axis} ({extent})")
    return index % extent


@attrs.define
class _Basic:
    """Slices, reversals and dropped axes, collected and then done at once."""

    starts: list[int] = attrs.field(factory=list)
    limits: list[int] = attrs.field(factory=list)
    strides: list[int] = attrs.field(factory=list)
    reversed: list[int] = attrs.field(factory=list)
    shape: list[int] = attrs.field(factory=list)

    def span(self, given: slice, extent: int) -> None:
        indices = range(*given.indices(extent))
        if len(indices) and indices.step < 0:
            self.reversed.append(len(self.starts))
            indices = indices[::-1]
        first = indices[0] if len(indices) else 0
        self.starts.append(first)
        self.limits.append(indices[-1] + 1 if len(indices) else first)
        self.strides.append(max(indices.step, 1))
        self.shape.append(len(indices))

    def place(self, index: int) -> None:
        self.starts.append(index)
        self.limits.append(index + 1)
        self.strides.append(1)

    def apply(self, value: Value) -> Value:
        builder = current().builder
        value = builder.slice(value, self.starts, self.limits, self.strides)
        if self.reversed:
            value = builder.reverse(value, self.reversed)
        return builder.reshape(value, self.shape)


def _at_arrays(value: Value, arrays: list[tuple[int, Any]]) -> Value:
    """The elements at integer arrays, broadcast together, on neighbouring axes."""
    axes = [axis for axis, _ in arrays]
    if axes != list(range(axes[0], axes[0] + len(axes))):
        raise refusal("index arrays apart from each other are not traced")
    builder = current().builder
    shape = broadcast_shape("index", [array for _, array in arrays])
    first, extents = axes[0], [value.shape[axis] for axis in axes]
    flat: TracedArray | None = None
    for (_, array), extent in zip(arrays, extents, strict=True):
        index = wrap(lift(normal_indices(array, extent), DType.I64, shape))
        flat = index if flat is None else flat * extent + index
    assert flat is not None
    if len(axes) > 1:
        count = int(np.prod(extents, dtype=int))
        joined = (*value.shape[:first], count, *value.shape[first + len(axes) :])
        value = builder.reshape(value, joined)
    return builder.gather(value, flat.value, first)


def normal_indices(indices: Any, extent: int) -> Any:  # noqa: ANN401 - as numpy takes them
    """Integer indices with those below 0 counted from the end.

    Constants are checked, as numpy does; a traced index outside the axis is
    clamped by a gather and left out by a scatter.
    """
    if not dtype_of(indices).is_integer:
        raise refusal(f"indices are {dtype_of(indices)}, expected integers")
    if isinstance(indices, TracedArray):
        if not indices.type.dtype.is_signed:
            return indices
        return call(np.where, indices < 0, indices + extent, indices)
    array = np.asarray(indices)
    if array.size and not (-extent <= array.min() and array.max() < extent):
        raise refusal(f"an index is outside an axis of {extent} elements")
    return np.where(array < 0, array + extent, array)


@implements(np.take)
def _take(
    a: object,
    indices: object,
    axis: int | None = None,
    out: object = None,
    mode: str = "raise",
) -> TracedArray:
    """``mode`` "clip" takes no index from the end; "wrap" counts modulo the extent."""
    plain("take", {"out": out})
    x = as_array(a)
    if axis is None:
        x, axis = x.reshape(-1), 0
    (place,) = axes_of(axis, x.ndim, "take")
    extent = x.shape[place]
    if mode == "wrap":
        indices = call(np.remainder, indices, extent)
    elif mode != "clip":
        indices = normal_indices(indices, extent)
    index = lift(indices)
    return wrap(current().builder.gather(x.value, index, place))


@implements(np.take_along_axis)
def _take_along_axis(
    arr: object, indices: object, axis: int | None = -1
) -> TracedArray:
    x, index = as_array(arr), as_array(indices)
    if axis is None:
        x, axis = x.reshape(-1), 0
    (place,) = axes_of(axis, x.ndim, "take_along_axis")
    if index.ndim != x.ndim:
        raise refusal(f"{x.type} and indices {index.type} differ in axes")
    key: list[object] = []
    for one, extent in enumerate(x.shape):
        if one == place:
            key.append(index)
            continue
        if extent not in (index.shape[one], 1) and index.shape[one] != 1:
            raise refusal(f"{x.type} and indices {index.type} differ in axis {one}")
        column = TensorType(
            DType.I64, [extent if i == one else 1 for i in range(x.ndim)]
        )
        key.append(wrap(current().builder.iota(column, one)))
    return x[tuple(key)]
