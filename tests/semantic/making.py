"""Making one operation, of operands of given types."""

from __future__ import annotations

from collections.abc import Callable

from accy_async.compiler.semantic import Builder, TensorType, Value

__all__ = ["Make", "build", "typed"]

Make = Callable[..., Value]


def build(types: str, make: Make) -> Value:
    parameters = [TensorType.parse(text) for text in types.split()]
    f = Builder().begin_function("main", parameters)
    return make(f, *f.parameters)


def typed(dtype: str, *shape: int) -> TensorType:
    return TensorType(dtype, shape)
