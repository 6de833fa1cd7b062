"""The reference computes what numpy computes, op by op, and the edge cases as said."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from accy_async.compiler.semantic import (
    Builder,
    Constant,
    Function,
    Module,
    TensorType,
    Value,
    evaluate,
    expand,
)
from accy_async.compiler.semantic.numbers import round_bf16
from accy_async.dtypes import DType, ScalarArgument
from accy_async.errors import (
    InvalidValue,
    LaunchArgumentMismatch,
    UnsupportedOperation,
)
from tests.semantic.samples import Array, array_of, function_of

Make = Callable[..., Value]
Plain = Callable[..., Any]


def accumulated(function: np.ufunc, x: Array, *, exclusive: bool, axis: int) -> Array:
    """A scan of sums or products by numpy."""
    scanned = function.accumulate(x, axis)
    if not exclusive:
        return scanned
    first = np.full_like(np.take(x, [0], axis), function.identity)
    rest = np.take(scanned, range(x.shape[axis] - 1), axis)
    return np.concatenate([first, rest], axis)


CASES: list[tuple[str, Make, Plain]] = [
    ("f32[3,4] f32[3,4]", lambda f, a, b: f.add(a, b), np.add),
    ("i32[3,4] i32[3,4]", lambda f, a, b: f.sub(a, b), np.subtract),
    ("u8[5] u8[5]", lambda f, a, b: f.sub(a, b), np.subtract),
    ("f64[5] f64[5]", lambda f, a, b: f.mul(a, b), np.multiply),
    ("f32[5] f32[5]", lambda f, a, b: f.div(a, b), np.divide),
    ("f32[5] f32[5]", lambda f, a, b: f.minimum(a, b), np.minimum),
    ("i8[5] i8[5]", lambda f, a, b: f.maximum(a, b), np.maximum),
    ("bool[9] bool[9]", lambda f, a, b: f.logical_and(a, b), np.logical_and),
    ("bool[9] bool[9]", lambda f, a, b: f.logical_xor(a, b), np.logical_xor),
    ("i16[9] i16[9]", lambda f, a, b: f.logical_or(a, b), np.bitwise_or),
    ("i16[9]", lambda f, a: f.logical_not(a), np.invert),
    ("f32[9]", lambda f, a: f.neg(a), np.negative),
    ("f32[9]", lambda f, a: f.abs(a), np.abs),
    ("f32[9]", lambda f, a: f.exp(a), np.exp),
    ("f64[9]", lambda f, a: f.log(f.abs(a)), lambda a: np.log(np.abs(a))),
    ("f64[9]", lambda f, a: f.sqrt(f.abs(a)), lambda a: np.sqrt(np.abs(a))),
    ("f32[9]", lambda f, a: f.tanh(a), np.tanh),
    ("f32[9]", lambda f, a: f.unary("floor", a), np.floor),
    ("f32[9]", lambda f, a: f.unary("ceiling", a), np.ceil),
    ("f32[9]", lambda f, a: f.unary("truncate", a), np.trunc),
    ("f32[9]", lambda f, a: f.unary("round_even", a), np.rint),
    ("f32[9] f32[9]", lambda f, a, b: f.compare(a, b, "le"), np.less_equal),
    ("i32[9] i32[9]", lambda f, a, b: f.compare(a, b, "eq"), np.equal),
    ("bool[9] f32[9] f32[9]", lambda f, c, a, b: f.select(c, a, b), np.where),
    ("i32[9]", lambda f, a: f.convert(a, "f32"), lambda a: a.astype(np.float32)),
    ("i32[9]", lambda f, a: f.convert(a, "i8"), lambda a: a.astype(np.int8)),
    ("f32[9]", lambda f, a: f.convert(a, "i32"), lambda a: a.astype(np.int32)),
    ("i32[9]", lambda f, a: f.convert(a, "bool"), lambda a: a != 0),
    ("bool[9]", lambda f, a: f.convert(a, "f16"), lambda a: a.astype(np.float16)),
    (
        "f32[3,4]",
        lambda f, a: f.broadcast(a, (2, 3, 4)),
        lambda a: np.broadcast_to(a, (2, 3, 4)),
    ),
    (
        "f32[3]",
        lambda f, a: f.broadcast(a, (3, 2), [0]),
        lambda a: np.repeat(a[:, None], 2, 1),
    ),
    ("f32[3,4]", lambda f, a: f.reshape(a, (2, 6)), lambda a: a.reshape(2, 6)),
    (
        "f32[2,3,4]",
        lambda f, a: f.transpose(a, [1, 2, 0]),
        lambda a: a.transpose(1, 2, 0),
    ),
    (
        "f32[5,6]",
        lambda f, a: f.slice(a, [1, 0], [5, 6], [2, 3]),
        lambda a: a[1:5:2, ::3],
    ),
    (
        "f32[2,3] f32[2,1]",
        lambda f, a, b: f.concatenate([a, b, a], 1),
        lambda a, b: np.concatenate([a, b, a], 1),
    ),
    (
        "f32[2,3]",
        lambda f, a: f.pad(a, [1, 0], [0, 2], 7.0),
        lambda a: np.pad(a, ((1, 0), (0, 2)), constant_values=7),
    ),
    ("f32[2,3]", lambda f, a: f.reverse(a, [0, 1]), lambda a: a[::-1, ::-1]),
    (
        "f32[]",
        lambda f, a: f.iota(TensorType("i32", (2, 3)), 1),
        lambda a: np.array([[0, 1, 2]] * 2, np.int32),
    ),
    (
        "f32[2,3,4]",
        lambda f, a: f.reduce(a, "sum", [0, 2], keepdims=True),
        lambda a: a.sum((0, 2), keepdims=True),
    ),
    ("f64[2,3]", lambda f, a: f.reduce(a, "mean", [1]), lambda a: a.mean(1)),
    ("f32[2,3]", lambda f, a: f.reduce(a, "mean"), lambda a: a.mean()),
    ("i32[2,3]", lambda f, a: f.reduce(a, "product", [1]), lambda a: a.prod(1)),
    ("f32[2,3]", lambda f, a: f.reduce(a, "minimum", [1]), lambda a: a.min(1)),
    ("u8[2,3]", lambda f, a: f.reduce(a, "maximum", []), lambda a: a),
    ("bool[2,3]", lambda f, a: f.reduce(a, "minimum", [1]), lambda a: a.all(1)),
    ("bool[2,3]", lambda f, a: f.reduce(a, "maximum", [1]), lambda a: a.any(1)),
    ("f32[0,3]", lambda f, a: f.reduce(a, "product", [0]), lambda a: a.prod(0)),
    ("f32[3,5]", lambda f, a: f.scan(a, "sum"), lambda a: a.cumsum(1)),
    (
        "i64[3,5]",
        lambda f, a: f.scan(a, "sum", 0, exclusive=True),
        lambda a: accumulated(np.add, a, exclusive=True, axis=0),
    ),
    (
        "f64[3,5]",
        lambda f, a: f.scan(a, "product", 1, exclusive=True, reverse=True),
        lambda a: accumulated(np.multiply, a[:, ::-1], exclusive=True, axis=1)[:, ::-1],
    ),
    (
        "f32[7]",
        lambda f, a: f.scan(a, "minimum", reverse=True),
        lambda a: np.minimum.accumulate(a[::-1])[::-1],
    ),
    (
        "i8[7]",
        lambda f, a: f.scan(a, "maximum", exclusive=True),
        lambda a: np.concatenate([[np.int8(-128)], np.maximum.accumulate(a)[:-1]]),
    ),
    ("f32[2,3] f32[3,4]", lambda f, a, b: f.matmul(a, b), np.matmul),
    ("i32[2,3] i32[3,4]", lambda f, a, b: f.matmul(a, b), np.matmul),
    ("f32[2,0] f32[0,4]", lambda f, a, b: f.matmul(a, b), np.matmul),
    (
        "f64[5,2,3] f64[3,5,4]",
        lambda f, a, b: f.dot_general(a, b, [2], [0], [0], [1]),
        lambda a, b: np.einsum("bmk,kbn->bmn", a, b),
    ),
    (
        "f64[2,3] f64[3,4] f64[4,2]",
        lambda f, a, b, c: f.einsum([a, b, c], "ij,jk,ki->i"),
        lambda a, b, c: np.einsum("ij,jk,ki->i", a, b, c),
    ),
    (
        "f64[3,3,2] f64[3]",
        lambda f, a, b: f.einsum([a, b], "iij,i->j"),
        lambda a, b: np.einsum("iij,i->j", a, b),
    ),
    ("f32[3,3]", lambda f, a: f.einsum([a], "ii"), np.trace),
    (
        "f32[2] f32[3]",
        lambda f, a, b: f.einsum([a, b], "i,j->ji"),
        lambda a, b: np.outer(b, a),
    ),
    (
        "f32[9,4] u8[2,3]",
        lambda f, a, i: f.gather(a, i, 1),
        lambda a, i: np.take(a, i.clip(0, 3), 1),
    ),
    (
        "f32[2,5]",
        lambda f, a: f.softmax(a),
        lambda a: np.exp(a) / np.exp(a).sum(1, keepdims=True),
    ),
    (
        "f32[2,5]",
        lambda f, a: f.softmax(a, 0, log=True),
        lambda a: a - np.log(np.exp(a).sum(0)),
    ),
]


@pytest.mark.parametrize(("types", "make", "plain"), CASES)
def test_op_gives_what_numpy_gives(
    types: str, make: Make, plain: Plain, request: pytest.FixtureRequest
) -> None:
    rng = np.random.default_rng(7)
    function = function_of(types, make)
    arguments = [array_of(type, rng) for type in function.parameter_types]
    with np.errstate(all="ignore"):
        expected = np.asarray(plain(*arguments))
    (result,) = evaluate(function, arguments)
    assert result.shape == expected.shape == function.result_types[0].shape
    np.testing.assert_allclose(result, expected, rtol=1e-6, atol=1e-7)
    (wide,) = evaluate(function, arguments, precision="float64")
    np.testing.assert_allclose(wide, expected, rtol=1e-5, atol=1e-6)
    (simple,) = evaluate(expand(function), arguments)
    np.testing.assert_allclose(simple, expected, rtol=1e-5, atol=1e-6)


def run(function: Function, *arguments: object) -> list[Any]:
    (result,) = evaluate(function, arguments)
    return list(result.tolist())


def test_integers_divide_toward_zero_and_by_zero() -> None:
    divide = function_of("i8[6] i8[6]", lambda f, a, b: f.div(a, b))
    rest = function_of("i8[6] i8[6]", lambda f, a, b: f.remainder(a, b))
    a = np.array([7, -7, 7, -7, 5, -128], np.int8)
    b = np.array([2, 2, -2, -2, 0, -1], np.int8)
    assert run(divide, a, b) == [3, -3, -3, 3, 0, -128]
    assert run(rest, a, b) == [1, -1, 1, -1, 0, 0]


def test_shift_amounts_count_modulo_the_width() -> None:
    left = function_of("i8[3] i8[3]", lambda f, a, b: f.binary("shift_left", a, b))
    right = function_of("i8[3] i8[3]", lambda f, a, b: f.binary("shift_right", a, b))
    a, b = np.array([1, 1, -8], np.int8), np.array([3, 9, 10], np.int8)
    assert run(left, a, b) == [8, 2, -32]
    assert run(right, a, b) == [0, 0, -2]


def test_minimum_and_maximum_know_nan_and_the_sign_of_zero() -> None:
    a = np.array([0.0, -0.0, np.nan, 1.0], np.float32)
    b = np.array([-0.0, 0.0, 1.0, np.nan], np.float32)
    low = np.array(
        run(function_of("f32[4] f32[4]", lambda f, a, b: f.minimum(a, b)), a, b)
    )
    high = np.array(
        run(function_of("f32[4] f32[4]", lambda f, a, b: f.maximum(a, b)), a, b)
    )
    assert np.signbit(low[:2]).tolist() == [True, True]
    assert np.signbit(high[:2]).tolist() == [False, False]
    assert np.isnan(low[2:]).all()
    assert np.isnan(high[2:]).all()


def test_floats_to_integers_truncate_and_saturate() -> None:
    x = np.array([1.9, -1.9, 300.0, -300.0, np.nan, np.inf], np.float32)
    for dtype, expected in (
        ("i8", [1, -1, 127, -128, 0, 127]),
        ("u8", [1, 0, 255, 0, 0, 255]),
        ("i64", [1, -1, 300, -300, 0, 2**63 - 1]),
        ("u64", [1, 0, 300, 0, 0, 2**64 - 1]),
    ):
        convert = function_of("f32[6]", lambda f, a, d=dtype: f.convert(a, d))
        assert run(convert, x) == expected, dtype


def test_indices_outside_are_clamped_by_gather_and_left_out_by_scatter() -> None:
    x = np.arange(4, dtype=np.float32)
    indices = np.array([-1, 1, 4], np.int32)
    updates = np.array([10, 20, 30], np.float32)
    gather = function_of("f32[4] i32[3]", lambda f, a, i: f.gather(a, i))
    scatter = function_of("f32[4] i32[3] f32[3]", lambda f, a, i, u: f.scatter(a, i, u))
    assert run(gather, x, indices) == [0, 1, 3]
    assert run(scatter, x, indices, updates) == [0, 20, 2, 3]
    huge = function_of("f32[4] u64[1]", lambda f, a, i: f.gather(a, i))
    assert run(huge, x, np.array([2**64 - 1], np.uint64)) == [3]


def test_scatter_add_adds_every_update() -> None:
    rng = np.random.default_rng(3)
    function = function_of(
        "f64[2,5,3] i32[4,2] f64[2,4,2,3]",
        lambda f, a, i, u: f.scatter_add(a, i, u, 1),
    )
    x, updates = rng.normal(size=(2, 5, 3)), rng.normal(size=(2, 4, 2, 3))
    indices = rng.integers(0, 5, (4, 2)).astype(np.int32)
    expected = x.copy()
    for i in range(4):
        for j in range(2):
            expected[:, indices[i, j]] += updates[:, i, j]
    np.testing.assert_allclose(run(function, x, indices, updates), expected)


def test_cross_entropy_takes_each_rows_label() -> None:
    logits = np.array([[1.0, 2.0, 4.0], [0.0, 1e4, 0.0], [1, 2, 3]], np.float32)
    labels = np.array([2, 0, 3], np.int32)
    function = function_of(
        "f32[3,3] i32[3]", lambda f, x, i: f.row_sparse_cross_entropy(x, i)
    )
    expected = [np.log(np.exp(logits[0] - 4).sum()), 1e4, np.nan]
    for program in (function, expand(function)):
        np.testing.assert_allclose(run(program, logits, labels), expected, rtol=1e-6)


def test_halves_are_computed_in_f32_and_rounded_once() -> None:
    x = np.full(4096, 1.0, np.float16)
    total = function_of("f16[4096]", lambda f, a: f.reduce(a, "sum"))
    narrow = function_of(
        "f16[4096]", lambda f, a: f.reduce(a, "sum", accumulate=DType.F16)
    )
    assert run_scalar(total, x) == 4096
    assert run_scalar(narrow, x) <= 4096
    third = function_of("bf16[1]", lambda f, a: f.div(a, 3.0))
    (result,) = evaluate(third, [np.ones(1, np.float32)])
    assert result[0] == ScalarArgument.bf16(1 / 3).value


def run_scalar(function: Function, *arguments: object) -> float:
    (result,) = evaluate(function, arguments)
    return float(result)


def test_bf16_rounds_once_from_doubles_too() -> None:
    rng = np.random.default_rng(5)
    bits = rng.integers(0, 2**64, 20000, dtype=np.uint64)
    wide = bits.view(np.float64)
    near = rng.normal(size=20000).astype(np.float32).astype(np.float64)
    tie = round_bf16(near).astype(np.float64) * (1 + 2.0**-8) + 2.0**-60
    with np.errstate(all="ignore"):
        for values in (wide, near, tie):
            kept = values[np.isfinite(values) & (np.abs(values) < 3e38)]
            expected = [ScalarArgument.bf16(v).value for v in kept.tolist()]
            assert round_bf16(kept).tolist() == expected


def test_constants_are_kept_to_the_bit() -> None:
    for dtype in ("f16", "bf16", "f32", "f64", "i8", "u64", "bool"):
        type = TensorType(dtype, (2, 2))
        values = [[0, 1], [1, 0]] if dtype != "bool" else [[False, True], [True, False]]
        constant = Constant.of(values, type)
        assert constant.to_numpy().tolist() == values
        assert len(constant.data) == type.byte_size
    assert Constant.of(1 / 3, TensorType("bf16", (3,))).data == (
        ScalarArgument.bf16(1 / 3).to_bytes()
    )


def test_loops_carry_and_may_end_early() -> None:
    f = Builder().begin_function("main", [TensorType("f32"), TensorType("f32")])
    x, y = f.parameters
    fixed = f.loop(5, [x], lambda b, v, k: [b.mul(v, k)], captures=[y])
    none = f.loop(0, [x], lambda b, v: [b.neg(v)])
    early = f.loop(
        100,
        [x],
        lambda b, v, k: [b.mul(v, k), b.compare(v, 10.0, "lt")],
        captures=[y],
        conditional=True,
    )
    f.return_([*fixed, *none, *early])
    results = evaluate(f.finish(), [np.float32(1), np.float32(2)])
    assert [float(r) for r in results] == [32, 1, 32]


def test_called_kernels_are_given_by_target() -> None:
    f = Builder().begin_function("main", [TensorType("f32", (2,))])
    (x,) = f.parameters
    f.return_(f.kernel_call([x], [x.type], target="my.double"))
    function = f.finish()
    x_ = np.array([1, 2], np.float32)
    assert evaluate(function, [x_], kernels={"my.double": lambda a: a * np.float32(2)})[
        0
    ].tolist() == [2, 4]
    with pytest.raises(UnsupportedOperation, match=r"'my.double' version 1"):
        evaluate(function, [x_])
    with pytest.raises(LaunchArgumentMismatch, match=r"my.double result 0 is float32"):
        evaluate(function, [x_], kernels={"my.double": lambda a: a[:1]})
    with pytest.raises(LaunchArgumentMismatch, match="gave 2 results, expected 1"):
        evaluate(function, [x_], kernels={"my.double": lambda a: (a, a)})


def test_arguments_must_fit() -> None:
    function = function_of("f32[2]", lambda f, a: f.neg(a))
    module = Module("m", (function,))
    assert evaluate(module, [np.ones(2, np.float32)])[0].tolist() == [-1, -1]
    for arguments, message in (
        ([], "takes 1 arguments, got 0"),
        ([np.ones(2)], r"argument p0 is float64\[2\], expected f32\[2\] as float32"),
        ([np.ones(3, np.float32)], r"argument p0 is float32\[3\]"),
    ):
        with pytest.raises(LaunchArgumentMismatch, match=message):
            evaluate(module, arguments)
    with pytest.raises(InvalidValue, match=r"'declared' or 'float64'"):
        evaluate(module, [], precision="quick")  # type: ignore[arg-type]


def test_arguments_are_not_changed() -> None:
    function = function_of("f32[2]", lambda f, a: a)
    x = np.ones(2, np.float32)
    (result,) = evaluate(function, [x])
    result[0] = 5
    assert x.tolist() == [1, 1]
