"""Programs written in numpy against numpy itself in float64, end to end.

Every operation, dtype and odd extent, with arguments that are not contiguous. A result
of one operation has one rounding of its dtype, exp, log and tanh have 2 units in the
last place; a sum of n numbers has n roundings of their magnitudes, at the most, in the
dtype that sums are kept in, and is rounded once. Integers are equal.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import anyio
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accy_async import DType, open_session
from accy_async.compiler import tensor
from accy_async.compiler.semantic import Module, evaluate
from tests.fragment.results import (
    SINGLE,
    Array,
    called,
    least,
    near,
    of_sum,
    same,
    values_of,
)
from tests.kernelization.harness import FLOATS, UNIT
from tests.preparation.harness import arguments_of
from tests.preparation.programs import programs

pytestmark = pytest.mark.anyio

Function = Callable[[Any, Any], dict[str, Any]]
EXTENTS = (0, 1, 3, 17, 1025, 4096)
ROWS = 3
OF_EACH_KIND = (
    "add", "divide", "quotient", "less", "exp", "flipped", "sum", "mean", "max",
    "columns", "cumsum", "softmax", "product",
)  # fmt: skip
INTEGERS = tuple(d for d in DType if d.is_integer)
each_device = pytest.mark.parametrize(
    "device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
)


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
        "mean": np.mean(x, axis=1),
    }
    if x.shape[1]:
        results |= {
            "min": np.min(x, axis=1),
            "max": np.max(x, axis=1),
            "taken": np.take(x, [0, x.shape[1] - 1], axis=1),
        }
    return results


def bound_of(name: str, dtype: DType, x: Array, y: Array, exact: Array) -> Array:
    """How far a result of `of_floats` may be from the exact one."""
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
        return of_sum(dtype, sums[name](), exact)
    is_single = name in ("divide", "log", "exp", "tanh", "sqrt")
    return UNIT[dtype] * np.abs(exact) * (SINGLE if is_single else 1) + least(dtype)


def drawn(dtype: DType, extent: int, seed: int) -> Array:
    """Every second element of a column-major array."""
    values = values_of(dtype, (ROWS, extent), seed)
    wide = np.zeros((2 * ROWS, max(extent, 1)), values.dtype, order="F")[:, :extent]
    wide[::2] = values
    return wide[::2]


def within(function: Function, dtype: DType, extent: int) -> Function:
    """All of its operations; some of each kind where only the dtype is another."""
    if extent == 17 or dtype in (DType.F32, DType.I32, DType.BOOL):
        return function

    def some(x: Any, y: Any) -> dict[str, Any]:
        results = function(x, y)
        return {name: results[name] for name in results if name in OF_EACH_KIND}

    return some


@each_device
@pytest.mark.filterwarnings("ignore:Mean of empty slice", "ignore:invalid value")
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
async def test_floats_are_those_of_numpy_in_float64(device: str, dtype: DType) -> None:
    def whole(x: Any, y: Any) -> dict[str, Any]:
        results = of_floats(x, y)
        if device == "cuda" and dtype is DType.F16:
            del results["product"]  # PTX has none, see docs/compiling.md
        return results

    async with open_session(device) as session:
        for extent in EXTENTS:
            function = within(whole, dtype, extent)
            x, y = drawn(dtype, extent, 0), drawn(dtype, extent, 1)
            results = await called(session, function, dtype, x, y)
            wide = x.astype(np.float64), y.astype(np.float64)
            expected = function(*wide)
            assert results.keys() == expected.keys()
            for name, exact in expected.items():
                bound = bound_of(name, dtype, *wide, exact)
                near(results[name], exact, bound, (name, extent))


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
@pytest.mark.parametrize("dtype", [*INTEGERS, DType.BOOL], ids=str)
async def test_integers_and_truth_values_are_numpys(device: str, dtype: DType) -> None:
    whole = of_truths if dtype is DType.BOOL else of_integers
    async with open_session(device) as session:
        for extent in EXTENTS:
            function = within(whole, dtype, extent)
            x, y = drawn(dtype, extent, 0), drawn(dtype, extent, 1)
            results = await called(session, function, dtype, x, y)
            for name, exact in function(x, y).items():
                same(results[name], exact, (name, extent))


def moved(x: Array, at: Array, updates: Array, axis: int, *, adds: bool) -> Array:
    """What a scatter gives: indices outside are left out, the last of several stays."""
    result = np.array(np.moveaxis(x, axis, 0))
    inside = (at >= -len(result)) & (at < len(result))
    parts = np.moveaxis(updates, axis, 0)[inside]
    if adds:
        np.add.at(result, at[inside], parts)
    else:
        result[at[inside]] = parts
    return np.moveaxis(result, 0, axis)


@each_device
@pytest.mark.parametrize("dtype", list(DType), ids=str)
async def test_what_is_gathered_and_scattered(device: str, dtype: DType) -> None:
    """With many updates of one element, with none, and to none."""
    indices = np.random.default_rng(3)

    def function(*arguments: Any) -> dict[str, Any]:
        x, u, v, at, inside = arguments
        put: Callable[..., Any] = tensor.scatter
        add: Callable[..., Any] = tensor.scatter_add
        if isinstance(x, np.ndarray):
            put, add = partial(moved, adds=False), partial(moved, adds=True)
        results = {"set": put(x, at, u, 0)}
        if min(x.shape):
            results |= {"rows": np.take(x, inside, 0), "columns": np.take(x, inside, 1)}
        if dtype is not DType.BOOL:
            results |= {"added": add(x, at, u, 0), "across": add(x, at, v, 1)}
        return results

    shapes = [(17, 33, 300)]
    if dtype in (DType.F32, DType.I32):
        shapes += [(1, 1025, 3), (3, 1, 0), (3, 0, 17), (0, 3, 4096)]
    async with open_session(device) as session:
        for rows, columns, count in shapes:
            given = [(rows, columns), (count, columns), (rows, count)]
            arrays = [values_of(dtype, shape, seed) for seed, shape in enumerate(given)]
            at = indices.integers(-rows - 2, rows + 2, count).astype(np.int32)
            least_extent = min(rows, columns)
            inside = at % max(1, least_extent) - least_extent // 2
            results = await called(session, function, dtype, *arrays, at, inside)
            expected = function(*arrays, at, inside)
            assert results.keys() == expected.keys()
            wide = [a.astype(np.float64) for a in arrays]
            exact = function(*wide, at, inside)
            sizes = function(*map(np.abs, wide), at, inside)
            counts = function(*map(np.ones_like, wide), at, inside)
            for name, result in results.items():
                what = name, rows, columns, count
                if dtype.is_float and name in ("added", "across"):
                    bound = UNIT[dtype] * counts[name] * sizes[name] + least(dtype)
                    near(result, exact[name], bound, what)
                else:
                    same(result, expected[name], what)


@pytest.mark.parametrize(
    ("device", "adds"),
    [
        pytest.param("cuda", False, marks=pytest.mark.gpu),
        pytest.param("cuda", True, marks=pytest.mark.gpu),
        pytest.param("vulkan", True, marks=pytest.mark.vulkan),
    ],
)
async def test_many_updates_are_scattered_in_their_order(
    device: str, adds: bool
) -> None:
    """So many that GPUs sort them: sums have the bits of numpy's, one after another."""
    draw = np.random.default_rng(5)
    x, u = (draw.standard_normal((n, 3)).astype(np.float32) for n in (5000, 9000))
    at = draw.integers(-10, 5010, 9000).astype(np.int32)
    at[::3] = 7

    def function(x: Any, at: Any, u: Any) -> dict[str, Any]:
        scatter = tensor.scatter_add if adds else tensor.scatter
        return {"scattered": scatter(x, at, u, 0)}

    async with open_session(device) as session:
        results = await called(session, function, DType.F32, x, at, u)
    np.testing.assert_array_equal(results["scattered"], moved(x, at, u, 0, adds=adds))


