"""Types of arguments that a function is compiled for, as they are given."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from accy_async.compiler.semantic import TensorType
from accy_async.compiler.tracing.calls import argument_names, check_call
from accy_async.dtypes import DType
from accy_async.errors import InvalidType, InvalidValue
from accy_async.fragment.arguments import array_type

__all__ = ["argument_types"]

_EXPECTED = (
    "a type like 'f32[8,4]', a TensorType, an array, or tuples, lists and dicts of "
    "these; numbers and None are constants of the program"
)
_NUMBERS = (bool, int, float, complex)


def argument_types(
    function: Callable[..., Any], specs: Sequence[object], named: Mapping[str, object]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments with a `TensorType` for each array; numbers and None stay.

    Raises:
        LaunchArgumentMismatch: the function takes more, fewer, or others by name.
        InvalidType, InvalidValue: one gives no type; names the argument.
    """
    name = check_call(function, specs, named)
    names = argument_names(function, len(specs))
    positional = tuple(
        _typed(spec, f"{name}'s argument {label}")
        for spec, label in zip(specs, names, strict=True)
    )
    by_name = {
        key: _typed(spec, f"{name}'s argument {key}") for key, spec in named.items()
    }
    return positional, by_name


def _typed(spec: object, what: str) -> object:
    if spec is None or isinstance(spec, (TensorType, *_NUMBERS)):
        return spec
    if isinstance(spec, str) and not isinstance(spec, DType):
        try:
            return TensorType.parse(spec)
        except InvalidValue as error:
            expected = {
                "TensorType.dtype": "a type of "
                + ", ".join(one.value for one in DType),
                "TensorType.shape": error.expected,  # it is too large
            }.get(error.field, _EXPECTED)
            raise InvalidValue(what, spec, expected) from None
    if isinstance(spec, dict):
        return {key: _typed(one, f"{what}.{key}") for key, one in spec.items()}
    if isinstance(spec, (tuple, list)) and not hasattr(spec, "_fields"):
        if spec and all(isinstance(one, _NUMBERS) for one in spec):
            # A shape without a dtype, or an array's elements.
            raise InvalidType(what, spec, _EXPECTED)
        parts = [_typed(one, f"{what}.{index}") for index, one in enumerate(spec)]
        return tuple(parts) if isinstance(spec, tuple) else parts
    try:
        found = array_type(spec)
    except InvalidValue as error:
        given = f"{what}, an array of {getattr(spec, 'dtype', None)}"
        raise InvalidType(given, spec, error.expected) from None
    except TypeError:  # its shape is none
        found = None
    if found is None:
        raise InvalidType(what, spec, _EXPECTED)
    return found
