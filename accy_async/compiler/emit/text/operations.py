"""The operations of the kernel form as C-like expressions."""

from __future__ import annotations

import math

from accy_async.compiler.emit.coefficients import coefficients
from accy_async.compiler.emit.text.dialect import Dialect, unsigned
from accy_async.compiler.emit.text.glsl_exact import DIVIDE, SQRT
from accy_async.compiler.emit.text.glsl_functions import function
from accy_async.compiler.emit.text.helpers import Helpers
from accy_async.compiler.form import (
    Binary,
    BinaryOperation,
    Comparison,
    UnaryOperation,
)
from accy_async.dtypes import DType, ScalarArgument

__all__ = ["Operations", "bare", "nesting"]

_B, _U = BinaryOperation, UnaryOperation
_HALVES = (DType.F16, DType.BF16)
_SIGNS = {_B.ADD: "+", _B.SUBTRACT: "-", _B.MULTIPLY: "*"}
_BITWISE = {_B.AND: "&", _B.OR: "|", _B.XOR: "^"}
_LOGICAL = {_B.AND: "&&", _B.OR: "||", _B.XOR: "!="}
_COMPARISONS = {
    Comparison.EQUALS: "==",
    Comparison.DIFFERS: "!=",
    Comparison.LESS: "<",
    Comparison.LESS_EQUAL: "<=",
    Comparison.GREATER: ">",
    Comparison.GREATER_EQUAL: ">=",
}


