"""The library's kernels on a Vulkan device, against the CPU's and numpy."""

from __future__ import annotations

import numpy as np
import pytest

from accy_async.artifact.formats import BackendKind
from accy_async.compiler.kernels import SCAN_DTYPES, TILE, reference_scan
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
@pytest.mark.parametrize("kind", [BackendKind.CPU, BackendKind.VULKAN], ids=str)
@pytest.mark.parametrize("dtype", SCAN_DTYPES, ids=str)
def test_scan_matches_the_reference_to_the_bit(
    dtype: DType, length: int, kind: BackendKind
) -> None:
    """The kernels made for CPUs run too, to the same bits."""
    values = _values(dtype, length)
    found = [k for k in library_kernels(dtype, kind) if "scan" in k.target]
    of = {library.target.rpartition(".")[2]: library for library in found}
    tiles = -(-length // TILE)
    result = np.zeros_like(values)
    sums, scanned = np.zeros(tiles, values.dtype), np.zeros(tiles, values.dtype)
    with compiled(*(library.kernel for library in found)) as runner:

        def launch(name: str, buffers: list[Array], count: int) -> None:
            per_block = of[name].elements_per_block
            grid = 1 if per_block is None else -(-count // per_block)
            runner.run(of[name].kernel.name, buffers, [count], grid)

        launch("block_scan", [result, values, sums], length)
        launch("sums_scan", [scanned, sums], tiles)
        launch("add_base", [result, scanned], length)
    assert_same_bits(result, reference_scan(values))
