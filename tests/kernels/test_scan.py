"""The scan against its reference, and against sums in more precision."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from accy_async.compiler.kernels import (
    SCAN_DTYPES,
    SCAN_TILE,
    TILE,
    reference_scan,
    scan_additions,
    scan_gpu,
    sums_scan,
    tile_scan,
    tile_sums,
)
from accy_async.compiler.kernels import scan as scan_cpu
from accy_async.dtypes import DType
from accy_async.errors import InvalidType, InvalidValue
from tests.compiler.harness import Array, KernelRunner, assert_same_bits
from tests.kernels.places import (
    CPU,
    GPU,
    HOST_CUDA,
    HOST_MSL,
    VULKAN,
    Place,
    with_dtypes,
)

LENGTHS = [1, 3, 4, 5, 255, 1023, 1024, 1025, 5000]
LENGTHS += [257 * 1024 - 1, 257 * 1024 + 1, 1025 * 1024 - 1, 1025 * 1024 + 1]
LONG = 10**7
SHARED = scan_gpu.SHARE * TILE


def with_lengths(*dtypes: DType) -> pytest.MarkDecorator:
    """Every length with each of these dtypes; a long one with the first alone."""
    return pytest.mark.parametrize(
        ("dtype", "length"),
        [
            *(pytest.param(d, n, id=f"{d}-{n}") for d in dtypes for n in LENGTHS),
            pytest.param(
                dtypes[0], LONG, id=f"{dtypes[0]}-{LONG}", marks=pytest.mark.slow
            ),
        ],
    )


@pytest.fixture(
    scope="module",
    params=[
        pytest.param((place, of), id=f"{place.name}-{how}", marks=place.marks)
        for place in (CPU, GPU, VULKAN)
        for how, of in (("tile by tile", scan_cpu), ("several at once", scan_gpu))
    ],
)
def runner(request: pytest.FixtureRequest) -> Iterator[KernelRunner]:
    place, of = request.param
    kernels = [
        make(dtype).kernel
        for dtype in SCAN_DTYPES
        for make in (of.tile_sums, of.sums_scan, of.tile_scan)
    ]
    with place.compiled(*kernels) as running:
        yield running


def scan(runner: KernelRunner, values: Array, *, in_place: bool = False) -> Array:
    dtype = DType.from_numpy(values.dtype)
    n, m = len(values), -(-len(values) // SCAN_TILE)
    operand = values.copy()
    result = operand if in_place else np.full_like(values, 77)
    sums, scanned = np.full(m, 55, values.dtype), np.full(m, 66, values.dtype)
    runner.run(f"accy_tile_sums_{dtype}", [sums, operand], [n], m)
    runner.run(f"accy_sums_scan_{dtype}", [scanned, sums], [m], -(-m // SHARED))
    runner.run(f"accy_tile_scan_{dtype}", [result, operand, scanned], [n], m)
    if not in_place:
        np.testing.assert_array_equal(operand, values)
    return result


@with_lengths(DType.F32, DType.F64)
def test_float_scan_is_the_reference_to_the_bit_and_within_highams_bound(
    runner: KernelRunner, dtype: DType, length: int
) -> None:
    values = np.random.default_rng(length).normal(size=length).astype(dtype.numpy)
    result = scan(runner, values)
    assert_same_bits(result, reference_scan(values))
    wide = np.cumsum(values, dtype=np.longdouble)
    magnitude = np.cumsum(np.abs(values), dtype=np.longdouble)
    spread = (
        scan_additions(length)
        * np.longdouble(float(np.spacing(values.dtype.type(1))))
        / 2
    )
    # The sum compared with is rounded too, in extended precision, one by one.
    slack = length * np.finfo(np.longdouble).eps
    bound = (spread / (1 - spread) + slack) * magnitude
    assert (np.abs(result - wide) <= bound).all()


@pytest.mark.parametrize("dtype", [DType.F32, DType.F64], ids=str)
def test_sums_are_the_same_from_several_blocks(
    runner: KernelRunner, dtype: DType
) -> None:
    sums = np.random.default_rng(3).normal(size=2 * SHARED + 700).astype(dtype.numpy)
    scanned = np.full_like(sums, 66)
    runner.run(f"accy_sums_scan_{dtype}", [scanned, sums], [len(sums)], 3)
    assert_same_bits(scanned, scan_cpu.reference_sums_scan(sums))


@with_lengths(DType.I32, DType.U32)
def test_integer_scan_wraps(runner: KernelRunner, dtype: DType, length: int) -> None:
    low, high = int(dtype.minimum), int(dtype.maximum)
    values = np.random.default_rng(length).integers(
        low, high, length, dtype.numpy, endpoint=True
    )
    result = scan(runner, values)
    np.testing.assert_array_equal(result, np.cumsum(values, dtype=dtype.numpy))
    np.testing.assert_array_equal(result, reference_scan(values))


@with_dtypes(SCAN_DTYPES, [HOST_CUDA, HOST_MSL])
def test_printed_scan_is_the_reference_to_the_bit(place: Place, dtype: DType) -> None:
    values = np.arange(5600).astype(dtype.numpy) * dtype.numpy.type(3)
    kernels = [make(dtype).kernel for make in (tile_sums, sums_scan, tile_scan)]
    with place.compiled(*kernels) as runner:
        assert_same_bits(scan(runner, values), reference_scan(values))


@pytest.mark.parametrize("dtype", SCAN_DTYPES, ids=str)
def test_scan_in_place_gives_the_same(runner: KernelRunner, dtype: DType) -> None:
    values = np.arange(1, 70_000).astype(dtype.numpy)
    assert_same_bits(scan(runner, values, in_place=True), reference_scan(values))


@pytest.mark.parametrize(
    ("special", "at"),
    [(np.inf, 100), (-np.inf, 700), (np.nan, 65_535), (3e38, 300), (1e-45, 0)],
)
def test_huge_infinite_and_nan_values_reach_what_follows_only(
    runner: KernelRunner, special: float, at: int
) -> None:
    values = np.random.default_rng(5).normal(size=66_000).astype(np.float32)
    values[at] = special
    result = scan(runner, values)
    assert_same_bits(result, reference_scan(values))
    assert np.isfinite(result[:at]).all()
    if np.isnan(special):
        assert np.isnan(result[at:]).all()
    elif np.isinf(special):
        assert (result[at:] == special).all()
    else:
        assert np.isfinite(result).all()


def test_overflow_becomes_infinite_and_opposite_infinities_nan(
    runner: KernelRunner,
) -> None:
    values = np.full(600, 3e38, np.float32)
    values[500] = -np.inf
    result = scan(runner, values)
    assert_same_bits(result, reference_scan(values))
    assert result[0] == np.float32(3e38)
    assert np.isposinf(result[1:500]).all()
    assert np.isnan(result[511:]).all()


def test_negative_zeros_stay_negative(runner: KernelRunner) -> None:
    values = np.full(66_000, -0.0, np.float32)
    assert np.signbit(scan(runner, values)).all()


def test_reference_scan_refuses_what_it_cannot_scan() -> None:
    with pytest.raises(InvalidType, match=r"reference_scan.*f16"):
        reference_scan(np.zeros(3, np.float16))
    with pytest.raises(InvalidValue, match="one dimension"):
        reference_scan(np.zeros((3, 3), np.float32))
    assert len(reference_scan(np.zeros(0, np.float32))) == 0


@pytest.mark.parametrize("make", [tile_sums, sums_scan, tile_scan])
def test_scan_kernels_refuse_other_dtypes(make: object) -> None:
    assert callable(make)
    with pytest.raises(InvalidType, match=r"accy\.kernel\.scan\..*bf16"):
        make(DType.BF16)
