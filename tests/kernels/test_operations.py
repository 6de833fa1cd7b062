"""Every operation on every dtype against numpy, edge values included."""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from accy_async.artifact.native.host import host_level, level_supports
from accy_async.compiler.form import (
    Binary,
    BinaryOperation,
    Compare,
    Comparison,
    Unary,
    UnaryOperation,
    select,
)
from accy_async.compiler.form.operations import can_cast
from accy_async.dtypes import DType
from tests.compiler.harness import (
    Array,
    assert_same_bits,
    bits,
    compute,
    elementwise,
    flushed,
    samples,
    storage,
)
from tests.kernels.places import EVERYWHERE, Place, cpu, on, with_dtypes

INTEGERS = [dtype for dtype in DType if dtype.is_integer]
_FLOATS = {np.dtype(np.float32): DType.F32, np.dtype(np.float64): DType.F64}
COMPUTED = [DType.BOOL, *INTEGERS, DType.F32, DType.F64]
LEVELS = [
    level
    for level in ("x86-64-v1", "x86-64-v2", "x86-64-v3", "x86-64-v4", "armv8-a")
    if level_supports(host_level(), level)
]


def _pairs(dtype: DType) -> tuple[Array, Array]:
    values = samples(dtype, 40)
    left, right = np.meshgrid(values, values)
    return left.ravel().copy(), right.ravel().copy()


def _assert_is(
    place: Place, found: Array, function: Callable[..., Array], *given: Array
) -> None:
    """What was found is what a function gives, to the bit.

    Where a device does not promise to keep subnormals they count as zeros, whether
    it took them for zeros from the beginning or only its results.
    """
    expected = function(*given)
    dtypes = {_FLOATS[one.dtype] for one in (*given, expected) if one.dtype in _FLOATS}
    if all(place.keeps(dtype) for dtype in dtypes):
        assert_same_bits(found, expected)
        return
    expected, found = flushed(expected), flushed(found)
    other = flushed(function(*map(flushed, given)))
    is_other = bits(found) == bits(other)
    assert_same_bits(np.where(is_other, expected, found), expected)


def _divide(dtype: DType, left: Array, right: Array, *, quotient: bool) -> Array:
    results = []
    for a, b in zip(left.tolist(), right.tolist(), strict=True):
        if b == 0:
            results.append(0)
            continue
        whole = abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
        results.append(whole if quotient else a - whole * b)
    wrapped = [r & (2**dtype.bits - 1) for r in results]
    return np.array(wrapped, f"u{dtype.size_bytes}").view(dtype.numpy)


def _expected_binary(op: BinaryOperation, dtype: DType, a: Array, b: Array) -> Array:
    simple: dict[BinaryOperation, Any] = {
        BinaryOperation.ADD: operator.add,
        BinaryOperation.SUBTRACT: operator.sub,
        BinaryOperation.MULTIPLY: operator.mul,
        BinaryOperation.AND: operator.and_,
        BinaryOperation.OR: operator.or_,
        BinaryOperation.XOR: operator.xor,
    }
    if op in simple:
        return np.asarray(simple[op](a, b))
    if op in (BinaryOperation.MINIMUM, BinaryOperation.MAXIMUM):
        lower = op is BinaryOperation.MINIMUM
        if dtype.is_integer:
            return (np.minimum if lower else np.maximum)(a, b)
        result = (np.fmin if lower else np.fmax)(a, b)
        zeros, signs = (a == 0) & (b == 0), (np.signbit(a), np.signbit(b))
        negative = (signs[0] | signs[1]) if lower else (signs[0] & signs[1])
        zero = np.where(negative, a.dtype.type(-0.0), a.dtype.type(0.0))
        return np.where(zeros, zero, result)
    if op is BinaryOperation.SHIFT_LEFT:
        return np.asarray(a << (b & dtype.numpy.type(dtype.bits - 1)))
    if op is BinaryOperation.SHIFT_RIGHT:
        return np.asarray(a >> (b & dtype.numpy.type(dtype.bits - 1)))
    if dtype.is_float:
        return np.asarray(a / b)
    return _divide(dtype, a, b, quotient=op is BinaryOperation.DIVIDE)


@with_dtypes(COMPUTED, EVERYWHERE)
def test_binary_operations_match_numpy(place: Place, dtype: DType) -> None:
    operations = [op for op in BinaryOperation if op.takes(dtype)]
    a, b = _pairs(dtype)
    found = compute(
        place,
        {dtype: [a, b]},
        {op.name: (dtype, lambda x, y, op=op: Binary(op, x, y)) for op in operations},
    )
    with np.errstate(all="ignore"):
        for op in operations:
            function = partial(_expected_binary, op, dtype)
            _assert_is(place, found[op.name], function, a, b)