class Operations:
    """Prints operations, and collects the helpers and types that they need.

    Attributes:
        dialect: the language's words.
        helpers: the functions that what was printed calls.
        used: the dtypes whose register types were printed.
    """

    def __init__(self, dialect: Dialect) -> None:
        self.dialect = dialect
        self.used: set[DType] = set()
        self.helpers = Helpers(dialect, self.number, self.register)

    def register(self, dtype: DType) -> str:
        """The type that a value of the dtype is held in."""
        self.used.add(dtype)
        return self.dialect.register(dtype)

    def number(self, dtype: DType, value: float) -> str:
        """A number as a constant, rounded to the dtype."""
        return self.constant(ScalarArgument.of(dtype, value))

    def constant(self, scalar: ScalarArgument) -> str:
        """A constant of the exact value."""
        dtype, value = scalar.dtype, scalar.value
        if dtype is DType.BOOL:
            return "true" if value else "false"
        if dtype in _HALVES:
            return f"0x{scalar.slot:X}u"
        self.used.add(dtype)
        word = DType.U32 if dtype.bits < 32 and not dtype.is_signed else dtype
        suffix = self.dialect.suffixes.get(word, "")
        if dtype.is_float:
            return self._float(scalar, suffix)
        if value >= 0:
            return f"{value}{suffix}"
        if value == dtype.minimum and dtype.bits >= 32:
            return f"({value + 1}{suffix} - 1)"
        return f"({value}{suffix})"

    def _float(self, scalar: ScalarArgument, suffix: str) -> str:
        dtype, value = scalar.dtype, float(scalar.value)
        tiny = coefficients(dtype).least_normal
        is_plain = math.isfinite(value) and (abs(value) >= tiny or value == 0)
        if is_plain and math.copysign(1, value) > 0:
            return f"{value!r}{suffix}"
        if is_plain and value != 0:
            return f"({value!r}{suffix})"
        self.used.add(unsigned(dtype))
        word = self.dialect.suffixes[unsigned(dtype)]
        return f"{self.dialect.from_bits[dtype]}(0x{scalar.slot:X}{word})"

    def unary(self, op: UnaryOperation, dtype: DType, x: str) -> str:
        """One operation on one value."""
        call = self.dialect.calls.get((op, dtype))
        if call is not None:
            return call.format(bare(x))
        if op is _U.NOT:
            return f"(!{x})" if dtype is DType.BOOL else self._wrapped(dtype, f"(~{x})")
        if op is _U.NEGATE:
            return f"(-{x})" if dtype.is_float else self._negated(dtype, x)
        if op is _U.ABSOLUTE:
            if not dtype.is_signed:
                return x
            return f"{self.helpers.absolute(dtype)}({bare(x)})"
        return f"{self._function(op, dtype)}({bare(x)})"

    def _negated(self, dtype: DType, x: str) -> str:
        if dtype.is_signed and (self.dialect.signed_wraps or dtype.bits < 32):
            return self._wrapped(dtype, f"(-{x})")
        word = self.register(unsigned(dtype))
        if dtype.is_signed:
            return f"{self.register(dtype)}({word}(0) - {word}({bare(x)}))"
        return self._wrapped(dtype, f"({word}(0) - {x})")

    def _function(self, op: UnaryOperation, dtype: DType) -> str:
        """A function that GLSL has not got, or not well enough."""
        helpers = self.helpers
        name = f"{op.value}_{dtype}"
        if op is _U.SQRT:
            return helpers.define(name, SQRT)
        if op is not _U.LOG:
            helpers.is_nan(dtype)
        if op is _U.TANH:
            self._function(_U.EXP, dtype)
        template, words = function(op, dtype, self.number)
        if dtype is DType.F64:
            self.used.add(DType.I64)
        return helpers.define(name, template, **helpers.format(dtype), **words)

    def binary(self, node: Binary, a: str, b: str) -> str:
        """One operation on two values of one dtype."""
        op, dtype = node.operation, node.dtype
        call = self.dialect.calls.get((op, dtype))
        if call is not None:
            operator = call.startswith("(")
            return call.format(*((a, b) if operator else (bare(a), bare(b))))
        if dtype is DType.BOOL:
            return f"({a} {_LOGICAL[op]} {b})"
        if op in _BITWISE:
            return f"({a} {_BITWISE[op]} {b})"
        if op in (_B.SHIFT_LEFT, _B.SHIFT_RIGHT):
            return self._shift(op, dtype, a, b)
        if op in _SIGNS and dtype.is_integer:
            return self._integer(_SIGNS[op], dtype, a, b)
        return f"{self._called(op, dtype)}({bare(a)}, {bare(b)})"

    def _called(self, op: BinaryOperation, dtype: DType) -> str:
        helpers = self.helpers
        if op in _SIGNS:
            return helpers.arithmetic(op.value, _SIGNS[op], dtype)
        if op in (_B.MINIMUM, _B.MAXIMUM):
            return helpers.choose(op.value, dtype)
        if op is _B.REMAINDER:
            return helpers.remainder(dtype)
        if dtype.is_float:
            return helpers.define("divide_f32", DIVIDE)
        return helpers.divide(dtype)

    def _integer(self, sign: str, dtype: DType, a: str, b: str) -> str:
        if dtype.bits >= 32 and dtype.is_signed and not self.dialect.signed_wraps:
            word = self.register(unsigned(dtype))
            left, right = f"{word}({bare(a)})", f"{word}({bare(b)})"
            return f"{self.register(dtype)}({left} {sign} {right})"
        return self._wrapped(dtype, f"({a} {sign} {b})")

    def _shift(self, op: BinaryOperation, dtype: DType, a: str, b: str) -> str:
        amount = f"({b} & {self.number(dtype, dtype.bits - 1)})"
        if dtype.bits == 64:
            amount = f"{self.register(DType.I32)}{amount}"
        if op is _B.SHIFT_RIGHT:
            return f"({a} >> {amount})"
        if dtype.is_signed:
            word = self.register(unsigned(dtype))
            moved = f"({word}({bare(a)}) << {amount})"
            return self._wrapped(dtype, f"{self.register(dtype)}{moved}")
        return self._wrapped(dtype, f"({a} << {amount})")

    def compare(self, op: Comparison, dtype: DType, a: str, b: str) -> str:
        """A comparison; a bool."""
        if op is Comparison.DIFFERS and dtype.is_float:
            return f"(!({a} == {b}))"  # true with a NaN
        return f"({a} {_COMPARISONS[op]} {b})"

    def cast(self, source: DType, target: DType, x: str) -> str:
        """A value in another dtype."""
        helpers, inner = self.helpers, bare(x)
        if source is target:
            return x
        if source is DType.F16:
            return f"{helpers.half_to_float()}({inner})"
        if source is DType.BF16:
            return f"{helpers.bfloat_to_float()}({inner})"
        if target is DType.F16:
            return f"{helpers.float_to_half()}({inner})"
        if target is DType.BF16:
            return f"{helpers.float_to_bfloat()}({inner})"
        kind = self.register(target)
        if target.is_float:
            return f"{kind}({inner})"
        if source.is_float:
            return f"{helpers.saturate(source, target)}({inner})"
        if target.bits == 64 and source.bits < 64 and source.is_signed:
            # Extended by its own sign first, then read as unsigned.
            inner = f"{self.register(DType.I64)}({inner})"
            return inner if target is DType.I64 else f"{kind}({inner})"
        fits = source.minimum >= target.minimum and source.maximum <= target.maximum
        if source is DType.BOOL or fits:
            same = self.dialect.register(source) == kind
            return x if same else f"{kind}({inner})"
        return self._wrapped(target, f"{kind}({inner})")

    def bitcast(self, source: DType, target: DType, x: str) -> str:
        """The same bits as another dtype."""
        dialect, inner = self.dialect, bare(x)
        if source.bits >= 32 and source.is_float:
            bits = f"{dialect.to_bits[source]}({inner})"
            return f"{self.register(target)}({bits})"
        if target.bits >= 32 and target.is_float:
            word = f"{self.register(unsigned(target))}({inner})"
            return f"{dialect.from_bits[target]}({word})"
        if target.bits >= 32:
            return f"{self.register(target)}({inner})"
        if source in _HALVES and target in _HALVES:
            return x
        return self._wrapped(_as_integer(target), f"{self.register(target)}({inner})")

    def from_word(self, dtype: DType, x: str) -> str:
        """A scalar out of the block of scalars, where narrow ones are words."""
        if dtype is DType.BOOL:
            return f"{x} != 0u"
        if dtype.bits < 32 and dtype.is_integer and dtype.is_signed:
            return self._wrapped(dtype, f"int({x})")
        return x

    def _wrapped(self, dtype: DType, x: str) -> str:
        if dtype.bits >= 32:
            return x
        if dtype.is_signed:
            return f"{self.helpers.wrap(dtype)}({bare(x)})"
        return f"({x} & 0x{(1 << dtype.bits) - 1:X}u)"


def _as_integer(dtype: DType) -> DType:
    """The integer that a half's bits are held in."""
    return DType.U16 if dtype in _HALVES else dtype


def bare(text: str) -> str:
    """An expression without the parentheses around it."""
    if not (text.startswith("(") and text.endswith(")")):
        return text
    depth = 0
    for place, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if depth == 0 and place < len(text) - 1:
            return text
    return text[1:-1]


def nesting(text: str) -> int:
    """How many parentheses are open at most."""
    deepest = depth = 0
    for letter in text:
        depth += (letter == "(") - (letter == ")")
        deepest = max(deepest, depth)
    return deepest
