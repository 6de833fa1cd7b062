"""Blocks, regions, barriers, limits, loops and asserts, run on a Vulkan device."""

from __future__ import annotations

import numpy as np
import pytest

from accy_async.compiler.form import KernelBuilder, constant
from accy_async.dtypes import DType
from tests.compiler import test_emit_regions
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
from tests.vulkan.harness import compiled, run_once

__all__ = [
    "test_branches_of_threads_run_one_side",
    "test_limit_counts_threads_by_linear_id",
    "test_loops_have_exact_rounds_within_and_outside_regions",
    "test_regions_meet_at_a_barrier",
    "test_results_may_be_operands",
    "test_thread_variables_start_at_zero_and_live_across_regions",
    "test_uniform_code_sees_what_regions_before_it_wrote",
]

pytestmark = pytest.mark.vulkan

U32 = DType.U32


@pytest.fixture(autouse=True)
def on_vulkan(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has the CPU's tests run their kernels on the Vulkan device."""
    monkeypatch.setattr(test_emit_regions, "compiled", compiled)
    monkeypatch.setattr(test_emit_regions, "run_once", run_once)


def test_ids_count_x_first() -> None:
    k = KernelBuilder("ids", threadgroup=(3, 2, 2))
    out = k.buffer("out", U32, "write_only")
    block = k.let("block", k.block_x + k.grid_x * (k.block_y + k.grid_y * k.block_z))
    ids = (k.thread_x, k.thread_y, k.thread_z, k.block_x, k.block_y, k.block_z)
    with k.region():
        for column, value in enumerate(ids):
            out[(block * 12 + k.thread) * 6 + column] = value
    result = np.full((24 * 12, 6), 99, np.uint32)
    run_once(k.build(), [result], grid=(3, 4, 2))
    expected = [
        (x, y, z, b % 3, b // 3 % 4, b // 12)
        for b in range(24)
        for z in range(2)
        for y in range(2)
        for x in range(3)
    ]
    np.testing.assert_array_equal(result, expected)


def test_failed_assertions_leave_a_code_and_stop_their_thread_alone() -> None:
    """Threads that stopped still come to every barrier, and do nothing more."""
    k = KernelBuilder("guard", threadgroup=(64, 1, 1))
    out, a = k.buffer("out", U32, "read_write"), k.buffer("a", U32, "read_only")
    tile = k.shared("tile", U32, 64)
    with k.region():
        total = k.variable("total", constant(U32, 0))
        with k.count("i", constant(U32, 0), a[k.thread]):
            k.require(total.value < 5, 42)
            total.set(total.value + 1)
        tile[k.thread] = total.value
    with k.region():
        out[k.thread] = tile[k.thread]
        with k.when(k.thread.equals(3)):
            k.require(k.thread.differs(3), 7)
            out[k.thread] = 1000
        out[k.thread] = out[k.thread] + 1
    kernel = k.build()
    good = np.arange(64, dtype=np.uint32) % 5
    result = np.full(64, 99, np.uint32)
    assert run_once(kernel, [result, good]) == 7
    expected = good + 1
    expected[3] -= 1
    np.testing.assert_array_equal(result, expected)
    bad = good.copy()
    bad[10] = 6
    result[:] = 99
    assert run_once(kernel, [result, bad]) in (7, 42)
    expected[10] = 99
    np.testing.assert_array_equal(result, expected)


def test_buffers_carry_values_between_the_regions_of_a_block() -> None:
    k = KernelBuilder("rotate", threadgroup=(128, 1, 1))
    out = k.buffer("out", U32, "read_write")
    base = k.let("base", k.block_x * 128)
    for _ in range(3):
        moved = k.thread_variable(f"moved{_}", U32)
        with k.region():
            moved.set(out[base + (k.thread + 1) % 128])
        with k.region():
            out[base + k.thread] = moved.value
    start = np.arange(512, dtype=np.uint32)
    result = start.copy()
    run_once(k.build(), [result], grid=4)
    np.testing.assert_array_equal(
        result.reshape(4, 128), np.roll(start.reshape(4, 128), -3, axis=1)
    )


def test_a_kernel_at_the_limits_of_the_form_runs() -> None:
    a = np.arange(-500, 524, dtype=np.int32)
    out = np.full(1024, 99, np.int64)
    run_once(deep_kernel(), [out, a])
    np.testing.assert_array_equal(out, deep_result(a))
