"""Blocks, regions, barriers, limits, loops and asserts, as they run."""

from __future__ import annotations

import numpy as np
import pytest

from accy_async.compiler.form import KernelBuilder, constant, select
from accy_async.dtypes import DType
from tests.compiler.harness import compiled, run_once

U32, I32, I64 = DType.U32, DType.I32, DType.I64


def test_regions_meet_at_a_barrier() -> None:
    k = KernelBuilder("reverse", threadgroup=(64, 1, 1))
    out, source = k.buffer("out", I32, "write_only"), k.buffer("a", I32, "read_only")
    tile = k.shared("tile", I32, 64)
    with k.region():
        tile[k.thread] = source[k.block_x * 64 + k.thread]
    with k.region():
        out[k.block_x * 64 + k.thread] = tile[constant(U32, 63) - k.thread]
    a = np.arange(256, dtype=np.int32)
    out_array = np.zeros_like(a)
    assert run_once(k.build(), [out_array, a], grid=4) == 0
    np.testing.assert_array_equal(out_array.reshape(4, 64), a.reshape(4, 64)[:, ::-1])


def test_thread_variables_start_at_zero_and_live_across_regions() -> None:
    k = KernelBuilder("keep", threadgroup=(32, 1, 1))
    out = k.buffer("out", U32, "write_only")
    kept = k.thread_variable("kept", U32)
    flag = k.thread_variable("flag", DType.BOOL)
    for _ in range(3):
        with k.region():
            kept.set(kept.value + k.thread)
    with k.region(limit=constant(U32, 5)):
        flag.set(~flag.value)
    with k.region():
        at = k.block_x * 32 + k.thread
        out[at] = select(flag.value, kept.value + 1000, kept.value)
    result = np.zeros(64, np.uint32)
    run_once(k.build(), [result], grid=2)
    ids = np.arange(32, dtype=np.uint32)
    np.testing.assert_array_equal(result, np.tile(3 * ids + 1000 * (ids < 5), 2))


@pytest.mark.parametrize(
    ("dtype", "limit", "active"),
    [
        (DType.I8, -128, 0),
        (DType.I8, 127, 60),
        (DType.U8, 7, 7),
        (I32, 0, 0),
        (I32, -1, 0),
        (I32, 59, 59),
        (U32, 2**32 - 1, 60),
        (I64, -(2**63), 0),
        (I64, 2**63 - 1, 60),
        (DType.U64, 2**64 - 1, 60),
        (DType.U64, 31, 31),
    ],
)
@pytest.mark.parametrize("threadgroup", [(60, 1, 1), (5, 4, 3)])
def test_limit_counts_threads_by_linear_id(
    dtype: DType, limit: int, active: int, threadgroup: tuple[int, int, int]
) -> None:
    k = KernelBuilder("limited", threadgroup=threadgroup)
    out, n = k.buffer("out", I32, "write_only"), k.scalar("n", dtype)
    with k.region(limit=n):
        out[k.thread] = 1
    result = np.zeros(60, np.int32)
    run_once(k.build(), [result], [limit])
    np.testing.assert_array_equal(result, np.arange(60) < active)


