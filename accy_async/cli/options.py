"""The options that every command has."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Group, Parameter

__all__ = ["Json", "Traceback"]

_FLAG = Parameter(
    negative="",
    group=Group("For machines and for finding faults", sort_key=2),
    show_default=False,
)

Json = Annotated[
    bool, _FLAG, Parameter(help="Print one JSON document and nothing else.")
]
Traceback = Annotated[bool, _FLAG, Parameter(help="Show where an error came from.")]
