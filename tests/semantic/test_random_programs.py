"""Random programs: built and evaluated, they give what numpy gives step by step."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, basic_indices, integer_array_indices

from accy_async.compiler import trace_program
from accy_async.compiler.semantic import (
    Builder,
    Function,
    FunctionBuilder,
    TensorType,
    Value,
    canonical,
    evaluate,
    expand,
    rewrite,
)
from tests.semantic.samples import Array, array_of

SHAPES = st.lists(st.integers(1, 4), max_size=3).map(tuple)
DTYPES = st.sampled_from(["f64", "i64", "i32"])
Pair = tuple[Value, Array]


def step(draw: Any, f: FunctionBuilder, pool: list[Pair]) -> None:
    """One operation more, with what numpy makes of it."""
    value, array = pool[draw(st.integers(0, len(pool) - 1))]
    pool.append(
        STEPS[draw(st.integers(0, len(STEPS) - 1))](draw, f, pool, value, array)
    )


def elementwise(draw: Any, f: Any, pool: list[Pair], v: Value, a: Array) -> Pair:
    same = [pair for pair in pool if pair[0].type == v.type]
    w, b = same[draw(st.integers(0, len(same) - 1))]
    name = draw(st.sampled_from(["add", "sub", "mul", "minimum", "maximum"]))
    ufunc = {"sub": np.subtract, "mul": np.multiply}.get(name) or getattr(np, name)
    return getattr(f, name)(v, w), ufunc(a, b)


def choose(draw: Any, f: Any, pool: list[Pair], v: Value, a: Array) -> Pair:
    same = [pair for pair in pool if pair[0].type == v.type]
    w, b = same[draw(st.integers(0, len(same) - 1))]
    return f.select(f.compare(v, w, "lt"), v, f.neg(w)), np.where(a < b, a, -b)


def bounded(draw: Any, f: Any, pool: list[Pair], v: Value, a: Array) -> Pair:
    if not v.dtype.is_float:
        return f.abs(v), np.abs(a)
    return f.tanh(v), np.tanh(a)


def transposed(draw: Any, f: Any, pool: list[Pair], v: Value, a: Array) -> Pair:
    order = draw(st.permutations(range(v.rank)))
    return f.transpose(v, order), a.transpose(order)


def reshaped(draw: Any, f: Any, pool: list[Pair], v: Value, a: Array) -> Pair:
    return f.reshape(v, (a.size, 1)), a.reshape(a.size, 1)


def repeated(draw: Any, f: Any, pool: list[Pair], v: Value, a: Array) -> Pair:
    if v.rank > 3:
        return f.neg(v), -a
    shape = (draw(st.integers(1, 3)), *v.shape)
    return f.broadcast(v, shape), np.broadcast_to(a, shape)


def reduced(draw: Any, f: Any, pool: list[Pair], v: Value, a: Array) -> Pair:
    axes = tuple(i for i in range(v.rank) if draw(st.booleans()))
    kept = draw(st.booleans())
    name, plain = draw(st.sampled_from([("sum", "sum"), ("maximum", "max")]))
    result = getattr(np, plain)(a, axis=axes, keepdims=kept) if axes else a
    return f.reduce(v, name, axes, keepdims=kept), np.asarray(result, a.dtype)


def scanned(draw: Any, f: Any, pool: list[Pair], v: Value, a: Array) -> Pair:
    if v.rank == 0:
        return f.neg(v), -a
    axis = draw(st.integers(0, v.rank - 1))
    return f.scan(v, "sum", axis), np.cumsum(a, axis, a.dtype)


def sliced(draw: Any, f: Any, pool: list[Pair], v: Value, a: Array) -> Pair:
    starts = [draw(st.integers(0, extent - 1)) for extent in v.shape]
    limits = [
        draw(st.integers(start + 1, extent))
        for start, extent in zip(starts, v.shape, strict=True)
    ]
    key = tuple(slice(*span) for span in zip(starts, limits, strict=True))
    return f.slice(v, starts, limits), a[key]


def multiplied(draw: Any, f: Any, pool: list[Pair], v: Value, a: Array) -> Pair:
    if v.rank == 0:
        return f.neg(v), -a
    axis = draw(st.integers(0, v.rank - 1))
    letters = "abcdefg"[: v.rank]
    result = letters.replace(letters[axis], "")
    spec = f"{letters},{letters}->{result}"
    return f.einsum([v, v], spec), np.einsum(spec, a, a)


def gathered(draw: Any, f: Any, pool: list[Pair], v: Value, a: Array) -> Pair:
    if v.rank == 0 or v.rank > 3:
        return f.neg(v), -a
    axis = draw(st.integers(0, v.rank - 1))
    indices = draw(st.lists(st.integers(0, v.shape[axis] - 1), min_size=1, max_size=4))
    given = f.constant(indices, TensorType("i32", (len(indices),)))
    return f.gather(v, given, axis), np.take(a, indices, axis)


STEPS = [
    elementwise,
    choose,
    bounded,
    transposed,
    reshaped,
    repeated,
    reduced,
    scanned,
    sliced,
    multiplied,
    gathered,
]


@st.composite
def random_programs(draw: Any) -> tuple[Function, list[Array], list[Array]]:
    """A function, arguments for it, and the results numpy gives."""
    dtype = draw(DTYPES)
    types = [TensorType(dtype, draw(SHAPES)) for _ in range(draw(st.integers(1, 3)))]
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    arguments = [array_of(type, rng, low=-2) for type in types]
    f = Builder().begin_function("main", types)
    pool: list[Pair] = list(zip(f.parameters, arguments, strict=True))
    with np.errstate(all="ignore"):
        for _ in range(draw(st.integers(0, 12))):
            step(draw, f, pool)
    results = [pool[draw(st.integers(0, len(pool) - 1))] for _ in range(2)]
    f.return_([value for value, _ in results])
    return f.finish(), arguments, [array for _, array in results]


def agree(results: Any, expected: list[Array]) -> None:
    for result, wanted in zip(results, expected, strict=True):
        assert result.shape == wanted.shape
        np.testing.assert_allclose(result, wanted, rtol=1e-9, atol=1e-9)


@settings(max_examples=200, deadline=None)
@given(random_programs())
def test_random_programs_give_what_numpy_gives(
    program: tuple[Function, list[Array], list[Array]],
) -> None:
    """So do they written out, and rewritten by a rule that keeps everything."""
    function, arguments, expected = program
    agree(evaluate(function, arguments), expected)
    agree(evaluate(expand(function), arguments), expected)
    assert canonical(function) is function
    kept = rewrite(function, lambda f, entry, operands: None)
    assert kept == function
    assert kept.fingerprint() == function.fingerprint()
    assert str(kept) == str(function)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_any_basic_index_gives_what_numpy_gives(data: st.DataObject) -> None:
    shape = data.draw(array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4))
    key = data.draw(basic_indices(shape, allow_newaxis=True, max_dims=5))
    array = np.arange(np.prod(shape, dtype=int), dtype=np.int32).reshape(shape)
    result = trace_program(lambda x: x[key], array).evaluate(array)
    expected = np.asarray(array[key])
    assert (result.shape, result.tolist()) == (expected.shape, expected.tolist())


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_index_arrays_give_what_numpy_gives(data: st.DataObject) -> None:
    """As constants, and as arrays that are traced too."""
    shape = data.draw(array_shapes(min_dims=1, max_dims=3, max_side=4))
    key = data.draw(integer_array_indices(shape, dtype=np.dtype(np.int64)))
    array = np.arange(np.prod(shape, dtype=int), dtype=np.float32).reshape(shape)
    constant = trace_program(lambda x: x[key], array).evaluate(array)
    traced = trace_program(lambda x, k: x[k], array, key).evaluate(array, key)
    assert constant.tolist() == traced.tolist() == array[key].tolist()


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_any_einsum_gives_what_numpy_gives(data: st.DataObject) -> None:
    """And its expansion in contractions does."""
    extents = {c: data.draw(st.integers(1, 3), label=c) for c in "abcd"}
    terms = data.draw(st.lists(st.text("abcd", max_size=3), min_size=1, max_size=4))
    letters = sorted(set("".join(terms)))
    kept = data.draw(st.permutations(letters)) if letters else []
    result = "".join(kept[: data.draw(st.integers(0, len(kept)))])
    spec = f"{','.join(terms)}->{result}"
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=[extents[c] for c in term]) for term in terms]
    f = Builder().begin_function(
        "main", [TensorType("f64", array.shape) for array in arrays]
    )
    f.return_([f.einsum(f.parameters, spec)])
    function = f.finish()
    expected = [np.asarray(np.einsum(spec, *arrays))]
    agree(evaluate(function, arrays), expected)
    agree(evaluate(expand(function), arrays), expected)
