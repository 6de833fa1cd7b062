"""Scans against the reference.

Bound: 60 roundings of the sum of the line's magnitudes; minimum and maximum are exact.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from accy_async.compiler.kernelization import TargetProfile, kernelize
from accy_async.compiler.kernelization.schedules import scan_schedule_candidates
from accy_async.compiler.semantic import ScanKind, TensorType
from accy_async.dtypes import DType
from accy_async.errors import UnsupportedOperation
from tests.kernelization.harness import CPU, CUDA, VULKAN, Array, check, function, item

LINES = [
    ((1,), 0), ((17,), 0), ((1025,), 0), ((5, 300), 1), ((300, 20), 0),
    ((3, 40, 7), 1), ((0, 3), 0), ((3, 0), 1), ((30000,), 0), ((2, 20000), 1),
]  # fmt: skip
MANY_KINDS = (DType.F16, DType.F32, DType.I32, DType.U8)


def magnitudes(axis: int) -> object:
    def scale(a: Array) -> Array:
        wide = np.abs(a.astype(np.float64))
        return np.asarray(wide.sum(axis=axis, keepdims=True) + 0 * wide)

    return scale


@pytest.mark.parametrize(
    ("target", "shape", "axis"),
    [
        *((t, *line) for t in (CPU, CUDA) for line in LINES),
        (VULKAN, (3, 40, 7), 1),  # as CUDA's, but that none takes neighbours
        (VULKAN, (30000,), 0),
    ],
)
def test_lines(target: TargetProfile, shape: tuple[int, ...], axis: int) -> None:
    for exclusive, reverse in itertools.product((False, True), (False, True)):
        check(
            "scan",
            [TensorType("f32", shape)],
            lambda f, a, e=exclusive, r=reverse: f.scan(
                a, "sum", axis, exclusive=e, reverse=r
            ),
            roundings=60,
            scale=magnitudes(axis),  # type: ignore[arg-type]
            target=target,
            candidate=int(reverse),
        )


@pytest.mark.parametrize("target", [CPU, CUDA], ids=lambda t: t.format)
@pytest.mark.parametrize("dtype", [d for d in DType if d is not DType.BOOL])
def test_kinds_and_dtypes(target: TargetProfile, dtype: DType) -> None:
    kinds = ScanKind if dtype in MANY_KINDS else (ScanKind.SUM, ScanKind.MAXIMUM)
    for kind in kinds:
        extent = 8 if kind is ScanKind.PRODUCT else 12000
        exact = kind in (ScanKind.MINIMUM, ScanKind.MAXIMUM)
        wide = None if kind is ScanKind.PRODUCT else magnitudes(1)
        check(
            "scan",
            [TensorType(dtype, (2, extent))],
            lambda f, a, k=kind: f.scan(a, k, 1, exclusive=k is ScanKind.PRODUCT),
            roundings=0 if exact else 60,
            scale=wide,  # type: ignore[arg-type]
            target=target,
        )


@pytest.mark.parametrize("target", [CPU, CUDA], ids=lambda t: t.format)
def test_minimum_passes_nans_on(target: TargetProfile) -> None:
    given = np.arange(3000, dtype=np.float32)[::-1].copy()
    given[1200] = np.nan
    check(
        "scan",
        ["f32[3000]"],
        lambda f, a: f.scan(a, "minimum", 0),
        arguments=[given],
        target=target,
    )


@pytest.mark.parametrize("target", [CPU, CUDA], ids=lambda t: t.format)
def test_every_schedule_with_work_before(target: TargetProfile) -> None:
    for schedule in scan_schedule_candidates(3, 700, backend=target.backend):
        check(
            "scan",
            ["i32[3,700]"],
            lambda f, a: f.scan(f.mul(a, 3), "sum", 1),
            target=target,
            schedule=schedule,
        )


def test_few_long_lines_are_cut_on_gpus() -> None:
    of = function(["f32[1000000]"], lambda f, a: f.scan(a, "sum", 0))
    assert len(kernelize(item("scan", of), CUDA).steps) == 2
    assert len(kernelize(item("scan", of), CPU).steps) == 1


def test_many_lines_whose_elements_are_near_have_a_block_each_on_gpus() -> None:
    for shape, axis, blocks in (("5000,200", 1, 5000), ("200,5000", 0, 79)):
        of = function([f"f32[{shape}]"], lambda f, a, x=axis: f.scan(a, "sum", x))
        step = kernelize(item("scan", of), CUDA).step
        assert step.launch.grid == (blocks, 1, 1)
        assert step.kernel.threads == 64


def test_every_schedule_fits_the_shared_memory_that_most_devices_have() -> None:
    of = function(["f64[100000]"], lambda f, a: f.scan(a, "sum", 0))
    for schedule in scan_schedule_candidates(1, 100_000, backend=VULKAN.backend):
        for step in kernelize(item("scan", of), VULKAN, schedule).steps:
            assert step.kernel.shared_bytes <= 32 * 1024


def test_what_scan_work_cannot_hold_is_refused() -> None:
    of = function(["f32[9]"], lambda f, a: f.neg(f.scan(a, "sum", 0)))
    with pytest.raises(UnsupportedOperation, match="its only result"):
        kernelize(item("scan", of), CPU)
    of = function(["f32[9,9]"], lambda f, a: f.scan(f.matmul(a, a), "sum", 0))
    with pytest.raises(UnsupportedOperation, match="dot_general is no elementwise"):
        kernelize(item("scan", of), CPU)
