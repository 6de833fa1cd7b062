"""The library's kernels on a Vulkan device, against the CPU's and numpy."""

from __future__ import annotations

import numpy as np
import pytest

from accy_async.compiler.kernels import (
    SCAN_DTYPES,
    TILE,
    add_base,
    block_scan,
    reference_scan,
    sums_scan,
)
from accy_async.compiler.kernels.catalogue import library_kernels
from accy_async.dtypes import DType
from tests.compiler import harness as cpu
from tests.compiler.harness import Array, assert_same_bits, samples, storage
from tests.vulkan.harness import compiled

pytestmark = pytest.mark.vulkan

LENGTHS = [1, 255, 256, 257, 5000, 70_000]


def _values(dtype: DType, length: int) -> Array:
    random = np.random.default_rng(length)
    if dtype is DType.BF16:
        return random.integers(0, 0x7F80, length, np.uint16)
    if dtype.is_float:
        return random.normal(0, 100, length).astype(dtype.numpy)
    return np.resize(samples(dtype), length)


@pytest.mark.parametrize("dtype", list(DType), ids=str)
def test_elementwise_kernels_match_the_cpu_to_the_bit(dtype: DType) -> None:
    kernels = [k.kernel for k in library_kernels(dtype) if "scan" not in k.target]
    a = _values(dtype, 1000)
    b = a[::-1].copy()
    value = True if dtype is DType.BOOL else 3
    with compiled(*kernels) as gpu, cpu.compiled(*kernels) as host:
        for kernel in kernels:
            scalars = [len(a), value][: len(kernel.scalars)]
            results = []
            for runner in (gpu, host):
                out = np.zeros(len(a), storage(dtype))
                given = [out, a, b][: len(kernel.buffers)]
                runner.run(kernel.name, given, scalars, 4)
                results.append(out)
            assert_same_bits(*results)


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("dtype", SCAN_DTYPES, ids=str)
def test_scan_matches_the_reference_to_the_bit(dtype: DType, length: int) -> None:
    values = _values(dtype, length)
    kernels = [make(dtype).kernel for make in (block_scan, sums_scan, add_base)]
    tiles = -(-length // TILE)
    result = np.zeros_like(values)
    sums, scanned = np.zeros(tiles, values.dtype), np.zeros(tiles, values.dtype)
    with compiled(*kernels) as runner:
        runner.run(kernels[0].name, [result, values, sums], [length], tiles)
        runner.run(kernels[1].name, [scanned, sums], [tiles])
        runner.run(kernels[2].name, [result, scanned], [length], tiles)
    assert_same_bits(result, reference_scan(values))
