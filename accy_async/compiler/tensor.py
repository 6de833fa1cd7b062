"""What numpy lacks, for functions of arrays that are traced.

On traced arrays these record operations; on numpy's own arrays they compute, by
the reference, so that a function which uses them runs under either.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

import numpy as np

from accy_async.compiler.semantic import OperandEffect, TensorType
from accy_async.compiler.tracing.array import TracedArray
from accy_async.compiler.tracing.common import axes_of, wrap
from accy_async.compiler.tracing.items import normal_indices
from accy_async.compiler.tracing.loops import iterate, repeat
from accy_async.compiler.tracing.places import refusal
from accy_async.compiler.tracing.program import trace_program
from accy_async.compiler.tracing.promotion import (
    as_array,
    dtype_of,
    lift,
    promote,
    shape_of,
)
from accy_async.compiler.tracing.state import current, is_tracing
from accy_async.dtypes import DType

__all__ = [
    "dot_general",
    "gelu",
    "iterate",
    "kernel_call",
    "layer_norm",
    "log_softmax",
    "one_hot",
    "relu",
    "repeat",
    "rms_norm",
    "row_sparse_cross_entropy",
    "scan",
    "scatter",
    "scatter_add",
    "segment_sum",
    "sigmoid",
    "silu",
    "softmax",
]

_F = TypeVar("_F", bound=Callable[..., Any])


def _also_plain(function: _F) -> _F:
    """Outside a trace, trace the call and evaluate it."""

    @functools.wraps(function)
    def either(*args: object, **kwargs: Any) -> object:
        if is_tracing():
            return function(*args, **kwargs)
        arrays = [np.asarray(a) if isinstance(a, list) else a for a in args]
        return trace_program(function, *arrays, **kwargs).evaluate(*arrays, **kwargs)

    return cast("_F", either)


def _floats(x: object) -> TracedArray:
    """The array; integers as f64, as numpy's own functions take them."""
    dtype = dtype_of(x)
    return wrap(lift(x, dtype if dtype.is_float else DType.F64))


@_also_plain
def softmax(x: object, axis: int = -1) -> TracedArray:
    """exp(x) over its sum along an axis, without overflow."""
    (place,) = axes_of(axis, len(shape_of(x)), "softmax")
    return wrap(current().builder.softmax(_floats(x).value, place))


@_also_plain
def log_softmax(x: object, axis: int = -1) -> TracedArray:
    """The logarithm of `softmax`, exact where that is tiny."""
    (place,) = axes_of(axis, len(shape_of(x)), "log_softmax")
    return wrap(current().builder.softmax(_floats(x).value, place, log=True))


@_also_plain
def row_sparse_cross_entropy(logits: object, labels: object) -> TracedArray:
    """Each row's loss, ``log(sum(exp(row))) - row[label]``.

    Args:
        logits: ``[..., classes]``, floats.
        labels: ``[...]``, integers from 0; one outside the classes gives NaN.
    """
    value = current().builder.row_sparse_cross_entropy
    return wrap(value(_floats(logits).value, lift(labels)))


@_also_plain
def scatter(x: object, indices: object, updates: object, axis: int = 0) -> TracedArray:
    """A copy of ``x`` with ``x.take(indices, axis)`` made ``updates``.

    The updates are broadcast. Negative indices count from the end; an index
    outside the axis is left out. Of several updates of one element the last stays, as
    numpy's assignment has it.
    """
    return _scatter("scatter", x, indices, updates, axis)


@_also_plain
def scatter_add(
    x: object, indices: object, updates: object, axis: int = 0
) -> TracedArray:
    """As `scatter`, with the updates added; an element may get several.

    They are added in their order, as ``np.add.at`` does, so that floats have the same
    bits each time.
    """
    return _scatter("scatter_add", x, indices, updates, axis)


def _scatter(
    kind: str, x: object, indices: object, updates: object, axis: int
) -> TracedArray:
    array = as_array(x)
    (place,) = axes_of(axis, array.ndim, kind)
    index = lift(normal_indices(indices, array.shape[place]))
    shape = (*array.shape[:place], *index.shape, *array.shape[place + 1 :])
    update = lift(updates, array.type.dtype, shape)
    return wrap(getattr(current().builder, kind)(array.value, index, update, place))


@_also_plain
def segment_sum(values: object, segments: object, count: int) -> TracedArray:
    """Sums of the rows of each segment: ``[n, ...]`` by ``[n]`` gives ``[count, ...]``.

    Args:
        values: the rows.
        segments: for each row its segment, from 0; a row of another is left out.
        count: how many segments.
    """
    array = as_array(values)
    builder = current().builder
    shape = (count, *array.shape[1:])
    zeros = wrap(lift(0, array.type.dtype, shape))
    return wrap(builder.scatter_add(zeros.value, lift(segments), array.value, 0))


