"""What asyncio does to a task by itself, beside anyio's cancel scopes.

asyncio drops a task that is cancelled before its first step: none of its code runs,
neither its end nor its cleanup. Later, ``Task.cancel`` (which ``asyncio.timeout`` and
``asyncio.TaskGroup`` use) ends whatever the task waits for, and no scope knows of it.
(Nobody can do either to a task of trio's.)
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import sniffio

__all__ = ["after_first_step", "native_cancels"]


def after_first_step(look: Callable[[], object]) -> None:
    """Call back once the task just started has taken its first step, or was dropped.

    To be called right after the task was started, on its event loop: asyncio takes
    what is due in its order.
    """
    if sniffio.current_async_library() == "asyncio":
        asyncio.get_running_loop().call_soon(look)


def native_cancels() -> int:
    """How many cancellations of the running task are under way; 0 on trio.

    Outside of a cancel scope those of the scope are taken back again: what has been
    added since the scope was entered came from asyncio itself.
    """
    if sniffio.current_async_library() != "asyncio":
        return 0
    task = asyncio.current_task()
    return 0 if task is None else task.cancelling()
