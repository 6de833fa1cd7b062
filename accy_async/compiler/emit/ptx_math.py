"""exp, log and tanh in f32 and f64, of instructions that every GPU has.

Each has an error below 2 units in the last place over all inputs, subnormal
results included, and IEEE's results for zeros, infinities and NaN. Fused
multiply-adds are used here on purpose: nothing promises these functions' bits.

Source: the reductions and the coefficients of log are those of FreeBSD's msun
(e_exp.c, e_log.c, e_logf.c; Sun Microsystems, 1993, freely usable); the
coefficients of tanh are our own Chebyshev fit of (tanh(x)/x - 1)/x^2 over
x^2 < 0.55^2 in 60 digits, with a relative error below 2^-26 and 2^-60.
"""

from __future__ import annotations

import math
import struct

import attrs

from accy_async.compiler.emit.writer import FunctionWriter, float_literal
from accy_async.compiler.form import UnaryOperation
from accy_async.dtypes import DType

__all__ = ["transcendental"]


@attrs.frozen
class _Format:
    """What the functions need to know of a float format."""

    kind: str
    integer: str
    suffix: str
    mantissa_bits: int
    bias: int
    ln2_high: float
    ln2_low: float
    exp_terms: int
    exp_least: float
    exp_most: float
    sqrt_half: int
    log_terms: tuple[float, ...]
    least_normal: float
    tanh_terms: tuple[float, ...]

    def number(self, value: float) -> str:
        """The constant nearest to a number."""
        if self.kind == "float":
            (value,) = struct.unpack("<f", struct.pack("<f", value))
        return float_literal(value)


