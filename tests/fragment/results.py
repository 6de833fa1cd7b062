"""Programs called on a device, and how far from exact their results may be."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from accy_async import DType, Session
from accy_async.compiler.preparation import FragmentCompilerOptions
from accy_async.compiler.semantic.numbers import decode, encode
from accy_async.compiler.semantic.types import TensorType
from tests.kernelization.harness import FLOATS, UNIT

Array = np.ndarray[Any, Any]
HALVES = (DType.F16, DType.BF16)
SINGLE = 5
"""Half units: 2 units in the last place of f32, and the rounding to the dtype."""
SUMS = {dtype: UNIT[DType.F32 if dtype in HALVES else dtype] for dtype in FLOATS}
"""Half a unit in the last place of 1, in the dtype that sums are kept in."""


def values_of(dtype: DType, shape: Sequence[int], seed: int = 0) -> Array:
    """Small numbers as the dtype rounds them, bf16 held as float32."""
    generator = np.random.default_rng(seed)
    if dtype.is_float:
        type = TensorType(dtype, tuple(shape))
        values = decode(encode(generator.standard_normal(shape), type), type)
        return values.astype(dtype.numpy if dtype is not DType.BF16 else np.float32)
    if dtype is DType.BOOL:
        return generator.random(shape) < 0.5
    low = -9 if dtype.is_signed else 0
    return generator.integers(low, 10, shape).astype(dtype.numpy)


async def called(
    session: Session,
    function: Callable[..., Any],
    dtype: DType,
    *arguments: Array,
    format: str | None = None,
) -> dict[str, Array]:
    """The results of one call; bf16, held as float32, travels as its bits."""
    is_bf16 = dtype is DType.BF16
    bits = {np.dtype(np.float32): dtype} if is_bf16 else {}
    types = [
        TensorType(bits.get(a.dtype) or DType.from_numpy(a.dtype), a.shape)
        for a in arguments
    ]
    given = [
        (np.ascontiguousarray(a).view(np.uint32) >> 16).astype(np.uint16)
        if a.dtype in bits
        else a
        for a in arguments
    ]
    options = FragmentCompilerOptions(artifact_format=format)
    async with await session.load_fragment(
        function, *map(str, types), options=options
    ) as fragment:
        results: dict[str, Array] = await fragment(*given)
    if not is_bf16:
        return results
    return {
        name: (bits.astype(np.uint32) << 16).view(np.float32)
        if bits.dtype == np.uint16
        else bits
        for name, bits in results.items()
    }


def of_sum(dtype: DType, roundings: Array, exact: Array) -> Array:
    """The bound of sums: these roundings of theirs, and the result's (a mean's two)."""
    error = SUMS[dtype] * roundings
    return np.asarray(error + 2 * UNIT[dtype] * (np.abs(exact) + error) + least(dtype))


def least(dtype: DType) -> float:
    """What a rounding may be off by where numbers are subnormal."""
    tiny = float(np.finfo(np.float32).tiny)
    return tiny + 2.0**-25 if dtype is DType.F16 else tiny


def same(given: Array, exact: Array, what: object) -> None:
    np.testing.assert_array_equal(given, exact, err_msg=str(what))
    assert given.dtype == exact.dtype, what


def near(given: Array, exact: Array, bound: Array, what: object) -> None:
    assert given.shape == exact.shape, what
    wide = given.astype(np.float64)
    np.testing.assert_array_equal(np.isnan(wide), np.isnan(exact), err_msg=str(what))
    assert not (np.abs(wide - exact) > bound).any(), what