@_also_plain
def one_hot(indices: object, classes: int, dtype: object = np.float32) -> TracedArray:
    """1 at each index and 0 elsewhere, along a new last axis."""
    index = as_array(indices)
    wanted = dtype if isinstance(dtype, DType) else DType.from_numpy(dtype)
    type = TensorType(DType.I64, (*index.shape, classes))
    builder = current().builder
    columns = wrap(builder.iota(type, index.ndim))
    found = columns == index.reshape((*index.shape, 1))
    return wrap(builder.convert(found.value, wanted))


@_also_plain
def scan(
    x: object,
    kind: str = "sum",
    axis: int = -1,
    *,
    exclusive: bool = False,
    reverse: bool = False,
) -> TracedArray:
    """Each element combined with those before it: sum, product, minimum, maximum.

    ``exclusive`` leaves the element itself out, ``reverse`` starts at the end.
    """
    value = lift(x)
    (place,) = axes_of(axis, value.rank, "scan")
    builder = current().builder
    return wrap(builder.scan(value, kind, place, exclusive=exclusive, reverse=reverse))


@_also_plain
def dot_general(
    lhs: object,
    rhs: object,
    contracting: tuple[Sequence[int], Sequence[int]],
    batch: tuple[Sequence[int], Sequence[int]] = ((), ()),
    *,
    accumulate: DType | None = None,
    result: DType | None = None,
) -> TracedArray:
    """Products summed over axes; see `accy_async.compiler.semantic.DotGeneral`.

    Args:
        lhs: left operand.
        rhs: right operand.
        contracting: the axes of each that are summed over, in pairs.
        batch: the axes of each that are kept together, in pairs.
        accumulate: the dtype of the sums; None: f32 for f16 and bf16, else theirs.
        result: the dtype of the result; None: the operands'.
    """
    dtype = promote([lhs, rhs])
    value = current().builder.dot_general(
        lift(lhs, dtype),
        lift(rhs, dtype),
        *contracting,
        *batch,
        accumulate=accumulate,
        result=result,
    )
    return wrap(value)


def kernel_call(
    target: str,
    *operands: object,
    results: Sequence[TensorType | str],
    version: int = 1,
    operand_effects: Sequence[OperandEffect | str] | None = None,
    result_aliases: Sequence[int | None] | None = None,
) -> Any:  # noqa: ANN401 - one array, or a tuple
    """Call a kernel of the registry that the program is compiled with.

    Args:
        target: the registry's name for it.
        operands: arrays.
        results: the results' types.
        version: the registry's version of it.
        operand_effects: "read", "write" or "read_write" for each operand; None:
            all are read.
        result_aliases: for each result the operand whose memory it takes over, or
            None.

    Returns:
        One array for one result, else a tuple.

    Raises:
        InvalidProgram: effects and aliases do not fit, or nothing is traced.
    """
    if not is_tracing():
        raise refusal("kernel_call has no meaning outside a traced function")
    types = [
        TensorType.parse(given) if isinstance(given, str) else given
        for given in results
    ]
    values = current().builder.kernel_call(
        [lift(operand) for operand in operands],
        types,
        target=target,
        version=version,
        operand_effects=operand_effects,
        result_aliases=result_aliases,
    )
    arrays = tuple(wrap(value) for value in values)
    return arrays if len(arrays) > 1 else arrays[0]


# ---------------------------------------------------------------- compositions


def relu(x: Any) -> Any:  # noqa: ANN401 - here and below as numpy types it
    """The greater of x and 0."""
    return np.maximum(x, 0)


def sigmoid(x: Any) -> Any:  # noqa: ANN401
    """1 / (1 + exp(-x)), written with tanh, which does not overflow."""
    return 0.5 * np.tanh(0.5 * x) + 0.5


def silu(x: Any) -> Any:  # noqa: ANN401
    """X sigmoid(x)."""
    return x * sigmoid(x)


def gelu(x: Any) -> Any:  # noqa: ANN401
    """Gaussian error linear unit, by its tanh approximation.

    Source: D. Hendrycks, K. Gimpel, "Gaussian Error Linear Units", 2016, section 2.
    """
    inner = math.sqrt(2.0 / math.pi) * (x + 0.044715 * (x * x * x))
    return 0.5 * x * (1.0 + np.tanh(inner))


def layer_norm(x: Any, scale: Any = 1.0, shift: Any = 0.0, *, eps: float = 1e-5) -> Any:  # noqa: ANN401
    """Rows of mean 0 and variance 1, then scaled and shifted."""
    apart = x - np.mean(x, axis=-1, keepdims=True)
    spread = np.mean(apart * apart, axis=-1, keepdims=True)
    return apart / np.sqrt(spread + eps) * scale + shift


def rms_norm(x: Any, scale: Any = 1.0, *, eps: float = 1e-6) -> Any:  # noqa: ANN401
    """Rows of root mean square 1, then scaled."""
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * scale
