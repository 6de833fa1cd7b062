"""Contractions against the reference.

Bound: 60 roundings of the sum of the products' magnitudes, where a sum of k products
has at most 2 k roundings, most of which cancel.
"""

from __future__ import annotations

import numpy as np
import pytest

from accy_async.artifact.tiles import LaunchTileKind
from accy_async.compiler.kernelization import TargetProfile, kernelize
from accy_async.compiler.kernelization.schedules import (
    MatrixProductSchedule,
    matrix_product_thread_candidates_for_extents,
)
from accy_async.compiler.semantic import FunctionBuilder, Value
from accy_async.dtypes import DType
from accy_async.errors import UnsupportedOperation
from tests.kernelization.harness import (
    CPU,
    CUDA,
    METAL,
    VULKAN,
    Array,
    check,
    function,
    item,
)

TARGETS = [CPU, CUDA, VULKAN]
SIZES = [
    (1, 1, 1), (3, 17, 5), (16, 16, 16), (5, 3, 7), (17, 1025, 33), (100, 600, 1),
    (1, 600, 100), (0, 3, 4), (3, 0, 4), (130, 64, 200), (64, 40, 70), (97, 513, 17),
]  # fmt: skip


def products(a: Array, b: Array) -> Array:
    return np.abs(a).astype(np.float64) @ np.abs(b).astype(np.float64)


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.format)
@pytest.mark.parametrize(("m", "k", "n"), SIZES)
def test_sizes(target: TargetProfile, m: int, k: int, n: int) -> None:
    for candidate in (0, 3):
        check(
            "dot_general",
            [f"f32[{m},{k}]", f"f32[{k},{n}]"],
            lambda f, a, b: f.matmul(a, b),
            roundings=60,
            scale=products,
            target=target,
            candidate=candidate,
        )


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.format)
@pytest.mark.parametrize("dtype", [d for d in DType if d is not DType.BOOL])
def test_dtypes(target: TargetProfile, dtype: DType) -> None:
    """Deeper than a stretch of columns in shared memory: partial sums stay wide."""
    check(
        "dot_general",
        [f"{dtype}[9,1100]", f"{dtype}[1100,20]"],
        lambda f, a, b: f.matmul(a, b),
        roundings=60,
        scale=products,
        target=target,
    )


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.format)
@pytest.mark.parametrize("dtype", [DType.F16, DType.BF16])
def test_narrow_operands_with_a_wide_result(
    target: TargetProfile, dtype: DType
) -> None:
    def wide(f: FunctionBuilder, a: Value, b: Value) -> Value:
        return f.dot_general(a, b, [1], [0], accumulate=DType.F32, result=DType.F32)

    check(
        "dot_general",
        [f"{dtype}[33,70]", f"{dtype}[70,20]"],
        wide,
        roundings=60,
        scale=products,
        target=target,
    )


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.format)
def test_batches_and_contracting_axes_anywhere(target: TargetProfile) -> None:
    check(
        "dot_general",
        ["f32[3,20,30]", "f32[3,25,30]"],
        lambda f, a, b: f.dot_general(a, b, [2], [2], [0], [0]),
        roundings=60,
        scale=lambda a, b: np.einsum("bmk,bnk->bmn", abs(a), abs(b)),
        target=target,
    )
    check(
        "dot_general",
        ["f32[4,3,5,6]", "f32[6,7,4,5]"],
        lambda f, a, b: f.dot_general(a, b, [3, 2], [0, 3], [0], [2]),
        roundings=60,
        scale=lambda a, b: np.einsum("bmlk,knbl->bmn", abs(a), abs(b)),
        target=target,
    )
    check(
        "dot_general",
        ["f32[5,2,3]", "f32[4,7]"],
        lambda f, a, b: f.dot_general(a, b, [], []),
        roundings=1,
        target=target,
    )
    check(
        "dot_general",
        ["f32[2,60,3]", "f32[60]"],
        lambda f, a, b: f.dot_general(a, b, [1], [0]),
        roundings=60,
        scale=lambda a, b: np.einsum("xky,k->xy", abs(a), abs(b)),
        target=target,
    )


