"""Element types, and scalar arguments that are exact about width and sign.

A `ScalarArgument` holds a value that its dtype can hold, or it is not made:
nothing wraps, nothing is reinterpreted. Floats round to nearest, ties to even
(IEEE 754-2019, 4.3.1), as a store to that type would; a finite value that
would round to infinity is refused.
"""

from __future__ import annotations

import math
import struct
from enum import Enum
from typing import TYPE_CHECKING, cast

import attrs
import numpy as np

from accy_async.errors import InvalidType, InvalidValue, OutOfRange

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["DType", "ScalarArgument", "ScalarValue"]

ScalarValue = bool | int | float


class DType(str, Enum):
    """An element type. The value is its name in fingerprints and reports."""

    BOOL = "bool"
    I8 = "i8"
    I16 = "i16"
    I32 = "i32"
    I64 = "i64"
    U8 = "u8"
    U16 = "u16"
    U32 = "u32"
    U64 = "u64"
    F16 = "f16"
    BF16 = "bf16"
    F32 = "f32"
    F64 = "f64"

    I1 = "bool"
    """A truth value, stored as one byte that is 0 or 1: another name of BOOL."""

    def __str__(self) -> str:
        return self.value

    @property
    def size_bytes(self) -> int:
        """Bytes one element takes in a buffer."""
        return _SIZE_BYTES[self._value_]

    @property
    def bits(self) -> int:
        """Significant bits of one element; 1 for BOOL."""
        return 1 if self is DType.BOOL else int(self.value.lstrip("biuf"))

    @property
    def is_float(self) -> bool:
        """True for f16, bf16, f32 and f64."""
        return self in _FLOATS

    @property
    def is_integer(self) -> bool:
        """True for the signed and unsigned integers; not for BOOL."""
        return self is not DType.BOOL and not self.is_float

    @property
    def is_signed(self) -> bool:
        """True for signed integers and floats."""
        return self.is_float or self.value.startswith("i")

    @property
    def minimum(self) -> int | float:
        """The smallest finite value."""
        if self.is_float:
            return -self.maximum
        return -(1 << (self.bits - 1)) if self.is_signed else 0

    @property
    def maximum(self) -> int | float:
        """The largest finite value."""
        if self.is_float:
            return _FLOAT_MAX[self]
        return (1 << (self.bits - int(self.is_signed))) - 1

    @property
    def numpy(self) -> np.dtype[np.generic]:
        """The numpy dtype with the same bits.

        Raises:
            InvalidValue: for bf16, which numpy has not got.
        """
        if self is DType.BF16:
            raise InvalidValue("DType.numpy", self, "a dtype that numpy has")
        return np.dtype(_NUMPY[self])

    @classmethod
    def from_numpy(cls, dtype: object) -> DType:
        """The dtype whose elements have the same bits as a numpy dtype's.

        Raises:
            InvalidValue: numpy's dtype has no counterpart (structured, complex,
                object, text, or not in the machine's byte order).
        """
        wanted = None
        if dtype is not None:  # which numpy takes for its own default, float64
            try:
                wanted = np.dtype(dtype)  # type: ignore[call-overload]
            except (TypeError, ValueError, SyntaxError):
                wanted = None
        for member, name in _NUMPY.items():
            if wanted is not None and wanted == np.dtype(name):
                return member
        expected = "one of " + ", ".join(_NUMPY.values())
        if wanted is not None and not wanted.isnative:
            expected += (
                " in this machine's order of bytes: astype(dtype.newbyteorder())"
            )
        raise InvalidValue("DType.from_numpy", dtype, expected)


