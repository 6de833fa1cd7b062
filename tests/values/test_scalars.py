"""Scalar arguments are exact about width and sign, or they are not made (C23)."""

from __future__ import annotations

import math
import struct
from decimal import Decimal
from enum import IntEnum
from fractions import Fraction

import attrs
import numpy as np
import pytest

from accy_async.artifact import fingerprint
from accy_async.dtypes import DType, ScalarArgument
from accy_async.errors import InvalidType, InvalidValue, OutOfRange

IN_NUMPY = [dtype for dtype in DType if dtype is not DType.BF16]
INTEGERS = [dtype for dtype in DType if dtype.is_integer]
FLOATS = [dtype for dtype in DType if dtype.is_float]
NUMPY_INTEGERS = (
    *(np.int8, np.int16, np.int32, np.int64, np.intc, np.longlong),
    *(np.uint8, np.uint16, np.uint32, np.uint64, np.uintc, np.ulonglong),
)
NUMPY_FLOATS = (np.float16, np.float32, np.float64)
# Each stands for its kind, with the number it is; exact in every dtype that takes it.
NUMBERS: tuple[tuple[str, object, float], ...] = (
    ("int", 1, 1),
    ("float", 1.5, 1.5),
    ("bool", True, True),
    *((f"int {kind.__name__}", kind(7), 7) for kind in NUMPY_INTEGERS),
    *((f"int 0-d {kind.__name__}", np.array(7, kind), 7) for kind in NUMPY_INTEGERS),
    *((f"float {kind.__name__}", kind(1.5), 1.5) for kind in NUMPY_FLOATS),
    *(
        (f"float 0-d {kind.__name__}", np.array(2.5, kind), 2.5)
        for kind in NUMPY_FLOATS
    ),
    ("bool numpy", np.bool_(True), True),
    ("bool 0-d", np.array(False), False),
)
NO_NUMBERS = (
    *(None, "1", b"1", 1j, (1,), [1], object(), Fraction(3, 2), Decimal(1)),
    *(np.complex64(1), np.str_("1"), np.bytes_(b"1"), np.void(b"1"), np.longdouble(1)),
    *(np.datetime64(5, "ns"), np.datetime64(5, "D"), np.timedelta64(5, "ns")),
    *(np.timedelta64(5, "s"), np.array(5, "m8[ns]"), np.array(5, "M8[us]")),
    *(np.array([1]), np.array([]), np.array([[1]]), np.ones((1, 1), bool)),
)


def takes(dtype: DType, kind: str) -> bool:
    if dtype is DType.BOOL:
        return kind == "bool"
    return kind == "int" or (kind == "float" and dtype.is_float)


@pytest.mark.parametrize("dtype", DType)
@pytest.mark.parametrize(("name", "given", "number"), NUMBERS, ids=lambda v: str(v))
def test_scalar_is_exact_or_refused(
    dtype: DType, name: str, given: object, number: float
) -> None:
    """Every kind of scalar echoes exactly, or raises a TypeError that says why."""
    if takes(dtype, name.split()[0]):
        scalar = ScalarArgument.of(dtype, given)
        assert scalar.value == number
        assert type(scalar.value) in (bool, int, float)
        assert scalar == ScalarArgument.of(dtype, number)
        return
    with pytest.raises(InvalidType) as caught:
        ScalarArgument.of(dtype, given)
    assert isinstance(caught.value, TypeError)
    assert str(caught.value).startswith(f"ScalarArgument.{dtype}: got {given!r}")


@pytest.mark.parametrize("dtype", DType)
@pytest.mark.parametrize("given", NO_NUMBERS, ids=lambda v: type(v).__name__)
def test_what_is_no_scalar_is_refused(dtype: DType, given: object) -> None:
    """Arrays, text, dates and numbers that numpy cannot give to Python are refused."""
    with pytest.raises(InvalidType, match=f"^ScalarArgument.{dtype}: got "):
        ScalarArgument.of(dtype, given)


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integer_out_of_range_is_refused(dtype: DType) -> None:
    """The ends of the range are taken; one beyond is an OverflowError."""
    low, high = int(dtype.minimum), int(dtype.maximum)
    for value in (low, high, 0):
        assert ScalarArgument.of(dtype, value).value == value
    for value in (low - 1, high + 1, 2**64, -(2**63) - 1, 10**400):
        with pytest.raises(OutOfRange) as caught:
            ScalarArgument.of(dtype, value)
        assert isinstance(caught.value, OverflowError)
        assert caught.value.expected == f"an integer from {low} to {high}"


def test_the_cases_named_by_the_table() -> None:
    """2**40 as an i32 and -1 as a u32 raise; 1.5 never becomes an integer."""
    with pytest.raises(OutOfRange):
        ScalarArgument.i32(2**40)
    with pytest.raises(OutOfRange):
        ScalarArgument.u32(-1)
    with pytest.raises(OutOfRange):
        ScalarArgument.u32(np.int64(-1))
    with pytest.raises(InvalidType):
        ScalarArgument.i16(np.float16(1.5))
    with pytest.raises(InvalidType):
        ScalarArgument.i32(2.0)


@pytest.mark.parametrize("dtype", FLOATS)
def test_integer_that_a_float_cannot_hold_is_refused(dtype: DType) -> None:
    """Float dtypes take integers that they hold exactly, and no others."""
    digits = {DType.F16: 11, DType.BF16: 8, DType.F32: 24, DType.F64: 53}[dtype]
    exact = 1 << digits
    for value in (exact - 1, exact, exact + 2, -exact, int(dtype.maximum)):
        assert ScalarArgument.of(dtype, value).value == value
    for value in (exact + 1, -exact - 1, int(dtype.maximum) + 1, 10**400):
        with pytest.raises(OutOfRange):
            ScalarArgument.of(dtype, value)