@with_dtypes(INTEGERS, EVERYWHERE)
def test_division_by_a_constant_matches_division_by_its_value(
    place: Place, dtype: DType
) -> None:
    a = samples(dtype)
    divisors = [0, 1, 3, 8] + ([-1, -3] if dtype.is_signed else [])
    operations = {"div": operator.truediv, "rem": operator.mod}
    found = compute(
        place,
        {dtype: [a]},
        {
            f"{name} {d}": (dtype, lambda x, d=d, of=of: of(x, d))
            for d in divisors
            for name, of in operations.items()
        },
    )
    for d in divisors:
        right = np.full_like(a, d)
        for name in operations:
            expected = _divide(dtype, a, right, quotient=name == "div")
            assert_same_bits(found[f"{name} {d}"], expected)


@with_dtypes(COMPUTED, EVERYWHERE)
def test_comparisons_and_select_match_numpy(place: Place, dtype: DType) -> None:
    functions = {
        Comparison.EQUALS: operator.eq,
        Comparison.DIFFERS: operator.ne,
        Comparison.LESS: operator.lt,
        Comparison.LESS_EQUAL: operator.le,
        Comparison.GREATER: operator.gt,
        Comparison.GREATER_EQUAL: operator.ge,
    }
    comparisons = [c for c in Comparison if c.takes(dtype)]
    a, b = _pairs(dtype)
    outputs: dict[str, tuple[DType, Any]] = {
        c.name: (DType.BOOL, lambda x, y, c=c: Compare(c, x, y)) for c in comparisons
    }
    outputs["choice"] = dtype, lambda x, y: select(x.equals(y), x, y)
    found = compute(place, {dtype: [a, b]}, outputs)
    for comparison in comparisons:
        _assert_is(place, found[comparison.name], functions[comparison], a, b)

    def choose(a: Array, b: Array) -> Array:
        return np.asarray(np.where(a == b, a, b))

    _assert_is(place, found["choice"], choose, a, b)


@with_dtypes(COMPUTED, EVERYWHERE)
def test_unary_operations_match_numpy(place: Place, dtype: DType) -> None:
    exact: dict[UnaryOperation, Any] = {
        UnaryOperation.NEGATE: operator.neg,
        UnaryOperation.ABSOLUTE: np.abs,
        UnaryOperation.NOT: operator.invert,
        UnaryOperation.SQRT: np.sqrt,
        UnaryOperation.FLOOR: np.floor,
        UnaryOperation.CEILING: np.ceil,
        UnaryOperation.TRUNCATE: np.trunc,
        UnaryOperation.ROUND_EVEN: np.rint,
    }
    near: dict[UnaryOperation, Any] = {
        UnaryOperation.EXP: np.exp,
        UnaryOperation.LOG: np.log,
        UnaryOperation.TANH: np.tanh,
    }
    operations = [op for op in UnaryOperation if op.takes(dtype)]
    a = samples(dtype)
    found = compute(
        place,
        {dtype: [a]},
        {op.name: (dtype, lambda x, op=op: Unary(op, x)) for op in operations},
    )
    with np.errstate(all="ignore"):
        for op in operations:
            out = found[op.name]
            if op in exact:
                _assert_is(place, out, exact[op], a)
                continue
            expected = near[op](a.astype(np.float64)).astype(a.dtype)
            if not place.keeps(dtype):
                out, expected = flushed(out), flushed(expected)
                other = near[op](flushed(a))
                expected = np.where(bits(out) == bits(other), other, expected)
            odd = ~np.isfinite(expected)
            np.testing.assert_array_max_ulp(out[~odd], expected[~odd], 4)
            assert_same_bits(out[odd], expected[odd])


def _expected_cast(source: DType, target: DType, a: Array) -> Array:
    if source.is_float and target.is_integer:
        low, high = int(target.minimum), int(target.maximum)
        whole = [
            low
            if v == -np.inf
            else high
            if v == np.inf
            else min(max(int(v), low), high)
            for v in np.where(np.isnan(a), 0, a.astype(object))
        ]
        return np.array(whole, target.numpy)
    return a.astype(target.numpy)


