"""Shape profiles: which runtime scalars are sizes, and how large they may be."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from accy_async.artifact.geometry import u32_argument
from accy_async.dtypes import ScalarArgument
from accy_async.errors import InvalidValue, LaunchArgumentMismatch
from accy_async.values import (
    U32_MAX,
    instances,
    integer,
    optional,
    text,
    to_tuple,
    tuple_of,
)

__all__ = ["ShapeBounds", "ShapeDimension", "ShapeProfile"]

_U64 = integer(0, 2**64 - 1)


@attrs.frozen(kw_only=True)
class ShapeBounds:
    """The least and greatest size of a dimension, in elements, both allowed."""

    min: int = attrs.field(default=0, validator=integer())
    max: int = attrs.field(default=U32_MAX, validator=integer())
    multiple_of: int = attrs.field(default=1, validator=integer(1))

    def __attrs_post_init__(self) -> None:
        if self.min > self.max:
            raise InvalidValue("ShapeBounds.min", self.min, f"at most max={self.max}")

    def admits(self, value: int) -> bool:
        """True where a dimension may have this size."""
        return self.min <= value <= self.max and value % self.multiple_of == 0


@attrs.frozen(kw_only=True)
class ShapeDimension:
    """A named dimension, and the runtime scalar that carries it, if one does."""

    name: str = attrs.field(validator=text())
    runtime_scalar_argument_index: int | None = attrs.field(
        default=None, validator=optional(integer())
    )
    bounds: ShapeBounds = attrs.field(
        factory=ShapeBounds, validator=instances(ShapeBounds)
    )


@attrs.frozen(kw_only=True)
class ShapeProfile:
    """The family of shapes that one kernel serves."""

    name: str = attrs.field(validator=text())
    fingerprint: int = attrs.field(default=0, validator=_U64)
    dimensions: tuple[ShapeDimension, ...] = attrs.field(
        default=(),
        converter=to_tuple,
        validator=tuple_of(ShapeDimension, expected="ShapeDimension values"),
    )

    def __attrs_post_init__(self) -> None:
        names = [dimension.name for dimension in self.dimensions]
        if len(set(names)) != len(names):
            raise InvalidValue("ShapeProfile.dimensions", names, "names that differ")

    def check(self, scalars: Sequence[ScalarArgument]) -> None:
        """Refuse runtime scalars outside the profile's bounds.

        Raises:
            LaunchArgumentMismatch: a dimension's scalar is missing, no u32, or
                out of its bounds.
        """
        for dimension in self.dimensions:
            index = dimension.runtime_scalar_argument_index
            if index is None:
                continue
            where = f"shape profile {self.name!r}, dimension {dimension.name!r}"
            value = u32_argument(scalars, index, where)
            if not dimension.bounds.admits(value):
                raise LaunchArgumentMismatch(
                    f"{where}: got {value}, expected {dimension.bounds!r}"
                )
