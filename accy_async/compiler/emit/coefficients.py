"""The numbers behind exp, log and tanh, for every emitter that writes them itself.

Source: the reductions and the coefficients of log are those of FreeBSD's msun
(e_exp.c, e_log.c, e_logf.c; Sun Microsystems, 1993, freely usable); the
coefficients of tanh are our own Chebyshev fit of (tanh(x)/x - 1)/x^2 over
x^2 < 0.55^2 in 60 digits, with a relative error below 2^-26 and 2^-60; those of the
fast tier are Chebyshev fits of ours too.
"""

from __future__ import annotations

import math
import struct

import attrs

from accy_async.dtypes import DType

__all__ = [
    "FAST_EXP_TERMS",
    "FAST_LOG_TERMS",
    "TANH_SMALL",
    "Coefficients",
    "coefficients",
]

TANH_SMALL = 0.55
"""Below it tanh is a polynomial."""

FAST_EXP_TERMS = (
    1.0,
    0.4999937117099762,
    0.16666504740715027,
    0.04187570884823799,
    0.008369158022105694,
)
"""Of (exp(r) - 1)/r in f32 over |r| <= ln(2)/2: exp is 2e-7 off at most."""

FAST_LOG_TERMS = (
    0.333333283662796,
    -0.25000298023223877,
    0.20001468062400818,
    -0.16642247140407562,
    0.14202174544334412,
    -0.12972238659858704,
    0.12712307274341583,
    -0.08101558685302734,
)
"""Of (log(1 + f) - f + f^2/2)/f^3 in f32, 1 + f within sqrt(2) of 1: 3e-8 off."""


@attrs.frozen(kw_only=True)
class Coefficients:
    """The functions' numbers in one float format, each exact in that format.

    Attributes:
        mantissa_bits, bias: of the format.
        ln2_high, ln2_low: ln(2) in two parts; the first times an exponent is exact.
        exp_terms: of the exponential's power series, from the constant on.
        exp_least, exp_most: beyond them it is 0 or infinite.
        sqrt_half: the bits of sqrt(1/2), cut off.
        log_terms, tanh_terms: of the polynomials in a square.
        least_normal: the smallest number that is not subnormal.
    """

    mantissa_bits: int
    bias: int
    ln2_high: float
    ln2_low: float
    exp_terms: tuple[float, ...]
    exp_least: float
    exp_most: float
    sqrt_half: int
    log_terms: tuple[float, ...]
    least_normal: float
    tanh_terms: tuple[float, ...]


def coefficients(dtype: DType) -> Coefficients:
    """The numbers for f32 or f64."""
    return _F32 if dtype is DType.F32 else _F64


def _f32(value: float) -> float:
    return float(struct.unpack("<f", struct.pack("<f", value))[0])


_F32 = Coefficients(
    mantissa_bits=23,
    bias=127,
    ln2_high=_f32(6.9313812256e-01),
    ln2_low=_f32(9.0580006145e-06),
    exp_terms=tuple(_f32(1 / math.factorial(n)) for n in range(8)),
    exp_least=-105.0,
    exp_most=89.0,
    sqrt_half=0x3F3504F3,
    log_terms=tuple(
        map(_f32, (0.66666662693, 0.40000972152, 0.28498786688, 0.24279078841))
    ),
    least_normal=2.0**-126,
    tanh_terms=tuple(
        map(
            _f32,
            (
                -0.33333332008,
                0.13333113729,
                -0.0539094288275,
                0.0213093886644,
                -0.00661022783111,
            ),
        )
    ),
)
_F64 = Coefficients(
    mantissa_bits=52,
    bias=1023,
    ln2_high=6.93147180369123816490e-01,
    ln2_low=1.90821492927058770002e-10,
    exp_terms=tuple(1 / math.factorial(n) for n in range(15)),
    exp_least=-746.0,
    exp_most=710.0,
    sqrt_half=0x3FE6A09E << 32,
    log_terms=(
        6.666666666666735130e-01, 3.999999999940941908e-01, 2.857142874366239149e-01,
        2.222219843214978396e-01, 1.818357216161805012e-01, 1.531383769920937332e-01,
        1.479819860511658591e-01,
    ),
    least_normal=2.0**-1022,
    tanh_terms=tuple(
        float.fromhex(term)
        for term in (
            "-0x1.5555555555555p-2", "0x1.1111111111109p-3", "-0x1.ba1ba1ba1a732p-5",
            "0x1.664f48822e9a5p-6", "-0x1.226e3539b9272p-7", "0x1.d6d3c60009e9cp-9",
            "-0x1.7da25da5066b5p-10", "0x1.3547bfaa42508p-11", "-0x1.f41d11ba745a0p-13",
            "0x1.8c93b7d5aba25p-14", "-0x1.1adede7706052p-15", "0x1.08378067f032ap-17",
        )
    ),
)  # fmt: skip
