"""Event loops to run tests on, one after another or several at once."""

from __future__ import annotations

import importlib.util
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest

__all__ = ["LOOPS", "PATIENCE_S", "Options", "run", "run_in_thread"]

PATIENCE_S = 60.0
"""After so long a wait that does not end fails its test instead of hanging it."""

Options = tuple[str, dict[str, Any]]

LOOPS = (
    pytest.param(("asyncio", {"use_uvloop": False}), id="asyncio"),
    pytest.param(
        ("asyncio", {"use_uvloop": True}),
        id="uvloop",
        marks=pytest.mark.skipif(
            importlib.util.find_spec("uvloop") is None,
            reason="uvloop is not installed",
        ),
    ),
    pytest.param(("trio", {}), id="trio"),
)


def run(options: Options, main: Callable[[], Awaitable[None]]) -> None:
    """Run a loop of its own to its end."""

    async def bounded() -> None:
        with anyio.fail_after(PATIENCE_S):
            await main()

    anyio.run(bounded, backend=options[0], backend_options=options[1])


def run_in_thread(target: Callable[[], object]) -> None:
    """Run it on a new thread and wait until that has ended, blocking this one."""
    thread = threading.Thread(target=target, daemon=True)
    thread.start()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