@with_dtypes(COMPUTED, EVERYWHERE)
def test_casts_match_numpy_and_saturate(place: Place, dtype: DType) -> None:
    targets = [t for t in COMPUTED if t not in place.lacks and can_cast(dtype, t)]
    a = samples(dtype)
    found = compute(
        place,
        {dtype: [a]},
        {str(t): (t, lambda x, t=t: x.cast(t)) for t in targets},
    )
    with np.errstate(all="ignore"):
        for target in targets:
            function = partial(_expected_cast, dtype, target)
            _assert_is(place, found[str(target)], function, a)


def _nearest_bf16(values: Array) -> Array:
    """The bf16 nearest to each f32, found by comparing distances."""
    raw = values.view(np.uint32)
    below = (raw >> 16).astype(np.uint32)
    above = below + 1

    def wide(half: Array) -> Array:
        # One step past the largest finite number stands for 2**128.
        exact = (half << 16).view(np.float32).astype(np.float64)
        return np.where(np.isinf(exact), np.copysign(2.0**128, exact), exact)

    exact = values.astype(np.float64)
    down, up = np.abs(exact - wide(below)), np.abs(wide(above) - exact)
    takes_above = (up < down) | ((up == down) & (below % 2 == 1))
    result = np.where(takes_above & np.isfinite(values), above, below)
    return result.astype(np.uint16)


@on(*(cpu(level=level) for level in LEVELS), *EVERYWHERE[1:])
def test_f16_and_bf16_convert_exactly_and_round_to_nearest_even(place: Place) -> None:
    every = np.arange(2**16, dtype=np.uint16)
    widths = (DType.F16, DType.BF16)
    kernels = [
        kernel
        for h in widths
        for kernel in (
            elementwise(f"from_{h}", [h], DType.F32, lambda x: x.cast(DType.F32)),
            elementwise(f"to_{h}", [DType.F32], h, lambda x, h=h: x.cast(h)),
        )
    ]
    f16 = every.view(np.float16).astype(np.float32)
    bf16 = (every.astype(np.uint32) << 16).view(np.float32)
    with np.errstate(all="ignore"):
        halfway = (f16[:-1] + f16[1:]) / 2
    random = np.random.default_rng(3).integers(0, 2**32, 50_000, np.uint32)
    wide = np.concatenate([f16, halfway, samples(DType.F32), random.view(np.float32)])
    with np.errstate(all="ignore"):
        near = [np.nextafter(wide, 0), np.nextafter(wide, np.inf)]
    wide = np.concatenate([wide, *near])
    with place.compiled(*kernels) as runner, np.errstate(all="ignore"):
        for half, expected in zip(widths, (f16, bf16), strict=True):
            out = np.zeros(len(every), np.float32)
            runner.run(f"from_{half}", [out, every], [len(out)], len(out) // 64)
            assert_same_bits(out, expected)
        narrow = np.zeros(len(wide), np.uint16)
        runner.run("to_f16", [narrow, wide], [len(wide)], -(-len(wide) // 64))
        assert_same_bits(narrow.view(np.float16), wide.astype(np.float16))
        runner.run("to_bf16", [narrow, wide], [len(wide)], -(-len(wide) // 64))
        finite = ~np.isnan(wide)
        assert_same_bits(narrow[finite], _nearest_bf16(wide)[finite])
        assert np.isnan(
            (narrow[~finite].astype(np.uint32) << 16).view(np.float32)
        ).all()


@on(*EVERYWHERE)
def test_bitcast_keeps_bits(place: Place) -> None:
    a = samples(DType.F32)
    kernel = elementwise("bits", [DType.F32], DType.U32, lambda x: x.bitcast(DType.U32))
    out = np.zeros(len(a), np.uint32)
    with place.compiled(kernel) as runner:
        runner.run("bits", [out, a], [len(a)], -(-len(a) // 64))
    assert_same_bits(out, a.view(np.uint32))


@with_dtypes(DType, (cpu("cpu_object"), *EVERYWHERE[1:]))
def test_every_dtype_is_loaded_stored_and_passed_as_a_scalar(
    place: Place, dtype: DType
) -> None:
    from accy_async.compiler.kernels import copy, fill

    kernels = (fill(dtype).kernel, copy(dtype).kernel)
    value: object = True if dtype is DType.BOOL else 3
    out, source = np.zeros(300, storage(dtype)), np.zeros(300, storage(dtype))
    with place.compiled(*kernels) as runner:
        runner.run(kernels[0].name, [source], [299, value], 2)
        runner.run(kernels[1].name, [out, source], [300], 2)
    expected = 0x4040 if dtype is DType.BF16 else value
    assert (out[:299] == expected).all()
    assert out[299] == 0
