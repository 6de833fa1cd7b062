"""What asyncio does to a task by itself, beside anyio's cancel scopes.

asyncio drops a task that is cancelled before its first step: none of its code runs,
neither its end nor its cleanup. Later, ``Task.cancel`` (which ``asyncio.timeout`` and
``asyncio.TaskGroup`` use) ends whatever the task waits for, and no scope knows of it:
a shield least of all. (Nobody can do either to a task of trio's.)

Such a cancellation is an exception, raised once, and a count that goes up. Who catches
the exception has to raise it again in the end; the count is for who cancelled to take
back. So a wait that must not be cut short is begun anew after each of them, and the
first is raised when all is done. (To have asyncio raise it anew, by ``cancel`` and
``uncancel``, would not do: it would come at the next await, and that may be behind the
``asyncio.timeout`` that it is for.)
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from typing import NamedTuple

import anyio
import sniffio

__all__ = ["Outlasted", "after_first_step", "native_cancels", "outlast"]


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


class Outlasted(NamedTuple):
    """How a wait ended that nobody could cancel.

    Attributes:
        is_over: False where its deadline came first.
        cancelled: the first of asyncio's own cancellations meanwhile, for the caller to
            raise when its cleanup is done; None where there was none.
    """

    is_over: bool
    cancelled: BaseException | None


async def outlast(
    wait: Callable[[], Awaitable[object]], deadline: float = math.inf
) -> Outlasted:
    """Wait to the end, or to a deadline, however often the task is cancelled meanwhile.

    Args:
        wait: an async callable. It is called anew after each of asyncio's own
            cancellations, and so must lose nothing where it is cut short.
        deadline: until when, on the clock of `anyio.current_time`.

    Raises:
        BaseException: what the wait raises.

    Cancellation: shielded from it; asyncio's own is returned.
    """
    cancelled: BaseException | None = None
    has_spare = sniffio.current_async_library() == "asyncio"
    while True:
        before = native_cancels()
        scope = anyio.CancelScope(deadline=deadline, shield=True)
        try:
            with scope:
                await wait()
                return Outlasted(True, cancelled)
        except anyio.get_cancelled_exc_class() as error:
            if native_cancels() <= before:
                # One may have been asked for before, by the task itself, and come at
                # its next await. Any other is no cancellation of this task.
                if not has_spare:
                    raise
                has_spare = False
            cancelled = cancelled or error
            if not scope.cancel_called:
                continue
        return Outlasted(False, cancelled)
