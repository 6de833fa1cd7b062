"""What every operation offers: a name, a shape rule, and a way to be written."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import ClassVar

import attrs

from accy_async.compiler.semantic.types import TensorType
from accy_async.errors import InvalidProgram

__all__ = [
    "Op",
    "axis_of",
    "distinct_axes",
    "same_types",
    "written",
]


@attrs.frozen
class Op:
    """An operation without its operands: what it does, as an immutable value.

    Two ops are equal where they do the same. `infer` is the one shape rule: the
    builder asks it when an operation is added, the verifier when a function is
    made.
    """

    arity: ClassVar[int | None] = 1
    """How many operands it takes; None where the op itself says."""

    is_pure: ClassVar[bool] = True
    """Whether it may be dropped when unused, and merged with its equal."""

    @property
    def opcode(self) -> str:
        """The name in text and messages, such as ``dot_general``."""
        raise NotImplementedError

    def result_types(self, operands: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        """The types of the results for operands of these types.

        Raises:
            InvalidProgram: the op is not defined on them; says why, with types.
        """
        if self.arity is not None and len(operands) != self.arity:
            raise self.refusal(
                f"takes {self.arity} operand{'s' * (self.arity != 1)}, "
                f"got {len(operands)}"
            )
        return self.infer(operands)

    def infer(self, operands: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        """The shape rule, for the right number of operands."""
        raise NotImplementedError

    def identity(self) -> object:
        """What fingerprints see of it: itself, unless it holds a function."""
        return self

    def attributes(self) -> str:
        """Its fields as text, those at their defaults left out."""
        parts = []
        for field in attrs.fields(type(self)):
            value = getattr(self, field.name)
            if not field.eq or (
                field.default is not attrs.NOTHING and value == field.default
            ):
                continue
            parts.append(f"{field.name}={written(value)}")
        return " ".join(parts)

    def refusal(self, message: str) -> InvalidProgram:
        """The error that says why this op is refused."""
        return InvalidProgram(message, operation=self.opcode)

    def require_dtype(self, *, accepts: bool, type: TensorType, name: str = "") -> None:
        """Refuse a dtype that the op is not defined on."""
        if not accepts:
            operand = f"{name} " if name else ""
            raise self.refusal(f"is not defined on {type.dtype}: {operand}{type}")


def written(value: object) -> str:
    """A field's value as text: ``[1,0]``, ``mean``, ``f32[2]``."""
    if isinstance(value, (tuple, list)):
        return f"[{','.join(written(item) for item in value)}]"
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, bool):
        return str(value).lower()
    return "none" if value is None else str(value)


def same_types(op: Op, names: Sequence[str], types: Sequence[TensorType]) -> TensorType:
    """The one type that all have; refused if they differ in dtype or shape."""
    first = types[0]
    if any(type != first for type in types):
        what = (
            "dtypes"
            if all(type.shape == first.shape for type in types)
            else "shapes"
            if all(type.dtype is first.dtype for type in types)
            else "types"
        )
        listed = ", ".join(
            f"{name} {type}" for name, type in zip(names, types, strict=True)
        )
        raise op.refusal(f"operand {what} differ: {listed}")
    return first


def axis_of(op: Op, axis: int, type: TensorType, name: str = "operand") -> int:
    """The axis, refused if the type has none such."""
    if not 0 <= axis < type.rank:
        raise op.refusal(f"axis {axis} is not one of {name} {type}'s {type.rank}")
    return axis


def distinct_axes(
    op: Op, axes: Sequence[int], type: TensorType, name: str = "operand"
) -> None:
    """Refuse axes that the type has not got, or that are named twice."""
    for axis in axes:
        axis_of(op, axis, type, name)
    if len(set(axes)) != len(axes):
        raise op.refusal(f"axes {written(tuple(axes))} of {name} {type} repeat")
