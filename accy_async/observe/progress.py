"""Progress bars for long runs.

    with ProgressObserver() as progress:
        async with open_session(observer=progress) as session:
            ...

Events only count; what is on the terminal is drawn by a thread of rich, some ten
times a second, so that neither event loop waits for it. Leaving the block stops
it and leaves the terminal as it was, however the block is left.
"""

from __future__ import annotations

import threading
import time
from types import TracebackType
from typing import TYPE_CHECKING, Self

from accy_async.observe.protocol import Observer, State

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID

__all__ = ["ProgressObserver", "RunProgress"]

_REFRESH_NS = 100_000_000
ENDED_SHOWN = 8
"""Runs that have ended whose bars stay."""


class RunProgress:
    """The counts of one run.

    Attributes:
        name: the plan's name.
        total: nodes expected; 0 if that is not known.
        submitted: nodes submitted by now.
        done: nodes that ended, in whatever way.
        failed: those of them that failed.
        started_ns: when the run began.
        state: how the run ended; None while it runs.
    """

    __slots__ = (
        "done",
        "failed",
        "name",
        "row",
        "skipped",
        "started_ns",
        "state",
        "submitted",
        "total",
    )

    def __init__(self, name: str, total: int, started_ns: int) -> None:
        self.name = name
        self.total = total
        self.started_ns = started_ns
        self.submitted = 0
        self.done = 0
        self.skipped = 0
        self.failed = 0
        self.state: State | None = None
        self.row: TaskID | None = None

    @property
    def in_flight(self) -> int:
        """Nodes submitted that have not ended."""
        return self.submitted + self.skipped - self.done

    def describe(self, now_ns: int) -> str:
        """The counts beside the bar."""
        seconds = max(now_ns - self.started_ns, 1) / 1e9
        total = f"/{self.total}" if self.total else ""
        parts = [f"{self.done}{total} nodes", f"{self.done / seconds:,.0f}/s"]
        if self.state is None:
            parts.append(f"{self.in_flight} in flight")
        elif self.state != "ok":
            parts.append(self.state)
        if self.failed:
            parts.append(f"{self.failed} failed")
        return ", ".join(parts)


class ProgressObserver(Observer):
    """Shows a bar for each run: nodes done, their rate, how many are in flight.

    Draws only on a terminal, and only inside its ``with`` block; elsewhere it
    counts, for `counts`. rich is imported when the first run is drawn.
    """

    def __init__(self, *, console: Console | None = None, force: bool = False) -> None:
        """Prepare to show progress.

        Args:
            console: where to draw; standard error if left out.
            force: True to draw where there is no terminal, too.
        """
        self._console = console
        self._force = force
        self._lock = threading.Lock()
        self._runs: dict[int, RunProgress] = {}
        self._ended: list[RunProgress] = []
        self._progress: Progress | None = None
        self._is_active = False
        self._drawn_ns = 0

    def __enter__(self) -> Self:
        self._is_active = True
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Draw the last counts and stop drawing; may be repeated."""
        with self._lock:
            self._is_active = False
            progress = self._progress
            if progress is not None:
                for run in (*self._ended, *self._runs.values()):
                    self._draw(progress, run, time.perf_counter_ns())
            self._progress = None
        if progress is not None:  # outside the lock: it waits for rich's thread
            progress.stop()

    def counts(self) -> dict[int, RunProgress]:
        """The counts of each run that has not ended, by its id."""
        with self._lock:
            return dict(self._runs)

    # Events

    def run_started(  # noqa: D102 - as in the protocol
        self, run_id: int, plan_name: str, node_count: int, time_ns: int
    ) -> None:
        now = time_ns if time_ns > 0 else time.perf_counter_ns()
        with self._lock:
            self._runs[run_id] = RunProgress(plan_name, node_count, now)
            self._refresh(always=True)

    def node_submitted(  # noqa: D102 - as in the protocol
        self,
        run_id: int,
        node_id: int,
        name: str,
        kind: str,
        stream_id: int,
        time_ns: int,
    ) -> None:
        with self._lock:
            run = self._runs.get(run_id)
            if run is not None:
                run.submitted += 1

    def node_finished(  # noqa: D102 - as in the protocol
        self,
        run_id: int,
        node_id: int,
        time_ns: int,
        state: State,
        error: BaseException | None,
    ) -> None:
        with self._lock:
            run = self._runs.get(run_id)
            if run is not None:
                run.done += 1
                run.failed += state == "failed"
                self._refresh()

    def node_skipped(  # noqa: D102 - as in the protocol
        self,
        run_id: int,
        node_id: int,
        name: str,
        kind: str,
        stream_id: int,
        time_ns: int,
        state: State,
        error: BaseException | None,
    ) -> None:
        with self._lock:
            run = self._runs.get(run_id)
            if run is not None:
                run.skipped += 1
                run.done += 1
                self._refresh()

    def run_finished(  # noqa: D102 - as in the protocol
        self, run_id: int, time_ns: int, state: State, error: BaseException | None
    ) -> None:
        with self._lock:
            run = self._runs.pop(run_id, None)
            if run is None:
                return
            run.state = state
            progress = self._progress
            if progress is None:
                return
            self._draw(progress, run, time.perf_counter_ns())
            self._ended.append(run)
            if len(self._ended) > ENDED_SHOWN:
                gone = self._ended.pop(0).row
                if gone is not None:
                    progress.remove_task(gone)

    # Drawing, under the lock

    def _refresh(self, *, always: bool = False) -> None:
        if not self._is_active:
            return
        now = time.perf_counter_ns()
        if not always and now - self._drawn_ns < _REFRESH_NS:
            return
        self._drawn_ns = now
        if self._progress is None:
            self._progress = self._open()
        if self._progress is None:
            self._is_active = False
            return
        for run in self._runs.values():
            self._draw(self._progress, run, now)

    def _open(self) -> Progress | None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        console = Console(stderr=True) if self._console is None else self._console
        if not (self._force or console.is_terminal):
            return None
        progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.fields[counts]}", markup=False),
            TimeElapsedColumn(),
            console=console,
        )
        progress.start()
        return progress

    def _draw(self, progress: Progress, run: RunProgress, now: int) -> None:
        counts = run.describe(now)
        total = run.total or None
        if run.row is None:
            run.row = progress.add_task(run.name, total=total, counts=counts)
        progress.update(run.row, completed=run.done, total=total, counts=counts)
        if run.state is not None:
            progress.stop_task(run.row)
