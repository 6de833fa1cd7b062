"""Blocks, regions, barriers, limits and loops: the CPU's tests, run on the GPU."""

from __future__ import annotations

import attrs
import numpy as np
import pytest

from accy_async.compiler.form import KernelBuilder, constant
from accy_async.dtypes import DType, ScalarArgument
from accy_async.errors import DeviceError
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
from tests.conformance.devices import CudaDevice
from tests.gpu.harness import compiled, run_once

__all__ = [
    "test_branches_of_threads_run_one_side",
    "test_limit_counts_threads_by_linear_id",
    "test_loops_have_exact_rounds_within_and_outside_regions",
    "test_regions_meet_at_a_barrier",
    "test_results_may_be_operands",
    "test_thread_variables_start_at_zero_and_live_across_regions",
    "test_uniform_code_sees_what_regions_before_it_wrote",
]

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def on_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has the CPU's tests run their kernels on the GPU."""
    monkeypatch.setattr(test_emit_regions, "compiled", compiled)
    monkeypatch.setattr(test_emit_regions, "run_once", run_once)


def test_ids_count_x_first() -> None:
    k = KernelBuilder("ids", threadgroup=(3, 2, 2))
    out = k.buffer("out", DType.U32, "write_only")
    block = k.let("block", k.block_x + k.grid_x * (k.block_y + k.grid_y * k.block_z))
    ids = (
        k.thread_x,
        k.thread_y,
        k.thread_z,
        k.block_x,
        k.block_y,
        k.block_z,
        k.grid_z,
    )
    with k.region():
        for column, value in enumerate(ids):
            out[(block * 12 + k.thread) * 7 + column] = value
    expected = [
        (x, y, z, b % 3, b // 3 % 4, b // 12, 2)
        for b in range(24)
        for z in range(2)
        for y in range(2)
        for x in range(3)
    ]
    result = np.full((24 * 12, 7), 99, np.uint32)
    run_once(k.build(), [result], grid=(3, 4, 2))
    np.testing.assert_array_equal(result, expected)


def test_threads_that_run_ahead_overwrite_nothing_that_others_read() -> None:
    """Uniform loads before regions that write the same elements, many times over."""
    rounds, threads = 500, 1024
    k = KernelBuilder("relay", threadgroup=(threads, 1, 1))
    out = k.buffer("out", DType.U32, "read_write")
    ring = k.shared("ring", DType.U32, threads)
    with k.region():
        ring[k.thread] = k.thread
    total = k.variable("total", constant(DType.U32, 0))
    with k.count("round", constant(DType.U32, 0), constant(DType.U32, rounds)) as i:
        # Every thread reads one element, then all elements change.
        total.set(total.value + ring.at((i * 37) % threads))
        with k.region(limit=ring.at(constant(DType.U32, 0)) + threads):
            ring[k.thread] = k.thread + (i + 1) * 3
    with k.region():
        at = k.block_x * threads + k.thread
        out[at] = total.value
    result = np.zeros(threads * 64, np.uint32)
    run_once(k.build(), [result], grid=64)
    expected = sum((i * 37) % threads + 3 * i for i in range(rounds))
    np.testing.assert_array_equal(result, np.full_like(result, expected))


def test_other_threadgroup_than_the_kernels_is_refused_unharmed() -> None:
    """The PTX says how many threads a block has, and the driver keeps to it."""
    device = CudaDevice()
    buffer = device.write([0])
    artifact = device.echo_artifact(DType.U32)
    request = device.request(artifact, [buffer], [ScalarArgument.u32(5)])
    wrong = attrs.evolve(request.geometry, threadgroup=(2, 1, 1))
    with pytest.raises(DeviceError, match="cuLaunchKernel"):
        device.backend.launch(attrs.evolve(request, geometry=wrong))
    assert device.backend.is_healthy
    device.close()
