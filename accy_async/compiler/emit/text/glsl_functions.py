"""exp, log and tanh of f32 and f64 in GLSL.

Vulkan promises little of its own f32 functions, and has none for f64. The method and
the numbers are those of the PTX emitter, without fused multiply-adds, which Vulkan
does not promise either: errors stay below 3 units in the last place.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from accy_async.compiler.emit.coefficients import TANH_SMALL, coefficients
from accy_async.compiler.form import UnaryOperation
from accy_async.dtypes import DType

__all__ = ["function"]

_EXP = """\
$T exp_$d($T x) {
    if (is_nan_$d(x)) return x;
    const $T within = min(max(x, $least), $most);
    precise $T rounds = roundEven(within * $per_ln2);
    precise $T rest = (within - rounds * $ln2_high) - rounds * $ln2_low;
    precise $T power = $terms;
    const $I count = $I(rounds);
    const $I half_count = count >> 1;
    power = power * $from_bits($U(half_count + $bias) << $bits);
    power = power * $from_bits($U(count - half_count + $bias) << $bits);
    return power;
}"""
_LOG = """\
$T log_$d($T x) {
    const $U raw = $to_bits(x);
    if ((raw & $magnitude) == $U(0)) return $from_bits($sign_bit | $infinity);
    if (raw > $infinity) return $from_bits($infinity | ($infinity >> 1));
    if (raw == $infinity) return x;
    $I count = $I(0);
    precise $T normal = x;
    if (x < $least_normal) {
        normal = x * $raise;
        if (normal == $T(0)) return $from_bits($sign_bit | $infinity);
        count = -$I($raised);
    }
    const $U moved = $U($to_bits(normal)) + $moved;
    count += $I(moved >> $bits) - $bias;
    precise $T f = $from_bits((moved & $fraction) + $sqrt_half) - $one;
    precise $T half_square = f * f * $half;
    precise $T s = f / (f + $two);
    precise $T z = s * s;
    precise $T series = z * ($terms);
    const $T k = $T(count);
    precise $T total = s * (half_square + series) + k * $ln2_low;
    total = ((total - half_square) + f) + k * $ln2_high;
    return total;
}"""
_TANH = """\
$T tanh_$d($T x) {
    if (is_nan_$d(x)) return x;
    const $T a = abs(x);
    precise $T z = a * a;
    precise $T result = a + a * z * ($terms);
    if (a >= $small) {
        precise $T below = exp_$d(a + a) + $one;
        result = $one - $two / below;
    }
    return $from_bits($U($to_bits(result)) | ($U($to_bits(x)) & $sign_bit));
}"""


def function(
    operation: UnaryOperation, dtype: DType, number: Callable[[DType, float], str]
) -> tuple[str, dict[str, str]]:
    """The template of EXP, LOG or TANH, and the words that are its own."""
    numbers = coefficients(dtype)

    def constant(value: float) -> str:
        return number(dtype, value)

    def integer(value: int) -> str:
        return number(DType.U32 if dtype is DType.F32 else DType.U64, value)

    words = {
        "I": "int" if dtype is DType.F32 else "int64_t",
        "bits": str(numbers.mantissa_bits),
        "bias": str(numbers.bias),
        "one": constant(1.0),
        "two": constant(2.0),
        "half": constant(0.5),
        "ln2_high": constant(numbers.ln2_high),
        "ln2_low": constant(numbers.ln2_low),
    }
    if operation is UnaryOperation.EXP:
        return _EXP, words | {
            "least": constant(numbers.exp_least),
            "most": constant(numbers.exp_most),
            "per_ln2": constant(1 / math.log(2)),
            "terms": _polynomial(numbers.exp_terms, "rest", constant),
        }
    if operation is UnaryOperation.TANH:
        return _TANH, words | {
            "small": constant(TANH_SMALL),
            "terms": _polynomial(numbers.tanh_terms, "z", constant),
        }
    raised = numbers.mantissa_bits + 2
    moved = (numbers.bias << numbers.mantissa_bits) - numbers.sqrt_half
    return _LOG, words | {
        "least_normal": constant(numbers.least_normal),
        "raise": constant(2.0**raised),
        "raised": str(raised),
        "moved": integer(moved),
        "fraction": integer((1 << numbers.mantissa_bits) - 1),
        "sqrt_half": integer(numbers.sqrt_half),
        "terms": _polynomial(numbers.log_terms, "z", constant),
    }


def _polynomial(
    terms: Sequence[float], x: str, constant: Callable[[float], str]
) -> str:
    """``terms[0] + terms[1] x + ...`` after Horner."""
    total = constant(terms[-1])
    for term in reversed(terms[:-1]):
        total = f"({total} * {x} + {constant(term)})"
    return total[1:-1]
