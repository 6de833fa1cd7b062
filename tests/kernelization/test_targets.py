"""The kernels of every kind as code of every format.

LLVM makes the PTX, and glslang, where it is installed, takes the GLSL: both refuse what
is not well formed. What the form means is the same everywhere, so results are checked
on the CPU (see the other modules).
"""

from __future__ import annotations

import shutil

import pytest

from accy_async.compiler.emit import compile_ptx, compile_spirv, emit_msl
from accy_async.compiler.emit.text import emit_cuda
from accy_async.compiler.kernelization import kernelize
from tests.kernelization.harness import CUDA, METAL, VULKAN, Make, function, item

KINDS: list[tuple[str, list[str], Make]] = [
    ("elementwise", ["f32[8]", "f32[8]"], lambda f, a, b: f.add(a, b)),
    ("elementwise", ["f32[2000000]"], lambda f, a: f.tanh(f.exp(f.log(a)))),
    (
        "elementwise",
        ["f32[30,300]", "f32[300]"],
        lambda f, a, b: f.reverse(
            f.pad(f.mul(a, f.broadcast(b, a.shape)), [1, 2], [0, 3], 0.0), [1]
        ),
    ),
    (
        "elementwise",
        ["bool[40]", "i8[40]", "i8[40]"],
        lambda f, a, b, c: f.select(a, b, c),
    ),
    ("elementwise", ["f16[40]", "f16[40]"], lambda f, a, b: f.maximum(a, b)),
    ("gather", ["f32[50,30]", "i32[7]"], lambda f, a, i: f.gather(a, i, 0)),
    ("reduction", ["f32[256]"], lambda f, a: f.reduce(a, "sum", [0])),
    ("reduction", ["f32[1000000]"], lambda f, a: f.reduce(a, "maximum", [0])),
    ("reduction", ["i32[5000,40]"], lambda f, a: f.reduce(a, "sum", [0])),
    ("reduction", ["bool[30,40]"], lambda f, a: f.reduce(a, "maximum", [1])),
    ("row_pipeline", ["f32[30,1000]"], lambda f, a: f.softmax(a)),
    (
        "cross_entropy",
        ["f32[30,100]", "i32[30]"],
        lambda f, a, b: f.row_sparse_cross_entropy(a, b),
    ),
    ("scan", ["f32[30,400]"], lambda f, a: f.scan(a, "sum", 1, exclusive=True)),
    ("scan", ["i32[1000000]"], lambda f, a: f.scan(a, "maximum", 0, reverse=True)),
    ("dot_general", ["f32[16,16]"] * 2, lambda f, a, b: f.matmul(a, b)),
    ("dot_general", ["f32[2048,2048]"] * 2, lambda f, a, b: f.matmul(a, b)),
    ("dot_general", ["i32[40,30]", "i32[30,50]"], lambda f, a, b: f.matmul(a, b)),
    ("dot_general", ["f16[40,30]", "f16[30,50]"], lambda f, a, b: f.matmul(a, b)),
    (
        "scatter",
        ["f32[50,30]", "i32[7]", "f32[7,30]"],
        lambda f, a, i, u: f.scatter_add(a, i, u, 0),
    ),
    (
        "scatter",
        ["f32[50]", "u32[7]", "f32[7]"],
        lambda f, a, i, u: f.scatter(a, i, u, 0),
    ),
    (
        "scatter",
        ["f16[50,30]", "i64[70000]", "f16[70000,30]"],
        lambda f, a, i, u: f.scatter_add(a, i, u, 0),
    ),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "types", "make"), KINDS)
def test_ptx_is_assembled(kind: str, types: list[str], make: Make) -> None:
    for step in kernelize(item(kind, function(types, make)), CUDA).steps:
        for architecture in ("sm_70", "sm_90"):
            text = compile_ptx([step.kernel], target=architecture)
            assert f".entry {step.kernel.name}" in text
        assert f"{step.kernel.name}(" in emit_cuda([step.kernel])


@pytest.mark.skipif(
    shutil.which("glslangValidator") is None, reason="glslang is not installed"
)
@pytest.mark.parametrize(("kind", "types", "make"), KINDS)
def test_spirv_is_assembled(kind: str, types: list[str], make: Make) -> None:
    for step in kernelize(item(kind, function(types, make)), VULKAN).steps:
        assert compile_spirv(step.kernel)


@pytest.mark.parametrize(("kind", "types", "make"), KINDS)
def test_msl_is_written(kind: str, types: list[str], make: Make) -> None:
    for step in kernelize(item(kind, function(types, make)), METAL).steps:
        assert f"kernel void {step.kernel.name}(" in emit_msl([step.kernel])


def test_accesses_to_neighbours_in_a_large_product_go_together() -> None:
    """Four rows or columns of a thread, of the tiles and of the operands."""
    types, make = ["f32[2048,2048]"] * 2, lambda f, a, b: f.matmul(a, b)
    step = kernelize(item("dot_general", function(types, make)), CUDA).step
    text = compile_ptx([step.kernel], target="sm_90")
    assert "ld.shared.v4" in text
    assert "ld.global.v4" in text
    assert "st.global.v4" in text
    assert "fma.rn.f32" in text
