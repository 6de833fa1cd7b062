"""What expressions compute, at random and at the limits of the form."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from accy_async.compiler.form import (
    Expression,
    KernelBuilder,
    Name,
    constant,
    maximum,
    minimum,
    select,
)
from accy_async.dtypes import DType
from tests.compiler.harness import Array, assert_same_bits, elementwise, samples
from tests.kernels.places import (
    CPU,
    EVERYWHERE,
    GPU,
    GPU_TEXT,
    HOST_CUDA,
    HOST_MSL,
    VULKAN,
    Place,
    on,
    with_dtypes,
)
from tests.text.deep import deep_kernel, deep_result

Pair = tuple[Expression, Array]


def _grow(dtype: DType, pairs: st.SearchStrategy[Pair]) -> st.SearchStrategy[Pair]:
    kind = dtype.numpy.type
    operations: dict[str, tuple[Any, Any]] = {
        "add": (lambda a, b: a + b, lambda a, b: a + b),
        "sub": (lambda a, b: a - b, lambda a, b: a - b),
        "mul": (lambda a, b: a * b, lambda a, b: a * b),
        "scale": (lambda a, b: a * 3 + b, lambda a, b: a * kind(3) + b),
        "pick": (
            lambda a, b: select(a < b, b, a - 1),
            lambda a, b: np.where(a < b, b, a - kind(1)),
        ),
        "abs": (lambda a, b: abs(a) - b, lambda a, b: np.abs(a) - b),
    }
    if dtype.is_integer:
        operations["min"] = (minimum, np.minimum)
        operations["max"] = (maximum, np.maximum)
        operations["xor"] = (lambda a, b: a ^ ~b, lambda a, b: a ^ ~b)
    else:
        operations["div"] = (lambda a, b: a / b, lambda a, b: a / b)

    def apply(name: str, left: Pair, right: Pair) -> Pair:
        ours, numpys = operations[name]
        with np.errstate(all="ignore"):
            return ours(left[0], right[0]), numpys(left[1], right[1])

    return st.builds(apply, st.sampled_from(sorted(operations)), pairs, pairs)


@with_dtypes([DType.F32, DType.I32, DType.U16], EVERYWHERE)
def test_random_expressions_are_numpys_to_the_bit(place: Place, dtype: DType) -> None:
    """Of two inputs and a constant.

    On Vulkan without constants in floats, for the sake of Mesa's software driver.
    Where it knows one side to be a constant 0 it leaves out additions and makes
    products 0, whatever the other side's sign, and be it NaN.
    """
    inputs = samples(dtype, 60), samples(dtype, 60)[::-1].copy()
    leaves: list[tuple[str | int, Array]] = [
        (f"in{i}", values) for i, values in enumerate(inputs)
    ]
    if place is not VULKAN or not dtype.is_float:
        leaves.append((3, np.full_like(inputs[0], 3)))
    start = st.sampled_from(leaves)

    def leaf(given_leaf: tuple[str | int, Array]) -> Pair:
        named, values = given_leaf
        if isinstance(named, int):
            return constant(dtype, named), values
        return Name(f"value_{named}", dtype), values

    pairs = st.recursive(start.map(leaf), lambda p: _grow(dtype, p), max_leaves=12)

    @settings(
        max_examples=place.examples,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(pairs)
    def check(pair: Pair) -> None:
        expression, expected = pair

        k = KernelBuilder("random", threadgroup=(32, 1, 1))
        out = k.buffer("out", dtype, "write_only")
        sources = [k.buffer(f"in{i}", dtype, "read_only") for i in range(2)]
        n = k.scalar("n", DType.U32)
        base = k.block_x * 32
        with k.region(limit=n.cast(DType.I64) - base.cast(DType.I64)):
            for source in sources:
                k.let(f"value_{source.name}", source.at(base + k.thread))
            out[base + k.thread] = expression
        result = np.zeros_like(inputs[0])
        with place.compiled(k.build()) as runner:
            runner.run(
                "random", [result, *inputs], [len(result)], -(-len(result) // 32)
            )
        assert_same_bits(result, expected)

    check()


@on(*EVERYWHERE)
def test_products_are_rounded_before_they_are_added(place: Place) -> None:
    """No fused multiply-add: it would round once where the form rounds twice."""
    kernel = elementwise("mad", [DType.F32] * 3, DType.F32, lambda a, b, c: a * b + c)
    a = np.float32(1) + np.arange(64, dtype=np.float32) * np.float32(2**-23)
    c = -(a * a)
    out = np.ones_like(a)
    with place.compiled(kernel) as runner:
        runner.run("mad", [out, a, a, c], [64])
    np.testing.assert_array_equal(out, np.zeros(64, np.float32))


@on(CPU, GPU)
def test_largest_kernel_compiles_and_runs(place: Place) -> None:
    k = KernelBuilder("large", threadgroup=(1024, 1, 1))
    out = k.buffer("out", DType.U64, "write_only")
    shared = k.shared("shared", DType.U8, 48 * 1024)
    kept = [k.thread_variable(f"v{i}", DType.U64) for i in range(32)]
    with k.region():
        shared[k.thread] = k.thread.cast(DType.U8)
        for index, variable in enumerate(kept):
            variable.set(k.thread.cast(DType.U64) + index)
    with k.region():
        total = k.let("first", shared[k.thread].cast(DType.U64))
        for variable in kept:
            total = total + variable.value
        out[k.thread] = total
    result = np.zeros(1024, np.uint64)
    with place.compiled(k.build()) as runner:
        runner.run("large", [result])
    ids = np.arange(1024, dtype=np.uint64)
    np.testing.assert_array_equal(result, ids % 256 + 32 * ids + 496)


@on(GPU_TEXT, VULKAN, HOST_CUDA, HOST_MSL)
def test_a_kernel_at_the_limits_of_the_form_runs(place: Place) -> None:
    a = np.arange(-500, 524, dtype=np.int32)
    out = np.full(1024, 99, np.int64)
    place.run_once(deep_kernel(), [out, a])
    np.testing.assert_array_equal(out, deep_result(a))
