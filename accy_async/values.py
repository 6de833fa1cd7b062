"""Validators for the frozen attrs values of every room.

Each raises `InvalidType` or `InvalidValue` naming ``Class.field``, the value
and what was expected. They are attrs validators: ``f(instance, attribute,
value)``.
"""

from __future__ import annotations

import math
import operator
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from enum import Enum
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar, cast

from accy_async.errors import InvalidType, InvalidValue

if TYPE_CHECKING:
    from attrs import Attribute

    # attrs asks for Any here: a validator serves fields of every type.
    Validator = Callable[[Any, Attribute[Any], Any], None]

__all__ = [
    "MAX_BYTES",
    "U32_MAX",
    "all_of",
    "enum",
    "field_name",
    "frozenset_of",
    "instances",
    "integer",
    "integers",
    "is_index",
    "is_masked",
    "listed",
    "mapping_of_text",
    "member_of",
    "number",
    "one_of",
    "optional",
    "packed_bytes",
    "refuse_masked",
    "some_names",
    "text",
    "to_integer",
    "to_integers",
    "to_tuple",
    "tuple_of",
]

U32_MAX = 2**32 - 1
MAX_BYTES = 2**63 - 1
"""More bytes than this no offset of 64 bits with a sign can reach."""

_NO_SEQUENCES = (str, bytes, bytearray, memoryview, AbstractSet, Mapping)
_E = TypeVar("_E", bound=Enum)
_T = TypeVar("_T")


def field_name(instance: object, attribute: Attribute[object]) -> str:
    """The name messages use for a field: ``Class.field``."""
    return f"{type(instance).__name__}.{attribute.name}"


def integer(minimum: int = 0, maximum: int = U32_MAX) -> Validator:
    """An int (never a bool) with ``minimum <= value <= maximum``."""
    expected = f"an integer from {minimum} to {maximum}"

    def check(instance: object, attribute: Attribute[object], value: object) -> None:
        if type(value) is int and minimum <= value <= maximum:
            return  # nearly always, and soonest
        if isinstance(value, bool) or not isinstance(value, int):
            raise InvalidType(field_name(instance, attribute), value, expected)
        if not minimum <= value <= maximum:
            raise InvalidValue(field_name(instance, attribute), value, expected)

    return check


def number(minimum: float, maximum: float = float("inf")) -> Validator:
    """A real number (int or float, never a bool or NaN) within the bounds."""
    expected = f"a number from {minimum:g} to {maximum:g}"

    def check(instance: object, attribute: Attribute[object], value: object) -> None:
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise InvalidType(field_name(instance, attribute), value, expected)
        if not minimum <= value <= maximum:
            raise InvalidValue(field_name(instance, attribute), value, expected)

    return check


def text(
    *, empty: bool = False, pattern: str | None = None, what: str | None = None
) -> Validator:
    """A str; not empty unless ``empty``; matching ``pattern`` in full if given."""
    compiled = re.compile(pattern) if pattern is not None else None
    expected = what or ("a string" if empty else "a non-empty string")

    def check(instance: object, attribute: Attribute[object], value: object) -> None:
        if not isinstance(value, str):
            raise InvalidType(field_name(instance, attribute), value, expected)
        bad = (not value and not empty) or (
            compiled is not None and compiled.fullmatch(value) is None
        )
        if bad:
            raise InvalidValue(field_name(instance, attribute), value, expected)

    return check


def instances(*types: type, expected: str | None = None) -> Validator:
    """An instance of one of the types; bool does not pass for int."""
    words = expected or " or ".join(kind.__name__ for kind in types)

    def check(instance: object, attribute: Attribute[object], value: object) -> None:
        wrong_bool = isinstance(value, bool) and bool not in types
        if wrong_bool or not isinstance(value, types):
            raise InvalidType(field_name(instance, attribute), value, words)

    return check


def one_of(options: Iterable[object]) -> Validator:
    """One of the listed values."""
    allowed = tuple(options)
    expected = "one of " + ", ".join(repr(option) for option in allowed)

    def check(instance: object, attribute: Attribute[object], value: object) -> None:
        if not any(isinstance(value, type(o)) and value == o for o in allowed):
            raise InvalidValue(field_name(instance, attribute), value, expected)

    return check


def optional(validator: Validator) -> Validator:
    """None, or what the validator accepts."""

    def check(instance: object, attribute: Attribute[object], value: object) -> None:
        if value is not None:
            validator(instance, attribute, value)

    return check


def all_of(*validators: Validator) -> Validator:
    """What every validator accepts, tried in order."""

    def check(instance: object, attribute: Attribute[object], value: object) -> None:
        for validator in validators:
            validator(instance, attribute, value)

    return check


def tuple_of(*types: type, length: int | None = None, expected: str) -> Validator:
    """A tuple (of ``length`` if given) whose members are of the types."""

    def check(instance: object, attribute: Attribute[object], value: object) -> None:
        name = field_name(instance, attribute)
        if not isinstance(value, tuple):
            raise InvalidType(name, value, expected)
        if length is not None and len(value) != length:
            raise InvalidValue(name, value, expected)
        for index, member in enumerate(value):
            if not isinstance(member, types) or (
                isinstance(member, bool) and bool not in types
            ):
                raise InvalidType(f"{name}[{index}]", member, expected)

    return check


