"""Programs written in numpy against numpy itself in float64, end to end.

Every operation, dtype and odd extent, with arguments that are not contiguous. A result
of one operation has one rounding of its dtype, exp, log and tanh have 2 units in the
last place; a sum of n numbers has n roundings of their magnitudes, at the most.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from accy_async import DType, open_session
from accy_async.compiler import tensor
from accy_async.compiler.semantic.numbers import decode, encode
from accy_async.compiler.semantic.types import TensorType
from tests.kernelization.harness import UNIT

pytestmark = pytest.mark.anyio

Array = np.ndarray[Any, Any]
EXTENTS = (0, 1, 3, 17, 1025, 4096)
ROWS = 3
FLOATS = (DType.F16, DType.BF16, DType.F32, DType.F64)
INTEGERS = tuple(d for d in DType if d.is_integer)
each_device = pytest.mark.parametrize(
    "device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
)
SINGLE = 5
"""Half units: 2 units in the last place of f32, and the rounding to the dtype."""


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"  # what is computed does not depend on the loop


def of_floats(x: Any, y: Any) -> dict[str, Any]:
    """Operations on floats; x and y are rows."""
    positive = np.abs(x) + 1
    results = {
        "add": x + y,
        "subtract": x - y,
        "multiply": x * y,
        "divide": x / positive,
        "negate": -x,
        "absolute": np.abs(x),
        "exp": np.exp(x),
        "log": np.log(np.abs(x)),
        "sqrt": np.sqrt(np.abs(x)),
        "tanh": np.tanh(x),
        "floor": np.floor(x),
        "ceiling": np.ceil(x),
        "truncate": np.trunc(x),
        "round": np.rint(x),
        "minimum": np.minimum(x, y),
        "maximum": np.maximum(x, y),
        "where": np.where(x > y, x, y),
        "turned": np.transpose(x) + 0,
        "flipped": np.flip(x, 1) + 0,
        "joined": np.concatenate([x, y], 1),
        "sum": np.sum(x, axis=1),
        "columns": np.sum(x, axis=0),
        "cumsum": np.cumsum(x, axis=1),
        "softmax": tensor.softmax(x),
        "product": x @ np.transpose(y),
    }
    if x.shape[1]:
        results |= {
            "mean": np.mean(x, axis=1),
            "min": np.min(x, axis=1),
            "max": np.max(x, axis=1),
            "taken": np.take(x, [0, x.shape[1] - 1], axis=1),
        }
    return results


def magnitudes(name: str, x: Array, y: Array, exact: Array) -> Array:
    """What a result's roundings are relative to, with how many there may be."""
    count, size = x.shape[1] + 2, np.abs(x)
    sums = {
        "sum": lambda: size.sum(1) * count,
        "columns": lambda: size.sum(0) * (ROWS + 2),
        "mean": lambda: size.mean(1) * count,
        "cumsum": lambda: np.cumsum(size, 1) * count,
        "product": lambda: (size @ np.abs(y).T) * count,
        "softmax": lambda: exact * (count + 2 * SINGLE + 8 * size.max(initial=0)),
    }
    if name in sums:
        return np.asarray(sums[name]())
    is_single = name in ("divide", "log", "exp", "tanh", "sqrt")
    return np.abs(exact) * (SINGLE if is_single else 1)


def drawn(dtype: DType, extent: int, seed: int) -> Array:
    """Every second element of a column-major array, as the dtype rounds it."""
    generator = np.random.default_rng(seed)
    shape = (ROWS, extent)
    if dtype.is_float:
        type = TensorType(dtype, shape)
        values = decode(encode(generator.standard_normal(shape), type), type)
        values = values.astype(dtype.numpy if dtype is not DType.BF16 else np.float32)
    elif dtype is DType.BOOL:
        values = generator.random(shape) < 0.5
    else:
        low = -9 if dtype.is_signed else 0
        values = generator.integers(low, 10, shape).astype(dtype.numpy)
    wide = np.zeros((2 * ROWS, max(extent, 1)), values.dtype, order="F")[:, :extent]
    wide[::2] = values
    return wide[::2]


