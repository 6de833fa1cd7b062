"""Runs that failed and that nobody has awaited, until somebody does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from accy_async.graph.preparing import MAX_PREPARED

if TYPE_CHECKING:
    from accy_async.graph.run import Run

__all__ = ["UnobservedRuns"]


class UnobservedRuns:
    """Keeps failed runs, and lets go of those that were awaited now and then."""

    def __init__(self) -> None:
        self._runs: list[Run] = []
        self._limit = MAX_PREPARED

    def __len__(self) -> int:
        return len(self._runs)

    def keep(self, run: Run) -> None:
        """Keep a run that is over, if it failed and nobody has awaited it by now."""
        if run.unobserved_error() is None:
            return
        self._runs.append(run)
        if len(self._runs) > self._limit:
            self._runs = [one for one in self._runs if one.unobserved_error()]
            self._limit = 2 * len(self._runs) + MAX_PREPARED

    def errors(self) -> list[Exception]:
        """What they failed with; told once."""
        errors = [run.unobserved_error() for run in self._runs]
        self._runs.clear()
        return [error for error in errors if error is not None]
