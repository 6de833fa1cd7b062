"""Which of numpy's functions are traced, and by what."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

__all__ = ["FUNCTIONS", "implements"]

# Any: each entry has the signature of the numpy function beside it.
FUNCTIONS: dict[Callable[..., Any], Callable[..., Any]] = {}
"""From numpy's functions to ours of the same arguments."""

_F = TypeVar("_F", bound=Callable[..., Any])


def implements(*functions: Callable[..., Any]) -> Callable[[_F], _F]:
    """A decorator: what is called for these functions of numpy."""

    def register(function: _F) -> _F:
        for name in functions:
            FUNCTIONS[name] = function
        return function

    return register
