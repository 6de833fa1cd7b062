"""Tensor types, and the values that carry them."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Iterable

import attrs

from accy_async.dtypes import DType
from accy_async.errors import InvalidType, InvalidValue
from accy_async.values import (
    MAX_BYTES,
    enum,
    instances,
    integer,
    member_of,
    packed_bytes,
)

__all__ = ["EXTENTS", "MAX_TENSOR_BYTES", "TensorType", "Value"]

MAX_TENSOR_BYTES = MAX_BYTES
"""What a tensor takes at most: more no offset of 64 bits with a sign can reach."""

_WRITTEN = re.compile(r"([a-z]+[0-9]*)\[((?: *[0-9]+ *,)* *[0-9]* *)\]")


def _dtype(value: object) -> DType:
    return member_of(DType, "bool" if value == "i1" else value)


EXTENTS = "a sequence of extents, each an integer from 0"
"""What a shape is, as messages say it."""


def _shape(value: object) -> tuple[int, ...]:
    """A tuple of plain integers; whatever is no sequence of integers is refused."""
    if isinstance(value, (str, bytes)) or not isinstance(value, Iterable):
        raise InvalidType("TensorType.shape", value, EXTENTS)
    extents = []
    for given in value:
        try:
            extent = operator.index(given)
        except TypeError:
            raise InvalidType("TensorType.shape", value, EXTENTS) from None
        if isinstance(given, bool) or extent < 0:
            raise InvalidValue("TensorType.shape", value, EXTENTS)
        extents.append(extent)
    return tuple(extents)


@attrs.frozen(repr=False)
class TensorType:
    """A dtype and a static shape; written ``f32[2,3]``, a scalar ``f32[]``.

    Elements lie in row-major order without gaps; truth values take a byte each.
    An extent may be 0: such a tensor has no elements.

    Raises:
        InvalidType, InvalidValue: the dtype or the shape is none, or the tensor
            would take more than `MAX_TENSOR_BYTES`.
    """

    dtype: DType = attrs.field(converter=_dtype, validator=enum(DType))
    shape: tuple[int, ...] = attrs.field(converter=_shape, default=())

    def __attrs_post_init__(self) -> None:
        packed_bytes("TensorType.shape", self.shape, self.dtype.size_bytes)

    @classmethod
    def parse(cls, text: object) -> TensorType:
        """The type that a text such as ``f32[2,3]`` writes.

        Raises:
            InvalidValue: it writes none.
        """
        if not isinstance(text, str):
            raise InvalidType("TensorType.parse", text, "a type such as f32[2,3]")
        match = _WRITTEN.fullmatch(text)
        if match is None:
            raise InvalidValue("TensorType.parse", text, "a type such as f32[2,3]")
        extents = match[2].split(",") if match[2].strip() else []
        return cls(match[1], (int(extent) for extent in extents if extent.strip()))

    @property
    def rank(self) -> int:
        """How many axes it has."""
        return len(self.shape)

    @property
    def element_count(self) -> int:
        """How many elements it has; 1 for a scalar."""
        return math.prod(self.shape)

    @property
    def byte_size(self) -> int:
        """Bytes it takes in a buffer."""
        return self.element_count * self.dtype.size_bytes

    @property
    def strides(self) -> tuple[int, ...]:
        """Elements from one index of each axis to the next."""
        strides = []
        step = 1
        for extent in reversed(self.shape):
            strides.append(step)
            step *= extent
        return tuple(reversed(strides))

    def with_dtype(self, dtype: DType) -> TensorType:
        """The same shape of another dtype."""
        return TensorType(dtype, self.shape)

    def with_shape(self, shape: Iterable[int]) -> TensorType:
        """The same dtype in another shape."""
        return TensorType(self.dtype, tuple(shape))

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"

    __repr__ = __str__


@attrs.frozen(repr=False)
class Value:
    """A parameter of a function, or one result of one of its operations.

    ``index`` counts the values of one function: its parameters from 0, then the
    results of its operations in order. Outside that function it means nothing.
    """

    index: int = attrs.field(validator=integer(0, 2**31 - 1))
    type: TensorType = attrs.field(validator=instances(TensorType))

    @property
    def dtype(self) -> DType:
        """The dtype of its elements."""
        return self.type.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents of its axes."""
        return self.type.shape

    @property
    def rank(self) -> int:
        """How many axes it has."""
        return self.type.rank

    def __repr__(self) -> str:
        return f"%{self.index}: {self.type}"
