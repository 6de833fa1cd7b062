"""What the tracers of numpy's functions share."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from accy_async.compiler.semantic import Value
from accy_async.compiler.tracing.array import TracedArray
from accy_async.compiler.tracing.places import refusal
from accy_async.compiler.tracing.state import current

__all__ = ["NOT_GIVEN", "axes_of", "call", "is_set", "plain", "wrap"]

NOT_GIVEN = inspect.signature(np.sum).parameters["initial"].default
"""What numpy's functions have for arguments that were left out."""


def wrap(value: Value) -> TracedArray:
    """A value of the innermost trace as an array."""
    return TracedArray(current(), value)


def call(function: Callable[..., Any], *operands: object) -> Any:  # noqa: ANN401
    """A function of numpy on operands of which one is traced, as its stubs see not."""
    return function(*operands)


def axes_of(axis: object, rank: int, name: str) -> tuple[int, ...]:
    """The axes meant by numpy's ``axis``: None for all, negative from the end."""
    if axis is None:
        return tuple(range(rank))
    given: Sequence[Any] = axis if isinstance(axis, (tuple, list)) else (axis,)
    axes = []
    for one in given:
        if isinstance(one, bool) or not isinstance(one, (int, np.integer)):
            raise refusal(f"axis {axis!r} is no integer", operation=name)
        if not -rank <= one < rank:
            raise refusal(f"axis {one} of an array of {rank} axes", operation=name)
        axes.append(int(one) % rank)
    return tuple(axes)


def is_set(option: object) -> bool:
    """Whether numpy takes an option, as ``keepdims``, for set: by its truth."""
    return option is not NOT_GIVEN and bool(option)


def plain(name: str, options: dict[str, object]) -> None:
    """Refuse options of numpy's that are not traced, unless at their defaults."""
    for option, value in options.items():
        if value is None or value is NOT_GIVEN or (option == "where" and value is True):
            continue
        raise refusal(f"{option}= is not traced", operation=name)
