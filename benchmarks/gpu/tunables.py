"""Programs whose kernels have launch candidates, in two sizes each."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import attrs
import numpy as np

from accy_async.compiler import tensor

__all__ = ["PROGRAMS", "Tunable"]

Array = np.ndarray[Any, Any]
LONG, ROWS, WIDE, INNER = 1 << 21, 2048, 1024, 512


@attrs.frozen
class Tunable:
    """One program.

    Attributes:
        function: of arrays.
        shapes: of its arguments, in the usual size.
        indices: of the arguments, that hold places in the first one's first axis.
    """

    function: Callable[..., Any]
    shapes: tuple[tuple[int, ...], ...]
    indices: tuple[int, ...] = ()

    def arguments(self, shrink: int = 1) -> list[Array]:
        """Random arguments; those like the first with so many times fewer rows."""
        random = np.random.default_rng(0)
        found: list[Array] = []
        for place, given in enumerate(self.shapes):
            shape = given
            if given == self.shapes[0]:
                shape = (max(1, given[0] // shrink), *given[1:])
            if place in self.indices:
                most = found[0].shape[0]
                drawn = random.integers(0, most, math.prod(shape), dtype=np.int32)
                found.append(drawn.reshape(shape))
            else:
                found.append(random.random(shape, np.float32) + 0.5)
        return found


def _normalised(x: Any) -> Any:  # noqa: ANN401
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + 1e-5)


_MATRIX, _LONG = (ROWS, WIDE), (LONG,)
PROGRAMS: Mapping[str, Tunable] = {
    "scale": Tunable(lambda x: x * 2 + 1, (_LONG,)),
    "add": Tunable(lambda a, b: a + b, (_LONG, _LONG)),
    "chain": Tunable(lambda a, b: np.sqrt(np.abs((a + b) * (a - b))), (_LONG, _LONG)),
    "exp": Tunable(np.exp, (_LONG,)),
    "tanh": Tunable(lambda x: np.tanh(x) * x, (_LONG,)),
    "greater": Tunable(lambda a, b: np.where(a > b, a, b), (_LONG, _LONG)),
    "to f16": Tunable(lambda x: x.astype(np.float16), (_LONG,)),
    "to i32": Tunable(lambda x: (x * 100).astype(np.int32), (_LONG,)),
    "outer": Tunable(lambda a, b: a[:, None] * b[None, :], ((ROWS,), (WIDE,))),
    "add a row": Tunable(lambda a, b: a + b[None, :], (_MATRIX, (WIDE,))),
    "concatenate": Tunable(lambda a, b: np.concatenate([a, b]), (_LONG, _LONG)),
    "transpose": Tunable(lambda x: np.transpose(x) * 2, (_MATRIX,)),
    "reverse": Tunable(lambda x: x[::-1] + 1, (_LONG,)),
    "sum": Tunable(lambda x: x.sum(), (_LONG,)),
    "sum of rows": Tunable(lambda x: x.sum(1), (_MATRIX,)),
    "sum of columns": Tunable(lambda x: x.sum(0), (_MATRIX,)),
    "greatest of rows": Tunable(lambda x: x.max(1), (_MATRIX,)),
    "mean of squares": Tunable(lambda x: (x * x).mean(1), (_MATRIX,)),
    "softmax": Tunable(tensor.softmax, (_MATRIX,)),
    "norm": Tunable(_normalised, (_MATRIX,)),
    "product": Tunable(lambda a, b: a @ b, ((WIDE, INNER), (INNER, INNER))),
    "product, relu": Tunable(
        lambda a, b: np.maximum(a @ b, 0), ((WIDE, INNER), (INNER, INNER))
    ),
    "matrix by vector": Tunable(lambda a, b: a @ b, (_MATRIX, (WIDE,))),
    "gather": Tunable(np.take, (_LONG, (LONG // 4,)), indices=(1,)),
    "running sum": Tunable(np.cumsum, ((1 << 20,),)),
}
"""By name, simple ones first."""
