"""exp, log and tanh in f32 and f64, of instructions that GPUs and most CPUs have.

Each has an error below 2 units in the last place over all inputs, subnormal
results included, and IEEE's results for zeros, infinities and NaN. Fused
multiply-adds are used here on purpose: nothing promises these functions' bits.

`coefficients` says where the numbers are from.
"""

from __future__ import annotations

import math
import struct

from accy_async.compiler.emit.coefficients import TANH_SMALL, coefficients
from accy_async.compiler.emit.writer import FunctionWriter, float_literal
from accy_async.compiler.form import UnaryOperation
from accy_async.dtypes import DType

__all__ = ["TRANSCENDENTAL", "Lines", "transcendental"]

TRANSCENDENTAL = (UnaryOperation.EXP, UnaryOperation.LOG, UnaryOperation.TANH)
"""What is written out here."""


_KINDS = {DType.F32: ("float", "i32", "f32"), DType.F64: ("double", "i64", "f64")}


def transcendental(
    writer: FunctionWriter, operation: UnaryOperation, dtype: DType, value: str
) -> str:
    """EXP, LOG or TANH of an f32 or f64."""
    lines = Lines(writer, dtype)
    if operation is UnaryOperation.EXP:
        return lines.exp(value)
    if operation is UnaryOperation.LOG:
        return lines.log(value)
    return lines.tanh(value)


class Lines:
    """Writes the functions in one format."""

    def __init__(self, writer: FunctionWriter, dtype: DType) -> None:
        self._writer = writer
        self._numbers = coefficients(dtype)
        self._kind, self._integer, self._suffix = _KINDS[dtype]

    def _number(self, value: float) -> str:
        """The constant nearest to a number."""
        if self._kind == "float":
            (value,) = struct.unpack("<f", struct.pack("<f", value))
        return float_literal(value)

    def exp(self, x: str) -> str:
        """2^k times the exponential of what is left, |r| <= ln(2)/2."""
        format, op = self._numbers, self._writer.value
        kind, integer, number = self._kind, self._integer, self._number
        low = self._intrinsic("maximumnum", x, number(format.exp_least))
        within = self._intrinsic("minimumnum", low, number(format.exp_most))
        scaled = op(f"fmul {kind} {within}, {number(1 / math.log(2))}")
        rounds = self._intrinsic("roundeven", scaled)
        minus = op(f"fneg {kind} {rounds}")
        rest = self._fma(minus, number(format.ln2_high), within)
        rest = self._fma(minus, number(format.ln2_low), rest)
        power = self._polynomial(format.exp_terms, rest)
        count = op(f"fptosi {kind} {rounds} to {integer}")
        half = op(f"ashr {integer} {count}, 1")
        for exponent in (half, op(f"sub {integer} {count}, {half}")):
            power = op(f"fmul {kind} {power}, {self._power_of_two(exponent)}")
        is_nan = op(f"fcmp uno {kind} {x}, {x}")
        return op(f"select i1 {is_nan}, {kind} {x}, {kind} {power}")

    def log(self, x: str) -> str:
        """K ln(2) plus the logarithm of what is left, within sqrt(2) of 1."""
        format, op, number = self._numbers, self._writer.value, self._number
        kind, integer, bits = self._kind, self._integer, format.mantissa_bits
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
        rest = op(f"fmul {kind} {z}, {self._polynomial(format.log_terms, z)}")
        k = op(f"sitofp {integer} {count} to {kind}")
        total = op(f"fmul {kind} {k}, {number(format.ln2_low)}")
        total = self._fma(s, op(f"fadd {kind} {half}, {rest}"), total)
        total = op(f"fsub {kind} {total}, {half}")
        total = op(f"fadd {kind} {total}, {f}")
        total = self._fma(k, number(format.ln2_high), total)
        return self._log_of_odd(x, total)

    def _log_of_odd(self, x: str, otherwise: str) -> str:
        """Log where x is a zero, negative, infinite or NaN, else what is given."""
        kind, op, number = self._kind, self._writer.value, self._number
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
        op, number, kind = self._writer.value, self._number, self._kind
        magnitude = self._intrinsic("fabs", x)
        power = self.exp(op(f"fadd {kind} {magnitude}, {magnitude}"))
        below = op(f"fadd {kind} {power}, {number(1.0)}")
        part = self._quotient(number(2.0), below)
        large = op(f"fsub {kind} {number(1.0)}, {part}")
        square = op(f"fmul {kind} {magnitude}, {magnitude}")
        terms = self._polynomial(self._numbers.tanh_terms, square)
        cube = op(f"fmul {kind} {magnitude}, {square}")
        small = self._fma(cube, terms, magnitude)
        is_small = op(f"fcmp olt {kind} {magnitude}, {number(TANH_SMALL)}")
        result = op(f"select i1 {is_small}, {kind} {small}, {kind} {large}")
        return self._intrinsic("copysign", result, x)

    def _quotient(self, left: str, right: str) -> str:
        return self._writer.value(f"fdiv {self._kind} {left}, {right}")

    def _polynomial(self, terms: tuple[float, ...], x: str) -> str:
        """``terms[0] + terms[1] x + ...`` after Horner."""
        total = self._number(terms[-1])
        for term in reversed(terms[:-1]):
            total = self._fma(total, x, self._number(term))
        return total

    def _power_of_two(self, exponent: str) -> str:
        numbers, op, integer = self._numbers, self._writer.value, self._integer
        biased = op(f"add {integer} {exponent}, {numbers.bias}")
        raw = op(f"shl {integer} {biased}, {numbers.mantissa_bits}")
        return op(f"bitcast {integer} {raw} to {self._kind}")

    def _fma(self, a: str, b: str, c: str) -> str:
        return self._intrinsic("fma", a, b, c)

    def _intrinsic(self, name: str, *values: str) -> str:
        kind = self._kind
        return self._writer.call(
            kind, f"llvm.{name}.{self._suffix}", *((kind, v) for v in values)
        )
