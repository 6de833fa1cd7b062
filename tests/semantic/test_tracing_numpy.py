"""Functions of numpy, traced unchanged, give what numpy gives: dtype, shape, values."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from accy_async.compiler import trace_program
from accy_async.errors import InvalidProgram, OutOfRange
from tests.semantic.samples import Array

RNG = np.random.default_rng(11)
X = RNG.normal(size=(3, 4)).astype(np.float32)
Y = RNG.normal(size=4).astype(np.float32)
H = RNG.normal(size=(3, 4)).astype(np.float16)
I = RNG.integers(-5, 6, (3, 4)).astype(np.int32)  # noqa: E741
J = np.array([-3, 2, 5, 0])
U = RNG.integers(0, 9, (3, 4)).astype(np.uint8)
B = I > 0

NUMPY_2 = np.lib.NumpyVersion(np.__version__) >= "2.0.0"
"""Before it numpy itself looked at the values of scalars, which we never do."""

PAIRS: list[tuple[Any, Any]] = [
    (X, Y),
    (I, J),
    (X, I),
    (H, X),
    (H, U),
    (U, I),
    (X, 2.5),
    (I, 3),
    (I, 2.5),
    (2, U),
    (B, B),
    (X, True),
    *([(X, np.float64(2))] if NUMPY_2 else []),
]
ARITHMETIC = [
    "add",
    "subtract",
    "multiply",
    "divide",
    "floor_divide",
    "remainder",
    "fmod",
    "minimum",
    "maximum",
    "fmin",
    "fmax",
    "logical_and",
    "logical_or",
    "logical_xor",
    "equal",
    "not_equal",
    "less",
    "less_equal",
    "greater",
    "greater_equal",
    "logaddexp",
]
BITS = ["bitwise_and", "bitwise_or", "bitwise_xor", "left_shift", "right_shift"]
SINGLE = [
    "negative",
    "positive",
    "absolute",
    "fabs",
    "sign",
    "square",
    "sqrt",
    "exp",
    "exp2",
    "expm1",
    "log",
    "log2",
    "log10",
    "log1p",
    "tanh",
    "floor",
    "ceil",
    "trunc",
    "rint",
    "isnan",
    "isinf",
    "isfinite",
    "logical_not",
    "invert",
]

FUNCTIONS: list[Callable[[Any], Any]] = [
    # reductions and scans
    lambda x: x.sum(),
    lambda x: np.sum(x, axis=(0,), keepdims=True),
    lambda x: np.mean(x, -1),
    lambda x: x.mean(dtype=np.float64),
    lambda x: np.max(x, 0),
    lambda x: x.min(),
    lambda x: np.any(x, 1),
    lambda x: np.all(x),
    lambda x: np.all(x[:0]),
    lambda x: x.argmax(1),
    lambda x: np.argmin(x),
    lambda x: np.argmax(x, axis=0, keepdims=True),
    lambda x: np.cumsum(x, 1),
    lambda x: np.cumprod(x),
    lambda x: np.var(x, 0),
    lambda x: x.std(ddof=1),
    lambda x: np.prod(x, 1),
    lambda x: np.ptp(x, axis=1),
    lambda x: np.average(x, axis=0),
    lambda x: np.average(x, axis=0, weights=abs(x) + 1),
    lambda x: np.nan_to_num(np.log(x), nan=1.0),
    lambda x: np.column_stack([x, x[:, 0]]),
    lambda x: np.count_nonzero(x, axis=0),
    lambda x: np.linalg.norm(x, axis=1),
    lambda x: np.add.reduce(x),
    lambda x: np.maximum.reduce(x, axis=1),
    lambda x: np.add.accumulate(x, axis=1),
    lambda x: np.maximum.accumulate(x, axis=-1),
    lambda x: np.minimum.accumulate(x > 0),
    lambda x: np.maximum.accumulate(x, 0, np.float64),
    lambda x: sum(row for row in x),
    # choosing
    lambda x: np.clip(x, -1, 1),
    lambda x: x.clip(0, None),
    lambda x: np.round(x, 1),
    lambda x: np.where(x > 0, x, 0),
    lambda x: np.where(x > 0, x, -x * 0.5),
    lambda x: (x > 1) | (x < 0),
    lambda x: ~(x > 1) & (x == x),
    # powers
    lambda x: abs(x) ** 0.5,
    lambda x: x**3,
    lambda x: x**0,
    lambda x: (abs(x) + 1.0) ** -2,
    lambda x: abs(x) ** 1.7,
    lambda x: x.astype(float) ** np.array([1.0, 2.0, 3.0, 0.0]),
    lambda x: 2.0**x,
    lambda x: 1 / (abs(x) + 1),
    lambda x: 3 - x,
    lambda x: divmod(x, 3)[1],
    # products
    lambda x: x.T @ x,
    lambda x: x @ x.T,
    lambda x: x[0] @ x[1],
    lambda x: x @ x[0],
    lambda x: x[:, 0] @ x,
    lambda x: np.matmul(x[None], x.T[None]),
    lambda x: np.matmul(x[None, None], np.stack([x.T, x.T])),
    lambda x: np.matmul(x[0], np.stack([x.T, x.T])),
    lambda x: np.einsum("ij,kj->ik", x, x),
    lambda x: np.einsum("...j,...j->...", x, x),
    lambda x: np.einsum("...j,kj->...k", x, x),
    lambda x: np.einsum("ij,jk,kl", x, x.T, x),
    lambda x: np.einsum("ij->", x),
    lambda x: np.einsum("ij,jk->ik", x[:, :1], x),
    lambda x: np.einsum("ij,ij->i", x, x[:1]),
    lambda x: np.einsum("ii,ij->j", x[:1, :1], x),
    lambda x: np.einsum("ij,jk->ik", x[:, :1], x[:0]),
    lambda x: np.einsum(x, [0, 1], x, [2, 1], [2, 0]),
    lambda x: np.einsum(x, [30, 2], x, [30, 0]),
    lambda x: np.einsum(x, [..., 0], x, [..., 0], [...]),
    lambda x: np.dot(x, x.T),
    lambda x: x.dot(2),
    lambda x: np.tensordot(x, x, 2),
    lambda x: np.tensordot(x, x, ([1], [1])),
    lambda x: np.inner(x, x),
    lambda x: np.outer(x, x),
    lambda x: np.vdot(x, x),
    lambda x: np.multiply.outer(x, x[0]),
    # layout
    lambda x: x.reshape(2, -1),
    lambda x: np.reshape(x, 12),
    lambda x: x.ravel(),
    lambda x: x.flatten(),
    lambda x: np.swapaxes(x, 0, 1),
    lambda x: x[None].mT if NUMPY_2 else x,
    lambda x: np.moveaxis(x[None], 0, -1),
    lambda x: np.squeeze(x[None]),
    lambda x: np.squeeze(x[None], 0),
    lambda x: np.expand_dims(x, (0, 2)),
    lambda x: np.atleast_2d(x[0]),
    lambda x: np.broadcast_to(x, (2, 3, 4)),
    lambda x: np.broadcast_arrays(x, x[0])[1],
    lambda x: np.concatenate([x, x], 1),
    lambda x: np.concatenate([x, np.ones((1, 4), np.int8)], None),
    lambda x: np.stack([x, x], -1),
    lambda x: np.vstack([x, x[0]]),
    lambda x: np.hstack([x, x]),
    lambda x: np.split(x, 2, axis=1)[1],
    lambda x: np.array_split(x, 2)[0],
    lambda x: np.flip(x, 0),
    lambda x: np.roll(x, 3),
    lambda x: np.roll(x, (1, -2), (0, 1)),
    lambda x: np.pad(x, ((1, 0), (0, 2))),
    lambda x: np.pad(x, 1, constant_values=3),
    lambda x: np.repeat(x, 2, 1),
    lambda x: np.repeat(x, [1, 2, 0], 0),
    lambda x: np.tile(x, (2, 1)),
    lambda x: np.tile(x, (2, 1, 2)),
    lambda x: np.diagonal(x),
    lambda x: np.diagonal(x, 1),
    lambda x: np.diagonal(x, -2),
    lambda x: np.trace(x),
    lambda x: np.tril(x),
    lambda x: np.triu(x, 1),
    lambda x: np.zeros_like(x),
    lambda x: np.ones_like(x, dtype=np.int8),
    lambda x: np.full_like(x, 7, shape=(2,)),
    lambda x: np.copy(x),
    lambda x: np.shape(x)[0] + np.ndim(x) + np.size(x) + x.size + len(x),
    # items
    lambda x: x[1:, ::2],
    lambda x: x[::-1, -2],
    lambda x: x[..., None, 1:],
    lambda x: x[-1:0:-1],
    lambda x: x[2:1],
    lambda x: x[[0, -1]],
    lambda x: x[:, [0, 1]],
    lambda x: x[np.arange(3), [0, 1, 2]],
    lambda x: x[np.arange(3)[:, None], np.array([[0, -1]])],
    lambda x: x[x.argmax(0)],
    lambda x: np.take(x, [1, -1], axis=1),
    lambda x: np.take(x, [9, -1], axis=1, mode="wrap"),
    lambda x: np.take(x, [9, -1], axis=1, mode="clip"),
    lambda x: np.take(x, 5),
    lambda x: np.take_along_axis(x, np.array([[0, 1], [1, 2], [3, 0]]), 1),
    lambda x: np.take_along_axis(x, x.argmax(1)[:, None], 1),
    # dtypes
    lambda x: x.astype(np.float16),
    lambda x: x.astype("f8"),
    lambda x: x.astype(bool),
    lambda x: np.maximum(x, 0) + np.arange(4),
]


def check(function: Callable[..., Any], *arguments: Any) -> None:
    """The traced function gives what numpy does; what numpy refuses is refused."""
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            expected = np.asarray(function(*arguments))
        except TypeError:
            with pytest.raises(InvalidProgram):
                trace_program(function, *arguments)
            return
    result = trace_program(function, *arguments).evaluate(*arguments)
    assert (result.dtype, result.shape) == (expected.dtype, expected.shape)
    loose = 4e-3 if expected.dtype == np.float16 else 2e-5
    np.testing.assert_allclose(as_floats(result), as_floats(expected), loose, 1e-6)


def as_floats(array: Array) -> Array:
    return array.astype(np.float64)


@pytest.mark.parametrize("name", ARITHMETIC)
def test_binary_ufunc(name: str) -> None:
    ufunc = getattr(np, name)
    for lhs, rhs in PAIRS:
        check(lambda a, b: ufunc(a, b), lhs, rhs)


@pytest.mark.parametrize("name", BITS)
def test_ufunc_of_bits(name: str) -> None:
    ufunc = getattr(np, name)
    for lhs, rhs in ((U, 3), (I, np.abs(J)), (B, B)):
        check(lambda a, b: ufunc(a, b), lhs, rhs)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "uint64", "int64"])
def test_shifts_by_any_number_of_bits(dtype: str) -> None:
    """Also where a processor would count modulo the width."""
    width = np.dtype(dtype).itemsize * 8
    by = [0, 1, width - 1, width, width + 1, 100]
    by += [] if dtype.startswith("u") else [-1, -width]
    amounts = np.tile(np.array(by, dtype), 2)
    numbers = np.resize(np.array([1, 77, 127], dtype), amounts.shape)
    numbers[len(by) :] *= np.array(3, dtype)  # some less than 0, where there are
    for shift in (np.left_shift, np.right_shift):
        check(lambda a, b, s=shift: s(a, b), numbers, amounts)
        check(lambda a, s=shift: s(a, 3), numbers)
        check(lambda a, s=shift, w=width: s(a, w), numbers)
    plain = str(trace_program(lambda a: a << 3, numbers).module)
    assert "select" not in plain


def test_halves_are_divided_down_as_exactly_as_numpy_does() -> None:
    """A quotient that a half rounds up to a whole number is not one."""
    halves = np.arange(1, 400, dtype=np.float16) / np.float16(7)
    for name in ("floor_divide", "remainder", "fmod"):
        for by in (0.1, 0.7, -2.9):
            ufunc = getattr(np, name)
            expected = ufunc(halves, np.float16(by))
            program = trace_program(
                lambda a, u=ufunc, b=by: u(a, np.float16(b)), halves
            )
            np.testing.assert_allclose(program.evaluate(halves), expected, 2e-3, 1e-3)


@pytest.mark.parametrize("number", [-1, 256, -(2**70), 2**70])
def test_numbers_that_the_dtype_does_not_hold(number: int) -> None:
    """They are compared as they are, bound nothing, and are refused elsewhere."""
    x = np.array([0, 1, 255], np.uint8)
    for name in ("equal", "not_equal", "less", "less_equal", "greater"):
        compare = getattr(np, name)
        check(lambda a, c=compare: c(a, number), x)
        check(lambda a, c=compare: c(number, a), x)
    check(lambda a: np.clip(a, min(number, 1), max(number, 7)), x)
    for refused in (lambda a: a + number, lambda a: np.maximum(a, number)):
        with pytest.raises(OutOfRange):
            trace_program(refused, x)


@pytest.mark.parametrize("axes", [[[0, 52]], [[-1, 0]], [], [[0, 1], [0, 0], [1]]])
def test_einsum_by_numbers_refuses_what_names_no_axes(axes: list[Any]) -> None:
    with pytest.raises(InvalidProgram, match="einsum"):
        trace_program(lambda x: np.einsum(x, *axes), I)


@pytest.mark.parametrize("name", SINGLE)
def test_unary_ufunc(name: str) -> None:
    ufunc = getattr(np, name)
    for operand in (X, np.abs(X), H, I, U, B):
        check(lambda a: ufunc(a), operand)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_function(function: Callable[[Any], Any]) -> None:
    check(function, X)
    check(function, I)


def test_special_values_go_through_compositions() -> None:
    """NaN, infinities and zeros come out of composed functions as numpy's do."""
    odd = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-8, -1e-8, 88.5], np.float32)
    for name in ("expm1", "log1p", "sign", "floor", "isfinite", "reciprocal"):
        ufunc = getattr(np, name)
        check(lambda a, u=ufunc: u(a), odd)
    for name in ("logaddexp", "fmin", "fmax", "maximum", "floor_divide", "power"):
        ufunc = getattr(np, name)
        check(lambda a, b, u=ufunc: u(a, b), np.abs(odd), np.ones(8, np.float32) * 3)
    check(lambda a: np.log1p(a), np.array([np.finfo(np.float32).max, 1e30], np.float32))
    check(lambda a: np.argmax(a), odd)
    check(lambda a: np.logaddexp(a, a), odd)


def test_bf16_takes_f16s_place_in_promotion() -> None:
    """And with f16 gives f32."""
    program = trace_program(
        lambda a, b, c: (a + 1.0, a + b, a + c, a @ a, np.where(a > 0, a, 0)),
        "bf16[2,2]",
        "f16[2,2]",
        "i32[2,2]",
    )
    dtypes = [str(type.dtype) for type in program.module.entry.result_types]
    assert dtypes == ["bf16", "f32", "f64", "bf16", "bf16"]
