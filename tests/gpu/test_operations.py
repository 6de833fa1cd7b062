"""Every operation and dtype, as on the CPU: the same tests, run on the GPU."""

from __future__ import annotations

import numpy as np
import pytest

from accy_async.compiler.form import Unary, UnaryOperation
from accy_async.dtypes import DType
from tests.compiler import test_emit_cpu, test_emit_operations
from tests.compiler.harness import Array, elementwise
from tests.compiler.test_emit_cpu import (
    test_largest_kernel_compiles_and_runs,
    test_products_are_rounded_before_they_are_added,
    test_random_expressions_are_numpys_to_the_bit,
)
from tests.compiler.test_emit_operations import (
    test_binary_operations_match_numpy,
    test_bitcast_keeps_bits,
    test_casts_match_numpy_and_saturate,
    test_comparisons_and_select_match_numpy,
    test_division_by_a_constant_matches_division_by_its_value,
    test_every_dtype_is_loaded_stored_and_passed_as_a_scalar,
    test_f16_and_bf16_convert_exactly_and_round_to_nearest_even,
    test_unary_operations_match_numpy,
)
from tests.gpu.harness import compiled

__all__ = [
    "test_binary_operations_match_numpy",
    "test_bitcast_keeps_bits",
    "test_casts_match_numpy_and_saturate",
    "test_comparisons_and_select_match_numpy",
    "test_division_by_a_constant_matches_division_by_its_value",
    "test_every_dtype_is_loaded_stored_and_passed_as_a_scalar",
    "test_f16_and_bf16_convert_exactly_and_round_to_nearest_even",
    "test_largest_kernel_compiles_and_runs",
    "test_products_are_rounded_before_they_are_added",
    "test_random_expressions_are_numpys_to_the_bit",
    "test_unary_operations_match_numpy",
]

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def on_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has the CPU's tests run their kernels on the GPU."""
    for module in (test_emit_cpu, test_emit_operations):
        monkeypatch.setattr(module, "compiled", compiled)


def _inputs(dtype: DType) -> Array:
    """Bits at random, numbers of everyday size, and the ends of each function."""
    random = np.random.default_rng(11)
    raw = random.integers(0, 256, (1 << 20) * dtype.size_bytes, np.uint8)
    near = [random.uniform(-n, n, 1 << 18) for n in (0.6, 1, 20, 100, 760)]
    near.append(1 + random.uniform(-0.3, 0.3, 1 << 18))
    near.append(np.array([0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan]))
    return np.concatenate(
        [raw.view(dtype.numpy), *(a.astype(dtype.numpy) for a in near)]
    )


@pytest.mark.parametrize("dtype", [DType.F32, DType.F64], ids=str)
@pytest.mark.parametrize(
    ("operation", "function"),
    [
        (UnaryOperation.EXP, np.exp),
        (UnaryOperation.LOG, np.log),
        (UnaryOperation.TANH, np.tanh),
    ],
    ids=["exp", "log", "tanh"],
)
def test_exp_log_and_tanh_are_within_two_units(
    dtype: DType, operation: UnaryOperation, function: np.ufunc
) -> None:
    a = _inputs(dtype)
    kernel = elementwise("f", [dtype], dtype, lambda x: Unary(operation, x), 256)
    out = np.zeros_like(a)
    with compiled(kernel) as runner, np.errstate(all="ignore"):
        runner.run("f", [out, a], [len(a)], -(-len(a) // 256))
        wide = function(a.astype(np.float64 if dtype is DType.F32 else np.longdouble))
        expected = wide.astype(dtype.numpy)
        np.testing.assert_array_equal(np.isnan(out), np.isnan(expected))
        there = ~np.isnan(expected)
        np.testing.assert_array_equal(
            np.signbit(out[there]), np.signbit(expected[there])
        )
        finite = np.isfinite(expected)
        odd = ~finite & ~np.isnan(expected)
        np.testing.assert_array_equal(out[odd], expected[odd])
        error = np.abs(out[finite] - wide[finite]) / np.spacing(
            np.maximum(np.abs(expected[finite]), np.finfo(out.dtype).tiny)
        )
    assert float(error.max()) < 2
