"""An operation on the recording backend, cut short at every call and every await.

Each function runs the operation once to count, and then once for each place. ``check``
is told the backend and the operation afterwards: that nothing is left, and what else
the operation promises.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any

from accy_async.backends import RecordingBackend
from accy_async.errors import GraceExpired
from tests.harness.steps import (
    Injection,
    Outcome,
    cancel_scope,
    cancel_task,
    interrupt,
    perform,
)

__all__ = [
    "Check",
    "Operation",
    "act",
    "cancel_each_await",
    "cancel_each_await_by_asyncio",
    "interrupt_each_await",
    "interrupt_each_call",
    "without_grace",
]

Operation = Callable[[RecordingBackend], Coroutine[Any, Any, object]]
Check = Callable[[RecordingBackend, Operation], Awaitable[None]]


async def act(
    operation: Operation,
    is_held: bool,
    injections: Mapping[int, Injection] | None = None,
    failures: Mapping[int, BaseException | None] | None = None,
) -> tuple[RecordingBackend, Outcome]:
    """Run the operation on a backend of its own; ``failures`` are of its calls."""
    backend = RecordingBackend(is_holding=is_held)
    for nth, error in (failures or {}).items():
        backend.fail("*", nth, error)
    outcome = await perform(backend, functools.partial(operation, backend), injections)
    return backend, outcome


def without_grace(error: BaseException | None) -> list[BaseException]:
    """The errors, in order, but for those that name what a failed wait left busy."""
    if isinstance(error, BaseExceptionGroup):
        return [leaf for one in error.exceptions for leaf in without_grace(one)]
    return [] if error is None or isinstance(error, GraceExpired) else [error]


async def interrupt_each_call(
    operation: Operation, is_held: bool, check: Check
) -> None:
    """A KeyboardInterrupt inside any call leaves as itself."""
    whole, _ = await act(operation, is_held)
    for nth in range(1, len(whole.calls) + 1):
        pressed = KeyboardInterrupt()
        backend, outcome = await act(operation, is_held, failures={nth: pressed})
        assert outcome.error is pressed
        await check(backend, operation)


async def cancel_each_await(operation: Operation, is_held: bool, check: Check) -> None:
    """A cancellation at any await goes on as one."""
    _, whole = await act(operation, is_held)
    for step in range(1, whole.steps + 1):
        backend, outcome = await act(operation, is_held, {step: cancel_scope})
        assert outcome.error is None
        await check(backend, operation)


async def interrupt_each_await(
    operation: Operation, is_held: bool, check: Check
) -> None:
    """An interrupt at any await, the exit's too, leaves as itself."""
    _, whole = await act(operation, is_held)
    for step in range(1, whole.steps + 1):
        backend, outcome = await act(operation, is_held, {step: interrupt})
        assert isinstance(outcome.error, KeyboardInterrupt)
        await check(backend, operation)


async def cancel_each_await_by_asyncio(
    operation: Operation, is_held: bool, check: Check
) -> None:
    """``Task.cancel`` at any await, and again at any of the exit's, leaks nothing."""
    _, whole = await act(operation, is_held)
    for step in range(1, whole.steps + 1):
        backend, outcome = await act(operation, is_held, {step: cancel_task})
        assert without_grace(outcome.error) == []
        await check(backend, operation)
        for later in range(step + 1, outcome.steps + 1):
            backend, outcome_later = await act(
                operation, is_held, {step: cancel_task, later: cancel_task}
            )
            assert without_grace(outcome_later.error) == []
            await check(backend, operation)
