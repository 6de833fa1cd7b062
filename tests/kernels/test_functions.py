"""The functions of the form that are computed by approximation."""

from __future__ import annotations

import numpy as np
import pytest

from accy_async.compiler.form import Unary, UnaryOperation
from accy_async.dtypes import DType
from tests.compiler.harness import Array, assert_same_bits, elementwise
from tests.kernels.places import GPU, VULKAN, Place, with_dtypes

UNITS = {GPU: 2, VULKAN: 3}
"""How many units in the last place each may be off."""


def _inputs(dtype: DType) -> Array:
    """Bits at random, numbers of everyday size, and the ends of each function."""
    random = np.random.default_rng(11)
    raw = random.integers(0, 256, (1 << 19) * dtype.size_bytes, np.uint8)
    near = [random.uniform(-n, n, 1 << 16) for n in (0.6, 1, 20, 100, 760)]
    near.append(1 + random.uniform(-0.3, 0.3, 1 << 16))
    near.append(np.array([0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan]))
    return np.concatenate(
        [raw.view(dtype.numpy), *(a.astype(dtype.numpy) for a in near)]
    )


@with_dtypes([DType.F32, DType.F64], UNITS)
@pytest.mark.parametrize(
    ("operation", "function"),
    [
        (UnaryOperation.EXP, np.exp),
        (UnaryOperation.LOG, np.log),
        (UnaryOperation.TANH, np.tanh),
    ],
    ids=["exp", "log", "tanh"],
)
def test_exp_log_and_tanh_are_near(
    place: Place, dtype: DType, operation: UnaryOperation, function: np.ufunc
) -> None:
    a = _inputs(dtype)
    kernel = elementwise("f", [dtype], dtype, lambda x: Unary(operation, x), 256)
    out = np.zeros_like(a)
    with place.compiled(kernel) as runner, np.errstate(all="ignore"):
        runner.run("f", [out, a], [len(a)], -(-len(a) // 256))
        wide = function(a.astype(np.float64 if dtype is DType.F32 else np.longdouble))
        expected = wide.astype(dtype.numpy)
        finite = np.isfinite(expected)
        assert_same_bits(out[~finite], expected[~finite])
        np.testing.assert_array_equal(
            np.signbit(out[finite]), np.signbit(expected[finite])
        )
        error = np.abs(out[finite] - wide[finite]) / np.spacing(
            np.maximum(np.abs(expected[finite]), np.finfo(out.dtype).tiny)
        )
    assert float(error.max()) < UNITS[place]