@each_device
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
async def test_row_sparse_cross_entropy(device: str, dtype: DType) -> None:
    """A label outside gives NaN."""

    def function(*arguments: Any) -> dict[str, Any]:
        rows, labels = arguments[::2], arguments[1::2]
        losses = map(tensor.row_sparse_cross_entropy, rows, labels)
        return {str(x.shape): loss for x, loss in zip(rows, losses, strict=True)}

    arguments = []
    for rows, classes in ((1, 1), (17, 33), (3, 4096), (1025, 3), (0, 17)):
        labels = np.random.default_rng(rows).integers(0, classes, rows)
        labels[16:17] = classes
        arguments += [values_of(dtype, (rows, classes)), labels.astype(np.int32)]
    async with open_session(device) as session:
        results = await called(session, function, dtype, *arguments)
    for x, labels in zip(arguments[::2], arguments[1::2], strict=True):
        wide, classes = x.astype(np.float64), x.shape[1]
        logs = np.log(np.exp(wide).sum(1))
        inside = labels < classes
        chosen = np.take_along_axis(wide, np.where(inside, labels, 0)[:, None], 1)[:, 0]
        exact = np.where(inside, logs - chosen, np.nan)
        size = np.abs(wide).max(initial=0)
        roundings = classes + 2 * SINGLE + 8 * size + SINGLE * np.abs(logs)
        near(results[str(x.shape)], exact, of_sum(dtype, roundings, exact), x.shape)


CONTRACTIONS = (
    ("bmk,bkn->bmn", (3, 17, 33), (3, 33, 19)),
    ("bkm,bnk->bnm", (2, 1025, 3), (2, 5, 1025)),
    ("bmlk,knbl->bmn", (4, 3, 5, 6), (6, 7, 4, 5)),  # by dot_general
    ("mk,k->m", (17, 4096), (4096,)),
    ("ab,cb,c->a", (17, 3), (5, 3), (5,)),
    ("ii,ij->j", (17, 17), (17, 3)),
    ("mk,kn->mn", (3, 0), (0, 4)),
    ("xk,kn->xn", (0, 3), (3, 4)),
)


