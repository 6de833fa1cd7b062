"""Gathers and scatters against the reference, to the bit but for sums of floats.

Scatters that look at each update once give the bits of those that look at it often.

Bound of scatter_add: 300 roundings of the largest sum there can be.
"""

from __future__ import annotations

import attrs
import numpy as np
import pytest

from accy_async.compiler.kernelization import TargetProfile, kernelize
from accy_async.compiler.kernelization.schedules import (
    GatherSchedule,
    ScatterAddSchedule,
    ScatterSchedule,
    gather_schedule_candidates,
    scatter_schedule_candidates,
)
from accy_async.compiler.kernelization.sorts import Sort
from accy_async.compiler.semantic import TensorType
from accy_async.dtypes import DType
from accy_async.errors import InvalidType, InvalidValue, UnsupportedOperation
from tests.kernelization.harness import (
    CPU,
    CUDA,
    VULKAN,
    Array,
    check,
    function,
    item,
    run,
    samples,
)

TARGETS = [CPU, CUDA, VULKAN]
PLACES = [
    ((10,), 0, (7,)), ((50, 70), 0, (30,)), ((50, 70), 1, (3, 5)),
    ((3, 400, 5), 1, (90,)), ((5, 3), 0, (0,)), ((4, 1, 3), 1, (6,)),
]  # fmt: skip


def arguments(
    dtype: str, shape: tuple[int, ...], axis: int, at: tuple[int, ...], indices: str
) -> tuple[list[TensorType], list[Array]]:
    updates = shape[:axis] + at + shape[axis + 1 :]
    types = [
        TensorType(dtype, shape),
        TensorType(indices, at),
        TensorType(dtype, updates),
    ]
    arrays = samples(types)
    index = types[1].dtype
    low = -3 if index.is_signed else 0
    high = min(shape[axis] + 3, int(index.maximum))
    drawn = np.random.default_rng(7).integers(low, high, at)
    arrays[1] = drawn.astype(index.numpy)
    return types, arrays


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.format)
@pytest.mark.parametrize("indices", ["i32", "u8", "i64", "u64", "i8"])
@pytest.mark.parametrize(("shape", "axis", "at"), PLACES)
def test_indices_of_any_dtype_inside_and_out(
    target: TargetProfile,
    indices: str,
    shape: tuple[int, ...],
    axis: int,
    at: tuple[int, ...],
) -> None:
    types, given = arguments("i32", shape, axis, at, indices)
    check(
        "gather",
        types[:2],
        lambda f, x, i: f.gather(x, i, axis),
        arguments=given[:2],
        target=target,
    )
    for kind in ("scatter", "scatter_add"):
        check(
            "scatter",
            types,
            lambda f, x, i, u, k=kind: getattr(f, k)(x, i, u, axis),
            arguments=given,
            target=target,
        )


def test_extreme_indices() -> None:
    for name, extremes in (
        ("u64", [0, 2**64 - 1, 2**32, 2**32 + 1]),
        ("i64", [-(2**63), 2**63 - 1, 2**32, -1]),
        ("u32", [0, 2**32 - 1, 2**31, 4]),
    ):
        given = np.array(extremes, TensorType(name, ()).dtype.numpy)
        x, u = np.arange(5, dtype=np.int32), np.arange(10, 14, dtype=np.int32)
        for target in TARGETS:
            check(
                "gather",
                ["i32[5]", f"{name}[4]"],
                lambda f, x, i: f.gather(x, i, 0),
                arguments=[x, given],
                target=target,
            )
            check(
                "scatter",
                ["i32[5]", f"{name}[4]", "i32[4]"],
                lambda f, x, i, u: f.scatter(x, i, u, 0),
                arguments=[x, given, u],
                target=target,
            )


@pytest.mark.parametrize("dtype", list(DType))
def test_dtypes(dtype: DType) -> None:
    types, given = arguments(str(dtype), (9, 33), 0, (40,), "i32")
    check("gather", types[:2], lambda f, x, i: f.gather(x, i, 0), arguments=given[:2])
    check("scatter", types, lambda f, x, i, u: f.scatter(x, i, u, 0), arguments=given)
    if dtype is not DType.BOOL:
        check(
            "scatter",
            types,
            lambda f, x, i, u: f.scatter_add(x, i, u, 0),
            arguments=given,
            roundings=300,
            scale=lambda x, i, u: np.asarray(abs(x).max() + 10 * abs(u).max(), float),
        )


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.format)
def test_sums_are_the_same_bits_for_every_schedule_and_candidate(
    target: TargetProfile,
) -> None:
    types, given = arguments("f32", (30, 70), 0, (400,), "i32")
    of = function(types, lambda f, x, i, u: f.scatter_add(x, i, u, 0))
    results = []
    for plain in scatter_schedule_candidates(70, 30, 400, backend=target.backend):
        schedule = ScatterAddSchedule(**attrs.asdict(plain))
        work = kernelize(item("scatter", of), target, schedule)
        results += [run(work, of, given, candidate)[0] for candidate in range(2)]
    for other in results[1:]:
        np.testing.assert_array_equal(results[0], other)