_SIZE_BYTES = {
    member.value: 1 if member is DType.BOOL else member.bits // 8 for member in DType
}
_LIMITS = {
    member.value: (
        -(1 << (member.bits - 1)) if member.value[0] == "i" else 0,
        (1 << (member.bits - (member.value[0] == "i"))) - 1,
    )
    for member in DType
    if member.value[0] in "iu"
}
"""The least and the greatest of each integer type."""
_FLOATS = frozenset({DType.F16, DType.BF16, DType.F32, DType.F64})
_FLOAT_MAX = {
    DType.F16: 65504.0,
    DType.BF16: float.fromhex("0x1.fep+127"),
    DType.F32: float.fromhex("0x1.fffffep+127"),
    DType.F64: float.fromhex("0x1.fffffffffffffp+1023"),
}
_NUMPY = {
    DType.BOOL: "bool",
    DType.I8: "int8",
    DType.I16: "int16",
    DType.I32: "int32",
    DType.I64: "int64",
    DType.U8: "uint8",
    DType.U16: "uint16",
    DType.U32: "uint32",
    DType.U64: "uint64",
    DType.F16: "float16",
    DType.F32: "float32",
    DType.F64: "float64",
}
_STRUCT = {
    DType.BOOL: "<?",
    DType.I8: "<b",
    DType.I16: "<h",
    DType.I32: "<i",
    DType.I64: "<q",
    DType.U8: "<B",
    DType.U16: "<H",
    DType.U32: "<I",
    DType.U64: "<Q",
    DType.F16: "<e",
    DType.F32: "<f",
    DType.F64: "<d",
}


def _bits(value: ScalarValue) -> ScalarValue | bytes:
    """What two values share that are one: 0.0 and -0.0 are two, a nan is one."""
    return struct.pack("<d", value) if isinstance(value, float) else value


@attrs.frozen(slots=True, repr=False)
class ScalarArgument:
    """One scalar kernel argument: a dtype and a value that it can hold.

    Make one with the constructor of its type (``ScalarArgument.u32(5000)``) or
    with ``of``. The value may be a Python or numpy scalar, or a 0-d array:

    * integer types take integers in range, never bools or floats;
    * float types take floats (rounded to nearest) and integers that the type
      holds exactly, never bools;
    * BOOL takes bools only.

    Arguments are equal where the kernel gets equal bits: 0.0 and -0.0 differ.

    Raises:
        InvalidType: the value is of another kind (also a TypeError).
        OutOfRange: the value does not fit (also an OverflowError).
    """

    dtype: DType
    value: ScalarValue = attrs.field(eq=_bits)

    def __attrs_post_init__(self) -> None:
        if not isinstance(self.dtype, DType):
            raise InvalidType("ScalarArgument.dtype", self.dtype, "a DType")
        object.__setattr__(self, "value", _convert(self.dtype, self.value))

    @classmethod
    def of(cls, dtype: DType, value: object) -> ScalarArgument:
        """A scalar of any dtype; see the class for what each takes."""
        return cls(dtype, cast("ScalarValue", value))

    @classmethod
    def bool_(cls, value: object) -> ScalarArgument:
        """A BOOL scalar."""
        return cls.of(DType.BOOL, value)

    @classmethod
    def i8(cls, value: object) -> ScalarArgument:
        """An i8 scalar."""
        return cls.of(DType.I8, value)

    @classmethod
    def i16(cls, value: object) -> ScalarArgument:
        """An i16 scalar."""
        return cls.of(DType.I16, value)

    @classmethod
    def i32(cls, value: object) -> ScalarArgument:
        """An i32 scalar."""
        return cls.of(DType.I32, value)

    @classmethod
    def i64(cls, value: object) -> ScalarArgument:
        """An i64 scalar."""
        return cls.of(DType.I64, value)

    @classmethod
    def u8(cls, value: object) -> ScalarArgument:
        """A u8 scalar."""
        return cls.of(DType.U8, value)

    @classmethod
    def u16(cls, value: object) -> ScalarArgument:
        """A u16 scalar."""
        return cls.of(DType.U16, value)

    @classmethod
    def u32(cls, value: object) -> ScalarArgument:
        """A u32 scalar."""
        return cls.of(DType.U32, value)

    @classmethod
    def u64(cls, value: object) -> ScalarArgument:
        """A u64 scalar."""
        return cls.of(DType.U64, value)

    @classmethod
    def f16(cls, value: object) -> ScalarArgument:
        """An f16 scalar."""
        return cls.of(DType.F16, value)

    @classmethod
    def bf16(cls, value: object) -> ScalarArgument:
        """A bf16 scalar."""
        return cls.of(DType.BF16, value)

    @classmethod
    def f32(cls, value: object) -> ScalarArgument:
        """An f32 scalar."""
        return cls.of(DType.F32, value)

    @classmethod
    def f64(cls, value: object) -> ScalarArgument:
        """An f64 scalar."""
        return cls.of(DType.F64, value)

    def to_bytes(self) -> bytes:
        """The value as it lies in memory, little-endian, ``size_bytes`` long."""
        if self.dtype is DType.BF16:
            return struct.pack("<f", self.value)[2:]
        return struct.pack(_STRUCT[self.dtype], self.value)

    @property
    def slot(self) -> int:
        """The value's bytes as an unsigned 64-bit number, high bytes zero."""
        limits = _LIMITS.get(self.dtype._value_)
        if limits is not None:
            return cast("int", self.value) & (limits[1] - limits[0])
        return int.from_bytes(self.to_bytes(), "little")

    def __repr__(self) -> str:
        return f"{self.dtype.value}({self.value!r})"


