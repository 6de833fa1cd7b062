"""The options that every command has."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Group, Parameter

from accy_async.backends.catalogue import BACKEND_NAMES, is_backend_name
from accy_async.cli.exits import UsageError

__all__ = ["Json", "Traceback", "check_backend"]

_FLAG = Parameter(
    negative="",
    group=Group("For machines and for finding faults", sort_key=2),
    show_default=False,
)

Json = Annotated[
    bool, _FLAG, Parameter(help="Print one JSON document and nothing else.")
]
Traceback = Annotated[bool, _FLAG, Parameter(help="Show where an error came from.")]


def check_backend(option: str, name: str) -> None:
    """Refuse what names no backend.

    Raises:
        UsageError: naming the option, and those that there are.
    """
    if not is_backend_name(name):
        raise UsageError(f"{option} {name}: there are {', '.join(BACKEND_NAMES)}")
