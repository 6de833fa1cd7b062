"""The library's kernels on a Vulkan device, against the CPU's."""

from __future__ import annotations

import numpy as np
import pytest

from accy_async.compiler.kernels.catalogue import library_kernels
from accy_async.dtypes import DType
from tests.compiler.harness import Array, assert_same_bits, samples, storage
from tests.kernels.places import CPU, VULKAN

pytestmark = pytest.mark.vulkan


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
    with VULKAN.compiled(*kernels) as gpu, CPU.compiled(*kernels) as host:
        for kernel in kernels:
            scalars = [len(a), value][: len(kernel.scalars)]
            results = []
            for runner in (gpu, host):
                out = np.zeros(len(a), storage(dtype))
                given = [out, a, b][: len(kernel.buffers)]
                runner.run(kernel.name, given, scalars, 4)
                results.append(out)
            assert_same_bits(*results)
