"""Noticing tasks that never begin.

asyncio drops a task that is cancelled before its first step: none of its code runs,
neither its end nor its cleanup. (Nobody can do so to a task of trio's.)
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import sniffio

__all__ = ["after_first_step"]


def after_first_step(look: Callable[[], object]) -> None:
    """Call back once the task just started has taken its first step, or was dropped.

    To be called right after the task was started, on its event loop: asyncio takes
    what is due in its order.
    """
    if sniffio.current_async_library() == "asyncio":
        asyncio.get_running_loop().call_soon(look)
