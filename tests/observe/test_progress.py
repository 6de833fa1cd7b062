"""Progress bars: true counts, only on a terminal, and gone when it is over."""

from __future__ import annotations

import io
import subprocess
import sys
import threading
from collections.abc import Sequence

import anyio
import pytest
from rich.console import Console

from accy_async.observe import Observer, ProgressObserver
from accy_async.observe import progress as progress_module
from accy_async.observe.progress import RunProgress
from tests.observe.samples import tell_everything


def terminal() -> Console:
    return Console(file=io.StringIO(), force_terminal=True, width=120)


def text(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def drawing_threads() -> int:
    return sum(
        "progress" in thread.name or "rich" in type(thread).__module__
        for thread in threading.enumerate()
    )


def submit(observer: Observer, run: int, *nodes: int) -> None:
    for node in nodes:
        observer.node_submitted(run, node, "n", "kernel", 1, 0)


def test_counts_are_true() -> None:
    """Nodes done, in flight, failed: those skipped count as done, never as flying."""
    observer = ProgressObserver()
    observer.run_started(1, "plan", 5, 0)
    submit(observer, 1, 0, 1, 2, 3)
    observer.node_finished(1, 0, 0, "ok", None)
    observer.node_finished(1, 1, 0, "failed", ValueError())
    observer.node_skipped(1, 4, "n", "kernel", 1, 0, "skipped", None)
    counts = observer.counts()[1]
    assert (counts.done, counts.in_flight, counts.failed) == (3, 2, 1)
    said = counts.describe(counts.started_ns + 2 * 10**9)
    assert said == "3/5 nodes, 2/s, 2 in flight, 1 failed"
    observer.run_finished(1, 0, "ok", None)
    assert observer.counts() == {}


def test_events_of_unknown_runs_are_left_alone() -> None:
    observer = ProgressObserver()
    submit(observer, 1, 0)
    observer.node_finished(1, 0, 0, "ok", None)
    observer.node_skipped(1, 1, "n", "kernel", 1, 0, "skipped", None)
    observer.run_finished(1, 0, "ok", None)
    assert observer.counts() == {}


def test_bar_is_drawn_on_a_terminal() -> None:
    console = terminal()
    with ProgressObserver(console=console) as observer:
        observer.run_started(1, "solve [bold]", 2, 0)
        submit(observer, 1, 0, 1)
        observer.node_finished(1, 0, 0, "ok", None)
        observer.node_finished(1, 1, 0, "ok", None)
        observer.run_finished(1, 0, "ok", None)
        assert drawing_threads() == 1
    assert drawing_threads() == 0
    assert "solve [bold]" in text(console)
    assert "2/2 nodes" in text(console)


def test_nothing_is_drawn_without_a_terminal() -> None:
    """A log file stays free of bars; the counts are kept all the same."""
    console = Console(file=io.StringIO(), force_terminal=False)
    with ProgressObserver(console=console) as observer:
        observer.run_started(1, "plan", 1, 0)
        submit(observer, 1, 0)
        assert observer.counts()[1].submitted == 1
        tell_everything(observer)
    assert drawing_threads() == 0
    assert text(console) == ""


def test_forced_progress_is_drawn_anywhere() -> None:
    console = Console(file=io.StringIO(), force_terminal=False, width=120)
    with ProgressObserver(console=console, force=True) as observer:
        tell_everything(observer)
    assert "3/3 nodes" in text(console)
    assert "failed" in text(console)


def test_nothing_is_drawn_outside_the_block() -> None:
    """Before it begins and after it ended, events only count."""
    console = terminal()
    observer = ProgressObserver(console=console)
    tell_everything(observer)
    with observer:
        pass
    observer.run_started(2, "late", 1, 0)
    observer.stop()
    assert text(console) == ""
    assert drawing_threads() == 0


@pytest.mark.anyio
async def test_cancel_stops_the_drawing() -> None:
    """A cancelled run leaves no thread, a whole terminal, and its last counts."""
    console = terminal()
    with anyio.move_on_after(0.01):
        with ProgressObserver(console=console) as observer:
            observer.run_started(1, "plan", 9, 0)
            submit(observer, 1, 0, 1)
            observer.node_finished(1, 0, 0, "ok", None)
            await anyio.sleep_forever()
    assert drawing_threads() == 0
    assert "1/9 nodes" in text(console)
    assert text(console).rstrip("\n").endswith("\x1b[?25h")  # the cursor is back


def test_many_runs_keep_few_rows() -> None:
    """A service that runs for days shows its last runs, and keeps no more."""
    console = terminal()
    with ProgressObserver(console=console) as observer:
        for run in range(50):
            observer.run_started(run, f"run {run}", 1, 0)
            observer.run_finished(run, 0, "ok", None)
    assert len(observer._ended) == progress_module.ENDED_SHOWN
    last_picture = text(console).rpartition("\x1b[2K")[2]
    assert last_picture.count("run 4") == progress_module.ENDED_SHOWN
    assert "run 41" not in last_picture


def test_rows_of_old_runs_go() -> None:
    """What is drawn is what runs now and what ended last."""
    bars = progress_module._Bars.open(terminal(), force=False)
    assert bars is not None
    old, new = (progress_module.RunProgress(name, 1, 0) for name in ("old", "new"))
    bars.draw([old, new])
    bars.draw([new])
    bars.close()
    assert [task.description for task in bars._progress.tasks] == ["new"]


def test_events_never_draw(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever tells of an event never waits for the terminal."""
    drawers = set()
    draw = progress_module._Bars.draw

    def spy(self: progress_module._Bars, runs: Sequence[RunProgress]) -> None:
        drawers.add(threading.current_thread())
        draw(self, runs)

    monkeypatch.setattr(progress_module._Bars, "draw", spy)
    with ProgressObserver(console=terminal()) as observer:
        tell_everything(observer)
        drawer = observer._drawer
    assert drawers == {drawer}


def test_broken_terminal_gives_up_drawing(caplog: pytest.LogCaptureFixture) -> None:
    """A closed pipe ends the bars, not the run, and is logged."""

    class Broken(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    console = Console(file=Broken(), force_terminal=True)
    with ProgressObserver(console=console) as observer:
        tell_everything(observer)
    assert drawing_threads() == 0
    assert "progress is drawn no more" in caplog.text


def test_block_is_used_once() -> None:
    """Entered again, it only counts; stopping twice is fine."""
    console = terminal()
    observer = ProgressObserver(console=console)
    with observer:
        observer.stop()
    with observer:
        observer.run_started(1, "again", 1, 0)
    assert text(console) == ""
    assert observer.counts().keys() == {1}


def test_rich_is_imported_only_to_draw() -> None:
    program = (
        "import sys\n"
        "from accy_async.observe import ProgressObserver\n"
        "ProgressObserver().run_started(1, 'p', 1, 0)\n"
        "assert 'rich' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
