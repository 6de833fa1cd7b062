"""What a function can be called with, and what a call is refused for."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection, Mapping, Sequence

from accy_async.errors import LaunchArgumentMismatch

__all__ = ["argument_names", "check_call", "counted", "given", "title_of"]

_BY_PLACE = (
    inspect.Parameter.POSITIONAL_ONLY,
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
)
_MANY = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def title_of(function: Callable[..., object]) -> str:
    """The function's name as a module may have it: of ``<lambda>`` the inside."""
    name = getattr(function, "__name__", type(function).__name__)
    kept = re.sub(r"[^A-Za-z0-9_.\-]", "", name)
    return kept if re.match("[A-Za-z_]", kept) else f"_{kept}"


def argument_names(function: Callable[..., object], count: int) -> list[str]:
    """Names for so many arguments by place: the function's own, else p0, p1, p2."""
    names = [f"p{index}" for index in range(count)]
    for index, parameter in enumerate(_parameters(function) or ()):
        if parameter.kind in _BY_PLACE and index < count:
            names[index] = parameter.name
    return names


def check_call(
    function: Callable[..., object],
    args: Sequence[object],
    kwargs: Mapping[str, object],
    name: str | None = None,
) -> str:
    """Refuse arguments that the function does not take; gives its name.

    Raises:
        LaunchArgumentMismatch: more or fewer, or others by name; says which.
    """
    name = name or title_of(function)
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # one without a signature says itself what it takes
        return name
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        expected = _expected([*signature.parameters.values()])
        raise LaunchArgumentMismatch(
            f"{name} takes {expected}, {given(len(args), kwargs)}: {error}"
        ) from None
    return name


def given(count: int, names: Collection[str]) -> str:
    """How many arguments were given, and which by name, in words."""
    by_name = f", and by name {', '.join(names)}" if names else ""
    return f"{count} {'was' if count == 1 else 'were'} given{by_name}"


def counted(count: int, noun: str) -> str:
    """So many of something, in words."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _expected(parameters: Sequence[inspect.Parameter]) -> str:
    """How many arguments there may be, and their names."""
    single = [one for one in parameters if one.kind not in _MANY]
    least = sum(one.default is inspect.Parameter.empty for one in single)
    if len(single) < len(parameters):
        count = f"at least {counted(least, 'argument')}"
    elif least < len(single):
        count = f"{least} to {counted(len(single), 'argument')}"
    else:
        count = counted(least, "argument")
    stars = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    names = ", ".join(
        f"{stars[one.kind] if one.kind in _MANY else ''}{one.name}"
        for one in parameters
    )
    return f"{count} ({names})" if names else count


def _parameters(function: Callable[..., object]) -> list[inspect.Parameter] | None:
    try:
        return [*inspect.signature(function).parameters.values()]
    except (TypeError, ValueError):
        return None
