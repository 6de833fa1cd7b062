"""What Python would say of operators that the form has not got, said by us.

The methods are set when the program runs and not written into the classes, so
that a type checker goes on refusing them before it does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar, TypeVar

from accy_async.errors import InvalidType

__all__ = ["NO_PYTHON_NUMBER", "NoOperand", "OPERATORS", "refuses"]

_T = TypeVar("_T", bound=type)


class NoOperand:
    """What stands for a place and is no value: not an operand by itself."""

    __slots__ = ()
    meant: ClassVar[str]
    """What to write where its value is meant."""


_BINARY = {
    "add": "+",
    "sub": "-",
    "mul": "*",
    "truediv": "/",
    "mod": "%",
    "and": "&",
    "or": "|",
    "xor": "^",
    "lshift": "<<",
    "rshift": ">>",
    "pow": "**",
    "floordiv": "//",
    "matmul": "@",
}

OPERATORS: Mapping[str, str] = {
    **{f"__{name}__": sign for name, sign in _BINARY.items()},
    **{f"__r{name}__": sign for name, sign in _BINARY.items()},
    "__lt__": "<",
    "__le__": "<=",
    "__gt__": ">",
    "__ge__": ">=",
    "__neg__": "-",
    "__pos__": "+",
    "__invert__": "~",
    "__abs__": "abs()",
}
"""Python's operators, with the sign that a message shows for each."""

NO_PYTHON_NUMBER: Mapping[str, str] = {
    "__float__": "float() of it, as Python's math functions take",
    "__int__": "int() of it",
    "__index__": "a Python integer made of it, as range() does",
    "__complex__": "complex() of it",
    "__round__": "round()",
    "__floor__": "math.floor()",
    "__ceil__": "math.ceil()",
    "__trunc__": "math.trunc()",
    "__iter__": "iterating over it",
    "__len__": "len() of it",
}
"""What makes a number of a value that is known only on the device."""


def refuses(methods: Mapping[str, str], expected: str) -> Callable[[_T], _T]:
    """A class decorator: these special methods raise `InvalidType`.

    Args:
        methods: their names, each with what was asked for, in words.
        expected: what to write instead.
    """

    def decorate(decorated: _T) -> _T:
        for name, asked in methods.items():
            setattr(decorated, name, _refusal(asked, expected))
        return decorated

    return decorate


def _refusal(asked: str, expected: str) -> Callable[..., object]:
    def refuse(self: object, *arguments: object, **options: object) -> object:
        del arguments, options
        raise InvalidType(type(self).__name__, asked, expected)

    return refuse