BY_UPDATE = [
    ("f32", (30, 70), 0, (400,), "i32"), ("f16", (3, 70, 5), 1, (2, 50), "i64"),
    ("bool", (5000,), 0, (300,), "u16"), ("i8", (1, 3), 0, (700,), "i8"),
    ("u64", (4, 1, 3), 1, (6,), "u8"), ("f64", (2, 90), 1, (1,), "u64"),
    ("i32", (3, 9, 5), 1, (80,), "i16"), ("u32", (5000,), 0, (70,), "u32"),
]  # fmt: skip


@pytest.mark.parametrize(("dtype", "shape", "axis", "at", "indices"), BY_UPDATE)
def test_scatters_by_update_give_the_bits_of_updates_in_their_order(
    dtype: str, shape: tuple[int, ...], axis: int, at: tuple[int, ...], indices: str
) -> None:
    types, given = arguments(dtype, shape, axis, at, indices)
    # Numbers of 64 bits, and of 32.
    for kind, make, target in (
        ("scatter", ScatterSchedule, CPU),
        ("scatter_add", ScatterAddSchedule, CUDA),
    )[: 1 if dtype == "bool" else 2]:
        of = function(
            types, lambda f, x, i, u, k=kind: getattr(f, k)(x, f.neg(f.neg(i)), u, axis)
        )
        alone = kernelize(item("scatter", of), target, make(threads=32))
        work = kernelize(item("scatter", of), target, make(threads=64, by_update=True))
        assert len(work.steps) > len(alone.steps) == 1
        (expected,), (actual,) = (run(w, of, given, candidate=1) for w in (alone, work))
        np.testing.assert_array_equal(actual, expected)


def test_scatters_of_many_updates_on_gpus_go_by_update() -> None:
    many = 2**20
    for kind, dtype, extent, updates, steps, words in (
        ("scatter", "bool", many, many, 3, many),
        ("scatter", "f16", 1000, 255, 1, 0), ("scatter", "f16", 1000, 256, 3, 1000),
        ("scatter", "f64", many, 1, 3, many),
        ("scatter_add", "u32", many, many, 2, 0), ("scatter_add", "i32", 9, 8, 1, 0),
        ("scatter_add", "f32", many, many, 19, 7.5 * many),
        ("scatter_add", "i16", many, 2047, 1, 0),
    ):  # fmt: skip
        of = function(
            [f"{dtype}[{extent}]", f"i32[{updates}]", f"{dtype}[{updates}]"],
            lambda f, x, i, u, k=kind: getattr(f, k)(x, i, u, 0),
        )
        for target in (CUDA, VULKAN):
            work = kernelize(item("scatter", of), target)
            assert len(work.steps) == steps
            assert sum(type.byte_size for type in work.scratch) <= 4 * words
        assert len(kernelize(item("scatter", of), CPU).steps) == 1


def test_one_kernel_is_enough_where_there_is_nothing_to_do() -> None:
    for types in (
        ["f32[0]", "i32[3]", "f32[3]"],
        ["f32[3]", "i32[0]", "f32[0]"],
        ["f32[3,0]", "i32[2]", "f32[2,0]"],
    ):
        work = check(
            "scatter",
            types,
            lambda f, x, i, u: f.scatter(x, i, u, 0),
            target=CUDA,
            schedule=ScatterSchedule(threads=32, by_update=True),
        )
        assert len(work.steps) == 1


def test_digits_are_of_the_least_base_that_takes_no_pass_more() -> None:
    for bound in (1, 2, 64, 65, 4096, 4097, 33**4, 33**4 + 1, 2**20, 2**30):
        sort = Sort(count=1000, bound=bound)
        assert 1 <= sort.base <= 64
        assert (sort.base - 1) ** sort.passes < bound <= sort.base**sort.passes
        assert bound > 64 ** (sort.passes - 1) or sort.passes == 1
        assert sort.base**sort.passes <= 2**32
        assert (sort.stretches - 1) * sort.each < 1000 <= sort.stretches * sort.each


def test_every_gather_schedule_with_work_around() -> None:
    for target in TARGETS:
        for schedule in gather_schedule_candidates(900, backend=target.backend):
            check(
                "gather",
                ["f32[50,30]", "i32[30]"],
                lambda f, x, i: f.mul(f.gather(f.neg(x), f.add(i, 1), 0), 2.0),
                target=target,
                schedule=schedule,
            )


def test_wrong_schedules_and_functions_are_refused() -> None:
    types = ["f32[5]", "i32[2]", "f32[2]"]
    adds = function(types, lambda f, x, i, u: f.scatter_add(x, i, u, 0))
    sets = function(types, lambda f, x, i, u: f.scatter(x, i, u, 0))
    with pytest.raises(InvalidType, match="ScatterAddSchedule"):
        kernelize(item("scatter", adds), CPU, ScatterSchedule(threads=32))
    with pytest.raises(InvalidType, match="ScatterSchedule"):
        kernelize(item("scatter", sets), CPU, ScatterAddSchedule(threads=32))
    with pytest.raises(InvalidType, match="ScatterSchedule"):
        kernelize(item("scatter", sets), CPU, GatherSchedule(threads=32))
    with pytest.raises(InvalidValue, match=r"ScatterAddSchedule\.segments"):
        ScatterAddSchedule(threads=32, segments=2, by_update=True)
    after = function(types, lambda f, x, i, u: f.neg(f.scatter(x, i, u, 0)))
    with pytest.raises(UnsupportedOperation, match="its only result"):
        kernelize(item("scatter", after), CPU)
