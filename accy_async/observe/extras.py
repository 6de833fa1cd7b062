"""Importing what only an extra installs."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from accy_async.errors import RuntimeUnavailable

__all__ = ["import_extra"]


def import_extra(module: str, *, extra: str, user: str) -> ModuleType:
    """Import a module of an extra.

    Args:
        module: its name.
        extra: the extra of accy-async that installs it.
        user: what needs it, for the message.

    Raises:
        RuntimeUnavailable: it is not installed; the message says what to install.
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        raise RuntimeUnavailable(
            f"{user} needs the package {error.name}, which is not installed: "
            f'pip install "accy-async[{extra}]"'
        ) from error
