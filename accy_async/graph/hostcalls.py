"""Calling the functions of host nodes: async ones here, others on a thread."""

from __future__ import annotations

import inspect
import math
from collections.abc import Awaitable, Callable
from typing import cast

import anyio

from accy_async.backends.completion import run_abandonable
from accy_async.backends.loops import interruptible
from accy_async.graph.outcome import HostCallFailed

__all__ = ["call_host", "lost_call"]


@interruptible
async def call_host(function: Callable[[], object], name: str) -> None:
    """Call a function: an async one here, another on a thread.

    Raises:
        Exception: what it raised.
        HostCallFailed: it raised what is no Exception, or StopIteration, or gave
            back an awaitable that nobody would await.

    Cancellation: an async function is cancelled; one on a thread is left to end
        by itself, and its outcome is dropped.
    """
    target = getattr(function, "func", function)
    is_async = inspect.iscoroutinefunction(target) or inspect.iscoroutinefunction(
        getattr(target, "__call__", None)  # noqa: B004 - a callable object's own
    )
    if is_async:
        try:
            await cast("Awaitable[object]", function())
        except anyio.get_cancelled_exc_class() as error:
            if anyio.current_effective_deadline() == -math.inf:
                raise
            raise HostCallFailed("what the call awaited was cancelled") from error
        except BaseException as error:
            if anyio.current_effective_deadline() == -math.inf or _may_leave(error):
                raise
            raise _failed(error) from error
        return

    def call() -> object:
        # On the call's own thread, where nothing that it raises is a cancellation.
        try:
            return function()
        except BaseException as error:
            if _may_leave(error):
                raise
            raise _failed(error) from error

    result = await run_abandonable(call, _drop, name=f"host call {name}")
    if inspect.isawaitable(result):
        if inspect.iscoroutine(result):
            result.close()
        raise HostCallFailed(
            "the call returned an awaitable: make it an async function"
        )


def _may_leave(error: BaseException) -> bool:
    """True for an error, and for an interrupt, also among others in a group."""
    if isinstance(error, (Exception, KeyboardInterrupt)):
        return True
    if not isinstance(error, BaseExceptionGroup):
        return False
    return error.subgroup(KeyboardInterrupt) is not None


def lost_call(cause: BaseException | None, name: str | None) -> HostCallFailed:
    """The error of a call, or a loop, whose task was cancelled or never began."""
    lost = HostCallFailed("the task that it ran in was cancelled")
    lost.__cause__ = cause
    if name is not None:
        lost.add_note(f"in node {name!r}")
    return lost


def _failed(error: BaseException) -> HostCallFailed:
    return HostCallFailed(f"the call raised {type(error).__name__}")


def _drop(result: object) -> None:
    if inspect.iscoroutine(result):
        result.close()
