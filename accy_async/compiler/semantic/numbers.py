"""Elements as bytes and as numpy arrays; bf16, which numpy lacks, as float32."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from accy_async.compiler.semantic.types import TensorType
from accy_async.dtypes import DType
from accy_async.errors import InvalidType, OutOfRange

__all__ = ["Array", "carrier", "decode", "encode", "round_bf16"]

Array = NDArray[Any]


def carrier(dtype: DType) -> np.dtype[Any]:
    """The numpy dtype that holds a dtype's values: its own, float32 for bf16."""
    return np.dtype(np.float32) if dtype is DType.BF16 else dtype.numpy


def round_bf16(values: Array) -> Array:
    """Floats rounded to bf16 once, to nearest, ties to even, held as float32.

    Doubles are first rounded to odd at float32's precision, so that the second
    rounding sees which side of a tie they were on (S. Boldo, G. Melquiond,
    "Emulation of FMA and correctly rounded sums", 2008).
    """
    narrow = np.asarray(values, np.float32)
    bits = narrow.view(np.uint32)
    if values.dtype == np.float64:
        with np.errstate(invalid="ignore"):
            back = narrow.astype(np.float64)
            inexact = (back != values) & np.isfinite(back)
            away = np.abs(back) > np.abs(values)
        even = (bits & np.uint32(1)) == 0
        # To odd: an inexact even one moves to its odd neighbour toward the value.
        bits = np.where(
            inexact & even,
            np.where(away, bits - np.uint32(1), bits + np.uint32(1)),
            bits,
        )
    half = np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    rounded = ((bits + half) & np.uint32(0xFFFF0000)).view(np.float32)
    return np.where(np.isnan(narrow), np.float32(np.nan), rounded)


def encode(array: Array, type: TensorType) -> bytes:
    """The array's elements as bytes of this type; one element's if all are one.

    Raises:
        InvalidType: the array holds no numbers, or of a kind the dtype has not.
        OutOfRange: an element does not fit the dtype.
    """
    dtype = type.dtype
    if array.dtype.kind not in "biuf":
        raise InvalidType("constant", array.dtype, "truth values or numbers")
    if (array.dtype.kind == "b") != (dtype is DType.BOOL) or (
        array.dtype.kind == "f" and not dtype.is_float
    ):
        raise InvalidType("constant", array.dtype, f"numbers that {dtype} holds")
    if array.size and dtype.is_integer:
        low, high = int(array.min()), int(array.max())
        if low < dtype.minimum or high > dtype.maximum:
            raise OutOfRange(
                "constant",
                low if low < dtype.minimum else high,
                f"integers from {dtype.minimum} to {dtype.maximum}",
            )
    if array.ndim and array.size > 1 and not any(array.strides):
        array = array.reshape(-1)[:1] if array.ndim == 1 else array.flat[:1]
    with np.errstate(over="ignore"):
        if dtype is DType.BF16:
            held = round_bf16(np.asarray(array, np.float64))
            data = (held.view(np.uint32) >> np.uint32(16)).astype("<u2").tobytes()
        else:
            held = array.astype(dtype.numpy.newbyteorder("<"))
            data = held.tobytes()
    lost = np.isfinite(array) & ~np.isfinite(held)
    if lost.any():
        finite = f"finite values within ±{dtype.maximum:g}, inf or nan"
        raise OutOfRange("constant", array[lost].flat[0], finite)
    return data


def decode(data: bytes, type: TensorType) -> Array:
    """The elements of a tensor's bytes; bf16 as float32."""
    if type.dtype is DType.BF16:
        bits = np.frombuffer(data, "<u2").astype(np.uint32) << np.uint32(16)
        return bits.view(np.float32).reshape(type.shape)
    flat = np.frombuffer(data, type.dtype.numpy.newbyteorder("<"))
    return flat.astype(type.dtype.numpy, copy=False).reshape(type.shape)
