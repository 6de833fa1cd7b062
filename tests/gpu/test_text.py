"""Kernels printed as CUDA C++ and compiled by NVRTC: the CPU's tests, on the GPU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import pytest

from accy_async.compiler.form import Kernel
from accy_async.compiler.nvrtc import nvrtc_version
from accy_async.dtypes import DType
from accy_async.errors import BackendUnavailable
from tests.compiler import test_emit_cpu, test_emit_operations, test_emit_regions
from tests.compiler.harness import Array
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
from tests.compiler.test_emit_regions import (
    test_branches_of_threads_run_one_side,
    test_limit_counts_threads_by_linear_id,
    test_loops_have_exact_rounds_within_and_outside_regions,
    test_regions_meet_at_a_barrier,
    test_thread_variables_start_at_zero_and_live_across_regions,
    test_uniform_code_sees_what_regions_before_it_wrote,
)
from tests.gpu.harness import GpuRunner
from tests.text.deep import deep_kernel, deep_result

__all__ = [
    "test_binary_operations_match_numpy",
    "test_bitcast_keeps_bits",
    "test_branches_of_threads_run_one_side",
    "test_casts_match_numpy_and_saturate",
    "test_comparisons_and_select_match_numpy",
    "test_division_by_a_constant_matches_division_by_its_value",
    "test_every_dtype_is_loaded_stored_and_passed_as_a_scalar",
    "test_f16_and_bf16_convert_exactly_and_round_to_nearest_even",
    "test_limit_counts_threads_by_linear_id",
    "test_loops_have_exact_rounds_within_and_outside_regions",
    "test_products_are_rounded_before_they_are_added",
    "test_regions_meet_at_a_barrier",
    "test_thread_variables_start_at_zero_and_live_across_regions",
    "test_unary_operations_match_numpy",
    "test_uniform_code_sees_what_regions_before_it_wrote",
]

pytestmark = pytest.mark.gpu


@contextmanager
def compiled(*kernels: Kernel, **_: object) -> Iterator[GpuRunner]:
    runner = GpuRunner(kernels, as_text=True)
    try:
        yield runner
    finally:
        runner.close()


def run_once(
    kernel: Kernel,
    buffers: Sequence[Array],
    scalars: Sequence[object] = (),
    grid: tuple[int, int, int] | int = 1,
) -> int:
    with compiled(kernel) as runner:
        return runner.run(kernel.name, buffers, scalars, grid)


@pytest.fixture(autouse=True)
def as_text_on_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has the CPU's tests run their kernels as CUDA C++ on the GPU."""
    try:
        nvrtc_version()
    except BackendUnavailable as error:
        pytest.skip(str(error))
    for module in (test_emit_cpu, test_emit_operations, test_emit_regions):
        monkeypatch.setattr(module, "compiled", compiled)
    monkeypatch.setattr(test_emit_regions, "run_once", run_once)


@pytest.mark.parametrize("dtype", [DType.F32, DType.I32, DType.U16], ids=str)
def test_random_expressions_are_numpys_to_the_bit(dtype: DType) -> None:
    check_random_expressions(dtype, examples=10)


def test_a_kernel_at_the_limits_of_the_form_runs() -> None:
    a = np.arange(-500, 524, dtype=np.int32)
    out = np.full(1024, 99, np.int64)
    run_once(deep_kernel(), [out, a])
    np.testing.assert_array_equal(out, deep_result(a))
