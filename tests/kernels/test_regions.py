"""Blocks, regions, barriers, limits, loops and asserts, as they run."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from accy_async.compiler.form import (
    BinaryOperation,
    Kernel,
    KernelBuilder,
    constant,
    select,
)
from accy_async.dtypes import DType
from tests.compiler.harness import Array, compiled
from tests.kernels.places import (
    CPU,
    EVERYWHERE,
    GPU,
    HOST_CUDA,
    HOST_MSL,
    VULKAN,
    Place,
    on,
    with_dtypes,
)

U32, I32, I64 = DType.U32, DType.I32, DType.I64


@on(*EVERYWHERE)
def test_regions_meet_at_a_barrier(place: Place) -> None:
    k = KernelBuilder("reverse", threadgroup=(64, 1, 1))
    out, source = k.buffer("out", I32, "write_only"), k.buffer("a", I32, "read_only")
    tile = k.shared("tile", I32, 64)
    with k.region():
        tile[k.thread] = source[k.block_x * 64 + k.thread]
    with k.region():
        out[k.block_x * 64 + k.thread] = tile[constant(U32, 63) - k.thread]
    a = np.arange(256, dtype=np.int32)
    out_array = np.zeros_like(a)
    assert place.run_once(k.build(), [out_array, a], grid=4) == 0
    np.testing.assert_array_equal(out_array.reshape(4, 64), a.reshape(4, 64)[:, ::-1])


@on(*EVERYWHERE)
def test_thread_variables_start_at_zero_and_live_across_regions(place: Place) -> None:
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
    place.run_once(k.build(), [result], grid=2)
    ids = np.arange(32, dtype=np.uint32)
    np.testing.assert_array_equal(result, np.tile(3 * ids + 1000 * (ids < 5), 2))


COMBINED: dict[BinaryOperation, np.ufunc] = {
    BinaryOperation.ADD: np.add,
    BinaryOperation.MINIMUM: np.minimum,
    BinaryOperation.MAXIMUM: np.maximum,
    BinaryOperation.AND: np.bitwise_and,
    BinaryOperation.OR: np.bitwise_or,
    BinaryOperation.XOR: np.bitwise_xor,
}


@with_dtypes((I32, U32), EVERYWHERE)
def test_threads_of_all_blocks_combine_elements(place: Place, dtype: DType) -> None:
    k = KernelBuilder("combined", threadgroup=(64, 1, 1))
    out, source = (
        k.buffer("out", dtype, "read_write"),
        k.buffer("a", dtype, "read_only"),
    )
    with k.region():
        at = k.let("at", k.block_x * 64 + k.thread)
        value = source[at]
        for column, operation in enumerate(COMBINED):
            with k.when((at % 7).differs(column)):
                out.combine(operation, at % 5 * 6 + column, value)
    draw = np.random.default_rng(1)
    low, high = int(dtype.minimum), int(dtype.maximum)
    a = draw.integers(low, high, 3 * 64, dtype=dtype.numpy, endpoint=True)
    result = draw.integers(low, high, (5, 6), dtype=dtype.numpy, endpoint=True)
    expected, numbers = result.copy(), np.arange(len(a))
    for column, combine in enumerate(COMBINED.values()):
        taken = numbers % 7 != column
        combine.at(expected[:, column], numbers[taken] % 5, a[taken])
    assert place.run_once(k.build(), [result, a], grid=3) == 0
    np.testing.assert_array_equal(result, expected)


ACTIVE = {
    DType.I8: {-128: 0, 127: 60},
    DType.U8: {7: 7},
    I32: {0: 0, -1: 0, 59: 59},
    U32: {2**32 - 1: 60},
    I64: {-(2**63): 0, 2**63 - 1: 60},
    DType.U64: {2**64 - 1: 60, 31: 31},
}
"""How many of 60 threads are active at a limit."""


@with_dtypes(ACTIVE, EVERYWHERE)
def test_limit_counts_threads_by_linear_id(place: Place, dtype: DType) -> None:
    kernels: list[Kernel] = []
    for threadgroup in ((60, 1, 1), (5, 4, 3)):
        k = KernelBuilder(f"limited{len(kernels)}", threadgroup=threadgroup)
        out, n = k.buffer("out", I32, "write_only"), k.scalar("n", dtype)
        with k.region(limit=n):
            out[k.thread] = 1
        kernels.append(k.build())
    with place.compiled(*kernels) as runner:
        for kernel, (limit, count) in itertools.product(kernels, ACTIVE[dtype].items()):
            result = np.zeros(60, np.int32)
            runner.run(kernel.name, [result], [limit])
            np.testing.assert_array_equal(result, np.arange(60) < count)


def ids_kernel() -> Kernel:
    """Writes every id of every thread, in the order of the threads."""
    k = KernelBuilder("ids", threadgroup=(3, 2, 2))
    out = k.buffer("out", U32, "write_only")
    block = k.let("block", k.block_x + k.grid_x * (k.block_y + k.grid_y * k.block_z))
    ids = (
        *(k.thread_x, k.thread_y, k.thread_z),
        *(k.block_x, k.block_y, k.block_z),
        k.grid_z,
    )
    with k.region():
        for column, value in enumerate(ids):
            out[(block * 12 + k.thread) * 7 + column] = value
    return k.build()


def ids_result() -> Array:
    """What `ids_kernel` writes over a grid of 3 × 4 × 2 blocks."""
    rows = [
        (x, y, z, b % 3, b // 3 % 4, b // 12, 2)
        for b in range(24)
        for z in range(2)
        for y in range(2)
        for x in range(3)
    ]
    return np.array(rows, np.uint32)


@on(*EVERYWHERE)
def test_ids_count_x_first(place: Place) -> None:
    expected = ids_result()
    result = np.full_like(expected, 99)
    place.run_once(ids_kernel(), [result], grid=(3, 4, 2))
    np.testing.assert_array_equal(result, expected)


def test_calls_may_take_any_blocks() -> None:
    expected, grid = ids_result(), (3, 4, 2)
    result = np.full_like(expected, 99)
    with compiled(ids_kernel()) as runner:
        runner.run_blocks("ids", [result], (), grid, (5, 20))
        assert (result[: 5 * 12] == 99).all()
        assert (result[20 * 12 :] == 99).all()
        runner.run_blocks("ids", [result], (), grid, (0, 5))
        runner.run_blocks("ids", [result], (), grid, (20, 24))
        runner.run_blocks("ids", [result], (), (0, 0, 0), (0, 0))
    np.testing.assert_array_equal(result, expected)


@on(*EVERYWHERE)
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
    place: Place, dtype: DType, begin: int, end: int, step: int
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
    place.run_once(k.build(), [result], [begin, end])
    indices = range(begin, end, step)
    expected = [len(indices), sum(indices), sum(indices), len(indices)]
    wrapped = [value & (2**dtype.bits - 1) for value in expected]
    np.testing.assert_array_equal(
        result.view(f"u{dtype.size_bytes}"), np.array(wrapped, f"u{dtype.size_bytes}")
    )


@on(*EVERYWHERE)
def test_uniform_code_sees_what_regions_before_it_wrote(place: Place) -> None:
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
    place.run_once(k.build(), [result], [3])
    np.testing.assert_array_equal(result, np.full(8, 8 * 2 + 22))


@on(*EVERYWHERE)
def test_branches_of_threads_run_one_side(place: Place) -> None:
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
    place.run_once(k.build(), [result, source])
    np.testing.assert_array_equal(result, [5, 6, 7, 8] + [-2, -1] * 6)


@on(CPU)
def test_assert_reports_the_first_failure_and_stops_its_thread(place: Place) -> None:
    k = KernelBuilder("guard", threadgroup=(8, 1, 1))
    out, a = k.buffer("out", U32, "write_only"), k.buffer("a", U32, "read_only")
    with k.region():
        index = a[k.block_x * 8 + k.thread]
        k.require(index < 16, 41)
        k.require(index.differs(3), 42)
        out[index] = 1
    kernel = k.build()
    with place.compiled(kernel) as runner:
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


@on(*EVERYWHERE)
def test_results_may_be_operands(place: Place) -> None:
    from accy_async.compiler.kernels import add, axpy

    kernels = (add(DType.F32).kernel, axpy(DType.F32).kernel)
    x = np.random.default_rng(1).random(1000, np.float32)
    y = x[::-1].copy()
    with place.compiled(*kernels) as runner:
        expected = np.float32(2.5) * x + y
        runner.run(kernels[1].name, [y, x, y], [1000, 2.5], 4)
        np.testing.assert_array_equal(y, expected)
        expected = x + x
        runner.run(kernels[0].name, [x, x, x], [1000], 4)
        np.testing.assert_array_equal(x, expected)


@on(VULKAN, HOST_CUDA, HOST_MSL)
def test_failed_assertions_leave_a_code_and_stop_their_thread_alone(
    place: Place,
) -> None:
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
    assert place.run_once(kernel, [result, good]) == 7
    expected = good + 1
    expected[3] -= 1
    np.testing.assert_array_equal(result, expected)
    bad = good.copy()
    bad[10] = 6
    result[:] = 99
    assert place.run_once(kernel, [result, bad]) in (7, 42)
    expected[10] = 99
    np.testing.assert_array_equal(result, expected)


@on(*EVERYWHERE)
def test_buffers_carry_values_between_the_regions_of_a_block(place: Place) -> None:
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
    place.run_once(k.build(), [result], grid=4)
    np.testing.assert_array_equal(
        result.reshape(4, 128), np.roll(start.reshape(4, 128), -3, axis=1)
    )


@on(CPU, GPU, VULKAN)
def test_threads_that_run_ahead_overwrite_nothing_that_others_read(
    place: Place,
) -> None:
    """Uniform loads before regions that write the same elements, many times over."""
    rounds, threads = 500, 1024
    k = KernelBuilder("relay", threadgroup=(threads, 1, 1))
    out = k.buffer("out", U32, "read_write")
    ring = k.shared("ring", U32, threads)
    with k.region():
        ring[k.thread] = k.thread
    total = k.variable("total", constant(U32, 0))
    with k.count("round", constant(U32, 0), constant(U32, rounds)) as i:
        # Every thread reads one element, then all elements change.
        total.set(total.value + ring.at((i * 37) % threads))
        with k.region(limit=ring.at(constant(U32, 0)) + threads):
            ring[k.thread] = k.thread + (i + 1) * 3
    with k.region():
        at = k.block_x * threads + k.thread
        out[at] = total.value
    result = np.zeros(threads * 64, np.uint32)
    place.run_once(k.build(), [result], grid=64)
    expected = sum((i * 37) % threads + 3 * i for i in range(rounds))
    np.testing.assert_array_equal(result, np.full_like(result, expected))
