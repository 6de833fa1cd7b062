"""Functions that the printed kernels call, each written once where it is needed.

They are what the languages leave undefined or open: division by zero, the minimum
with a NaN, casts of numbers that are too large, 16-bit floats. All but exp, log and
tanh have the same bits as the code of LLVM's emitters, NaNs aside.
"""

from __future__ import annotations

from collections.abc import Callable
from string import Template

from accy_async.compiler.emit.text.dialect import Dialect, unsigned
from accy_async.dtypes import DType

__all__ = ["Helpers"]

_HALF = """\
float half_to_float(uint half_bits) {
    const uint shifted = (half_bits & 0x7FFFu) << 13;
    const uint exponent = shifted & 0x0F800000u;
    uint result = shifted + 0x38000000u;
    if (exponent == 0x0F800000u) {
        result += 0x38000000u;
    } else if (exponent == 0u) {
        ${precise}float raised = $from_bits(result + 0x00800000u);
        raised = raised - $from_bits(0x38800000u);
        result = $to_bits(raised);
    }
    return $from_bits(result | ((half_bits & 0x8000u) << 16));
}"""
_TO_HALF = """\
uint float_to_half(float x) {
    const uint bits = $to_bits(x);
    const uint magnitude = bits & 0x7FFFFFFFu;
    uint result = 0x7C00u;
    if (magnitude > 0x7F800000u) {
        result = 0x7E00u;
    } else if (magnitude < 0x38800000u) {
        // The adder aligns and rounds what is subnormal in 16 bits.
        ${precise}float aligned = $from_bits(magnitude) + 0.5$f;
        result = $to_bits(aligned) - 0x3F000000u;
    } else if (magnitude < 0x47800000u) {
        result = (magnitude + 0xC8000FFFu + ((magnitude >> 13) & 1u)) >> 13;
    }
    return result | ((bits >> 16) & 0x8000u);
}"""
_NATIVE_HALF = """\
float half_to_float(uint half_bits) {
#ifdef __CUDA_ARCH__
    float result;
    asm("cvt.f32.f16 %0, %1;" : "=f"(result) : "h"(uint16(half_bits)));
    return result;
#else
    return half_to_float_by_bits(half_bits);
#endif
}"""
_NATIVE_TO_HALF = """\
uint float_to_half(float x) {
#ifdef __CUDA_ARCH__
    uint16 result;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(result) : "f"(x));
    return result;
#else
    return float_to_half_by_bits(x);
#endif
}"""
_FROM_BFLOAT = """\
float bfloat_to_float(uint bits) {
    return $from_bits(bits << 16);
}"""
_TO_BFLOAT = """\
uint float_to_bfloat(float x) {
    const uint bits = $to_bits(x);
    if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return (bits >> 16) | 64u;
    return (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
}"""
_DIVIDE = """\
$T divide_$d($T a, $T b) {
    if (b == $T(0)) return $T(0);
    $overflow
    return a / b;
}"""
_REMAINDER = """\
$T remainder_$d($T a, $T b) {
    if (b == $T(0)) return $T(0);
    $overflow
    return a - (a / b) * b;
}"""
_CHOOSE = """\
$T ${word}_$d($T a, $T b) {
    return a $sign b ? a : b;
}"""
_CHOOSE_FLOAT = """\
$T ${word}_$d($T a, $T b) {
    const $U x = $to_bits(a);
    const $U y = $to_bits(b);
    if ((x & $magnitude) > $infinity) return b;
    if ((y & $magnitude) > $infinity) return a;
    const $U left = (x & $sign_bit) != $U(0) ? ~x : x | $sign_bit;
    const $U right = (y & $sign_bit) != $U(0) ? ~y : y | $sign_bit;
    return left $sign right ? a : b;
}"""
_IS_NAN = """\
bool is_nan_$d($T x) {
    return ($U($to_bits(x)) & $magnitude) > $infinity;
}"""
_SATURATE = """\
$R saturate_${d}_$target($T x) {
    if (is_nan_$d(x)) return $R(0);
    if (x >= $above) return $most;
    if (x < $below) return $least;
    return $R(x);
}"""
_ARITHMETIC = """\
$T ${word}_$d($T a, $T b) {
    ${precise}$T result = a $sign b;
    return result;
}"""


