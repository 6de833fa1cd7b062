"""Both event loops, one of them with a clock that jumps."""

from __future__ import annotations

import pytest
import trio.testing

__all__ = ["on_jumping_clocks"]

on_jumping_clocks = pytest.mark.parametrize(
    "anyio_backend",
    [
        pytest.param(("asyncio", {"use_uvloop": False}), id="asyncio"),
        pytest.param(
            ("trio", {"clock": trio.testing.MockClock(autojump_threshold=0)}), id="trio"
        ),
    ],
)
"""On trio what takes long takes no time, and how long it took is exact."""