@each_device
@pytest.mark.parametrize("dtype", [*FLOATS, DType.U8, DType.I32], ids=str)
async def test_contractions(device: str, dtype: DType) -> None:
    """Of matrices, batches of them and more; f16 on GPUs through CUDA C++."""

    def contracted(equation: str, *operands: Any) -> Any:
        if equation != "bmlk,knbl->bmn" or isinstance(operands[0], np.ndarray):
            return np.einsum(equation, *operands)
        lhs, rhs = operands
        return tensor.dot_general(lhs, rhs, ([3, 2], [0, 3]), ([0], [2]))

    def function(*arguments: Any) -> dict[str, Any]:
        rest = iter(arguments)
        return {
            equation: contracted(equation, *(next(rest) for _ in shapes))
            for equation, *shapes in CONTRACTIONS
        }

    shapes = [shape for _, *shapes in CONTRACTIONS for shape in shapes]
    arguments = [values_of(dtype, shape, seed) for seed, shape in enumerate(shapes)]
    format = "cuda_cubin" if (device, dtype) == ("cuda", DType.F16) else None
    async with open_session(device) as session:
        results = await called(session, function, dtype, *arguments, format=format)
    if not dtype.is_float:
        for name, exact in function(*arguments).items():
            same(results[name], exact, name)
        return
    wide = [a.astype(np.float64) for a in arguments]
    terms = function(*(np.ones_like(a) for a in wide))
    sizes = function(*map(np.abs, wide))
    for name, exact in function(*wide).items():
        # Tensor cores: see docs/generated.md. What is between two steps is rounded.
        bound = of_sum(dtype, 2 * (terms[name] + 16) * sizes[name], exact)
        near(results[name], exact, bound + UNIT[dtype] * sizes[name], name)


LINES = (
    ((70000,), 0),  # one long line
    ((4097, 3), 0),  # few long columns
    ((3, 4097), 1),  # few long rows
    ((5000, 130), 1),  # many rows
    ((130, 5000), 0),  # many lines, near each other
)


@each_device
@pytest.mark.parametrize("dtype", [*FLOATS, DType.I8, DType.I64], ids=str)
async def test_cumulative_sums_along_every_axis(device: str, dtype: DType) -> None:
    def function(*arguments: Any) -> dict[str, Any]:
        return {
            str(x.shape): np.cumsum(x, axis)
            for x, (_, axis) in zip(arguments, LINES, strict=True)
        }

    arguments = [values_of(dtype, shape) for shape, _ in LINES]
    async with open_session(device) as session:
        results = await called(session, function, dtype, *arguments)
    for x, (shape, axis) in zip(arguments, LINES, strict=True):
        given = results[str(shape)]
        if not dtype.is_float:
            same(given, np.cumsum(x, axis), shape)
            continue
        wide = x.astype(np.float64)
        exact = np.cumsum(wide, axis)
        count = np.cumsum(np.ones_like(wide), axis) + 1
        bound = of_sum(dtype, count * np.cumsum(np.abs(wide), axis), exact)
        near(given, exact, bound, shape)


@each_device
async def test_transposes_and_arrays_that_are_not_contiguous(device: str) -> None:
    def function(*arrays: Any) -> dict[str, Any]:
        results = {}
        for x in arrays:
            results[f"{x.dtype} {x.shape}"] = np.transpose(x) + 0
            if x.ndim == 3:
                results[f"swapped {x.dtype}"] = np.swapaxes(x, 1, 2) + 0
        return results

    whole = values_of(DType.I32, (6, 90, 140))
    arrays = [
        whole[::-2, :70, ::-1],
        whole[0].T[::3],
        np.broadcast_to(whole[0, 0, :17], (1025, 17)),
        whole[:, 3:3],
        *(
            values_of(dtype, (131, 160))[:, ::-1]
            for dtype in DType
            if dtype not in (DType.BF16, DType.BOOL)
        ),
    ]
    async with open_session(device) as session:
        results = await called(session, function, DType.I32, *arrays)
    for name, exact in function(*arrays).items():
        same(results[name], exact, name)


async def _runs_like_the_reference(device: str, module: Module, seed: int) -> None:
    arguments = arguments_of(module, seed)
    async with (
        open_session(device) as session,
        await session.load_fragment(module) as fragment,
    ):
        results = await fragment(*arguments)
    given = results if isinstance(results, tuple | list) else [results]
    for actual, expected in zip(given, evaluate(module, arguments), strict=True):
        assert actual.shape == expected.shape
        np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-4)


@each_device
@settings(max_examples=20, deadline=None, derandomize=True)
@given(programs(least=6, most=12), st.integers(0, 2**31))
def test_random_programs(device: str, module: Module, seed: int) -> None:
    """Bound: 1e-4 of the result and 1e-4, as programs grow little."""
    anyio.run(_runs_like_the_reference, device, module, seed)