def test_ids_count_x_first_and_calls_may_take_any_blocks() -> None:
    k = KernelBuilder("ids", threadgroup=(3, 2, 2))
    out = k.buffer("out", U32, "write_only")
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
    grid, blocks = (3, 4, 2), 24
    expected = [
        (x, y, z, b % 3, b // 3 % 4, b // 12, 2)
        for b in range(blocks)
        for z in range(2)
        for y in range(2)
        for x in range(3)
    ]
    result = np.full((blocks * 12, 7), 99, np.uint32)
    with compiled(k.build()) as runner:
        runner.run("ids", [result], grid=grid, blocks=(5, 20))
        assert (result[: 5 * 12] == 99).all()
        assert (result[20 * 12 :] == 99).all()
        runner.run("ids", [result], grid=grid, blocks=(0, 5))
        runner.run("ids", [result], grid=grid, blocks=(20, 24))
        runner.run("ids", [result], grid=(0, 0, 0), blocks=(0, 0))
    np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize(
    ("dtype", "begin", "end", "step"),
    [
        (DType.U8, 250, 255, 3),
        (DType.U8, 0, 255, 1),
        (DType.I8, -128, 127, 100),
        (DType.I8, 5, -5, 1),
        (I64, -3, 4, 2),
        (U32, 2**32 - 3, 2**32 - 1, 1),
        (DType.U64, 7, 7, 5),
    ],
)
def test_loops_have_exact_rounds_within_and_outside_regions(
    dtype: DType, begin: int, end: int, step: int
) -> None:
    k = KernelBuilder("loops", threadgroup=(2, 1, 1))
    out = k.buffer("out", dtype, "read_write")
    first, last = k.scalar("first", dtype), k.scalar("last", dtype)
    rounds = k.variable("rounds", constant(dtype, 0))
    with k.count("i", first, last, step) as i:
        rounds.set(rounds.value + i)
        with k.region(limit=constant(U32, 1)):
            out[0] = out[0] + 1
    with k.region(limit=constant(U32, 1)):
        total = k.variable("total", constant(dtype, 0))
        seen = k.variable("seen", constant(dtype, 0))
        with k.count("j", first, last, step) as j:
            total.set(total.value + j)
            seen.set(seen.value + 1)
        out[1], out[2], out[3] = rounds.value, total.value, seen.value
    result = np.zeros(4, dtype.numpy)
    run_once(k.build(), [result], [begin, end])
    indices = range(begin, end, step)
    expected = [len(indices), sum(indices), sum(indices), len(indices)]
    wrapped = [value & (2**dtype.bits - 1) for value in expected]
    np.testing.assert_array_equal(
        result.view(f"u{dtype.size_bytes}"), np.array(wrapped, f"u{dtype.size_bytes}")
    )


def test_uniform_code_sees_what_regions_before_it_wrote() -> None:
    k = KernelBuilder("uniform", threadgroup=(8, 1, 1))
    out, n = k.buffer("out", U32, "read_write"), k.scalar("n", U32)
    shared = k.shared("shared", U32, 8)
    carry = k.variable("carry", constant(U32, 1))
    with k.count("round", constant(U32, 0), n) as index:
        with k.region():
            shared[k.thread] = carry.value + k.thread
        carry.set(shared.at(constant(U32, 7)))
        with k.when((index % 2).equals(0)), k.region():
            out[k.thread] = out[k.thread] + carry.value
        with k.otherwise(), k.region():
            out[k.thread] = out[k.thread] * 2
    result = np.zeros(8, np.uint32)
    run_once(k.build(), [result], [3])
    np.testing.assert_array_equal(result, np.full(8, 8 * 2 + 22))


def test_branches_of_threads_run_one_side() -> None:
    k = KernelBuilder("branch", threadgroup=(16, 1, 1))
    out, a = k.buffer("out", I32, "write_only"), k.buffer("a", I32, "read_only")
    with k.region():
        best = k.variable("best", constant(I32, -1))
        with k.when(k.thread < 4):
            best.set(a[k.thread])
        with k.otherwise(), k.when((k.thread % 2).equals(0)):
            best.set(best.value - 1)
        out[k.thread] = best.value
    result, source = np.zeros(16, np.int32), np.array([5, 6, 7, 8], np.int32)
    run_once(k.build(), [result, source])
    np.testing.assert_array_equal(result, [5, 6, 7, 8] + [-2, -1] * 6)


def test_assert_reports_the_first_failure_and_stops_its_thread() -> None:
    k = KernelBuilder("guard", threadgroup=(8, 1, 1))
    out, a = k.buffer("out", U32, "write_only"), k.buffer("a", U32, "read_only")
    with k.region():
        index = a[k.block_x * 8 + k.thread]
        k.require(index < 16, 41)
        k.require(index.differs(3), 42)
        out[index] = 1
    kernel = k.build()
    with compiled(kernel) as runner:
        good = np.arange(16, dtype=np.uint32)
        good[3] = 4
        assert runner.run("guard", [np.zeros(16, np.uint32), good], grid=2) == 0
        bad = good.copy()
        bad[9], bad[12] = 3, 2**31
        assert runner.run("guard", [np.zeros(16, np.uint32), bad], grid=2) == 42
        bad[2] = 2**32 - 1
        assert runner.run("guard", [np.zeros(16, np.uint32), bad], grid=2) == 41
        # Blocks before and after the failing one run if they are asked for.
        assert runner.run("guard", [np.zeros(16, np.uint32), good], grid=2) == 0


def test_results_may_be_operands() -> None:
    from accy_async.compiler.kernels import add, axpy

    kernels = (add(DType.F32).kernel, axpy(DType.F32).kernel)
    x = np.random.default_rng(1).random(1000, np.float32)
    y = x[::-1].copy()
    with compiled(*kernels) as runner:
        expected = np.float32(2.5) * x + y
        runner.run(kernels[1].name, [y, x, y], [1000, 2.5], 4)
        np.testing.assert_array_equal(y, expected)
        expected = x + x
        runner.run(kernels[0].name, [x, x, x], [1000], 4)
        np.testing.assert_array_equal(x, expected)
