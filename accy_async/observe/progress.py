"""Progress bars for long runs.

::

    with ProgressObserver() as progress:
        async with open_session(observer=progress) as session:
            ...

Events only count. A thread of the observer's own draws what was counted, ten
times a second, so that no event loop waits for a terminal. Leaving the block ends
that thread and leaves the terminal as it was, however the block is left.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self

from accy_async.observe.protocol import Observer, State

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID

__all__ = ["ProgressObserver", "RunProgress"]

_log = logging.getLogger("accy_async.observe")
_PERIOD_S = 0.1
_LAST_DRAWING_S = 2.0

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
        skipped: those of them that were given up before they were submitted.
        started_ns: when the run began.
        ended_ns: when it ended; None while it runs.
        state: how the run ended; None while it runs.
    """

    __slots__ = (
        "done",
        "ended_ns",
        "failed",
        "name",
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
        self.ended_ns: int | None = None
        self.state: State | None = None

    @property
    def in_flight(self) -> int:
        """Nodes submitted that have not ended."""
        return self.submitted + self.skipped - self.done

    def describe(self, now_ns: int) -> str:
        """The counts beside the bar."""
        passed_ns = (self.ended_ns or now_ns) - self.started_ns
        seconds = max(passed_ns, 1) / 1e9
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

    Draws only on a terminal, and only inside its ``with`` block, which is used
    once; elsewhere it counts, for `counts`. rich is imported when the first run
    is drawn.
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
        self._ended: deque[RunProgress] = deque(maxlen=ENDED_SHOWN)
        self._stopping = threading.Event()
        self._drawer: threading.Thread | None = None

    def __enter__(self) -> Self:
        if self._drawer is None and not self._stopping.is_set():
            with self._lock:
                self._ended.clear()
            self._drawer = threading.Thread(
                target=self._draw_until_stopped, name="accy_async progress", daemon=True
            )
            self._drawer.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Draw the last counts and stop drawing; may be repeated.

        Takes some milliseconds; a terminal that takes no more output is given
        up after two seconds.
        """
        self._stopping.set()
        if self._drawer is not None:
            self._drawer.join(_LAST_DRAWING_S)

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

    def run_finished(  # noqa: D102 - as in the protocol
        self, run_id: int, time_ns: int, state: State, error: BaseException | None
    ) -> None:
        with self._lock:
            run = self._runs.pop(run_id, None)
            if run is None:
                return
            run.state = state
            run.ended_ns = time_ns if time_ns > 0 else time.perf_counter_ns()
            self._ended.append(run)

    # The drawing thread

    def _draw_until_stopped(self) -> None:
        try:
            self._draw()
        except (Exception, SystemExit) as error:  # noqa: BLE001 - rich exits on EPIPE
            _log.warning("progress is drawn no more: %r", error)

    def _draw(self) -> None:
        bars: _Bars | None = None
        is_last = False
        try:
            while not is_last:
                is_last = self._stopping.wait(_PERIOD_S)
                with self._lock:
                    runs = [*self._ended, *self._runs.values()]
                if bars is None and runs:
                    bars = _Bars.open(self._console, force=self._force)
                    if bars is None:
                        return
                if bars is not None:
                    bars.draw(runs)
        finally:
            if bars is not None:
                bars.close()


class _Bars:
    """What is on the terminal: a row for each run."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._rows: dict[RunProgress, TaskID] = {}

    @classmethod
    def open(cls, console: Console | None, *, force: bool) -> Self | None:
        """Begin to draw; None where there is no terminal to draw on."""
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        console = Console(stderr=True) if console is None else console
        if not (force or console.is_terminal):
            return None
        progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.fields[counts]}", markup=False),
            TimeElapsedColumn(),
            console=console,
            auto_refresh=False,
        )
        progress.start()
        return cls(progress)

    def draw(self, runs: Sequence[RunProgress]) -> None:
        """Show these runs as they are now, and no others."""
        now = time.perf_counter_ns()
        for gone in self._rows.keys() - set(runs):
            self._progress.remove_task(self._rows.pop(gone))
        for run in runs:
            counts, total = run.describe(now), run.total or None
            row = self._rows.get(run)
            if row is None:
                row = self._progress.add_task(run.name, total=total, counts=counts)
                self._rows[run] = row
            self._progress.update(row, completed=run.done, total=total, counts=counts)
            if run.state is not None:
                self._progress.stop_task(row)
        self._progress.refresh()

    def close(self) -> None:
        """Leave the last picture on the terminal, and the cursor behind it."""
        self._progress.stop()