class Helpers:
    """The helper functions of one text, in the order they must be defined.

    Args:
        dialect: the language.
        number: prints a constant of a dtype from its value.
        register: prints a register type, and notes that it is needed.
    """

    def __init__(
        self,
        dialect: Dialect,
        number: Callable[[DType, float], str],
        register: Callable[[DType], str],
    ) -> None:
        self._dialect = dialect
        self._number = number
        self._register = register
        self._functions: dict[str, str] = {}

    def text(self) -> list[str]:
        """The definitions, in a namespace of their own where there are such."""
        functions = list(self._functions.values())
        if functions and self._dialect.scope:
            name = self._dialect.scope.removesuffix("::")
            return [f"namespace {name} {{", *functions, f"}}  // namespace {name}"]
        return functions

    def define(self, name: str, template: str, **words: str) -> str:
        """Define a function unless it is there; what to call it."""
        if name not in self._functions:
            text = Template(template).substitute(words)
            self._functions[name] = self._dialect.function + text
        return self._dialect.scope + name

    def wrap(self, dtype: DType) -> str:
        """An int cut to i8 or i16."""
        amount = 32 - dtype.bits
        return self.define(
            f"wrap_{dtype}",
            f"int wrap_{dtype}(int x) {{\n"
            f"    return int(uint(x) << {amount}) >> {amount};\n}}",
        )

    def divide(self, dtype: DType) -> str:
        """Integer division that is defined for all divisors."""
        wrapped = f"{self._register(dtype)}({self._negated(dtype, 'a')})"
        return self._division("divide", _DIVIDE, dtype, wrapped)

    def remainder(self, dtype: DType) -> str:
        """The remainder that goes with it."""
        zero = f"{self._register(dtype)}(0)"
        return self._division("remainder", _REMAINDER, dtype, zero)

    def _division(self, word: str, template: str, dtype: DType, special: str) -> str:
        kind = self._register(dtype)
        overflow = f"if (b == {kind}(-1)) return {special};" if dtype.is_signed else ""
        text = template if overflow else template.replace("    $overflow\n", "")
        return self.define(f"{word}_{dtype}", text, T=kind, d=dtype, overflow=overflow)

    def _negated(self, dtype: DType, value: str) -> str:
        if dtype.bits < 32:
            return f"{self.wrap(dtype)}(-{value})" if dtype.is_signed else ""
        wide = self._register(unsigned(dtype))
        return f"({wide}(0) - {wide}({value}))"

    def absolute(self, dtype: DType) -> str:
        """The magnitude of a signed integer; the least one wraps to itself."""
        kind = self._register(dtype)
        return self.define(
            f"absolute_{dtype}",
            f"{kind} absolute_{dtype}({kind} a) {{\n"
            f"    return a < {kind}(0) ? {kind}({self._negated(dtype, 'a')}) : a;\n}}",
        )

    def choose(self, word: str, dtype: DType) -> str:
        """``minimum`` or ``maximum`` of two values."""
        sign = "<" if word == "minimum" else ">"
        if not dtype.is_float:
            kind = self._register(dtype)
            words = {"T": kind, "d": dtype, "word": word, "sign": sign}
            return self.define(f"{word}_{dtype}", _CHOOSE, **words)
        words = self.format(dtype) | {"word": word, "sign": sign}
        return self.define(f"{word}_{dtype}", _CHOOSE_FLOAT, **words)

    def saturate(self, source: DType, target: DType) -> str:
        """A float as the nearest integer toward zero that the target holds."""
        words = self.format(source)
        self.is_nan(source)
        above = float(2 ** (target.bits - int(target.is_signed)))
        words |= {
            "R": self._register(target),
            "target": target.value,
            "above": self._number(source, above),
            "below": self._number(source, -above if target.is_signed else 0.0),
            "most": self._number(target, target.maximum),
            "least": self._number(target, target.minimum),
        }
        return self.define(f"saturate_{source}_{target}", _SATURATE, **words)

    def is_nan(self, dtype: DType) -> str:
        """Whether a float is no number, by its bits."""
        return self.define(f"is_nan_{dtype}", _IS_NAN, **self.format(dtype))

    def arithmetic(self, word: str, sign: str, dtype: DType) -> str:
        """A float operation that nothing may merge with its neighbours."""
        words = {"word": word, "sign": sign, "d": dtype.value}
        words |= {"T": self._register(dtype), "precise": self._dialect.precise}
        return self.define(f"{word}_{dtype}", _ARITHMETIC, **words)

    def half_to_float(self) -> str:
        """An f16's bits as an f32."""
        return self._half("half_to_float", _HALF, _NATIVE_HALF)

    def float_to_half(self) -> str:
        """The bits of the f16 nearest to an f32."""
        return self._half("float_to_half", _TO_HALF, _NATIVE_TO_HALF)

    def bfloat_to_float(self) -> str:
        """A bf16's bits as an f32."""
        return self.define("bfloat_to_float", _FROM_BFLOAT, **self.format(DType.F32))

    def float_to_bfloat(self) -> str:
        """The bits of the bf16 nearest to an f32."""
        return self.define("float_to_bfloat", _TO_BFLOAT, **self.format(DType.F32))

    def _half(self, name: str, by_bits: str, native: str) -> str:
        words = self.format(DType.F32)
        if not self._dialect.native_halves:
            return self.define(name, by_bits, **words)
        apart = f"{name}_by_bits"
        self.define(apart, by_bits.replace(f" {name}(", f" {apart}("), **words)
        return self.define(name, native)

    def format(self, dtype: DType) -> dict[str, str]:
        """The words that templates use of a float format."""
        dialect, word = self._dialect, unsigned(dtype)
        mantissa_bits = 23 if dtype is DType.F32 else 52
        sign_bit = 1 << (dtype.bits - 1)
        infinity = sign_bit - (1 << mantissa_bits)

        def hexadecimal(value: int) -> str:
            return f"0x{value:X}{dialect.suffixes[word]}"

        return {
            "T": self._register(dtype),
            "U": self._register(word),
            "d": dtype.value,
            "f": dialect.suffixes.get(dtype, ""),
            "to_bits": dialect.to_bits[dtype],
            "from_bits": dialect.from_bits[dtype],
            "precise": dialect.precise,
            "magnitude": hexadecimal(sign_bit - 1),
            "sign_bit": hexadecimal(sign_bit),
            "infinity": hexadecimal(infinity),
        }
