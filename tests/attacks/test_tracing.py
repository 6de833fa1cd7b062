"""Programs of functions that use what is almost the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from accy_async.compiler import fragment, trace_program
from accy_async.errors import InvalidProgram, LaunchArgumentMismatch

X = np.arange(12, dtype=np.float32).reshape(3, 4)


@fragment
def ratio(x: Any, divisor: object) -> Any:
    return x / divisor


def test_zeros_of_both_signs_are_two_constants() -> None:
    """And two programs; NaN, which differs from itself, is one."""
    ones = np.ones(4, np.float32)
    for zero in (0.0, -0.0):
        program = ratio.trace(ones, zero)
        with pytest.raises(LaunchArgumentMismatch, match="traced for"):
            program.evaluate(ones, -zero)
        assert np.signbit(program.evaluate(ones, zero)).all() == np.signbit(zero)
    nan, other = float("nan"), float("nan")
    assert ratio.trace(ones, nan) is ratio.trace(ones, other)
    assert np.isnan(ratio.trace(ones, nan).evaluate(ones, other)).all()
    assert ratio.trace(ones, 1) is not ratio.trace(ones, 1.0)


@pytest.mark.parametrize("keepdims", [1, 0, True])
@pytest.mark.parametrize(
    "reduce",
    [np.sum, np.mean, np.max, np.any, np.var, np.argmax],
    ids=lambda one: one.__name__,
)
def test_keepdims_counts_by_its_truth(
    reduce: Callable[..., Any], keepdims: object
) -> None:
    program = trace_program(lambda x: reduce(x, axis=0, keepdims=keepdims), X)
    expected = reduce(X, axis=0, keepdims=keepdims)
    assert program.evaluate(X).shape == expected.shape


@pytest.mark.parametrize("parts", [2, 5, 0, -1])
def test_only_equal_parts_are_split_off(parts: int) -> None:
    """As in numpy, which has another function for unequal ones."""
    with pytest.raises((ValueError, ZeroDivisionError)):
        np.split(X, parts)
    with pytest.raises(InvalidProgram, match="parts"):
        trace_program(lambda x: np.split(x, parts), X)
    assert len(trace_program(lambda x: np.array_split(x, 2), X).evaluate(X)) == 2


@pytest.mark.parametrize("ufunc", [np.add, np.maximum, np.logical_and])
def test_an_axis_of_none_is_every_axis(ufunc: np.ufunc) -> None:
    """One that is left out is the first."""
    for options in ({"axis": None}, {}, {"axis": 1}):
        program = trace_program(lambda x, given=options: ufunc.reduce(x, **given), X)
        np.testing.assert_array_equal(program.evaluate(X), ufunc.reduce(X, **options))


@pytest.mark.parametrize("dtype", ["u1", "i2", "i4", "f4"])
@pytest.mark.parametrize("decimals", [-2, -1, 0, 1])
def test_integers_rounded_to_tens_stay_integers(dtype: str, decimals: int) -> None:
    x = np.arange(0, 200, 5).astype(dtype)
    found = trace_program(lambda a: np.round(a, decimals), x).evaluate(x)
    expected = np.round(x, decimals)
    assert found.dtype == expected.dtype
    np.testing.assert_allclose(found, expected)
