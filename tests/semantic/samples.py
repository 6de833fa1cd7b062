"""Arrays and strategies that the tests of tensor programs share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from accy_async.compiler.semantic import Builder, Function, TensorType, Value
from accy_async.compiler.semantic.numbers import carrier, round_bf16
from accy_async.dtypes import DType

Array = np.ndarray[Any, np.dtype[Any]]


def array_of(type: TensorType, rng: np.random.Generator, low: int = -9) -> Array:
    """Random elements: small integers, normal floats, any truth values."""
    if type.dtype is DType.BOOL:
        return rng.integers(0, 2, type.shape).astype(bool)
    if type.dtype.is_integer:
        begin = low if type.dtype.is_signed else 0
        return rng.integers(begin, 10, type.shape).astype(type.dtype.numpy)
    values = rng.normal(size=type.shape).astype(np.float32)
    if type.dtype is DType.BF16:
        return round_bf16(values)
    return values.astype(carrier(type.dtype))


def function_of(types: str, make: Callable[..., Value]) -> Function:
    """A function of parameters of these types that gives one value."""
    parameters = [TensorType.parse(text) for text in types.split()]
    f = Builder().begin_function("main", parameters)
    f.return_([make(f, *f.parameters)])
    return f.finish()
