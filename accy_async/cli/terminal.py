"""What every command does the same way: output, errors, and being interrupted."""

from __future__ import annotations

import json
import math
import os
import signal
import sys
import threading
import traceback
from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio
import anyio.abc
from rich.console import Console

from accy_async.cli.early import TEXT
from accy_async.cli.exits import ExitCode, exit_code_of

__all__ = ["Interrupts", "console", "leave_broken_pipe", "report_error", "write_json"]

_T = TypeVar("_T")
_REPORT_WIDTH = 100


class _Console(Console):
    """A console that lets the command decide what a broken pipe means."""

    def on_broken_pipe(self) -> None:
        """Raise it on, where rich would exit with a code of its own."""
        raise BrokenPipeError


def console(*, stderr: bool = False) -> Console:
    """The terminal, or what stands in for it; made anew, as streams are replaced.

    Without a terminal lines are not broken at 80 columns.
    """
    made = _Console(stderr=stderr, highlight=False)
    if not made.is_terminal and "COLUMNS" not in os.environ:
        made.width = _REPORT_WIDTH
    return made


def write_json(document: object) -> None:
    """Print the one document of ``--json``; what JSON has no number for is null."""
    text = json.dumps(_finite(document), indent=2, allow_nan=False)
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _finite(value: object) -> object:
    if isinstance(value, dict):
        return {key: _finite(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(part) for part in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def report_error(
    error: BaseException, *, as_json: bool = False, with_traceback: bool = False
) -> ExitCode:
    """Say in one line what went wrong, and give its exit code."""
    code = exit_code_of(error)
    if with_traceback:
        traceback.print_exception(error)
    text = _one_line(error)
    if code is ExitCode.INTERNAL and not with_traceback:
        text += " (a fault of accy_async; --traceback shows where)"
    sys.stderr.write(f"accy-async: {text}\n")
    if as_json:
        write_json(
            {
                "error": {"type": type(error).__name__, "message": str(error)},
                "exit_code": int(code),
            }
        )
    return code


def _one_line(error: BaseException) -> str:
    if isinstance(error, BaseExceptionGroup):
        return "; ".join(_one_line(part) for part in error.exceptions)
    text = " ".join(str(error).split())
    if exit_code_of(error) is not ExitCode.INTERNAL and text:
        return text
    name = type(error).__name__
    return f"{name}: {text}" if text else name


class Interrupts:
    """Turns Ctrl-C and a polite kill into a cancellation, on either event loop.

    So that a command is left as any task is: nothing more is submitted, what
    was submitted is awaited, everything is destroyed. A second signal is handled
    as Python does.

    Attributes:
        signum: the signal that came, or None.
    """

    def __init__(self) -> None:
        self.signum: signal.Signals | None = None

    async def run(self, work: Callable[[], Awaitable[_T]]) -> _T:
        """Do the work, unless a signal comes.

        Raises:
            KeyboardInterrupt: a signal came, and the work was cancelled.
        """
        results: list[_T] = []
        error: BaseException | None = None
        async with anyio.create_task_group() as group:
            scope = anyio.CancelScope()
            if threading.current_thread() is threading.main_thread():
                await group.start(self._watch, scope)
            with scope:
                try:
                    results.append(await work())
                except Exception as failure:  # noqa: BLE001 - raised below
                    error = failure
            group.cancel_scope.cancel()
        if self.signum is not None:
            raise KeyboardInterrupt from error
        if error is not None:
            raise error
        return results[0]

    async def _watch(
        self, scope: anyio.CancelScope, *, task_status: anyio.abc.TaskStatus[None]
    ) -> None:
        try:
            with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
                task_status.started()
                async for signum in signals:
                    self.signum = signum
                    break
        except NotImplementedError:  # asyncio on Windows: Ctrl-C raises as it may
            task_status.started()
            return
        scope.cancel()

    @property
    def exit_code(self) -> int:
        """128 and the signal's number, as shells have it."""
        return 128 + int(self.signum or signal.SIGINT)

    def report(self, error: BaseException, *, as_json: bool = False) -> int:
        """Say that a signal ended the command; returns the exit code.

        Args:
            error: what `run` raised; its cause is what went wrong in leaving.
            as_json: True to print a document as well.
        """
        text = TEXT
        trouble = error.__cause__ if isinstance(error, KeyboardInterrupt) else error
        if trouble is not None:
            text = f"interrupted; in leaving: {_one_line(trouble)}"
        sys.stderr.write(f"accy-async: {text}\n")
        if as_json:
            write_json(
                {
                    "error": {"type": "KeyboardInterrupt", "message": text},
                    "exit_code": self.exit_code,
                }
            )
        return self.exit_code


def leave_broken_pipe() -> int:
    """Nobody reads any more: let Python find nothing to flush at its exit."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)
    return ExitCode.BROKEN_PIPE
