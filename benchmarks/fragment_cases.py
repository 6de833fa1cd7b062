"""Programs that `fragment_calls` measures, each for whoever stands for numpy."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import attrs
import numpy as np

from accy_async.compiler import tensor
from accy_async.dtypes import DType

__all__ = ["CASES", "Case"]

Array = np.ndarray[Any, Any]
Function = Callable[..., Any]


@attrs.frozen(kw_only=True)
class Case:
    """One program.

    Attributes:
        name: with its extents.
        make: the program, of the module that stands for numpy: numpy itself, CuPy,
            PyTorch, or numpy while it is traced.
        shapes: of the arguments.
        moved: arrays' worth of the first argument's bytes that go to and fro at least.
        numba: its loop in `numba_loops`.
        target: the least share of the measure's rate that is aimed at on a GPU.
        dtype: of the arguments.
        is_product: True where floating-point operations count, not bytes.
    """

    name: str
    make: Callable[[Any], Function]
    shapes: tuple[tuple[int, ...], ...]
    moved: float
    numba: str = ""
    target: float = 0.0
    dtype: DType = DType.F32
    is_product: bool = False

    @property
    def work(self) -> float:
        """Bytes that have to be moved, or operations that have to be done."""
        if self.is_product:
            (m, k), (_, n) = self.shapes
            return 2.0 * m * k * n
        return self.moved * math.prod(self.shapes[0]) * self.dtype.size_bytes

    @property
    def types(self) -> list[str]:
        """The arguments' types, as `Session.load_fragment` takes them."""
        texts = (",".join(map(str, shape)) for shape in self.shapes)
        return [f"{self.dtype}[{text}]" for text in texts]

    def arguments(self) -> list[Array]:
        """Random arguments; of bf16 the bits."""
        generator = np.random.default_rng(0)
        drawn = [generator.standard_normal(s, np.float32) for s in self.shapes]
        if self.dtype is DType.BF16:
            return [(a.view(np.uint32) >> 16).astype(np.uint16) for a in drawn]
        return [a.astype(self.dtype.numpy) for a in drawn]


def chain(xp: Any) -> Function:  # noqa: ANN401
    return lambda a, b: xp.sqrt(xp.abs((a + b) * (a - b)))


def softmax(xp: Any) -> Function:  # noqa: ANN401
    if xp.__name__ == "torch":
        return lambda a: xp.softmax(a, 1)

    def by_hand(a: Any) -> Any:  # noqa: ANN401
        powers = xp.exp(a - a.max(1, keepdims=True))
        return powers / powers.sum(1, keepdims=True)

    return tensor.softmax if xp is tensor else by_hand


def layer_norm(xp: Any) -> Function:  # noqa: ANN401
    if xp.__name__ == "torch":
        return lambda a: xp.nn.functional.layer_norm(a, a.shape[1:])

    def by_hand(a: Any) -> Any:  # noqa: ANN401
        centred = a - a.mean(1, keepdims=True)
        variance = (centred * centred).mean(1, keepdims=True)
        return centred / np.sqrt(variance + 1e-5)

    def elsewhere(a: Any) -> Any:  # noqa: ANN401
        centred = a - a.mean(1, keepdims=True)
        variance = (centred * centred).mean(1, keepdims=True)
        return centred / xp.sqrt(variance + 1e-5)

    return by_hand if xp is tensor else elsewhere


def _of(name: str, *arguments: object) -> Callable[[Any], Function]:
    """A function of the module, by its name, with these arguments behind the array."""

    def make(xp: Any) -> Function:  # noqa: ANN401
        function = getattr(np if xp is tensor else xp, name)
        return lambda *arrays: function(*arrays, *arguments)

    return make


def _chain(xp: Any) -> Function:  # noqa: ANN401
    return chain(np if xp is tensor else xp)


def _cases(*, is_large: bool) -> dict[str, tuple[Case, ...]]:
    length = 1 << 26 if is_large else 10_000_000
    rows = (16384, 4096) if is_large else (4096, 1024)
    product = 4096 if is_large else 1024
    squares = ((product, product),) * 2
    big = f"{length:,}"
    wide = "{:,} x {:,}".format(*rows)
    cases = {
        "elementwise": (
            Case(
                name=f"add, subtract, multiply, abs, sqrt of {big}",
                make=_chain,
                shapes=((length,), (length,)),
                moved=3,
                numba="chain",
                target=0.9,
            ),
            Case(
                name=f"exp of {big}",
                make=_of("exp"),
                shapes=((length,),),
                moved=2,
                numba="exp",
                target=0.9,
            ),
        ),
        "reductions": (
            Case(
                name=f"sum of {big}",
                make=_of("sum"),
                shapes=((length,),),
                moved=1,
                numba="total",
                target=0.8,
            ),
            Case(
                name=f"sum of each row of {wide}",
                make=_of("sum", 1),
                shapes=(rows,),
                moved=1,
                numba="row_sums",
                target=0.8,
            ),
            Case(
                name=f"sum of each column of {wide}",
                make=_of("sum", 0),
                shapes=(rows,),
                moved=1,
                numba="column_sums",
                target=0.8,
            ),
        ),
        "rows": (
            Case(
                name=f"softmax of each row of {wide}",
                make=softmax,
                shapes=(rows,),
                moved=2,
                numba="softmax",
            ),
            Case(
                name=f"layer norm of each row of {wide}",
                make=layer_norm,
                shapes=(rows,),
                moved=2,
                numba="layer_norm",
            ),
        ),
        "scan": (
            Case(
                name=f"cumulative sum of {big}",
                make=_of("cumsum", 0),
                shapes=((length,),),
                moved=2,
                numba="cumulative",
            ),
        ),
        "products": (
            Case(
                name=f"product of {product} x {product}, f32",
                make=_of("matmul"),
                shapes=squares,
                moved=3,
                target=0.5,
                is_product=True,
            ),
        ),
    }
    if is_large:
        narrow = tuple(
            Case(
                name=f"product of {product} x {product}, {dtype}",
                make=_of("matmul"),
                shapes=squares,
                moved=3,
                dtype=dtype,
                is_product=True,
            )
            for dtype in (DType.BF16, DType.F16)
        )
        cases["products"] += narrow
    return cases


CASES = {"cpu": _cases(is_large=False), "cuda": _cases(is_large=True)}
"""By the kind of device, and the section."""
