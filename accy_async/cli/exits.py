"""Exit codes of ``accy-async``, and the errors that have one of their own."""

from __future__ import annotations

from enum import IntEnum

from accy_async.errors import AccyError, BackendUnavailable

__all__ = ["ExitCode", "UsageError", "exit_code_of"]


class ExitCode(IntEnum):
    """What a shell learns of how the command went.

    A command ended by a signal gives 128 and the signal's number, as shells do:
    130 for Ctrl-C, 143 for a polite kill.
    """

    OK = 0
    """Everything was as it should be."""

    CHECK_FAILED = 1
    """It ran, and a result was wrong or something was left over."""

    USAGE = 2
    """An option or an input file cannot be used."""

    NO_BACKEND = 3
    """No backend, or not the one asked for, can run here."""

    FAILED = 4
    """The device or the system failed: out of memory, a device error."""

    INTERNAL = 70
    """A fault of accy_async's own."""

    INTERRUPTED = 130
    """Ctrl-C."""

    BROKEN_PIPE = 141
    """Whoever read the output went away."""


class UsageError(AccyError):
    """An option or an input file that cannot be used; the message says why."""


def exit_code_of(error: BaseException) -> ExitCode:
    """The exit code for an error that ended a command."""
    if isinstance(error, UsageError):
        return ExitCode.USAGE
    if isinstance(error, BackendUnavailable):
        return ExitCode.NO_BACKEND
    if isinstance(error, BaseExceptionGroup):
        codes = [exit_code_of(part) for part in error.exceptions]
        return max(codes) if codes else ExitCode.INTERNAL
    if isinstance(error, (AccyError, MemoryError)):
        return ExitCode.FAILED
    return ExitCode.INTERNAL
