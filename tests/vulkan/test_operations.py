"""Every operation and dtype, as on the CPU: the same tests, run on a Vulkan device."""

from __future__ import annotations

import pytest

from accy_async.dtypes import DType
from tests.compiler import test_emit_cpu, test_emit_operations
from tests.compiler.test_emit_cpu import (
    check_random_expressions,
    test_products_are_rounded_before_they_are_added,
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
from tests.vulkan.harness import compiled

__all__ = [
    "test_binary_operations_match_numpy",
    "test_bitcast_keeps_bits",
    "test_casts_match_numpy_and_saturate",
    "test_comparisons_and_select_match_numpy",
    "test_division_by_a_constant_matches_division_by_its_value",
    "test_every_dtype_is_loaded_stored_and_passed_as_a_scalar",
    "test_f16_and_bf16_convert_exactly_and_round_to_nearest_even",
    "test_products_are_rounded_before_they_are_added",
    "test_unary_operations_match_numpy",
]

pytestmark = pytest.mark.vulkan


@pytest.fixture(autouse=True)
def on_vulkan(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has the CPU's tests run their kernels on the Vulkan device."""
    for module in (test_emit_cpu, test_emit_operations):
        monkeypatch.setattr(module, "compiled", compiled)


@pytest.mark.parametrize("dtype", [DType.F32, DType.I32, DType.U16], ids=str)
def test_random_expressions_are_numpys_to_the_bit(dtype: DType) -> None:
    """Without constants in floats, for the sake of Mesa's software driver.

    Where it knows one side to be a constant 0 it leaves out additions and makes
    products 0, whatever the other side's sign, and be it NaN.
    """
    check_random_expressions(dtype, constants=not dtype.is_float)
