"""Element types, and their sizes, ranges and numpy counterparts."""

from __future__ import annotations

import numpy as np
import pytest

from accy_async.dtypes import DType
from accy_async.errors import InvalidValue

SIZES = {
    DType.BOOL: (1, 1),
    DType.I8: (1, 8),
    DType.I16: (2, 16),
    DType.I32: (4, 32),
    DType.I64: (8, 64),
    DType.U8: (1, 8),
    DType.U16: (2, 16),
    DType.U32: (4, 32),
    DType.U64: (8, 64),
    DType.F16: (2, 16),
    DType.BF16: (2, 16),
    DType.F32: (4, 32),
    DType.F64: (8, 64),
}
FLOATS = {DType.F16, DType.BF16, DType.F32, DType.F64}
IN_NUMPY = [dtype for dtype in DType if dtype is not DType.BF16]


def test_sizes_are_those_of_memory() -> None:
    """Every dtype has a size, and a truth value takes a whole byte."""
    assert {d: (d.size_bytes, d.bits) for d in DType} == SIZES


def test_kinds_exclude_each_other() -> None:
    """A dtype is a float, an integer or BOOL."""
    assert {d for d in DType if d.is_float} == FLOATS
    assert {d for d in DType if d.is_integer} == {*DType} - FLOATS - {DType.BOOL}
    assert {d for d in DType if d.is_signed} == FLOATS | {
        DType.I8,
        DType.I16,
        DType.I32,
        DType.I64,
    }


def test_i1_is_another_name_of_bool() -> None:
    """I1 is BOOL itself, so that no two dtypes mean one thing."""
    assert DType["I1"] is DType.BOOL
    assert len(list(DType)) == 13


@pytest.mark.parametrize("dtype", [d for d in DType if d.is_integer])
def test_integer_range_is_numpys(dtype: DType) -> None:
    """The least and greatest integers are those that numpy gives."""
    info = np.iinfo(dtype.value.replace("i", "int").replace("u", "uint"))
    assert (dtype.minimum, dtype.maximum) == (info.min, info.max)
    assert isinstance(dtype.minimum, int)


@pytest.mark.parametrize("dtype", [DType.F16, DType.F32, DType.F64])
def test_float_range_is_numpys(dtype: DType) -> None:
    """The least and greatest finite floats are those that numpy gives."""
    info = np.finfo(dtype.value.replace("f", "float"))
    assert (dtype.minimum, dtype.maximum) == (float(info.min), float(info.max))


def test_bfloat16_range_is_that_of_its_bits() -> None:
    """The greatest finite bf16 is the f32 with the upper half 0x7F7F."""
    greatest = float(np.array([0x7F7F0000], np.uint32).view(np.float32)[0])
    assert (DType.BF16.minimum, DType.BF16.maximum) == (-greatest, greatest)


def test_bool_range_is_false_and_true() -> None:
    """BOOL goes from 0 to 1."""
    assert (DType.BOOL.minimum, DType.BOOL.maximum) == (0, 1)


@pytest.mark.parametrize("dtype", IN_NUMPY)
def test_numpy_round_trip(dtype: DType) -> None:
    """A dtype comes back from numpy as itself, by every name numpy has for it."""
    assert dtype.numpy.itemsize == dtype.size_bytes
    assert dtype.numpy.isnative
    for name in (dtype.numpy, dtype.numpy.name, dtype.numpy.type, dtype.numpy.str):
        assert DType.from_numpy(name) is dtype


def test_bfloat16_is_not_in_numpy() -> None:
    """Asking for bf16's numpy dtype says that there is none."""
    with pytest.raises(InvalidValue, match=r"DType\.numpy: .*bf16.*dtype that numpy"):
        _ = DType.BF16.numpy


@pytest.mark.parametrize(
    "given",
    [
        *(None, 5, object(), "", "f4,(", "i4,,", "bfloat16", "U3", "S3", "V2", "O"),
        *(">f4", ">i8", "complex64", "m8[ns]", "M8[s]", "f4,i4", np.longdouble),
        *({"names": 1}, [("a", "f4")], np.dtype(("f4", (2,))), complex, str, b"x"),
    ],
)
def test_foreign_numpy_dtype_is_refused(given: object) -> None:
    """What has no counterpart is refused, numpy's own default among it."""
    with pytest.raises(
        InvalidValue, match=r"^DType\.from_numpy: got .*expected one of"
    ):
        DType.from_numpy(given)


def test_bytes_in_another_order_are_refused_with_the_remedy() -> None:
    """As numpy writes float32 for both orders, the message names the order."""
    given = np.dtype("f4").newbyteorder()
    with pytest.raises(InvalidValue, match=r"order of bytes: astype\("):
        DType.from_numpy(given)
    assert DType.from_numpy(given.newbyteorder()) is DType.F32


def test_names_are_values() -> None:
    """A dtype reads as its value, and is found by it."""
    for dtype in DType:
        assert str(dtype) == f"{dtype}" == dtype.value
        assert DType(dtype.value) is dtype