def _convert(dtype: DType, given: object) -> ScalarValue:
    if type(given) is int and (limits := _LIMITS.get(dtype._value_)) is not None:
        least, greatest = limits  # what most arguments are, as they come at launches
        if least <= given <= greatest:
            return given
    field = f"ScalarArgument.{dtype.value}"
    value = _to_python(given)
    if dtype is DType.BOOL:
        if not isinstance(value, bool):
            raise InvalidType(field, given, "a bool")
        return value
    if isinstance(value, bool):
        raise InvalidType(field, given, f"a number that {dtype.value} holds, no bool")
    if dtype.is_integer:
        if not isinstance(value, int):
            raise InvalidType(field, given, f"an integer that {dtype.value} holds")
        if not dtype.minimum <= value <= dtype.maximum:
            raise OutOfRange(
                field, given, f"an integer from {dtype.minimum} to {dtype.maximum}"
            )
        return int(value)
    if not isinstance(value, (int, float)):
        raise InvalidType(field, given, f"a number that {dtype.value} holds")
    return _round_float(dtype, value, field, given)


def _to_python(given: object) -> object:
    """Numpy scalars and 0-d arrays as the Python object of the same value."""
    if type(given) in (int, float, bool):
        return given
    if not isinstance(given, (np.ndarray, np.generic)):
        return given
    array = cast("NDArray[np.generic]", given)
    # Dates and durations count as integers to numpy's item(), which they are not.
    return given if array.ndim or array.dtype.kind in "mM" else array.item()


def _round_float(dtype: DType, value: float, field: str, given: object) -> float:
    finite = f"a finite value within ±{dtype.maximum:g}, inf or nan"
    try:
        wide = float(value)
    except OverflowError:
        raise OutOfRange(field, given, finite) from None
    if math.isnan(wide) or math.isinf(wide):
        return wide
    try:
        rounded = _round_bf16(wide) if dtype is DType.BF16 else _round(dtype, wide)
    except OverflowError:
        raise OutOfRange(field, given, finite) from None
    if isinstance(value, int) and int(rounded) != value:
        raise OutOfRange(field, given, f"an integer that {dtype.value} holds exactly")
    return rounded


def _round(dtype: DType, wide: float) -> float:
    code = _STRUCT[dtype]
    return cast("float", struct.unpack(code, struct.pack(code, wide))[0])


def _round_bf16(wide: float) -> float:
    """Round a double to bf16 once: to nearest, ties to even.

    Going through f32 first would round twice. bf16 has 8 significant bits and
    f32's exponent range, so the unit in the last place is ``2**(exponent - 8)``
    with `math.frexp`'s exponent, and never below ``2**-133``.
    """
    _, exponent = math.frexp(wide)
    unit = math.ldexp(1.0, max(exponent - 8, -133))
    rounded = round(wide / unit) * unit
    if abs(rounded) > _FLOAT_MAX[DType.BF16]:
        raise OverflowError
    return math.copysign(rounded, wide)
