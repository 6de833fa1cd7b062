"""The demo's progress bar."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

__all__ = ["Bar"]


class Bar:
    """A watcher that shows a bar, while its block lasts, on a terminal.

    Args:
        console: where; nothing is shown unless it is a terminal.
        is_shown: False for nothing to be shown there either.
    """

    def __init__(self, console: Console, *, is_shown: bool = True) -> None:
        self._progress = Progress(
            TextColumn("{task.description:<10}"),
            BarColumn(bar_width=40),
            MofNCompleteColumn(),
            console=console,
            transient=True,
            refresh_per_second=8,
            disable=not (is_shown and console.is_terminal),
        )
        self._task = self._progress.add_task("start", total=1)

    def begin(self, what: str, steps: int) -> None:
        """Begin a new bar."""
        self._progress.reset(self._task, description=what, total=steps)

    def step(self) -> None:
        """One step more."""
        self._progress.advance(self._task)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._progress.stop()