_F32 = _Format(
    kind="float",
    integer="i32",
    suffix="f32",
    mantissa_bits=23,
    bias=127,
    ln2_high=6.9313812256e-01,
    ln2_low=9.0580006145e-06,
    exp_terms=8,
    exp_least=-105.0,
    exp_most=89.0,
    sqrt_half=0x3F3504F3,
    log_terms=(0.66666662693, 0.40000972152, 0.28498786688, 0.24279078841),
    least_normal=2.0**-126,
    tanh_terms=(
        -0.33333332008, 0.13333113729, -0.0539094288275,
        0.0213093886644, -0.00661022783111,
    ),
)  # fmt: skip
_F64 = _Format(
    kind="double",
    integer="i64",
    suffix="f64",
    mantissa_bits=52,
    bias=1023,
    ln2_high=6.93147180369123816490e-01,
    ln2_low=1.90821492927058770002e-10,
    exp_terms=15,
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
_TANH_SMALL = 0.55


def transcendental(
    writer: FunctionWriter, operation: UnaryOperation, dtype: DType, value: str
) -> str:
    """EXP, LOG or TANH of an f32 or f64."""
    lines = _Lines(writer, _F32 if dtype is DType.F32 else _F64)
    if operation is UnaryOperation.EXP:
        return lines.exp(value)
    if operation is UnaryOperation.LOG:
        return lines.log(value)
    return lines.tanh(value)


class _Lines:
    """Writes the functions in one format."""

    def __init__(self, writer: FunctionWriter, format: _Format) -> None:
        self._writer = writer
        self._format = format

    def exp(self, x: str) -> str:
        """2^k times the exponential of what is left, |r| <= ln(2)/2."""
        format, op = self._format, self._writer.value
        kind, integer = format.kind, format.integer
        low = self._intrinsic("maximumnum", x, format.number(format.exp_least))
        within = self._intrinsic("minimumnum", low, format.number(format.exp_most))
        scaled = op(f"fmul {kind} {within}, {format.number(1 / math.log(2))}")
        rounds = self._intrinsic("roundeven", scaled)
        minus = op(f"fneg {kind} {rounds}")
        rest = self._fma(minus, format.number(format.ln2_high), within)
        rest = self._fma(minus, format.number(format.ln2_low), rest)
        terms = [1 / math.factorial(n) for n in range(format.exp_terms)]
        power = self._polynomial(terms, rest)
        count = op(f"fptosi {kind} {rounds} to {integer}")
        half = op(f"ashr {integer} {count}, 1")
        for exponent in (half, op(f"sub {integer} {count}, {half}")):
            power = op(f"fmul {kind} {power}, {self._power_of_two(exponent)}")
        is_nan = op(f"fcmp uno {kind} {x}, {x}")
        return op(f"select i1 {is_nan}, {kind} {x}, {kind} {power}")

    def log(self, x: str) -> str:
        """K ln(2) plus the logarithm of what is left, within sqrt(2) of 1."""
        format, op, number = self._format, self._writer.value, self._format.number
        kind, integer, bits = format.kind, format.integer, format.mantissa_bits
        is_small = op(f"fcmp olt {kind} {x}, {number(format.least_normal)}")
        raised = op(f"fmul {kind} {x}, {number(2.0 ** (bits + 2))}")
        normal = op(f"select i1 {is_small}, {kind} {raised}, {kind} {x}")
        shift = op(f"select i1 {is_small}, {integer} {bits + 2}, {integer} 0")
        raw = op(f"bitcast {kind} {normal} to {integer}")
        one = format.bias << bits
        moved = op(f"add {integer} {raw}, {one - format.sqrt_half}")
        biased = op(f"ashr {integer} {moved}, {bits}")
        count = op(f"sub {integer} {biased}, {format.bias}")
        count = op(f"sub {integer} {count}, {shift}")
        fraction = op(f"and {integer} {moved}, {(1 << bits) - 1}")
        fraction = op(f"add {integer} {fraction}, {format.sqrt_half}")
        mantissa = op(f"bitcast {integer} {fraction} to {kind}")
        f = op(f"fsub {kind} {mantissa}, {number(1.0)}")
        half = op(f"fmul {kind} {op(f'fmul {kind} {f}, {f}')}, {number(0.5)}")
        s = op(f"fdiv {kind} {f}, {op(f'fadd {kind} {f}, {number(2.0)}')}")
        z = op(f"fmul {kind} {s}, {s}")
        rest = op(f"fmul {kind} {z}, {self._polynomial(list(format.log_terms), z)}")
        k = op(f"sitofp {integer} {count} to {kind}")
        total = op(f"fmul {kind} {k}, {number(format.ln2_low)}")
        total = self._fma(s, op(f"fadd {kind} {half}, {rest}"), total)
        total = op(f"fsub {kind} {total}, {half}")
        total = op(f"fadd {kind} {total}, {f}")
        total = self._fma(k, number(format.ln2_high), total)
        return self._log_of_odd(x, total)

    def _log_of_odd(self, x: str, otherwise: str) -> str:
        """Log where x is a zero, negative, infinite or NaN, else what is given."""
        kind, op, number = self._format.kind, self._writer.value, self._format.number
        zero, infinity = number(0.0), number(math.inf)
        minus, nan = number(-math.inf), number(math.nan)
        result = otherwise
        for test, value in (
            (f"fcmp oeq {kind} {x}, {infinity}", x),
            (f"fcmp oeq {kind} {x}, {zero}", minus),
            (f"fcmp ult {kind} {x}, {zero}", nan),
        ):
            result = op(f"select i1 {op(test)}, {kind} {value}, {kind} {result}")
        return result

    def tanh(self, x: str) -> str:
        """A polynomial near 0, else 1 - 2 / (exp(2 |x|) + 1)."""
        format, op, number = self._format, self._writer.value, self._format.number
        kind = format.kind
        magnitude = self._intrinsic("fabs", x)
        power = self.exp(op(f"fadd {kind} {magnitude}, {magnitude}"))
        below = op(f"fadd {kind} {power}, {number(1.0)}")
        part = op(f"fdiv {kind} {number(2.0)}, {below}")
        large = op(f"fsub {kind} {number(1.0)}, {part}")
        square = op(f"fmul {kind} {magnitude}, {magnitude}")
        terms = self._polynomial(list(format.tanh_terms), square)
        cube = op(f"fmul {kind} {magnitude}, {square}")
        small = self._fma(cube, terms, magnitude)
        is_small = op(f"fcmp olt {kind} {magnitude}, {number(_TANH_SMALL)}")
        result = op(f"select i1 {is_small}, {kind} {small}, {kind} {large}")
        return self._intrinsic("copysign", result, x)

    def _polynomial(self, terms: list[float], x: str) -> str:
        """``terms[0] + terms[1] x + ...`` after Horner."""
        total = self._format.number(terms[-1])
        for term in reversed(terms[:-1]):
            total = self._fma(total, x, self._format.number(term))
        return total

    def _power_of_two(self, exponent: str) -> str:
        format, op = self._format, self._writer.value
        biased = op(f"add {format.integer} {exponent}, {format.bias}")
        raw = op(f"shl {format.integer} {biased}, {format.mantissa_bits}")
        return op(f"bitcast {format.integer} {raw} to {format.kind}")

    def _fma(self, a: str, b: str, c: str) -> str:
        return self._intrinsic("fma", a, b, c)

    def _intrinsic(self, name: str, *values: str) -> str:
        kind = self._format.kind
        return self._writer.call(
            kind, f"llvm.{name}.{self._format.suffix}", *((kind, v) for v in values)
        )
