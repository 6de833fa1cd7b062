"""Cutting an async operation short at an exact point.

An operation can be cancelled or interrupted from outside only where it is
suspended: where the coroutine hands something to the loop. `stepped` runs a
coroutine under a shim that passes all of that through unchanged, on any loop,
and is told of every suspension just before it happens. Whatever is done there
(cancelling a scope or the task) takes effect at precisely this suspension:

* trio looks for a pending cancellation as soon as a task suspends;
* asyncio's task delivers a pending ``cancel()`` to what the task suspends on, and
  anyio's scopes deliver theirs in a callback that is queued before any that
  could resume the task.

So the suspensions of one run are counted, and then there is one more run for each.
"""

from __future__ import annotations

import asyncio
import functools
import types
from collections.abc import Callable, Coroutine, Generator, Mapping
from typing import Any, TypeVar

import anyio
import attrs
import sniffio
import trio

from accy_async.backends import RecordingBackend
from accy_async.backends.recording import CALL_KINDS

__all__ = [
    "Injection",
    "Outcome",
    "cancel_scope",
    "cancel_task",
    "interrupt",
    "perform",
    "soon",
    "stepped",
]

WAITS = frozenset(
    kind
    for kind in CALL_KINDS
    if kind.startswith("wait") and kind != "wait_for_peer"  # which is the device's
)

_T = TypeVar("_T")


@types.coroutine
def stepped(
    work: Coroutine[Any, Any, _T], before: Callable[[int], BaseException | None]
) -> Generator[Any, Any, _T]:
    """Run a coroutine, with ``before`` told the number of each suspension.

    An exception that ``before`` returns is thrown in when the coroutine is resumed.
    """
    number = 0
    resume = functools.partial(work.send, None)
    while True:
        try:
            trap = resume()
        except StopIteration as end:
            result: _T = end.value
            return result
        number += 1
        thrown = before(number)
        try:
            answer = yield trap
        except BaseException as error:  # noqa: BLE001 - thrown in, or replaced
            thrown = thrown or error
        if thrown is None:
            resume = functools.partial(work.send, answer)
        else:
            resume = functools.partial(work.throw, thrown)


Injection = Callable[[anyio.CancelScope], BaseException | None]
"""What is done at a suspension: cancel something, or return what to throw."""


def cancel_scope(scope: anyio.CancelScope) -> None:
    """Cancel as anyio and trio do."""
    scope.cancel()


def cancel_task(scope: anyio.CancelScope) -> None:
    """Cancel as asyncio's own `asyncio.timeout` and `asyncio.TaskGroup` do."""
    del scope
    task = asyncio.current_task()
    assert task is not None
    task.cancel()


def interrupt(scope: anyio.CancelScope) -> KeyboardInterrupt:
    """Interrupt as a console does: in place of a cancellation, where one gets in."""
    scope.cancel()
    return KeyboardInterrupt()


def soon(call: Callable[[], object]) -> None:
    """Have something called by the loop, once the running task is suspended."""
    if sniffio.current_async_library() == "trio":
        trio.lowlevel.current_trio_token().run_sync_soon(call)
    else:
        asyncio.get_running_loop().call_soon(call)


@attrs.frozen(kw_only=True)
class Outcome:
    """How an operation ended.

    Attributes:
        error: what it raised, other than a cancellation.
        was_cancelled: True where it ended as cancelled.
        steps: how many times it was suspended.
    """

    error: BaseException | None
    was_cancelled: bool
    steps: int

    @property
    def is_success(self) -> bool:
        return self.error is None and not self.was_cancelled


async def perform(
    backend: RecordingBackend,
    work: Callable[[], Coroutine[Any, Any, object]],
    injections: Mapping[int, Injection] | None = None,
    on_suspend: Callable[[], object] = lambda: None,
) -> Outcome:
    """Run an operation to its end, with injections at some of its suspensions.

    ``on_suspend`` is called at each suspension without one.

    A backend that holds its streams is released at the first suspension that waits
    for the device and is not injected at: so waits are real ones.
    """
    at = injections or {}
    steps = 0
    error: BaseException | None = None
    was_cancelled = False

    with anyio.CancelScope() as scope:

        def before(number: int) -> BaseException | None:
            nonlocal steps
            steps = number
            is_shielded = scope.cancel_called
            thrown = at[number](scope) if number in at else None
            if number not in at:
                on_suspend()
            # What is thrown into a shielded wait gets there when the wait ends.
            is_to_end = number not in at or (is_shielded and thrown is not None)
            if is_to_end and backend.calls and backend.calls[-1].kind in WAITS:
                soon(backend.release_all)
            return thrown

        try:
            await stepped(work(), before)
        except (Exception, KeyboardInterrupt) as raised:  # noqa: BLE001 - returned
            error = raised
        except asyncio.CancelledError:
            if scope.cancel_called:
                raise
            task = asyncio.current_task()
            assert task is not None
            task.uncancel()
            was_cancelled = True
    return Outcome(
        error=error,
        was_cancelled=was_cancelled or scope.cancelled_caught,
        steps=steps,
    )
