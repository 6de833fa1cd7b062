"""Elementwise work against the reference, for every operation, dtype and odd size.

Bounds: a result of one operation is correctly rounded, so it equals the reference's;
but for exp, log and tanh, whose error is below 4 roundings (2 units in the last place,
and a rounding to the result's dtype).
"""

from __future__ import annotations

import numpy as np
import pytest

from accy_async.compiler.kernelization import MathTier, kernelize
from accy_async.compiler.semantic import (
    BinaryKind,
    ComparisonKind,
    FunctionBuilder,
    TensorType,
    UnaryKind,
    Value,
    evaluate,
)
from accy_async.dtypes import DType
from accy_async.errors import UnsupportedOperation
from tests.kernelization.harness import (
    CPU,
    CUDA,
    FLOATS,
    METAL,
    VULKAN,
    check,
    function,
    item,
    profile,
    run,
    samples,
)

SIZES = (0, 1, 3, 17, 1025, 4096)
TRANSCENDENTAL = (UnaryKind.EXP, UnaryKind.LOG, UnaryKind.TANH)


@pytest.mark.parametrize("target", [CPU, CUDA, VULKAN, METAL], ids=lambda t: t.format)
@pytest.mark.parametrize("size", SIZES)
def test_any_size_is_covered_once_by_any_candidate(target: object, size: int) -> None:
    for candidate in range(4):
        check(
            "elementwise",
            [f"f32[{size}]"] * 2,
            lambda f, a, b: f.add(a, b),
            target=target,  # type: ignore[arg-type]
            candidate=candidate,
        )


@pytest.mark.parametrize("dtype", list(DType))
def test_unary_operations(dtype: DType) -> None:
    for kind in UnaryKind:
        if not kind.takes(dtype):
            continue
        rounded = kind in TRANSCENDENTAL
        check(
            "elementwise",
            [TensorType(dtype, (7, 17))],
            lambda f, a, k=kind: f.unary(k, a),
            roundings=4 if rounded else 0,
        )


@pytest.mark.parametrize("dtype", list(DType))
def test_binary_operations_and_comparisons(dtype: DType) -> None:
    types = [TensorType(dtype, (131,))] * 2
    for kind in BinaryKind:
        if kind.takes(dtype):
            check("elementwise", types, lambda f, a, b, k=kind: f.binary(k, a, b))
    for comparison in ComparisonKind:
        if comparison.takes(dtype):
            check(
                "elementwise", types, lambda f, a, b, k=comparison: f.compare(a, b, k)
            )


@pytest.mark.parametrize("dtype", [DType.F16, DType.BF16, DType.F32, DType.F64])
def test_nans_infinities_and_zeros_of_both_signs(dtype: DType) -> None:
    odd = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.5, -2.5])
    a, b = (side.reshape(-1) for side in np.meshgrid(odd, odd))
    carrier = np.float32 if dtype is DType.BF16 else dtype.numpy
    given = [a.astype(carrier), b.astype(carrier)]
    types = [TensorType(dtype, a.shape)] * 2
    for kind in (BinaryKind.MINIMUM, BinaryKind.MAXIMUM, BinaryKind.DIVIDE):
        of = function(types, lambda f, x, y, k=kind: f.binary(k, x, y))
        work = kernelize(item("elementwise", of), CPU)
        (actual,) = run(work, of, given)
        (wanted,) = evaluate(of, given)
        np.testing.assert_array_equal(actual, wanted)
        if kind is not BinaryKind.DIVIDE:
            both = (given[0] == 0) & (given[1] == 0)
            negative = np.signbit(given[0]), np.signbit(given[1])
            sign = np.logical_or if kind is BinaryKind.MINIMUM else np.logical_and
            np.testing.assert_array_equal(
                np.signbit(actual[both]), sign(*negative)[both]
            )


@pytest.mark.parametrize("source", list(DType))
def test_conversions(source: DType) -> None:
    for target in DType:
        check(
            "elementwise",
            [TensorType(source, (67,))],
            lambda f, a, t=target: f.convert(a, t),
        )


def test_truth_values_are_bytes_of_0_and_1() -> None:
    of = function(["f32[9]", "f32[9]"], lambda f, a, b: f.compare(a, b, "lt"))
    work = kernelize(item("elementwise", of), CPU)
    given = samples(of.parameter_types)
    (actual,) = run(work, of, given)
    assert actual.dtype == np.bool_
    assert set(actual.view(np.uint8).tolist()) <= {0, 1}
    assert work.step.kernel.buffers[0].dtype.size_bytes == 1


def test_select_constants_and_iota() -> None:
    def make(f: FunctionBuilder, a: Value, b: Value) -> Value:
        counted = f.iota(TensorType("f32", (5, 40)), 1)
        chosen = f.select(f.compare(a, 0.0, "gt"), f.mul(b, 2.0), counted)
        table = f.constant(np.arange(5, dtype=np.float32))
        return f.add(chosen, f.broadcast(table, (5, 40), [0]))

    check("elementwise", ["f32[5,40]", "f32[5,40]"], make)


