"""What nodes of device graphs are about, refused where a device could not do it."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from accy_async.backends.handles import BufferHandle
from accy_async.errors import InvalidValue
from accy_async.values import refuse_masked

__all__ = [
    "refuse_beyond",
    "refuse_no_bytes",
    "refuse_no_words",
    "refuse_one_buffer",
    "refuse_read_only",
]

_WORD_BYTES = 4


def refuse_beyond(field: str, byte_size: int, buffer: BufferHandle) -> None:
    """Refuse more bytes than a buffer has.

    Raises:
        InvalidValue: it is so; names the field.
    """
    if byte_size > buffer.byte_size:
        expected = f"at most the {buffer.byte_size} bytes of buffer {buffer.id}"
        raise InvalidValue(field, byte_size, expected)


def refuse_read_only(field: str, buffer: BufferHandle) -> None:
    """Refuse to write to what its owner forbids it of.

    Raises:
        InvalidValue: it is so; names the field.
    """
    if buffer.is_read_only:
        expected = "one that may be written; it is another library's, and read-only"
        raise InvalidValue(field, f"buffer {buffer.id}", expected)


def refuse_one_buffer(field: str, one: BufferHandle, other: BufferHandle) -> None:
    """Refuse one buffer where there are to be two.

    Raises:
        InvalidValue: it is so; names the field.
    """
    if one == other:
        raise InvalidValue(field, f"buffer {other.id}", "another buffer than the first")


def refuse_no_words(field: str, buffers: Iterable[BufferHandle]) -> None:
    """Refuse buffers that hold no 32-bit word.

    Raises:
        InvalidValue: it is so; names the field.
    """
    for buffer in buffers:
        if buffer.byte_size < _WORD_BYTES:
            expected = f"{_WORD_BYTES} bytes at least, in buffer {buffer.id}"
            raise InvalidValue(field, buffer.byte_size, expected)


def refuse_no_bytes(field: str, array: np.ndarray) -> None:
    """Refuse an array that is not plain bytes, one after the other.

    Raises:
        InvalidValue: it is so; names the field.
    """
    refuse_masked(field, array)
    if array.dtype.hasobject:
        raise InvalidValue(field, array.dtype, "an array of numbers, not of objects")
    if not array.flags.c_contiguous:
        expected = "a C-contiguous array; pass numpy.ascontiguousarray(array)"
        raise InvalidValue(field, f"strides {array.strides}", expected)
