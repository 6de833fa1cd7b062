"""bf16 scalars against an independent reference: exact rational arithmetic."""

from __future__ import annotations

import math
import struct
from fractions import Fraction

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from accy_async.dtypes import DType, ScalarArgument
from accy_async.errors import OutOfRange


def value_of(bits: int) -> float:
    """The value of 16 bits, of which the last 7 are the fraction (IEEE 754's way)."""
    sign = -1.0 if bits >> 15 else 1.0
    exponent, fraction = bits >> 7 & 0xFF, bits & 0x7F
    if exponent == 0xFF:
        return math.nan if fraction else sign * math.inf
    if exponent == 0:
        return sign * math.ldexp(fraction, -133)
    return sign * math.ldexp(128 + fraction, exponent - 134)


FINITE = [Fraction(value_of(bits)) for bits in range(0x7F80)]
LIMIT = FINITE[-1] + (FINITE[-1] - FINITE[-2]) / 2


def nearest(value: float) -> int | None:
    """The bits of the nearest bf16, ties to even, by bisection; None if too large."""
    wanted = abs(Fraction(value))
    if wanted >= LIMIT:
        return None
    low, high = 0, len(FINITE)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if FINITE[middle] <= wanted else (low, middle)
    if low + 1 < len(FINITE):
        below, above = wanted - FINITE[low], FINITE[low + 1] - wanted
        low += above < below or (above == below and low % 2 == 1)
    elif wanted > FINITE[low]:
        low = len(FINITE) - 1
    return low | (0x8000 if math.copysign(1, value) < 0 else 0)


MIDDLES = st.integers(0, 0x7F7E).map(
    lambda bits: float((FINITE[bits] + FINITE[bits + 1]) / 2)
)
NEAR_A_TIE = st.tuples(MIDDLES, st.sampled_from((0.0, -math.inf, math.inf))).map(
    lambda pair: math.nextafter(pair[0], pair[1]) if pair[1] else pair[0]
)


@given(
    st.one_of(
        st.floats(allow_nan=False, allow_infinity=False),
        st.floats(width=32, allow_nan=False, allow_infinity=False),
        NEAR_A_TIE,
        NEAR_A_TIE.map(lambda value: -value),
    )
)
@example(0.0)
@example(-0.0)
@example(5e-324)
@example(2.0**-134)
@example(3 * 2.0**-134)
@example(1 + 2.0**-8 + 2.0**-30)  # rounds the other way through f32
@example(float(LIMIT))
def test_rounding_is_to_nearest_with_ties_to_even(value: float) -> None:
    """Every double becomes the nearest bf16; one that would be infinite is refused."""
    bits = nearest(value)
    if bits is None:
        with pytest.raises(OutOfRange):
            ScalarArgument.bf16(value)
        return
    scalar = ScalarArgument.bf16(value)
    assert scalar.to_bytes() == struct.pack("<H", bits)
    assert struct.pack("<d", scalar.value) == struct.pack("<d", value_of(bits))


def test_every_bfloat16_is_itself() -> None:
    """All 65,536 bit patterns come back as they were; a nan as a nan."""
    for bits in range(1 << 16):
        value = value_of(bits)
        back = int.from_bytes(ScalarArgument.bf16(value).to_bytes(), "little")
        if math.isnan(value):
            assert math.isnan(value_of(back))
        else:
            assert back == bits


def test_bfloat16_lies_in_two_bytes() -> None:
    """A bf16 is the upper half of the f32 of the same value."""
    assert ScalarArgument.bf16(1.0).to_bytes() == b"\x80\x3f"
    assert ScalarArgument.bf16(-2.5).to_bytes() == b"\x20\xc0"
    assert ScalarArgument.bf16(1.0).slot == 0x3F80
    assert len(ScalarArgument.bf16(0.1).to_bytes()) == DType.BF16.size_bytes
