"""Random fused functions against the reference."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from accy_async.compiler.kernelization import TargetProfile, kernelize
from accy_async.compiler.semantic import (
    Builder,
    Function,
    FunctionBuilder,
    Value,
    evaluate,
)
from accy_async.dtypes import DType
from tests.kernelization.harness import CPU, CUDA, VULKAN, item, run, samples

Draw = Any  # what hypothesis calls st.DrawFn

MOST_ELEMENTS = 3000
_DTYPES = (DType.I32, DType.U8, DType.F32, DType.I64, DType.F16)


@st.composite
def functions(draw: Draw) -> Function:
    """Elementwise operations and moves of elements, without transcendental ones.

    All of them are exact or correctly rounded, so results are the reference's.
    """
    dtype = draw(st.sampled_from(_DTYPES))
    shape = tuple(draw(st.lists(st.sampled_from((0, 1, 2, 3, 5, 17, 40)), max_size=3)))
    if np.prod(shape, dtype=int) > MOST_ELEMENTS:
        shape = shape[:1]
    builder = Builder("random")
    f = builder.begin_function("f", [builder.tensor(dtype, shape)] * 2)
    values = list(f.parameters)
    for _ in range(draw(st.integers(1, 7))):
        value = draw(st.sampled_from(values))
        values.append(step(draw, f, value, values))
    f.return_([values[-1]])
    f.finish()
    return builder.finish().entry


def step(draw: Draw, f: FunctionBuilder, x: Value, values: list[Value]) -> Value:
    """One operation more on a value."""
    alike = [v for v in values if v.type == x.type]
    other = draw(st.sampled_from(alike))
    kind = draw(st.sampled_from(("add", "mul", "maximum", "select", "move", "move")))
    if kind == "select":
        return f.select(
            f.compare(x, other, draw(st.sampled_from(("lt", "ne")))), x, other
        )
    if kind != "move":
        return getattr(f, kind)(x, other)  # type: ignore[no-any-return]
    return moved(draw, f, x)


def moved(draw: Draw, f: FunctionBuilder, x: Value) -> Value:
    axes = list(range(x.rank))
    kinds = ["reshape", "broadcast"]
    if axes:
        kinds += ["transpose", "reverse", "slice", "pad", "concatenate"]
    kind = draw(st.sampled_from(kinds))
    if x.type.element_count > MOST_ELEMENTS and kind in (
        "broadcast",
        "pad",
        "concatenate",
    ):
        kind = "reshape"
    match kind:
        case "reshape":
            return f.reshape(x, draw(st.permutations(x.shape)))
        case "broadcast":
            return f.broadcast(x, (draw(st.integers(0, 3)), *x.shape))
        case "transpose":
            return f.transpose(x, draw(st.permutations(axes)))
        case "reverse":
            return f.reverse(x, draw(st.sets(st.sampled_from(axes))))
        case "slice":
            starts = [draw(st.integers(0, extent)) for extent in x.shape]
            limits = [
                draw(st.integers(start, extent))
                for start, extent in zip(starts, x.shape, strict=True)
            ]
            strides = [draw(st.integers(1, 3)) for _ in axes]
            return f.slice(x, starts, limits, strides)
        case "pad":
            low = [draw(st.integers(0, 2)) for _ in axes]
            high = [draw(st.integers(0, 2)) for _ in axes]
            return f.pad(x, low, high, 1)
        case _:
            return f.concatenate([x, x], draw(st.sampled_from(axes)))


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(functions(), st.sampled_from([CPU, CUDA, VULKAN]))
def test_random_functions_are_the_references(
    of: Function, target: TargetProfile
) -> None:
    arguments = samples(of.parameter_types)
    work = kernelize(item("elementwise", of), target)
    for candidate in (0, 1):
        (actual,) = run(work, of, arguments, candidate)
        (expected,) = evaluate(of, arguments)
        np.testing.assert_array_equal(actual, expected)