async def called(
    device: str, function: Callable[..., Any], dtype: DType, *arguments: Array
) -> dict[str, Array]:
    """The results of one call; bf16 travels as its bits."""
    types = [f"{dtype}[{','.join(map(str, a.shape))}]" for a in arguments]
    is_bf16 = dtype is DType.BF16
    given = [a.view(np.uint32) >> 16 if is_bf16 else a for a in arguments]
    if is_bf16:
        given = [bits.astype(np.uint16) for bits in given]
    async with (
        open_session(device) as session,
        await session.load_fragment(function, *types) as fragment,
    ):
        results: dict[str, Array] = await fragment(*given)
    if is_bf16:
        return {
            name: (bits.astype(np.uint32) << 16).view(np.float32)
            if bits.dtype == np.uint16
            else bits
            for name, bits in results.items()
        }
    return results


@each_device
@pytest.mark.parametrize(
    ("dtype", "extent"),
    [(d, e) for d in FLOATS for e in EXTENTS if d is DType.F32 or e in (3, 17)],
)
async def test_floats_are_those_of_numpy_in_float64(
    device: str, dtype: DType, extent: int
) -> None:
    def function(x: Any, y: Any) -> dict[str, Any]:
        results = of_floats(x, y)
        if device == "cuda" and dtype is DType.F16:
            del results["product"]  # PTX has none, see docs/compiling.md
        return results

    x, y = drawn(dtype, extent, 0), drawn(dtype, extent, 1)
    results = await called(device, function, dtype, x, y)
    wide = x.astype(np.float64), y.astype(np.float64)
    expected = function(*wide)
    assert results.keys() == expected.keys()
    for name, exact in expected.items():
        got = results[name].astype(np.float64)
        assert got.shape == exact.shape, name
        unit = UNIT[dtype]
        bound = unit * magnitudes(name, *wide, exact) + float(np.finfo(np.float32).tiny)
        if dtype is DType.F16:
            bound = bound + 2.0**-25
        assert (np.abs(got - exact) <= bound).all(), name


def of_integers(x: Any, y: Any) -> dict[str, Any]:
    results = {
        "add": x + y,
        "subtract": x - y,
        "multiply": x * y,
        "minimum": np.minimum(x, y),
        "maximum": np.maximum(x, y),
        "quotient": x // (y * y + 1),
        "remainder": x % (y * y + 1),
        "and": x & y,
        "or": x | y,
        "xor": x ^ y,
        "not": ~x,
        "left": x << (y & 3),
        "right": x >> (y & 3),
        "less": x < y,
        "equal": x == y,
        "where": np.where(x >= y, x, y),
        "sum": np.sum(x, axis=1),
        "prod": np.prod(x[:, :2], axis=1),
        "cumsum": np.cumsum(x, axis=1),
        "product": x @ np.transpose(y),
        "turned": np.transpose(x) + 0,
    }
    if x.shape[1]:
        results |= {"min": np.min(x, axis=1), "max": np.max(x, axis=0)}
    return results


def of_truths(x: Any, y: Any) -> dict[str, Any]:
    return {
        "and": x & y,
        "or": x | y,
        "xor": x ^ y,
        "not": ~x,
        "equal": x == y,
        "where": np.where(x, y, ~y),
        "all": np.all(x, axis=1),
        "any": np.any(x, axis=0),
        "count": np.sum(x, axis=1),
    }


@each_device
@pytest.mark.parametrize(
    ("dtype", "extent"),
    [(dtype, 17) for dtype in INTEGERS]
    + [(DType.I32, e) for e in EXTENTS if e != 17]
    + [(DType.BOOL, e) for e in (0, 1025)],
)
async def test_integers_and_truth_values_are_numpys(
    device: str, dtype: DType, extent: int
) -> None:
    x, y = drawn(dtype, extent, 0), drawn(dtype, extent, 1)
    function = of_truths if dtype is DType.BOOL else of_integers
    results = await called(device, function, dtype, x, y)
    for name, exact in function(x, y).items():
        np.testing.assert_array_equal(results[name], exact, err_msg=name)
        assert results[name].dtype == exact.dtype, name
