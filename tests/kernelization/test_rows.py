"""Reductions, row pipelines and losses against the reference.

Bounds, in roundings of the result's dtype: a sum of n elements, in the order that a
schedule gives it, has about n / threads + log2(threads) additions one after another,
of whose roundings most cancel: 60 of the sum of magnitudes are allowed. Minimum and
maximum are exact. Products: one rounding a factor. Softmax and norms: 40 and 100 of the
largest intermediate value.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest

from accy_async.compiler.kernelization import TargetProfile, kernelize
from accy_async.compiler.kernelization.schedules import (
    GeneratedRowPipelineSchedule,
    RowSparseCrossEntropySchedule,
    row_pipeline_schedule_candidates,
)
from accy_async.compiler.semantic import (
    FunctionBuilder,
    ReductionKind,
    TensorType,
    Value,
)
from accy_async.dtypes import DType
from accy_async.errors import InvalidType, UnsupportedOperation
from tests.kernelization.harness import (
    CPU,
    CUDA,
    FLOATS,
    VULKAN,
    Array,
    check,
    function,
    item,
    run,
)

SHAPES = (
    ((256,), (0,)),
    ((1,), (0,)),
    ((5, 7), (1,)),
    ((5, 7), (0,)),
    ((40, 5000), (1,)),
    ((5000, 40), (0,)),
    ((3, 4, 5), (0, 2)),
    ((6, 1000, 8), (1,)),
    ((17, 3), (1,)),
    ((100, 3), (1,)),
    ((3, 0), (1,)),
    ((0, 3), (1,)),
    ((5, 7), ()),
    ((1, 1), (0, 1)),
    ((70000,), (0,)),
    ((3, 70000), (1,)),
)


def magnitudes(axes: tuple[int, ...], keepdims: bool = False) -> Callable[..., Array]:
    def scale(a: Array) -> Array:
        wide = np.abs(a.astype(np.float64))
        return np.asarray(wide.sum(axis=axes, keepdims=keepdims))

    return scale


@pytest.mark.parametrize("target", [CPU, CUDA, VULKAN], ids=lambda t: t.format)
@pytest.mark.parametrize(("shape", "axes"), SHAPES)
def test_sums_and_maxima(
    target: TargetProfile, shape: tuple[int, ...], axes: tuple[int, ...]
) -> None:
    type = TensorType("f32", shape)
    for candidate in (0, 1):
        check(
            "reduction",
            [type],
            lambda f, a: f.reduce(a, "sum", axes),
            roundings=60,
            scale=magnitudes(axes),
            target=target,
            candidate=candidate,
        )
    if all(shape[axis] for axis in axes):
        check(
            "reduction",
            [type],
            lambda f, a: f.reduce(a, "maximum", axes),
            target=target,
        )


@pytest.mark.parametrize("dtype", list(DType))
@pytest.mark.parametrize("kind", list(ReductionKind))
def test_kinds_and_dtypes(kind: ReductionKind, dtype: DType) -> None:
    if not kind.takes(dtype):
        return
    for (shape, axes), keepdims in itertools.product(
        (((3, 41), (1,)), ((37, 12), (0,))), (False, True)
    ):
        if kind is ReductionKind.PRODUCT:
            shape = (6, 6)
        exact = kind in (ReductionKind.MINIMUM, ReductionKind.MAXIMUM)
        wide = magnitudes(axes, keepdims)
        check(
            "reduction",
            [TensorType(dtype, shape)],
            lambda f, a, x=axes, k=keepdims: f.reduce(a, kind, x, keepdims=k),
            roundings=0 if exact else 60,
            scale=None if kind is ReductionKind.PRODUCT else wide,
        )


@pytest.mark.parametrize("target", [CPU, CUDA], ids=lambda t: t.format)
@pytest.mark.parametrize("shape", [(300,), (70000,), (4, 300), (300, 20)])
def test_minimum_and_maximum_pass_nans_on(
    target: TargetProfile, shape: tuple[int, ...]
) -> None:
    given = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    given.reshape(-1)[given.size // 3] = np.nan
    for kind in ("minimum", "maximum"):
        check(
            "reduction",
            [TensorType("f32", shape)],
            lambda f, a, k=kind: f.reduce(a, k, [0]),
            arguments=[given],
            target=target,
        )


def test_nothing_reduces_to_the_start_value() -> None:
    for kind, start in (("sum", 0), ("product", 1)):
        for target in (CPU, CUDA):
            of = function(["f32[3,0]"], lambda f, a, k=kind: f.reduce(a, k, [1]))
            work = kernelize(item("reduction", of), target)
            (actual,) = run(work, of, [np.zeros((3, 0), np.float32)])
            np.testing.assert_array_equal(actual, np.full(3, start, np.float32))


@pytest.mark.parametrize("target", [CPU, CUDA], ids=lambda t: t.format)
@pytest.mark.parametrize("shape", [(4, 9), (2, 300000), (9, 5000)])
def test_work_before_and_after(target: TargetProfile, shape: tuple[int, ...]) -> None:
    def norm(f: FunctionBuilder, a: Value, b: Value) -> list[Value]:
        product = f.mul(a, f.abs(b))
        total = f.reduce(product, "sum", [1])
        return [f.sqrt(f.abs(total)), f.reduce(f.convert(a, "f32"), "maximum", [1])]

    check(
        "reduction",
        [TensorType("f32", shape)] * 2,
        norm,
        roundings=200,
        scale=lambda a, b: np.abs(a * b).sum(axis=1, dtype=np.float64) + 10,
        target=target,
    )


def test_narrow_floats_are_summed_wide_and_rounded_once() -> None:
    """4096 ones and a half: f16 sums would stop at 2048."""
    for dtype in (DType.F16, DType.BF16):
        carrier = np.float32 if dtype is DType.BF16 else np.float16
        of = function(
            [TensorType(dtype, (4096,))], lambda f, a: f.reduce(a, "sum", [0])
        )
        work = kernelize(item("reduction", of), CPU)
        (actual,) = run(work, of, [np.ones(4096, carrier)])
        assert float(actual) == 4096.0


@pytest.mark.parametrize("target", [CPU, CUDA], ids=lambda t: t.format)
@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize(
    ("shape", "axis"),
    [((10, 100), 1), ((10, 100), 0), ((7, 1025), 1), ((3, 5, 6), 2), ((100, 5), 1),
     ((2, 4096), 1), ((1, 1), 1), ((3, 17, 33), 1)],
)  # fmt: skip
def test_softmax(
    target: TargetProfile, log: bool, shape: tuple[int, ...], axis: int
) -> None:
    check(
        "row_pipeline",
        [TensorType("f32", shape)],
        lambda f, a: f.softmax(a, axis, log=log),
        roundings=40,
        scale=lambda a: np.asarray(np.abs(a).max() + 9.0 if log else 1.0),
        target=target,
    )


@pytest.mark.parametrize("dtype", FLOATS)
def test_softmax_of_every_float(dtype: DType) -> None:
    check(
        "row_pipeline",
        [TensorType(dtype, (5, 65))],
        lambda f, a: f.softmax(a),
        roundings=40,
        scale=lambda a: np.asarray(1.0),
    )


def test_softmax_of_large_numbers_does_not_overflow() -> None:
    given = np.array([[1e4, 1e4, -1e4], [-3e38, 0, 3e38]], np.float32)
    check(
        "row_pipeline",
        ["f32[2,3]"],
        lambda f, a: f.softmax(a),
        roundings=40,
        scale=lambda a: np.asarray(1.0),
        arguments=[given],
    )


def layer_norm(f: FunctionBuilder, x: Value, gain: Value, shift: Value) -> Value:
    mean = f.reduce(x, "mean", [1], keepdims=True)
    centred = f.sub(x, f.broadcast(mean, x.shape))
    variance = f.reduce(f.mul(centred, centred), "mean", [1], keepdims=True)
    scale = f.sqrt(f.add(variance, 1e-5))
    normal = f.div(centred, f.broadcast(scale, x.shape))
    return f.add(f.mul(normal, f.broadcast(gain, x.shape)), f.broadcast(shift, x.shape))


def rms_norm(f: FunctionBuilder, x: Value, gain: Value) -> list[Value]:
    square = f.reduce(f.mul(x, x), "mean", [1])
    root = f.sqrt(f.add(square, 1e-5))
    wide = f.broadcast(root, x.shape, [0])
    return [f.mul(f.div(x, wide), f.broadcast(gain, x.shape)), root]


@pytest.mark.parametrize("target", [CPU, CUDA, VULKAN], ids=lambda t: t.format)
@pytest.mark.parametrize("shape", [(9, 300), (3, 17), (1, 4096), (70, 6)])
def test_norms(target: TargetProfile, shape: tuple[int, int]) -> None:
    x, row = TensorType("f32", shape), TensorType("f32", shape[1:])
    check(
        "row_pipeline",
        [x, row, row],
        layer_norm,
        roundings=100,
        scale=lambda x, g, s: np.asarray(10.0),
        target=target,
    )
    check(
        "row_pipeline",
        [x, row],
        rms_norm,
        roundings=100,
        scale=lambda x, g: np.asarray(10.0),
        target=target,
    )


@pytest.mark.parametrize("target", [CPU, CUDA], ids=lambda t: t.format)
@pytest.mark.parametrize("labels", ["i32", "u8", "i64"])
def test_cross_entropy_and_labels_outside(target: TargetProfile, labels: str) -> None:
    for rows, classes in ((1, 1), (10, 50), (3, 300)):
        logits = np.random.default_rng(2).standard_normal((rows, classes))
        chosen = np.random.default_rng(3).integers(0, classes, rows)
        if rows > 1 and classes < 200:
            chosen[0] = classes + 1
        numpy = TensorType(labels, ()).dtype.numpy
        check(
            "cross_entropy",
            [f"f32[{rows},{classes}]", f"{labels}[{rows}]"],
            lambda f, a, b: f.row_sparse_cross_entropy(a, b),
            arguments=[logits.astype(np.float32), chosen.astype(numpy)],
            roundings=60,
            scale=lambda a, b: np.asarray(10.0),
            target=target,
        )


@pytest.mark.parametrize("target", [CPU, CUDA], ids=lambda t: t.format)
def test_every_schedule_gives_the_same_softmax(target: TargetProfile) -> None:
    for schedule in row_pipeline_schedule_candidates(500, backend=target.backend):
        check(
            "row_pipeline",
            ["f32[3,500]"],
            lambda f, a: f.softmax(a),
            roundings=40,
            scale=lambda a: np.asarray(1.0),
            target=target,
            schedule=schedule,
        )


@pytest.mark.parametrize("rows", [1, 7, 100])
def test_blocks_of_gpus_take_several_short_rows_at_once(rows: int) -> None:
    for columns in (40, 100, 257):
        work = check(
            "row_pipeline",
            [f"f32[{rows},{columns}]", f"f32[{columns}]"],
            rms_norm,
            roundings=100,
            scale=lambda x, g: np.asarray(10.0),
            target=CUDA,
        )
        assert work.step.tile.m == min(
            8 if columns < 256 else 4, 1 << (rows - 1).bit_length()
        )


def test_schedules_of_other_kinds_are_refused() -> None:
    of = function(["f32[3,50]"], lambda f, a: f.softmax(a))
    with pytest.raises(InvalidType, match="GeneratedRowPipelineSchedule"):
        kernelize(
            item("row_pipeline", of), CPU, RowSparseCrossEntropySchedule(threads=32)
        )
    of = function(["f32[3]"], lambda f, a: f.neg(a))
    with pytest.raises(InvalidType, match="None"):
        kernelize(item("elementwise", of), CPU, GeneratedRowPipelineSchedule(threads=1))


def test_what_goes_across_rows_is_refused() -> None:
    def transposed(f: FunctionBuilder, a: Value) -> Value:
        return f.transpose(f.sub(a, f.broadcast(f.reduce(a, "sum", [0]), a.shape)))

    def two_axes(f: FunctionBuilder, a: Value) -> list[Value]:
        return [f.reduce(a, "sum", [0]), f.reduce(a, "sum", [1])]

    for make, why in ((transposed, "moves elements"), (two_axes, "other axes")):
        of = function(["f32[5,5]"], make)
        with pytest.raises(UnsupportedOperation, match=why):
            kernelize(item("row_pipeline", of), CPU)
    of = function(["f32[5,5]"], lambda f, a: f.neg(a))
    with pytest.raises(UnsupportedOperation, match="reduces nothing"):
        kernelize(item("reduction", of), CPU)
