"""What the elementwise operations, reductions and scans compute.

Every operation is total and means the same on every device:

* Integers wrap. ``DIVIDE`` truncates toward zero and ``REMAINDER`` takes the
  dividend's sign; both give 0 where the divisor is 0. Shift amounts count modulo
  the width.
* Floats follow IEEE 754-2019 and round to nearest, ties to even. ``MINIMUM`` and
  ``MAXIMUM`` are its operations of these names (clause 9.6): a NaN operand makes
  the result NaN, and -0 is below +0. A reduction or scan with them does likewise.
* A comparison with a NaN is false, except ``NE``.
* f16 and bf16 are computed in f32 and rounded once for each operation.
"""

from __future__ import annotations

from enum import StrEnum

from accy_async.dtypes import DType
from accy_async.values import member_of

__all__ = [
    "BinaryKind",
    "ComparisonKind",
    "OperandEffect",
    "ReductionKind",
    "ScanKind",
    "ScatterKind",
    "UnaryKind",
    "binary_kind",
    "comparison_kind",
    "default_accumulator",
    "operand_effect",
    "reduction_kind",
    "scan_kind",
    "scatter_kind",
    "unary_kind",
]


class UnaryKind(StrEnum):
    """Operations on each element; the result has the operand's type."""

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
        if self is UnaryKind.NOT:
            return not dtype.is_float
        if self in (UnaryKind.NEGATE, UnaryKind.ABSOLUTE):
            return dtype is not DType.BOOL
        return dtype.is_float


class BinaryKind(StrEnum):
    """Operations on pairs of elements of one dtype, which the result has too."""

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
        return dtype is not DType.BOOL


_LOGIC = frozenset({BinaryKind.AND, BinaryKind.OR, BinaryKind.XOR})
_INTEGER_ONLY = frozenset(
    {BinaryKind.REMAINDER, BinaryKind.SHIFT_LEFT, BinaryKind.SHIFT_RIGHT}
)


class ComparisonKind(StrEnum):
    """Comparisons of pairs of elements of one dtype; the result is of truth values."""

    EQ = "eq"
    NE = "ne"
    LT = "lt"
    LE = "le"
    GT = "gt"
    GE = "ge"

    def takes(self, dtype: DType) -> bool:
        """Whether the comparison is defined on the dtype."""
        return dtype is not DType.BOOL or self in (ComparisonKind.EQ, ComparisonKind.NE)


class ReductionKind(StrEnum):
    """How a reduction combines the elements along its axes.

    ``MINIMUM`` and ``MAXIMUM`` of truth values are "all" and "any".
    """

    SUM = "sum"
    PRODUCT = "product"
    MINIMUM = "minimum"
    MAXIMUM = "maximum"
    MEAN = "mean"

    def takes(self, dtype: DType) -> bool:
        """Whether the reduction is defined on the dtype."""
        if self is ReductionKind.MEAN:
            return dtype.is_float
        return dtype is not DType.BOOL or not self.takes_nothing

    @property
    def takes_nothing(self) -> bool:
        """Whether no elements reduce to something.

        To 0 in a sum, to 1 in a product, and to NaN in a mean, which is 0 / 0.
        """
        return self not in (ReductionKind.MINIMUM, ReductionKind.MAXIMUM)


class ScanKind(StrEnum):
    """How a cumulative scan combines the elements so far."""

    SUM = "sum"
    PRODUCT = "product"
    MINIMUM = "minimum"
    MAXIMUM = "maximum"

    def takes(self, dtype: DType) -> bool:
        """Whether the scan is defined on the dtype."""
        return dtype is not DType.BOOL


class ScatterKind(StrEnum):
    """What a scatter does with an update: put it there, or add it."""

    SET = "set"
    ADD = "add"

    def takes(self, dtype: DType) -> bool:
        """Whether the scatter is defined on the dtype."""
        return self is ScatterKind.SET or dtype is not DType.BOOL


class OperandEffect(StrEnum):
    """What a called kernel does to an operand's memory."""

    READ = "read"
    WRITE = "write"
    READ_WRITE = "read_write"

    @property
    def writes(self) -> bool:
        """Whether the operand's memory holds something else afterwards."""
        return self is not OperandEffect.READ


def default_accumulator(dtype: DType) -> DType:
    """What sums of a dtype are kept in: f32 for f16 and bf16, else the dtype."""
    return DType.F32 if dtype in (DType.F16, DType.BF16) else dtype


# Converters: the member of a value; what is none, for the validator to refuse.


def unary_kind(value: UnaryKind | str) -> UnaryKind:
    """The member of that value."""
    return member_of(UnaryKind, value)


def binary_kind(value: BinaryKind | str) -> BinaryKind:
    """The member of that value."""
    return member_of(BinaryKind, value)


def comparison_kind(value: ComparisonKind | str) -> ComparisonKind:
    """The member of that value."""
    return member_of(ComparisonKind, value)


def reduction_kind(value: ReductionKind | str) -> ReductionKind:
    """The member of that value."""
    return member_of(ReductionKind, value)


def scan_kind(value: ScanKind | str) -> ScanKind:
    """The member of that value."""
    return member_of(ScanKind, value)


def scatter_kind(value: ScatterKind | str) -> ScatterKind:
    """The member of that value."""
    return member_of(ScatterKind, value)


def operand_effect(value: OperandEffect | str) -> OperandEffect:
    """The member of that value."""
    return member_of(OperandEffect, value)
