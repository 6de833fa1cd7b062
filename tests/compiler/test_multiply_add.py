"""``multiply_add``: fused where the device fuses, and exp, log and tanh in vectors."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from accy_async.artifact.native.host import host_level
from accy_async.compiler.emit import compile_ptx, emit_cpu_assembly
from accy_async.compiler.emit.text import emit_cuda, emit_glsl, emit_msl
from accy_async.compiler.form import (
    Expression,
    Kernel,
    KernelBuilder,
    constant,
    exp,
    log,
    multiply_add,
    tanh,
)
from accy_async.dtypes import DType
from accy_async.errors import InvalidType
from tests.compiler.harness import compiled, elementwise


def kernel(dtype: DType) -> Kernel:
    return elementwise(f"fused_{dtype}", [dtype] * 3, dtype, multiply_add)


@pytest.mark.parametrize("dtype", [DType.F32, DType.F64])
def test_it_is_the_sum_rounded_once_or_twice(dtype: DType) -> None:
    generator = np.random.default_rng(0)
    a, b, c = (generator.standard_normal(1000).astype(dtype.numpy) for _ in range(3))
    out = np.zeros_like(a)
    for level in {host_level(), "x86-64-v1"} if "x86" in host_level() else {None}:
        with compiled(kernel(dtype), level=level) as runner:
            runner.run(f"fused_{dtype}", [out, a, b, c], [1000], 16)
        twice = a * b + c
        wide = np.longdouble if dtype is DType.F64 else np.float64
        once = (a.astype(wide) * b + c).astype(dtype.numpy)
        assert np.all((out == twice) | np.isclose(out, once, rtol=4e-16, atol=0))


def test_devices_with_an_instruction_for_both_use_it() -> None:
    assert "fma.rn.f32" in compile_ptx([kernel(DType.F32)])
    assert "vfmadd" in emit_cpu_assembly([kernel(DType.F32)], level="x86-64-v3")
    plain = emit_cpu_assembly([kernel(DType.F32)], level="x86-64-v2")
    assert "mulps" in plain
    assert "call" not in plain
    for text in (
        emit_glsl(kernel(DType.F32)),
        emit_msl([kernel(DType.F32)]),
        emit_cuda([kernel(DType.F32)]),
    ):
        assert "fma(" in text


def test_numbers_beside_it_take_its_dtype_and_others_are_refused() -> None:
    x = KernelBuilder("k", (1, 1, 1)).scalar("x", DType.F32)
    fused = multiply_add(x, 2.0, 1)
    assert fused.dtype is DType.F32
    assert [child.dtype for child in fused.children()] == [DType.F32] * 3
    for first, second in (
        (x, constant(DType.F64, 1.0)),
        (constant(DType.I32, 1), constant(DType.I32, 2)),
        (constant(DType.F16, 1.0), constant(DType.F16, 2.0)),
    ):
        with pytest.raises(InvalidType, match="multiply_add"):
            multiply_add(first, second, 1)


@pytest.mark.parametrize("level", ["x86-64-v3", "x86-64-v4"])
@pytest.mark.parametrize("function", [exp, log, tanh])
def test_exp_log_and_tanh_are_vectors_where_they_can_be(
    level: str, function: Callable[[Expression], Expression]
) -> None:
    made = elementwise("f", [DType.F32], DType.F32, function)
    text = emit_cpu_assembly([made], level=level)
    assert "call" not in text
    assert "vfmadd" in text
    assert "%ymm" in text
    assert f"{function.__name__}f" in emit_cpu_assembly([made], level="x86-64-v2")
