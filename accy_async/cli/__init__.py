"""The command ``accy-async``: what can run here, and a demonstration that it does.

Everything that it needs, the terminal's libraries included, is imported when a
command runs.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from accy_async.cli.early import ending_at_once

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code (see `accy_async.cli.exits`).

    Args:
        arguments: what follows the command's name; the process's own if left out.
    """
    with ending_at_once():
        from accy_async.cli.app import run_command

    return run_command(sys.argv[1:] if arguments is None else arguments)