VECTORS = [
    ("mk,k->m", [70, 90], [90], ([1], [0], [], [])),
    ("k,kn->n", [90], [90, 70], ([0], [0], [], [])),
    ("k,nk->n", [90], [70, 90], ([0], [1], [], [])),
    ("k,k->", [70000], [70000], ([0], [0], [], [])),
    ("bka,cbk->bac", [3, 90, 5], [1, 3, 90], ([1], [2], [0], [1])),
    ("bjk,kbj->b", [3, 4, 90], [90, 3, 4], ([2, 1], [0, 2], [0], [1])),
    ("a,b->ab", [2000], [1], ([], [], [], [])),
]


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.format)
@pytest.mark.parametrize("dtype", ["f32", "f16", "i32"])
@pytest.mark.parametrize(("letters", "lhs", "rhs", "axes"), VECTORS)
def test_products_with_vectors_go_as_sums(
    target: TargetProfile,
    dtype: str,
    letters: str,
    lhs: list[int],
    rhs: list[int],
    axes: tuple[list[int], ...],
) -> None:
    work = check(
        "dot_general",
        [f"{dtype}{lhs}", f"{dtype}{rhs}"],
        lambda f, a, b: f.dot_general(a, b, *axes),
        roundings=60,
        scale=lambda a, b: np.einsum(letters, *(abs(x).astype(float) for x in (a, b))),
        target=target,
    )
    assert work.step.tile.kind is LaunchTileKind.ROW
    assert work.step.kernel.name == "accy_dot_general_0_v1"


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.format)
def test_work_before_and_after(target: TargetProfile) -> None:
    def layer(f: FunctionBuilder, x: Value, w: Value, shift: Value) -> list[Value]:
        product = f.matmul(f.abs(x), f.transpose(w))
        moved = f.add(product, f.broadcast(shift, (40, 50)))
        return [f.maximum(moved, 0.0), f.compare(moved, 0.0, "gt")]

    whole = np.random.default_rng(4).integers(-4, 5, (3, 50, 50)).astype(np.float32)
    check(
        "dot_general",
        ["f32[40,30]", "f32[50,30]", "f32[50]"],
        layer,
        arguments=[whole[0, :40, :30], whole[1, :, :30], whole[2, 0]],
        target=target,
    )


@pytest.mark.parametrize("target", [CUDA, VULKAN, METAL], ids=lambda t: t.format)
def test_every_thread_block_gives_the_same_bits(target: TargetProfile) -> None:
    whole = np.random.default_rng(5).integers(-9, 9, (2, 40, 40)).astype(np.float32)
    candidates = matrix_product_thread_candidates_for_extents(
        40, 33, backend=target.backend
    )
    assert len(candidates) > 1
    for threads in candidates:
        work = check(
            "dot_general",
            ["f32[40,21]", "f32[21,33]"],
            lambda f, a, b: f.matmul(a, b),
            arguments=[whole[0, :, :21], whole[1, :21, :33]],
            target=target,
            schedule=MatrixProductSchedule(thread_blocks=threads),
        )
        assert work.step.kernel.threadgroup == (threads.x, threads.y, 1)


@pytest.mark.parametrize(
    ("target", "lhs", "rhs", "axes"),
    [
        (CUDA, "f32[1152,16]", "f32[16,1408]", ([1], [0])),  # tiles divide them
        (CUDA, "f32[1153,10]", "f32[10,1409]", ([1], [0])),
        (CUDA, "f32[1152,18]", "f32[1410,18]", ([1], [1])),
        (CUDA, "f32[7,1153]", "f32[7,1408]", ([0], [0])),
        (VULKAN, "f32[1153,10]", "f32[10,1409]", ([1], [0])),
    ],
)
def test_large_results_take_several_rows_and_columns_a_thread(
    target: TargetProfile, lhs: str, rhs: str, axes: tuple[list[int], list[int]]
) -> None:
    """However the operands lie in memory, and whether tiles divide them or not."""
    work = check(
        "dot_general",
        [lhs, rhs],
        lambda f, a, b: f.dot_general(a, b, *axes),
        roundings=60,
        scale=lambda a, b: np.tensordot(
            np.abs(a).astype(np.float64), np.abs(b).astype(np.float64), axes
        ),
        target=target,
    )
    assert (work.step.tile.m, work.step.tile.n, work.step.tile.k) == (128, 128, 8)


def test_large_results_of_f64_have_smaller_tiles() -> None:
    work = check(
        "dot_general",
        ["f64[641,20]", "f64[20,769]"],
        lambda f, a, b: f.add(f.matmul(f.exp(a), b), 1.0),
        roundings=200,
        scale=lambda a, b: products(np.exp(a), b) + 1,
        target=CUDA,
    )
    assert (work.step.tile.m, work.step.tile.n, work.step.tile.k) == (64, 64, 16)


def test_what_dot_general_work_cannot_hold_is_refused() -> None:
    def twice(f: FunctionBuilder, a: Value) -> Value:
        return f.matmul(f.matmul(a, a), a)

    def moved(f: FunctionBuilder, a: Value) -> Value:
        return f.transpose(f.matmul(a, a))

    def reduced(f: FunctionBuilder, a: Value) -> list[Value]:
        return [f.matmul(a, a), f.reduce(a, "sum", [0])]

    for make, why in (
        (twice, "one contraction, not 2"),
        (moved, "moves elements"),
        (reduced, "reduce is no elementwise"),
    ):
        of = function(["f32[4,4]"], make)
        with pytest.raises(UnsupportedOperation, match=why):
            kernelize(item("dot_general", of), CPU)
