"""Blocks, regions, barriers and loops: the tests of the CPU, of the printed texts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from accy_async.compiler.form import Kernel, KernelBuilder, constant
from accy_async.compiler.kernels import (
    SCAN_DTYPES,
    TILE,
    add_base,
    block_scan,
    reference_scan,
    sums_scan,
)
from accy_async.dtypes import DType
from tests.compiler import test_emit_regions
from tests.compiler.harness import Array, assert_same_bits
from tests.compiler.test_emit_regions import (
    test_branches_of_threads_run_one_side,
    test_limit_counts_threads_by_linear_id,
    test_loops_have_exact_rounds_within_and_outside_regions,
    test_regions_meet_at_a_barrier,
    test_results_may_be_operands,
    test_thread_variables_start_at_zero_and_live_across_regions,
    test_uniform_code_sees_what_regions_before_it_wrote,
)
from tests.text.deep import deep_kernel, deep_result
from tests.text.host import COMPILER, LANGUAGES, HostRunner, compiled

__all__ = [
    "test_branches_of_threads_run_one_side",
    "test_limit_counts_threads_by_linear_id",
    "test_loops_have_exact_rounds_within_and_outside_regions",
    "test_regions_meet_at_a_barrier",
    "test_results_may_be_operands",
    "test_thread_variables_start_at_zero_and_live_across_regions",
    "test_uniform_code_sees_what_regions_before_it_wrote",
]

pytestmark = pytest.mark.skipif(COMPILER is None, reason="no g++ to run texts with")


@pytest.fixture(autouse=True, params=LANGUAGES)
def language(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Has the CPU's tests run their kernels as printed in a language."""
    name: str = request.param

    def run_once(
        kernel: Kernel,
        buffers: Sequence[Array],
        scalars: Sequence[object] = (),
        grid: tuple[int, int, int] | int = 1,
    ) -> int:
        return HostRunner([kernel], name).run(kernel.name, buffers, scalars, grid)

    monkeypatch.setattr(test_emit_regions, "compiled", compiled(name))
    monkeypatch.setattr(test_emit_regions, "run_once", run_once)
    return name


@pytest.mark.parametrize("dtype", SCAN_DTYPES, ids=str)
def test_scan_matches_the_reference_to_the_bit(dtype: DType, language: str) -> None:
    if language == "msl" and dtype is DType.F64:
        pytest.skip("Metal has no f64")
    values = np.arange(600).astype(dtype.numpy) * dtype.numpy.type(3)
    kernels = [make(dtype).kernel for make in (block_scan, sums_scan, add_base)]
    tiles = -(-len(values) // TILE)
    result = np.zeros_like(values)
    sums, scanned = np.zeros(tiles, values.dtype), np.zeros(tiles, values.dtype)
    runner = HostRunner(kernels, language)
    runner.run(kernels[0].name, [result, values, sums], [len(values)], tiles)
    runner.run(kernels[1].name, [scanned, sums], [tiles])
    runner.run(kernels[2].name, [result, scanned], [len(values)], tiles)
    assert_same_bits(result, reference_scan(values))


def test_a_failed_assertion_stops_its_thread_and_is_reported(language: str) -> None:
    k = KernelBuilder("guard", threadgroup=(8, 1, 1))
    out, a = (
        k.buffer("out", DType.U32, "read_write"),
        k.buffer("a", DType.U32, "read_only"),
    )
    with k.region():
        total = k.variable("total", constant(DType.U32, 0))
        with k.count("i", constant(DType.U32, 0), a[k.thread]):
            k.require(total.value < 5, 42)
            total.set(total.value + 1)
        out[k.thread] = total.value
    with k.region():
        out[k.thread] = out[(k.thread + 1) % 8]
    kernel = k.build()
    runner = HostRunner([kernel], language)
    good = np.arange(8, dtype=np.uint32) % 5
    first = np.zeros(8, np.uint32)
    assert runner.run("guard", [first, good]) == 0
    bad = good.copy()
    bad[2] = 9
    assert runner.run("guard", [np.zeros(8, np.uint32), bad]) == 42


def test_a_kernel_at_the_limits_of_the_form_runs(language: str) -> None:
    a = np.arange(-500, 524, dtype=np.int32)
    out = np.full(1024, 99, np.int64)
    HostRunner([deep_kernel()], language).run("deep", [out, a])
    np.testing.assert_array_equal(out, deep_result(a))
