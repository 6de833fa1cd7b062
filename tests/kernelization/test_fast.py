"""The fast tier: its bounds as docs/generated.md states them, and its code."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from accy_async.artifact.formats import ArtifactFormat
from accy_async.compiler.emit import compile_ptx, compile_spirv, emit_msl
from accy_async.compiler.emit.text import emit_cuda
from accy_async.compiler.emit.text.glsl import emit_glsl
from accy_async.compiler.form import Kernel
from accy_async.compiler.kernelization import MathTier, kernelize
from accy_async.compiler.nvrtc import compile_cuda
from accy_async.errors import BackendUnavailable
from tests.kernelization.harness import (
    UNIT,
    Array,
    Make,
    check,
    function,
    item,
    profile,
    run,
)

FAST = profile(tier=MathTier.FAST)
FUNCTIONS = ("exp", "log", "tanh", "sqrt")
"""One program for all of them: each compile takes longer than all that it computes."""

BOUNDS = {"exp": 4.0, "log": 2.0, "tanh": 4.0, "sqrt": 2.0, "quotient": 2.0}
"""Units in the last place, of f32 on CPUs."""


def all_of_them(f: Any, x: Any, y: Any) -> list[Any]:
    made = [getattr(f, name)(x) for name in FUNCTIONS]
    return [*made, f.div(x, y)]


def computed(x: Array, y: Array) -> dict[str, Array]:
    of = function([f"f32[{x.size}]"] * 2, all_of_them)
    results = run(kernelize(item("elementwise", of), FAST), of, [x, y])
    return dict(zip((*FUNCTIONS, "quotient"), results, strict=True))


def units(got: Array, exact: Array) -> Array:
    """How far off, in units in the last place of the exact result."""
    unit = np.spacing(np.abs(exact).astype(np.float32)).astype(np.float64)
    return np.asarray(np.abs(got - exact) / unit)


REFERENCES: dict[str, Callable[..., Any]] = {
    "exp": lambda x, y: np.exp(x),
    "log": lambda x, y: np.log(x),
    "tanh": lambda x, y: np.tanh(x),
    "sqrt": lambda x, y: np.sqrt(x),
    "quotient": lambda x, y: x / y,
}


@pytest.mark.parametrize("spread", [0.7, 10.0, 87.0])
def test_functions_of_f32_keep_their_bounds(spread: float) -> None:
    generator = np.random.default_rng(int(spread))
    x = generator.uniform(-spread, spread, 20_000).astype(np.float32)
    y = generator.standard_normal(x.size).astype(np.float32)
    for name, got in computed(x, y).items():
        with np.errstate(invalid="ignore"):
            exact = REFERENCES[name](x.astype(np.float64), y.astype(np.float64))
        known = np.isfinite(exact)
        assert np.isnan(got[~known]).all()
        assert units(got[known], exact[known]).max() <= BOUNDS[name], name


def test_infinities_zeros_and_nans_keep_their_meaning() -> None:
    x = np.array([np.inf, -np.inf, np.nan, 0.0, -1.0, 100.0, -200.0], np.float32)
    got = computed(x, np.ones(7, np.float32))
    nan, inf = np.nan, np.inf
    np.testing.assert_array_equal(
        got["exp"][[0, 1, 2, 3, 5, 6]], [inf, 0, nan, 1, inf, 0]
    )
    np.testing.assert_array_equal(got["log"][:5], [inf, nan, nan, -inf, nan])
    np.testing.assert_array_equal(got["tanh"][[0, 1, 2, 3, 5]], [1, -1, nan, 0, 1])
    np.testing.assert_array_equal(got["quotient"], x)


@pytest.mark.parametrize("shape", [(3, 17), (2, 1025)])
def test_rows_stay_close_whatever_the_order_of_their_sums(
    shape: tuple[int, int],
) -> None:
    """A sum of n numbers is within n roundings of their magnitudes in any order."""
    text = f"f32[{shape[0]},{shape[1]}]"
    check(
        "reduction",
        [text],
        lambda f, x: f.reduce(x, "sum", [1]),
        roundings=shape[1],
        scale=lambda x: np.abs(x.astype(np.float64)).sum(1),
        target=FAST,
    )
    of = function([text], lambda f, x: f.softmax(x))
    x = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    x[0, 1:] = -np.inf  # masked
    (got,) = run(kernelize(item("row_pipeline", of), FAST), of, [x])
    powers = np.exp(x.astype(np.float64) - x.max(1, keepdims=True))
    exact = powers / powers.sum(1, keepdims=True)
    np.testing.assert_allclose(got, exact, rtol=shape[1] * 2.0**-24 + 1e-6)


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f64"])
def test_other_floats_are_computed_as_they_are_anyway(dtype: str) -> None:
    """f64 has no approximations; 16-bit floats round those of f32 away."""
    generator = np.random.default_rng(3)
    x = generator.uniform(0.1, 5, 500)
    of = function([f"{dtype}[500]"], lambda f, x: [f.exp(x), f.log(x), f.tanh(x)])
    kind = of.parameter_types[0].dtype
    fast = run(kernelize(item("elementwise", of), FAST), of, [x])
    exact = run(kernelize(item("elementwise", of), profile()), of, [x])
    for mine, theirs in zip(fast, exact, strict=True):
        np.testing.assert_allclose(
            mine.astype(np.float64),
            theirs.astype(np.float64),
            rtol=4 * UNIT[kind],
            atol=1e-6 if dtype != "f64" else 0,
        )


def kernel(format: ArtifactFormat, tier: MathTier, make: Make) -> Kernel:
    of = function(["f32[64]"] * 2, make)
    return kernelize(item("elementwise", of), profile(format, tier)).step.kernel


def test_gpus_are_told_to_use_their_own_units() -> None:
    ptx = compile_ptx([kernel(ArtifactFormat.CUDA_PTX, MathTier.FAST, all_of_them)])
    wanted = ("ex2.approx.f32", "lg2.approx.f32", "div.full.f32", "sqrt.approx.f32")
    assert all(word in ptx for word in wanted)
    exact = compile_ptx([kernel(ArtifactFormat.CUDA_PTX, MathTier.EXACT, all_of_them)])
    assert not any(word in exact for word in wanted)

    def added(f: Any, x: Any, y: Any) -> Any:
        return f.sub(f.mul(x, y), y)

    fused = compile_ptx([kernel(ArtifactFormat.CUDA_PTX, MathTier.FAST, added)])
    assert "fma.rn.f32" in fused
    assert "mul.rn.f32" not in fused


def test_texts_for_other_compilers_leave_them_their_freedom() -> None:
    msl = emit_msl([kernel(ArtifactFormat.METAL_MSL, MathTier.FAST, all_of_them)])
    assert "fast::exp(" in msl
    assert "contract(fast)" in msl
    cuda = emit_cuda([kernel(ArtifactFormat.CUDA_CUBIN, MathTier.FAST, all_of_them)])
    assert "__expf(" in cuda
    assert "_rn(" not in cuda
    glsl = emit_glsl(kernel(ArtifactFormat.VULKAN_SPIRV, MathTier.FAST, all_of_them))
    assert "divide_f32" not in glsl
    # Helpers are shared by a text's kernels: one that is exact makes all of them so.
    both = [
        kernel(ArtifactFormat.METAL_MSL, MathTier.FAST, lambda f, x, y: f.exp(x)),
        kernel(ArtifactFormat.METAL_MSL, MathTier.EXACT, lambda f, x, y: f.add(x, y)),
    ]
    assert "fast::" not in emit_msl(both)


def test_nvrtc_takes_the_text() -> None:
    made = kernel(ArtifactFormat.CUDA_CUBIN, MathTier.FAST, all_of_them)
    try:
        binary = compile_cuda(
            emit_cuda([made]), made.name, architecture="sm_90", cache=False
        )
    except BackendUnavailable as error:
        pytest.skip(str(error))
    assert binary.payload


@pytest.mark.skipif(
    shutil.which("glslangValidator") is None, reason="glslang is not installed"
)
def test_glslang_takes_the_text() -> None:
    made = kernel(ArtifactFormat.VULKAN_SPIRV, MathTier.FAST, all_of_them)
    assert compile_spirv(made)
