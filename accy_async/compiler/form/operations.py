"""What expressions can compute, and on which dtypes.

Every operation is total: no input is undefined, whatever the device.

* Integers wrap (two's complement). ``DIVIDE`` truncates toward zero and
  ``REMAINDER`` takes the dividend's sign, as in C; both give 0 where the
  divisor is 0, and the smallest value divided by -1 wraps to itself.
* A shift's amount counts modulo the width; ``SHIFT_RIGHT`` of a signed integer
  keeps the sign.
* Floats follow IEEE 754-2019 with round to nearest, ties to even, subnormals
  kept. But for `MultiplyAdd` nothing is contracted, reassociated or replaced by an
  approximation, so add, subtract, multiply, divide, sqrt and the roundings are
  exact to the bit on every device. ``EXP``, ``LOG`` and ``TANH`` are the device's
  own, with an error of a few units in the last place. The bits of a NaN are not
  specified.
* ``MINIMUM`` and ``MAXIMUM`` of floats are IEEE's minimumNumber and
  maximumNumber (clause 9.6): a NaN loses to a number, and -0 < +0.
* Comparisons with a NaN are false, except ``DIFFERS``.
* A float cast to an integer truncates toward zero and saturates at the type's
  bounds; NaN gives 0. Casts between integers wrap or extend by the source's
  sign. Integers cast to floats, and f64 cast to f32, round to nearest even.

f16 and bf16 are storage types: they can be loaded, stored, selected, copied and
cast from and to f32, rounding to nearest even; they are computed in f32. A cast
from f64 or an integer goes through f32 by name, so that the double rounding is
seen.
"""

from __future__ import annotations

from enum import StrEnum

from accy_async.dtypes import DType

__all__ = [
    "BinaryOperation",
    "Comparison",
    "UnaryOperation",
    "can_bitcast",
    "can_cast",
    "computes_in_floats",
]


class UnaryOperation(StrEnum):
    """Operations on one value; the result has its dtype."""

    NEGATE = "negate"
    ABSOLUTE = "absolute"
    NOT = "not"
    EXP = "exp"
    LOG = "log"
    SQRT = "sqrt"
    TANH = "tanh"
    FLOOR = "floor"
    CEILING = "ceiling"
    TRUNCATE = "truncate"
    ROUND_EVEN = "round_even"

    def takes(self, dtype: DType) -> bool:
        """Whether the operation is defined on the dtype."""
        if self is UnaryOperation.NOT:
            return not dtype.is_float
        if self in (UnaryOperation.NEGATE, UnaryOperation.ABSOLUTE):
            return dtype.is_integer or computes_in_floats(dtype)
        return computes_in_floats(dtype)


class BinaryOperation(StrEnum):
    """Operations on two values of one dtype; the result has that dtype."""

    ADD = "add"
    SUBTRACT = "subtract"
    MULTIPLY = "multiply"
    DIVIDE = "divide"
    REMAINDER = "remainder"
    MINIMUM = "minimum"
    MAXIMUM = "maximum"
    AND = "and"
    OR = "or"
    XOR = "xor"
    SHIFT_LEFT = "shift_left"
    SHIFT_RIGHT = "shift_right"

    def takes(self, dtype: DType) -> bool:
        """Whether the operation is defined on the dtype."""
        if self in _LOGIC:
            return not dtype.is_float
        if self in _INTEGER_ONLY:
            return dtype.is_integer
        return dtype.is_integer or computes_in_floats(dtype)


_LOGIC = frozenset({BinaryOperation.AND, BinaryOperation.OR, BinaryOperation.XOR})
_INTEGER_ONLY = frozenset(
    {
        BinaryOperation.REMAINDER,
        BinaryOperation.SHIFT_LEFT,
        BinaryOperation.SHIFT_RIGHT,
    }
)


class Comparison(StrEnum):
    """Comparisons of two values of one dtype; the result is a bool."""

    EQUALS = "equals"
    DIFFERS = "differs"
    LESS = "less"
    LESS_EQUAL = "less_equal"
    GREATER = "greater"
    GREATER_EQUAL = "greater_equal"

    def takes(self, dtype: DType) -> bool:
        """Whether the comparison is defined on the dtype."""
        if dtype is DType.BOOL:
            return self in (Comparison.EQUALS, Comparison.DIFFERS)
        return dtype.is_integer or computes_in_floats(dtype)


def computes_in_floats(dtype: DType) -> bool:
    """True for f32 and f64, the floats that arithmetic is done in."""
    return dtype in (DType.F32, DType.F64)


def can_cast(source: DType, target: DType) -> bool:
    """Whether a value cast exists; to bool there is none (compare instead)."""
    if source is target:
        return True
    if target is DType.BOOL:
        return False
    halves = (DType.F16, DType.BF16)
    if source in halves or target in halves:
        return DType.F32 in (source, target)
    return True


def can_bitcast(source: DType, target: DType) -> bool:
    """Whether the bits of one dtype can be read as the other's."""
    return DType.BOOL not in (source, target) and source.size_bytes == target.size_bytes
