"""Products of matrices on tensor cores against numpy in float64.

Bound: k products and their sum are within (k + 16) / 2^23 of the sum of the products'
magnitudes, as `TileProduct` says, and the result is rounded to its dtype once.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import accy_async
from accy_async import Session
from accy_async.compiler import trace_program
from accy_async.compiler.form import ProductTile
from accy_async.compiler.kernelization.schedules import MatrixProductSchedule
from accy_async.compiler.preparation import FragmentCompilerOptions
from accy_async.session import open_session

pytestmark = [pytest.mark.gpu, pytest.mark.anyio]

Array = np.ndarray[Any, Any]
UNIT = {"f16": 2.0**-11, "bf16": 2.0**-8}


def _operand(shape: tuple[int, ...], dtype: str, seed: int) -> tuple[Array, Array]:
    """An operand as it is given, and as float64."""
    drawn = np.random.default_rng(seed).standard_normal(shape, np.float32)
    if dtype == "f16":
        return drawn.astype(np.float16), drawn.astype(np.float16).astype(np.float64)
    bits = (drawn.view(np.uint32) >> 16).astype(np.uint16)
    return bits, _wide(bits)


def _wide(bits: Array) -> Array:
    return (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


async def _check(
    session: Session,
    dtype: str,
    equation: str,
    lhs: tuple[int, ...],
    rhs: tuple[int, ...],
    tile: ProductTile | None = None,
) -> None:
    (left, wide_left), (right, wide_right) = (
        _operand(shape, dtype, seed) for seed, shape in enumerate((lhs, rhs))
    )
    types = [f"{dtype}[{','.join(map(str, shape))}]" for shape in (lhs, rhs)]
    schedule = None if tile is None else MatrixProductSchedule(tile=tile)
    fragment = await session.load_fragment(
        trace_program(lambda a, b: np.einsum(equation, a, b), *types),
        options=FragmentCompilerOptions(
            artifact_format="cuda_cubin", matrix_product_schedule=schedule
        ),
    )
    given = np.asarray(await fragment(left, right))
    actual = given.astype(np.float64) if dtype == "f16" else _wide(given)
    exact = np.einsum(equation, wide_left, wide_right)
    magnitudes = np.einsum(equation, abs(wide_left), abs(wide_right))
    depth = left.size // max(1, exact[..., 0].size)
    bound = (depth + 16) * 2.0**-23 * magnitudes
    bound += UNIT[dtype] * (abs(exact) + bound) + 2.0**-25
    assert (abs(actual - exact) <= bound).all()
    assert fragment.kernel_summary(0).launch.dynamic_shared_memory_bytes > 0
    again = np.asarray(await fragment(left, right))
    np.testing.assert_array_equal(again, given)  # the same bits each time


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
async def test_shapes_and_how_operands_lie(dtype: str) -> None:
    async with open_session("cuda") as session:
        for equation, lhs, rhs in (
            ("mk,kn->mn", (16, 16), (16, 16)),
            ("mk,kn->mn", (37, 53), (53, 41)),  # lines of odd lengths
            ("mk,kn->mn", (257, 70), (70, 130)),  # of even ones
            ("mk,kn->mn", (65, 1028), (1028, 132)),  # of multiples of four
            ("mk,kn->mn", (200, 1000), (1000, 264)),
            ("mk,nk->mn", (100, 72), (90, 72)),
            ("km,kn->mn", (136, 100), (136, 90)),
            ("km,nk->mn", (520, 48), (72, 520)),
            ("bmk,bkn->bmn", (5, 33, 40), (5, 40, 72)),
            ("mk,kn->mn", (1500, 96), (96, 1600)),  # tiles of 128 x 128
        ):
            await _check(session, dtype, equation, lhs, rhs)


async def test_tiles() -> None:
    async with open_session("cuda") as session:
        groups = (
            ProductTile(m=128, n=256, depth=64, warps_m=8, warps_n=1, stages=4),
            ProductTile(m=64, n=128, depth=64, warps_m=4, warps_n=1, stages=3),
        )
        for tile in (
            *groups,
            ProductTile(m=128, n=256, depth=64, warps_m=2, warps_n=4, stages=4),
            ProductTile(m=256, n=128, depth=32, warps_m=4, warps_n=2, stages=3),
            ProductTile(m=128, n=128, depth=32, warps_m=2, warps_n=2, stages=5),
            ProductTile(m=64, n=64, depth=32, warps_m=2, warps_n=2, stages=2),
            ProductTile(m=32, n=64, depth=64, warps_m=1, warps_n=4, stages=4),
        ):
            await _check(session, "f16", "mk,kn->mn", (300, 328), (328, 300), tile)
            await _check(session, "f16", "mk,nk->mn", (130, 100), (260, 100), tile)
        for tile in groups:
            await _check(session, "bf16", "km,kn->mn", (328, 136), (328, 264), tile)
            await _check(session, "f16", "km,nk->mn", (200, 264), (520, 200), tile)
            await _check(session, "f16", "mk,kn->mn", (137, 77), (77, 261), tile)


async def test_operands_that_begin_anywhere() -> None:
    """Between multiples of 16 bytes."""
    cupy: Any = pytest.importorskip("cupy")
    async with open_session("cuda") as session:
        fragment = await session.load_fragment(
            trace_program(lambda a, b: a @ b, "f16[64,64]", "f16[64,64]"),
            options=FragmentCompilerOptions(artifact_format="cuda_cubin"),
        )
        values = np.random.default_rng(0).integers(-4, 5, (2, 64 * 64 + 8))
        whole = [cupy.asarray(row.astype(np.float16)) for row in values]
        for begin in (0, 1, 2, 4):
            parts = [row[begin : begin + 64 * 64].reshape(64, 64) for row in values]
            views = [array[begin : begin + 64 * 64].reshape(64, 64) for array in whole]
            result = cupy.asnumpy(await fragment(*views))
            np.testing.assert_array_equal(result, parts[0] @ parts[1])


async def test_infinities_and_nans() -> None:
    async with accy_async.open_session("cuda") as session:
        fragment = await session.load_fragment(
            trace_program(lambda a, b: a @ b, "f16[32,32]", "f16[32,32]"),
            options=FragmentCompilerOptions(artifact_format="cuda_cubin"),
        )
        left, right = np.eye(32, dtype=np.float16), np.ones((32, 32), np.float16)
        left[0, 0], left[1, 1], left[2, 2] = np.inf, np.nan, 60000
        right[2] = 2
        given = np.asarray(await fragment(left, right))
        assert np.isposinf(given[0]).all()
        assert np.isnan(given[1]).all()
        assert np.isposinf(given[2]).all()  # 120000, which f16 has not
        assert (given[3:] == 1).all()
