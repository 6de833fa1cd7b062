"""What calls of a backend, and its making, are given: refused where it is none."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from accy_async.errors import InvalidBuffer, InvalidType, InvalidValue
from accy_async.values import to_integer

if TYPE_CHECKING:
    from accy_async.backends.handles import BufferHandle
    from accy_async.backends.resources import Resource

__all__ = [
    "byte_count",
    "check_grace",
    "check_memory_limit",
    "check_number",
    "check_range",
    "check_size",
    "check_writable",
]


def check_size(name: str, value: object) -> None:
    """Refuse what is no size, or alignment, of a buffer.

    Raises:
        InvalidType, InvalidBuffer: by that name.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidType(name, value, "an integer")
    if not 0 <= value < 2**63:
        raise InvalidBuffer(f"{name}: got {value}, expected 0 or more, below 2**63")


def check_grace(kind: str, value: object) -> None:
    """Refuse what is no time for a backend's cleanup to wait.

    Raises:
        InvalidType, InvalidValue: naming the backend.
    """
    check_number(f"{kind}.grace_s", value, "a number of seconds from 0")


def check_number(
    name: str, value: object, expected: str, types: tuple[type, ...] = (int, float)
) -> None:
    """Refuse what is no number from 0 of one of these types; so is NaN.

    Raises:
        InvalidType, InvalidValue: by that name.
    """
    if isinstance(value, bool) or not isinstance(value, types):
        raise InvalidType(name, value, expected)
    if not value >= 0:  # type: ignore[operator]
        raise InvalidValue(name, value, expected)


def check_memory_limit(kind: str, value: object) -> None:
    """Refuse what is no limit of a backend's memory.

    Raises:
        InvalidType, InvalidValue: naming the backend.
    """
    if value is None:
        return
    name, expected = f"{kind}.memory_limit_bytes", "0 or more, below 2**63, or None"
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidType(name, value, expected)
    if not 0 <= value < 2**63:
        raise InvalidValue(name, value, expected)


def byte_count(what: str, value: int) -> int:
    """A number of bytes from 0, of any library's integers, as Python's own.

    Args:
        what: the argument, after its call.
        value: what was given.

    Raises:
        InvalidType, InvalidBuffer: it is none.
    """
    if value.__class__ is int and value >= 0:  # on the way of every copy
        return value
    found: object = to_integer(value)
    if isinstance(found, bool) or not isinstance(found, int):
        raise InvalidType(what, value, "an integer")
    if found < 0:
        raise InvalidBuffer(f"{what}: got {value}, expected 0 or more")
    return found


def check_range(buffer: Resource, offset: int, size: int, what: str) -> None:
    """Refuse bytes that are none of a buffer's.

    Raises:
        InvalidBuffer: they pass its end.
    """
    capacity = cast("BufferHandle", buffer.handle).byte_size
    if offset + size > capacity:
        raise InvalidBuffer(
            f"{what} of {size} bytes at offset {offset} passes the end of {buffer.name}"
        )


def check_writable(buffer: Resource, what: str) -> None:
    """Refuse to write to what its owner forbids it of.

    Raises:
        InvalidBuffer: it is read-only.
    """
    if cast("BufferHandle", buffer.handle).is_read_only:
        raise InvalidBuffer(
            f"{what} to {buffer.name}: it is another library's, and read-only"
        )