def integers(minimum: int, maximum: int, *, length: int | None = None) -> Validator:
    """A tuple of integers (never bools), each within the bounds; so many, if given."""
    expected = f"integers from {minimum} to {maximum}"
    if length is not None:
        expected = f"{length} {expected}"
    shape = tuple_of(int, length=length, expected=expected)

    def check(
        instance: object, attribute: Attribute[object], value: tuple[int, ...]
    ) -> None:
        shape(instance, attribute, value)
        if not all(minimum <= member <= maximum for member in value):
            raise InvalidValue(field_name(instance, attribute), value, expected)

    return check


def frozenset_of(kind: type) -> Validator:
    """A frozenset whose members are of the type."""
    expected = f"a frozenset of {kind.__name__}"

    def check(instance: object, attribute: Attribute[object], value: object) -> None:
        name = field_name(instance, attribute)
        if not isinstance(value, frozenset):
            raise InvalidType(name, value, expected)
        for member in value:
            if not isinstance(member, kind):
                raise InvalidType(name, member, expected)

    return check


def mapping_of_text(*, expected: str = "a mapping from str to str") -> Validator:
    """A mapping whose keys and values are strings."""

    def check(instance: object, attribute: Attribute[object], value: object) -> None:
        name = field_name(instance, attribute)
        if not isinstance(value, Mapping):
            raise InvalidType(name, value, expected)
        for key, item in value.items():
            if not isinstance(key, str) or not isinstance(item, str):
                raise InvalidType(f"{name}[{key!r}]", item, expected)

    return check


def member_of(kind: type[_E], value: object) -> _E:
    """The enum's member of that value; anything else passes through unchanged.

    For converters. What passes through is for the field's validator to refuse,
    so that the message names the field.
    """
    if not isinstance(value, kind):
        for member in kind:
            if isinstance(value, type(member.value)) and member.value == value:
                return member
    return cast("_E", value)


def enum(kind: type[Enum]) -> Validator:
    """A member of the enum, not merely something equal to one.

    What is expected is told as members' values where a converter takes these.
    """
    members = "one of " + ", ".join(f"{kind.__name__}.{m.name}" for m in kind)
    values = "one of " + ", ".join(repr(m.value) for m in kind)

    def check(instance: object, attribute: Attribute[Any], value: object) -> None:
        if not isinstance(value, kind):
            name = field_name(instance, attribute)
            expected = members if attribute.converter is None else values
            if isinstance(value, str):
                raise InvalidValue(name, value, expected)
            raise InvalidType(name, value, expected)

    return check


def listed(name: str, value: Iterable[_T], expected: str) -> tuple[_T, ...]:
    """The items of an argument.

    Args:
        name: the argument's, after the function's.
        value: what was given.
        expected: what is said to be expected.

    Raises:
        InvalidType: there is nothing to go through; or it is text, or bytes.
    """
    if isinstance(value, (str, bytes)):
        raise InvalidType(name, value, expected)
    try:
        return tuple(value)
    except TypeError as error:
        raise InvalidType(name, value, expected) from error


def is_index(value: object, count: int) -> bool:
    """True for an integer, of any library's, that names one of so many items."""
    try:
        return 0 <= operator.index(value) < count  # type: ignore[arg-type]
    except TypeError:
        return False


def to_integer(value: Any) -> Any:  # noqa: ANN401 - what is none is handed on
    """Converter: an integer of any library as Python's own; anything else unchanged."""
    if type(value) is int or isinstance(value, bool):
        return value
    try:
        return operator.index(value)
    except TypeError:
        return value


def to_integers(value: Any) -> tuple[Any, ...]:  # noqa: ANN401 - as above
    """Converter: as `to_tuple`, with the members of `to_integer`."""
    members: Any = to_tuple(value)
    return tuple(map(to_integer, members)) if isinstance(members, tuple) else members


def packed_bytes(name: str, shape: Sequence[int], width: int) -> int:
    """Bytes that elements of so many bytes each take, packed into a shape.

    Args:
        name: the field's or argument's, that the shape is of.
        shape: extents from 0; beside one that leaves no elements the others are
            limited all the same, as they are for numpy.
        width: of an element.

    Raises:
        InvalidValue: they take more than `MAX_BYTES`.
    """
    if math.prod(filter(None, shape)) * width > MAX_BYTES:
        expected = f"at most {MAX_BYTES} bytes, in elements of {width}"
        raise InvalidValue(name, shape, expected)
    return math.prod(shape) * width


def is_masked(array: object) -> bool:
    """True for an array of `numpy.ma`, whose mask is lost where only elements count."""
    # numpy imports that module, at some cost, when somebody asks for it.
    module = sys.modules.get("numpy.ma")
    return module is not None and isinstance(array, module.MaskedArray)


def refuse_masked(name: str, array: object) -> None:
    """Refuse an array with a mask, which no device knows of.

    Raises:
        InvalidValue: it is one.
    """
    if is_masked(array):
        expected = "an array without: array.filled(value), or array.data"
        raise InvalidValue(name, "a masked array", expected)


def to_tuple(value: Iterable[Any]) -> tuple[Any, ...]:
    """Converter: lists and generators as tuples; what is neither, unchanged.

    Text and bytes are left as they are for the validator to refuse, being seldom
    meant as sequences of their members; so are sets and mappings, whose order
    means nothing.
    """
    if isinstance(value, (tuple, *_NO_SEQUENCES)):
        return cast("tuple[Any, ...]", value)
    try:
        members = iter(value)
    except TypeError:
        return cast("tuple[Any, ...]", value)
    return tuple(members)


def some_names(names: Iterable[str], limit: int = 8) -> str:
    """The first names, quoted, for a message that says what there is; or none."""
    first = [repr(name) for name in islice(names, limit + 1)]
    if len(first) > limit:
        first[limit] = "..."
    return ", ".join(first) or "none"
