"""Transposes by squares in shared memory, as GPUs have them, against the reference."""

from __future__ import annotations

import attrs
import pytest

from accy_async.compiler.kernelization import KernelizedWork, TargetProfile, kernelize
from accy_async.compiler.semantic import FunctionBuilder, Value
from tests.kernelization.harness import (
    CPU,
    CUDA,
    VULKAN,
    Make,
    check,
    function,
    item,
)


def squares(work: KernelizedWork) -> int:
    """Arrays in shared memory."""
    return len(work.step.kernel.shared)


@pytest.mark.parametrize(
    ("type", "permutation", "target"),
    [
        ("f32[160,130]", (1, 0), CUDA),
        ("f32[160,128]", (1, 0), VULKAN),
        ("u8[192,130]", (1, 0), CUDA),
        ("f16[128,129]", (1, 0), CUDA),
        ("f64[129,130]", (1, 0), CUDA),
        ("bool[130,190]", (1, 0), VULKAN),
        ("i32[3,70,90]", (0, 2, 1), CUDA),
        ("f32[90,3,70]", (2, 1, 0), CUDA),
        ("f32[2,40,3,80]", (3, 0, 2, 1), CUDA),
    ],
    ids=lambda value: str(value.format if isinstance(value, TargetProfile) else value),
)
def test_squares_hold_what_is_transposed(
    type: str, permutation: tuple[int, ...], target: TargetProfile
) -> None:
    work = check(
        "elementwise",
        [type],
        lambda f, a: f.transpose(a, permutation),
        target=target,
        candidate=1,
    )
    assert squares(work) == 1
    assert work.step.launch_resources.candidate_count > 1


def test_work_around_several_transposes_and_results() -> None:
    def several(f: FunctionBuilder, a: Value, b: Value, c: Value) -> list[Value]:
        crossed = f.transpose(f.mul(a, a), (1, 0))
        total = f.add(crossed, f.add(f.transpose(b, (1, 0)), c))
        return [
            total,
            f.compare(total, 1.0, "gt"),
        ]

    work = check(
        "elementwise",
        ["f32[140,130]", "f32[140,130]", "f32[130,140]"],
        several,
        target=CUDA,
    )
    assert squares(work) == 2


def _few_threads() -> TargetProfile:
    """A device with as few threads in a block as Vulkan allows."""
    capabilities = attrs.evolve(VULKAN.capabilities, max_threads_per_block=128)
    return attrs.evolve(VULKAN, capabilities=capabilities)


def _sliced(f: FunctionBuilder, a: Value) -> Value:
    crossed = f.transpose(a, (1, 0))
    return f.add(crossed, f.reverse(crossed, [0]))


@pytest.mark.parametrize(
    ("type", "make", "target"),
    [
        ("f32[160,130]", lambda f, a: f.transpose(a, (1, 0)), CPU),
        ("f32[16,16]", lambda f, a: f.transpose(a, (1, 0)), CUDA),
        ("f32[4096,8]", lambda f, a: f.transpose(a, (1, 0)), CUDA),
        ("f32[40,30,64]", lambda f, a: f.transpose(a, (1, 0, 2)), CUDA),
        ("f32[160,130]", _sliced, CUDA),
        ("f32[160,130]", lambda f, a: f.transpose(a, (1, 0)), _few_threads()),
    ],
    ids=["CPU", "small", "short", "along", "elsewhere", "few threads"],
)
def test_other_transposes_are_read_where_they_are_written(
    type: str, make: Make, target: TargetProfile
) -> None:
    work = kernelize(item("elementwise", function([type], make)), target)
    assert squares(work) == 0