@pytest.mark.parametrize("dtype", DType)
def test_each_dtype_has_its_constructor(dtype: DType) -> None:
    """``ScalarArgument.u32(x)`` is ``ScalarArgument(DType.U32, x)``, for each dtype."""
    name = "bool_" if dtype is DType.BOOL else dtype.value
    value = True if dtype is DType.BOOL else 1
    made = getattr(ScalarArgument, name)(value)
    assert made == ScalarArgument(dtype, value) == ScalarArgument.of(dtype, value)
    assert repr(made) == f"{dtype}({made.value!r})"


@pytest.mark.parametrize("dtype", IN_NUMPY)
def test_bytes_are_numpys(dtype: DType) -> None:
    """A scalar lies in memory as numpy lays it, little-endian, in the low bytes."""
    values: tuple[object, ...] = (0, 1, 100, dtype.minimum, dtype.maximum)
    if dtype is DType.BOOL:
        values = (False, True)
    elif dtype.is_float:
        values = (*values, -0.0, math.inf, -math.inf, math.nan, 0.1, -1 / 3)
    for value in values:
        scalar = ScalarArgument.of(dtype, value)
        expected = np.array(value, dtype.numpy.newbyteorder("<")).tobytes()
        assert scalar.to_bytes() == expected
        assert len(expected) == dtype.size_bytes
        assert scalar.slot == int.from_bytes(expected, "little")


def test_value_is_the_one_that_is_stored() -> None:
    """A float is kept as rounded, so that it reads as what the kernel gets."""
    assert ScalarArgument.f32(0.1).value == float(np.float32(0.1))
    assert ScalarArgument.f16(0.1).value == float(np.float16(0.1))
    assert ScalarArgument.f64(0.1).value == 0.1
    assert repr(ScalarArgument.f16(0.1)) == "f16(0.0999755859375)"


def test_subclasses_of_int_become_plain_integers() -> None:
    """An enum's member is the number it stands for, in fingerprints too."""

    class Size(IntEnum):
        SMALL = 64

    scalar = ScalarArgument.u32(Size.SMALL)
    assert type(scalar.value) is int
    assert fingerprint(scalar) == fingerprint(ScalarArgument.u32(64))


def test_equal_where_bits_are_equal() -> None:
    """Scalars are equal, and hash alike, where dtype and bits are."""
    nan, zero = ScalarArgument.f32(math.nan), ScalarArgument.f32(0.0)
    assert nan == ScalarArgument.f32(float("nan"))
    assert zero != ScalarArgument.f32(-0.0)
    assert ScalarArgument.u32(1) != ScalarArgument.i32(1)
    assert ScalarArgument.bool_(True) != ScalarArgument.u8(1)
    assert ScalarArgument.f32(0.1) == ScalarArgument.f32(float(np.float32(0.1)))
    different = [
        *(nan, zero, ScalarArgument.f32(-0.0), ScalarArgument.f64(0.0)),
        *(ScalarArgument.u32(0), ScalarArgument.i32(0), ScalarArgument.bool_(False)),
    ]
    again = [ScalarArgument.of(s.dtype, s.value) for s in different]
    assert len({*different, *again}) == len(different)
    assert len({fingerprint(s) for s in (*different, *again)}) == len(different)


def test_scalar_does_not_change() -> None:
    """A scalar is frozen: what was checked stays so."""
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        ScalarArgument.u32(1).value = 2  # type: ignore[misc]


def test_half_ties_go_to_even() -> None:
    """Halfway between two halves is the one with the even last digit."""
    step = 2.0**-10
    for steps, expected in ((0.5, 0), (1.5, 2), (2.5, 2), (3.5, 4)):
        assert ScalarArgument.f16(1 + steps * step).value == 1 + expected * step
    tiny = 2.0**-24
    for steps, expected in ((0.5, 0), (0.5000001, 1), (1.5, 2), (2.5, 2)):
        assert ScalarArgument.f16(steps * tiny).value == expected * tiny
    assert struct.pack("<d", ScalarArgument.f16(-tiny / 2).value) == struct.pack(
        "<d", -0.0
    )


@pytest.mark.parametrize(
    ("dtype", "largest_that_rounds_down"),
    [
        (DType.F16, math.nextafter(65520.0, 0)),
        (DType.BF16, math.nextafter(float.fromhex("0x1.ffp+127"), 0)),
        (DType.F32, math.nextafter(float.fromhex("0x1.ffffffp+127"), 0)),
    ],
)
def test_finite_value_never_becomes_infinite(
    dtype: DType, largest_that_rounds_down: float
) -> None:
    """What would round to infinity is refused; infinity itself is taken."""
    for sign in (1, -1):
        nearest = ScalarArgument.of(dtype, sign * largest_that_rounds_down)
        assert nearest.value == sign * dtype.maximum
        beyond = math.nextafter(sign * largest_that_rounds_down, sign * math.inf)
        with pytest.raises(OutOfRange, match="expected a finite value within"):
            ScalarArgument.of(dtype, beyond)
        assert ScalarArgument.of(dtype, sign * math.inf).value == sign * math.inf


def test_wrong_dtype_is_refused() -> None:
    """The name of a dtype is no dtype."""
    with pytest.raises(InvalidValue, match=r"ScalarArgument\.dtype: got 'u32'"):
        ScalarArgument.of("u32", 1)  # type: ignore[arg-type]
