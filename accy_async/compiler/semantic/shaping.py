"""Operations that move elements and compute none."""

from __future__ import annotations

from typing import ClassVar

import attrs

from accy_async.compiler.semantic.op import Op, axis_of, distinct_axes, written
from accy_async.compiler.semantic.types import TensorType
from accy_async.values import integer, to_tuple, tuple_of

__all__ = [
    "Broadcast",
    "Concatenate",
    "Pad",
    "Reshape",
    "Reverse",
    "Slice",
    "Transpose",
]

_INTEGERS = tuple_of(int, expected="a tuple of integers")


def _integers() -> tuple[int, ...]:
    field: tuple[int, ...] = attrs.field(converter=to_tuple, validator=_INTEGERS)
    return field


@attrs.frozen
class Broadcast(Op):
    """Repeats the operand along new axes, and along axes of extent 1.

    Axis ``i`` of the operand becomes axis ``axes[i]`` of the result; the axes
    rise. A scalar has none.
    """

    shape: tuple[int, ...] = _integers()
    axes: tuple[int, ...] = _integers()

    @property
    def opcode(self) -> str:
        return "broadcast"

    def infer(self, operands: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        (type,) = operands
        result = type.with_shape(self.shape)
        if len(self.axes) != type.rank:
            raise self.refusal(
                f"axes {written(self.axes)} name {len(self.axes)} axes of operand "
                f"{type}, which has {type.rank}"
            )
        distinct_axes(self, self.axes, result, "result")
        if list(self.axes) != sorted(self.axes):
            raise self.refusal(
                f"axes {written(self.axes)} do not rise; transpose first"
            )
        for axis, target in enumerate(self.axes):
            if type.shape[axis] not in (1, result.shape[target]):
                raise self.refusal(
                    f"operand {type} axis {axis} ({type.shape[axis]}) does not extend "
                    f"to result {result} axis {target} ({result.shape[target]})"
                )
        return (result,)


@attrs.frozen
class Reshape(Op):
    """The same elements, in row-major order, in another shape."""

    shape: tuple[int, ...] = _integers()

    @property
    def opcode(self) -> str:
        return "reshape"

    def attributes(self) -> str:
        return ""

    def infer(self, operands: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        (type,) = operands
        result = type.with_shape(self.shape)
        if result.element_count != type.element_count:
            raise self.refusal(
                f"operand {type} has {type.element_count} elements, result {result} "
                f"{result.element_count}"
            )
        return (result,)


@attrs.frozen
class Transpose(Op):
    """Axis ``permutation[i]`` of the operand becomes axis ``i`` of the result."""

    permutation: tuple[int, ...] = _integers()

    @property
    def opcode(self) -> str:
        return "transpose"

    def infer(self, operands: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        (type,) = operands
        if sorted(self.permutation) != list(range(type.rank)):
            raise self.refusal(
                f"{written(self.permutation)} is no permutation of operand {type}'s "
                f"{type.rank} axes"
            )
        return (type.with_shape(type.shape[axis] for axis in self.permutation),)


@attrs.frozen
class Slice(Op):
    """Along axis ``i`` the indices ``starts[i]:limits[i]:strides[i]``, as in Python."""

    starts: tuple[int, ...] = _integers()
    limits: tuple[int, ...] = _integers()
    strides: tuple[int, ...] = _integers()

    @property
    def opcode(self) -> str:
        return "slice"

    def attributes(self) -> str:
        spans = (
            f"{start}:{limit}" + (f":{stride}" if stride != 1 else "")
            for start, limit, stride in zip(
                self.starts, self.limits, self.strides, strict=True
            )
        )
        return f"[{','.join(spans)}]"

    def infer(self, operands: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        (type,) = operands
        if {len(self.starts), len(self.limits), len(self.strides)} != {type.rank}:
            raise self.refusal(
                f"{len(self.starts)} starts, {len(self.limits)} limits and "
                f"{len(self.strides)} strides for operand {type} of {type.rank} axes"
            )
        shape = []
        for axis, extent in enumerate(type.shape):
            start, limit, stride = (
                self.starts[axis],
                self.limits[axis],
                self.strides[axis],
            )
            if stride < 1 or not 0 <= start <= limit <= extent:
                raise self.refusal(
                    f"{start}:{limit}:{stride} does not lie in operand {type} "
                    f"axis {axis} ({extent})"
                )
            shape.append(-(-(limit - start) // stride))
        return (type.with_shape(shape),)


@attrs.frozen
class Concatenate(Op):
    """The operands one after the other along an axis."""

    arity: ClassVar[int | None] = None
    axis: int = attrs.field(validator=integer())

    @property
    def opcode(self) -> str:
        return "concatenate"

    def infer(self, operands: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        if not operands:
            raise self.refusal("takes at least one operand, got none")
        first = operands[0]
        axis_of(self, self.axis, first, "operand 0")
        total = 0
        for index, type in enumerate(operands):
            rest = [e for axis, e in enumerate(type.shape) if axis != self.axis]
            same = [e for axis, e in enumerate(first.shape) if axis != self.axis]
            if type.dtype is not first.dtype or type.rank != first.rank or rest != same:
                raise self.refusal(
                    f"operand 0 is {first}, operand {index} {type}: they may differ "
                    f"in axis {self.axis} only"
                )
            total += type.shape[self.axis]
        shape = (*first.shape[: self.axis], total, *first.shape[self.axis + 1 :])
        return (first.with_shape(shape),)


@attrs.frozen
class Pad(Op):
    """The first operand with the second, a scalar, before and after it.

    ``low[i]`` elements go before, ``high[i]`` after, along axis ``i``.
    """

    arity: ClassVar[int | None] = 2
    low: tuple[int, ...] = _integers()
    high: tuple[int, ...] = _integers()

    @property
    def opcode(self) -> str:
        return "pad"

    def infer(self, operands: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        type, value = operands
        if value != TensorType(type.dtype, ()):
            raise self.refusal(f"pads {type} with {value}, expected {type.dtype}[]")
        if {len(self.low), len(self.high)} != {type.rank}:
            raise self.refusal(
                f"low {written(self.low)} and high {written(self.high)} for operand "
                f"{type} of {type.rank} axes"
            )
        if min((*self.low, *self.high), default=0) < 0:
            raise self.refusal(
                f"low {written(self.low)} and high {written(self.high)} must not be "
                "below 0; slice instead"
            )
        return (
            type.with_shape(
                before + extent + after
                for before, extent, after in zip(
                    self.low, type.shape, self.high, strict=True
                )
            ),
        )


@attrs.frozen
class Reverse(Op):
    """The elements in the opposite order along some axes."""

    axes: tuple[int, ...] = _integers()

    @property
    def opcode(self) -> str:
        return "reverse"

    def infer(self, operands: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        distinct_axes(self, self.axes, operands[0])
        return operands
