"""Every operation and dtype, as on the CPU: the same tests, of the printed texts."""

from __future__ import annotations

import pytest

from accy_async.compiler.form.operations import can_cast
from accy_async.dtypes import DType
from accy_async.errors import CapabilityMismatch
from tests.compiler import test_emit_cpu as expressions
from tests.compiler import test_emit_operations as operations
from tests.text.host import COMPILER, LANGUAGES, compiled

pytestmark = pytest.mark.skipif(COMPILER is None, reason="no g++ to run texts with")


@pytest.fixture(params=LANGUAGES)
def language(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Has the CPU's tests run their kernels as printed in a language."""
    name: str = request.param
    for module in (expressions, operations):
        monkeypatch.setattr(module, "compiled", compiled(name))
    if name == "msl":
        narrower = DType.F64
        monkeypatch.setattr(
            operations, "can_cast", lambda a, b: b is not narrower and can_cast(a, b)
        )
    return name


def _has(language: str, dtype: DType) -> bool:
    return language != "msl" or dtype is not DType.F64


@pytest.mark.parametrize("dtype", operations.COMPUTED, ids=str)
def test_operations_match_numpy(dtype: DType, language: str) -> None:
    tests = [
        operations.test_binary_operations_match_numpy,
        operations.test_unary_operations_match_numpy,
        operations.test_comparisons_and_select_match_numpy,
        operations.test_casts_match_numpy_and_saturate,
    ]
    for test in tests:
        if _has(language, dtype):
            test(dtype)
        else:
            with pytest.raises(CapabilityMismatch, match="f64"):
                test(dtype)


@pytest.mark.parametrize("dtype", operations.INTEGERS, ids=str)
def test_division_by_a_constant_matches_division_by_its_value(
    dtype: DType, language: str
) -> None:
    operations.test_division_by_a_constant_matches_division_by_its_value(dtype)


def test_f16_and_bf16_convert_exactly_and_round_to_nearest_even(language: str) -> None:
    operations.test_f16_and_bf16_convert_exactly_and_round_to_nearest_even("any")


@pytest.mark.parametrize("dtype", [DType.F32, DType.I32, DType.U16], ids=str)
def test_random_expressions_are_numpys_to_the_bit(dtype: DType, language: str) -> None:
    expressions.check_random_expressions(dtype, examples=8)


def test_products_are_rounded_before_they_are_added(language: str) -> None:
    expressions.test_products_are_rounded_before_they_are_added()
