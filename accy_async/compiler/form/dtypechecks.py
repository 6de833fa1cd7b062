"""What the parts of a kernel ask of the dtypes of their values."""

from __future__ import annotations

from typing import Protocol

from accy_async.dtypes import DType
from accy_async.errors import InvalidType

__all__ = ["require_bool", "require_integer", "require_same", "undefined"]


class Typed(Protocol):
    """A value of a known dtype, as an `Expression` is."""

    @property
    def dtype(self) -> DType:
        """The dtype of the value."""


def require_integer(what: str, value: Typed) -> None:
    """Refuse a value that is not of an integer dtype."""
    if not value.dtype.is_integer:
        raise InvalidType(what, value.dtype.value, "an integer dtype")


def require_bool(what: str, value: Typed) -> None:
    """Refuse a value that is not a bool."""
    if value.dtype is not DType.BOOL:
        raise InvalidType(what, value.dtype.value, "a bool")


def require_same(what: str, left: Typed, right: Typed) -> None:
    """Refuse two values of different dtypes."""
    if left.dtype is not right.dtype:
        raise InvalidType(
            what, f"{left.dtype} and {right.dtype}", "two operands of one dtype"
        )


def undefined(what: str, dtype: DType) -> InvalidType:
    """What is raised where an operation is not defined on a dtype."""
    hint = "; cast to f32 first" if dtype in (DType.F16, DType.BF16) else ""
    return InvalidType(what, dtype.value, f"a dtype that {what} is defined on{hint}")
