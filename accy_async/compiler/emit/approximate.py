"""exp, log, tanh, quotients and roots of f32 in the fast tier.

On CPUs shorter polynomials than those of `transcendental`, and no care for subnormal
results; on NVIDIA GPUs the units' own approximations. ``docs/generated.md`` states the
bounds. What is infinite, NaN or zero stays so; f64 is computed as it always is.

Source: PTX ISA, ``ex2.approx``, ``lg2.approx``, ``div.full`` and ``sqrt.approx``.
"""

from __future__ import annotations

import math

from accy_async.compiler.emit.coefficients import FAST_EXP_TERMS, FAST_LOG_TERMS
from accy_async.compiler.emit.transcendental import Lines
from accy_async.compiler.emit.writer import FunctionWriter
from accy_async.compiler.form import UnaryOperation
from accy_async.dtypes import DType

__all__ = ["FAST_FLAGS", "approximate", "approximate_quotient", "approximate_root"]

FAST_FLAGS = "reassoc nsz arcp contract "
"""LLVM's for arithmetic: sums in another order, products with reciprocals, products
and sums rounded once. NaNs and infinities keep their meaning."""

_LEAST_EXPONENT = -88.0
"""Its exponential has an exponent that stands for 0; that of its negative, infinity."""


def approximate(
    writer: FunctionWriter, operation: UnaryOperation, value: str, *, on_gpu: bool
) -> str:
    """EXP, LOG or TANH of an f32."""
    lines = _DeviceLines(writer, DType.F32) if on_gpu else _FastLines(writer, DType.F32)
    if operation is UnaryOperation.EXP:
        return lines.exp(value)
    if operation is UnaryOperation.LOG:
        return lines.log(value)
    return lines.tanh(value)


def approximate_quotient(writer: FunctionWriter, left: str, right: str) -> str:
    """A quotient of f32 on an NVIDIA GPU, 2 units off at most."""
    name = "llvm.nvvm.div.full"
    return writer.call("float", name, ("float", left), ("float", right))


def approximate_root(writer: FunctionWriter, value: str) -> str:
    """A square root of f32 on an NVIDIA GPU, 2 units off at most."""
    return writer.call("float", "llvm.nvvm.sqrt.approx.f", ("float", value))


class _FastLines(Lines):
    """For CPUs with fused multiply-adds."""

    def exp(self, x: str) -> str:
        numbers, op, number = self._numbers, self._writer.value, self._number
        low = self._intrinsic("maximumnum", x, number(_LEAST_EXPONENT))
        within = self._intrinsic("minimumnum", low, number(-_LEAST_EXPONENT))
        scaled = op(f"fmul float {within}, {number(1 / math.log(2))}")
        rounds = self._intrinsic("roundeven", scaled)
        minus = op(f"fneg float {rounds}")
        rest = self._fma(minus, number(numbers.ln2_high), within)
        rest = self._fma(minus, number(numbers.ln2_low), rest)
        power = self._fma(rest, self._polynomial(FAST_EXP_TERMS, rest), number(1.0))
        count = op(f"fptosi float {rounds} to i32")
        # -127 gives the bits of 0; what is beyond 127 is put right below.
        power = op(f"fmul float {power}, {self._power_of_two(count)}")
        for test, value in (
            (f"fcmp oge float {x}, {number(-_LEAST_EXPONENT)}", number(math.inf)),
            (f"fcmp uno float {x}, {x}", x),
        ):
            power = op(f"select i1 {op(test)}, float {value}, float {power}")
        return power

    def log(self, x: str) -> str:
        """K ln(2) plus a polynomial of what is left, within sqrt(2) of 1."""
        numbers, op, number = self._numbers, self._writer.value, self._number
        raw = op(f"bitcast float {x} to i32")
        one = numbers.bias << numbers.mantissa_bits
        moved = op(f"add i32 {raw}, {one - numbers.sqrt_half}")
        count = op(f"ashr i32 {moved}, {numbers.mantissa_bits}")
        count = op(f"sub i32 {count}, {numbers.bias}")
        fraction = op(f"and i32 {moved}, {(1 << numbers.mantissa_bits) - 1}")
        fraction = op(f"add i32 {fraction}, {numbers.sqrt_half}")
        mantissa = op(f"bitcast i32 {fraction} to float")
        f = op(f"fsub float {mantissa}, {number(1.0)}")
        square = op(f"fmul float {f}, {f}")
        terms = self._polynomial(FAST_LOG_TERMS, f)
        k = op(f"sitofp i32 {count} to float")
        low = op(f"fmul float {k}, {number(numbers.ln2_low)}")
        total = self._fma(op(f"fmul float {square}, {f}"), terms, low)
        total = self._fma(square, number(-0.5), total)
        total = op(f"fadd float {total}, {f}")
        total = self._fma(k, number(numbers.ln2_high), total)
        return self._log_of_odd(x, total)


class _DeviceLines(Lines):
    """For NVIDIA GPUs."""

    def exp(self, x: str) -> str:
        scaled = self._writer.value(f"fmul float {x}, {self._number(1 / math.log(2))}")
        return self._writer.call("float", "llvm.nvvm.ex2.approx.f", ("float", scaled))

    def log(self, x: str) -> str:
        power = self._writer.call("float", "llvm.nvvm.lg2.approx.f", ("float", x))
        return self._writer.value(f"fmul float {power}, {self._number(math.log(2))}")

    def _quotient(self, left: str, right: str) -> str:
        return approximate_quotient(self._writer, left, right)
