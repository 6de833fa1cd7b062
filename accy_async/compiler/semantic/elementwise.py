"""Operations on each element by itself, and values that come from nowhere."""

from __future__ import annotations

from typing import ClassVar

import attrs
import numpy as np

from accy_async.compiler.semantic.kinds import (
    BinaryKind,
    ComparisonKind,
    UnaryKind,
    binary_kind,
    comparison_kind,
    unary_kind,
)
from accy_async.compiler.semantic.numbers import decode, encode
from accy_async.compiler.semantic.op import Op, axis_of, same_types
from accy_async.compiler.semantic.types import TensorType
from accy_async.dtypes import DType
from accy_async.errors import InvalidValue
from accy_async.values import enum, instances, integer

__all__ = [
    "POINTWISE",
    "Binary",
    "Compare",
    "Constant",
    "Convert",
    "Iota",
    "Select",
    "Unary",
]

_SHOWN_ELEMENTS = 8


@attrs.frozen
class Unary(Op):
    """One element to one, as `UnaryKind` says."""

    kind: UnaryKind = attrs.field(converter=unary_kind, validator=enum(UnaryKind))

    @property
    def opcode(self) -> str:
        return self.kind.value

    def attributes(self) -> str:
        return ""

    def infer(self, operands: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        (type,) = operands
        self.require_dtype(accepts=self.kind.takes(type.dtype), type=type)
        return (type,)


@attrs.frozen
class Binary(Op):
    """Two elements to one, as `BinaryKind` says; operands of one type."""

    arity: ClassVar[int | None] = 2
    kind: BinaryKind = attrs.field(converter=binary_kind, validator=enum(BinaryKind))

    @property
    def opcode(self) -> str:
        return self.kind.value

    def attributes(self) -> str:
        return ""

    def infer(self, operands: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        type = same_types(self, ("lhs", "rhs"), operands)
        self.require_dtype(accepts=self.kind.takes(type.dtype), type=type)
        return (type,)


@attrs.frozen
class Compare(Op):
    """Two elements to a truth value; operands of one type."""

    arity: ClassVar[int | None] = 2
    kind: ComparisonKind = attrs.field(
        converter=comparison_kind, validator=enum(ComparisonKind)
    )

    @property
    def opcode(self) -> str:
        return "compare"

    def attributes(self) -> str:
        return self.kind.value

    def infer(self, operands: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        type = same_types(self, ("lhs", "rhs"), operands)
        if not self.kind.takes(type.dtype):
            raise self.refusal(f"{self.kind} is not defined on {type.dtype}: {type}")
        return (type.with_dtype(DType.BOOL),)


@attrs.frozen
class Select(Op):
    """Elements of the second operand where the first is true, else of the third."""

    arity: ClassVar[int | None] = 3

    @property
    def opcode(self) -> str:
        return "select"

    def infer(self, operands: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        condition, on_true, on_false = operands
        if condition.dtype is not DType.BOOL:
            raise self.refusal(f"the condition is {condition}, expected bool")
        type = same_types(self, ("on_true", "on_false"), (on_true, on_false))
        if condition.shape != type.shape:
            raise self.refusal(
                f"shapes differ: condition {condition}, on_true and on_false {type}"
            )
        return (type,)


@attrs.frozen
class Convert(Op):
    """The same numbers in another dtype.

    Floats to integers truncate toward zero and saturate, NaN gives 0; integers to
    integers wrap; to a narrower float rounds to nearest, ties to even; to truth
    values asks whether the number differs from 0, from them gives 0 and 1.
    """

    dtype: DType = attrs.field(validator=enum(DType))

    @property
    def opcode(self) -> str:
        return "convert"

    def attributes(self) -> str:
        return ""

    def infer(self, operands: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        return (operands[0].with_dtype(self.dtype),)


@attrs.frozen
class Constant(Op):
    """Elements known when the program is built.

    ``data`` are the elements' bytes in row-major order, little-endian; or those
    of one element, which all have (a splat).
    """

    arity: ClassVar[int | None] = 0
    type: TensorType = attrs.field(validator=instances(TensorType))
    data: bytes = attrs.field(validator=instances(bytes))

    def __attrs_post_init__(self) -> None:
        one = self.type.dtype.size_bytes
        if len(self.data) not in (one, self.type.byte_size):
            raise InvalidValue(
                "Constant.data",
                f"{len(self.data)} bytes",
                f"{one} or {self.type.byte_size} for {self.type}",
            )
        # A splat has one form, whichever way it was made.
        count = self.type.element_count
        if count == 0:
            object.__setattr__(self, "data", b"")
        elif len(self.data) > one and self.data == self.data[:one] * count:
            object.__setattr__(self, "data", self.data[:one])

    @classmethod
    def of(cls, array: object, type: TensorType) -> Constant:
        """The array's elements as a constant of this type."""
        given = np.asarray(array)
        elements = np.broadcast_to(given, type.shape)
        if given.size == 1 and type.element_count:  # however many it is repeated to
            return cls(type, encode(given.reshape(()), TensorType(type.dtype, ())))
        return cls(type, encode(elements, type))

    @property
    def opcode(self) -> str:
        return "constant"

    @property
    def is_splat(self) -> bool:
        """Whether all elements are one."""
        return len(self.data) == self.type.dtype.size_bytes

    def to_numpy(self) -> np.ndarray:
        """The elements; bf16 as float32, which holds them exactly."""
        if self.is_splat:
            one = decode(self.data, TensorType(self.type.dtype, ()))
            return np.broadcast_to(one, self.type.shape)
        return decode(self.data, self.type)

    def attributes(self) -> str:
        if self.is_splat:
            return str(self.to_numpy().flat[0])
        if self.type.element_count <= _SHOWN_ELEMENTS:
            return str(self.to_numpy().tolist()).replace(" ", "")
        return f"dense({self.type.byte_size} bytes)"

    def infer(self, operands: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        return (self.type,)


@attrs.frozen
class Iota(Op):
    """Along one axis 0, 1, 2 and so on; the same along the others."""

    arity: ClassVar[int | None] = 0
    type: TensorType = attrs.field(validator=instances(TensorType))
    axis: int = attrs.field(validator=integer())

    @property
    def opcode(self) -> str:
        return "iota"

    def attributes(self) -> str:
        return f"axis={self.axis}"

    def infer(self, operands: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        axis_of(self, self.axis, self.type, "result")
        self.require_dtype(accepts=self.type.dtype is not DType.BOOL, type=self.type)
        last = self.type.shape[self.axis] - 1
        if last > self.type.dtype.maximum:
            raise self.refusal(f"{self.type.dtype} does not hold {last}: {self.type}")
        return (self.type,)


POINTWISE = (Unary, Binary, Compare, Select, Convert)
"""Ops whose result's elements come each of the operands' elements at its own place."""