@pytest.mark.parametrize("dtype", list(DType))
@pytest.mark.parametrize("shape", [(5, 7), (9, 140), (3, 5, 33)])
def test_moves_of_elements(dtype: DType, shape: tuple[int, ...]) -> None:
    type = TensorType(dtype, shape)
    rank = len(shape)
    low, high = [1] * rank, [2, *[0] * (rank - 1)]
    starts, limits = [1] * rank, list(shape)
    check("elementwise", [type], lambda f, a: f.transpose(a))
    check("elementwise", [type], lambda f, a: f.reverse(a, range(rank)))
    check("elementwise", [type], lambda f, a: f.slice(a, starts, limits, [2] * rank))
    check("elementwise", [type], lambda f, a: f.broadcast(a, (4, *shape)))
    check(
        "elementwise",
        [type],
        lambda f, a: f.reshape(f.transpose(a), [a.type.element_count]),
    )
    check(
        "elementwise",
        [type, TensorType(dtype, ())],
        lambda f, a, v: f.pad(a, low, high, v),
    )
    check("elementwise", [type, type], lambda f, a, b: f.concatenate([a, b, a], 1))


def test_moves_within_moves() -> None:
    def make(f: FunctionBuilder, a: Value, b: Value) -> Value:
        padded = f.pad(f.transpose(a), [2, 0], [0, 3], 1.5)
        joined = f.concatenate([padded, f.reverse(padded, [0])], 0)
        column = f.broadcast(f.reshape(b, (1, 9)), joined.shape)
        return f.slice(f.mul(joined, column), [1, 2], [17, 9], [3, 2])

    check("elementwise", ["f32[6,7]", "f32[9]"], make)


def test_operands_without_elements() -> None:
    check("elementwise", ["f32[0]", "f32[]"], lambda f, a, v: f.pad(a, [3], [2], v))
    check(
        "elementwise",
        ["f32[0,4]", "f32[3,4]"],
        lambda f, a, b: f.concatenate([a, b, a], 0),
    )


def test_several_results_of_one_shape() -> None:
    check(
        "elementwise",
        ["f32[300]", "f32[300]"],
        lambda f, a, b: [f.add(a, b), f.compare(a, b, "le"), a],
    )


@pytest.mark.parametrize("dtype", FLOATS)
def test_fused_products_round_once(dtype: DType) -> None:
    """|a b| + |c| bounds the error of both roundings, or of the one."""
    tier = profile(tier=MathTier.FUSED)
    work = check(
        "elementwise",
        [TensorType(dtype, (500,))] * 3,
        lambda f, a, b, c: f.add(f.mul(a, b), c),
        roundings=2,
        scale=lambda a, b, c: np.abs(a.astype(np.float64) * b) + np.abs(c),
        target=tier,
    )
    fused = "MultiplyAdd" in repr(work.step.kernel.body)
    assert fused is (dtype in (DType.F32, DType.F64))


def test_large_arrays_take_several_elements_a_thread_on_gpus() -> None:
    size = 2**20 + 77
    for target in (CUDA, CPU):
        work = check(
            "elementwise",
            [f"f32[{size}]"] * 2,
            lambda f, a, b: f.mul(f.add(a, b), a),
            target=target,
        )
        each = work.step.launch_resources.candidates[0].elements_per_thread
        assert each == (4 if target is CUDA else 1)


@pytest.mark.parametrize(
    ("dtype", "columns", "takes_neighbours"),
    [("f32", 516, True), ("f32", 515, False), ("f16", 1000, True)],
)
def test_threads_of_large_rows_take_neighbours_where_rows_begin_so(
    dtype: str, columns: int, *, takes_neighbours: bool
) -> None:
    work = check(
        "elementwise",
        [f"{dtype}[2100,{columns}]", f"{dtype}[{columns}]"],
        lambda f, a, b: f.add(a, f.broadcast(b, a.shape)),
        target=CUDA,
    )
    assert work.step.kernel.takes_neighbours is takes_neighbours


def test_what_is_not_elementwise_is_refused_by_name() -> None:
    of = function(["f32[4,4]"], lambda f, a: f.reduce(a, "sum", [0]))
    with pytest.raises(UnsupportedOperation, match="reduce is no elementwise"):
        kernelize(item("elementwise", of), CPU)
    of = function(["f32[4]", "f32[5]"], lambda f, a, b: [f.neg(a), f.neg(b)])
    with pytest.raises(UnsupportedOperation, match="results of one shape"):
        kernelize(item("elementwise", of), CPU)
    of = function(
        ["f32[100]"], lambda f, a: f.add(a, f.constant(np.arange(100.0, dtype="f4")))
    )
    with pytest.raises(UnsupportedOperation, match="too many elements"):
        kernelize(item("elementwise", of), CPU)
