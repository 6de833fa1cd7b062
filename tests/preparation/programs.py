"""Random programs that grow neither in size nor in what they compute."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import numpy as np

from accy_async.compiler.semantic import Builder, FunctionBuilder, Module, Value

__all__ = ["programs"]

SHAPES = ((3, 4), (4, 3), (12,), (4,), (3,), (1, 4), ())


def halved(f: FunctionBuilder, a: Value, b: Value) -> Value:
    return f.sub(a, f.constant(0.5, a.type))


def flat(f: FunctionBuilder, a: Value, b: Value) -> Value:
    return f.reshape(a, (a.type.element_count,))


def turned(f: FunctionBuilder, a: Value, b: Value) -> Value:
    return f.transpose(a, list(reversed(range(a.rank))))


def row_sums(f: FunctionBuilder, a: Value, b: Value) -> Value:
    return f.reduce(a, "sum", [a.rank - 1], keepdims=True) if a.rank else a


def column_maxima(f: FunctionBuilder, a: Value, b: Value) -> Value:
    return f.reduce(a, "maximum", [0]) if a.rank else a


def centred(f: FunctionBuilder, a: Value, b: Value) -> Value:
    return f.sub(a, f.broadcast(row_sums(f, a, b), a.shape)) if a.rank else a


def repeated(f: FunctionBuilder, a: Value, b: Value) -> Value:
    return f.broadcast(a, (2, *a.shape)) if a.rank < 3 else f.neg(a)


def joined(f: FunctionBuilder, a: Value, b: Value) -> Value:
    small = a.rank > 0 and a.shape[0] < 30
    return f.concatenate([a, b], 0) if small else f.abs(a)


def products(f: FunctionBuilder, a: Value, b: Value) -> Value:
    """Of its rows with each other, small enough not to grow."""
    if a.rank != 2:
        return f.neg(a)
    small = f.tanh(a)
    return f.matmul(small, f.transpose(small, [1, 0]))


def ends(f: FunctionBuilder, a: Value, b: Value) -> Value:
    """The last and the first along the first axis."""
    if not a.rank:
        return a
    return f.gather(a, f.constant(np.array([a.shape[0] - 1, 0], np.int32)), 0)


def so_far(f: FunctionBuilder, a: Value, b: Value) -> Value:
    return f.scan(a, "sum", a.rank - 1, exclusive=True) if a.rank else a


def put(f: FunctionBuilder, a: Value, b: Value) -> Value:
    """Its first element along the first axis added to the last, and one dropped."""
    if not a.rank:
        return a
    first = f.gather(a, f.constant(np.array([0, 0], np.int32)), 0)
    where = f.constant(np.array([a.shape[0] - 1, a.shape[0]], np.int32))
    return f.scatter_add(a, where, first, 0)


STEPS: tuple[Callable[[FunctionBuilder, Value, Value], Value], ...] = (
    lambda f, a, b: f.add(a, b),
    lambda f, a, b: f.mul(f.tanh(a), b),
    lambda f, a, b: f.maximum(a, 0.5),
    lambda f, a, b: f.select(f.compare(a, b, "lt"), a, b),
    lambda f, a, b: f.softmax(a) if a.rank else f.exp(f.tanh(a)),
    lambda f, a, b: f.constant(1.5, a.type),
    halved,
    flat,
    turned,
    row_sums,
    column_maxima,
    centred,
    repeated,
    joined,
    products,
    ends,
    so_far,
    put,
)


def operation(draw: Any, f: FunctionBuilder, values: list[Value]) -> Value:
    """One more operation on some of the values, the last ones rather than others."""
    value = values[-1 - draw(st.integers(0, min(len(values) - 1, 4)))]
    same = [other for other in values if other.type == value.type]
    other = same[draw(st.integers(0, len(same) - 1))]
    step = STEPS[int(draw(st.integers(0, len(STEPS) - 1)))]
    return step(f, value, other)


@st.composite
def programs(draw: Any, least: int = 1, most: int = 14) -> Module:
    """A program of so many steps, of which up to four results are kept."""
    builder = Builder()
    shapes = draw(st.lists(st.sampled_from(SHAPES), min_size=1, max_size=3))
    f = builder.begin_function("program", [builder.tensor("f32", s) for s in shapes])
    values = list(f.parameters)
    for _ in range(draw(st.integers(least, most))):
        values.append(operation(draw, f, values))
    count = draw(st.integers(1, 4))
    f.return_([values[draw(st.integers(0, len(values) - 1))] for _ in range(count)])
    f.finish()
    return builder.finish()
