"""The recorder: every span ends, once, in bounded memory, to the nanosecond."""

from __future__ import annotations

import gc
import threading
import weakref
from typing import Literal

import pytest

from accy_async.errors import InvalidValue
from accy_async.observe import HOST_STREAM, SpanRecorder
from tests.observe.samples import DAY_NS, START_NS, Clock, diamond, tell_everything


def at(ns: int) -> int:
    return START_NS + ns


def recorder_at(clock: Clock | None = None) -> SpanRecorder:
    return SpanRecorder(clock=clock or Clock())


def test_spans_say_what_was_told() -> None:
    """Times count from the recorder's start; details, states and errors are kept."""
    recorder = SpanRecorder(clock=Clock(500))
    tell_everything(recorder)
    load, scan, store = recorder.trace().spans
    assert (load.submitted_ns, load.started_ns, load.finished_ns) == (3500, 4500, 5500)
    assert (load.state, load.byte_count, load.grid) == ("ok", 64, None)
    assert (scan.state, scan.error) == ("failed", "RuntimeError: bad")
    assert (scan.grid, scan.threadgroup) == ((4, 1, 1), (32, 1, 1))
    assert (store.state, store.duration_ns, store.start_ns) == ("skipped", 0, 8000)
    (run,) = recorder.trace().runs
    assert (run.name, run.state, run.node_count) == ("plan", "failed", 3)
    (compiled,) = recorder.trace().phases
    assert (compiled.name, compiled.detail, compiled.state) == ("compile", "scan", "ok")
    assert recorder.trace().open_spans == 0
    assert recorder.trace().unmatched_events == 0


def test_untold_start_follows_the_stream() -> None:
    """Where only ends are seen, a node starts when it could: none overlap."""
    recorder = recorder_at()
    for node in range(3):
        recorder.node_submitted(1, node, f"n{node}", "kernel", 1, at(10 + node))
    for node, end in enumerate((100, 250, 260)):
        recorder.node_finished(1, node, at(end), "ok", None)
    spans = recorder.trace().spans
    assert [(s.start_ns, s.finished_ns) for s in spans] == [
        (10, 100),
        (100, 250),
        (250, 260),
    ]
    assert all(span.is_start_inferred for span in spans)


def test_untold_start_on_the_host_is_its_submission() -> None:
    """Host calls run beside each other; none waits for the one before it."""
    recorder = recorder_at()
    for node in (0, 1):
        recorder.node_submitted(1, node, "call", "host", HOST_STREAM, at(10))
        recorder.node_finished(1, node, at(100), "ok", None)
    assert [span.start_ns for span in recorder.trace().spans] == [10, 10]


def test_unknown_time_is_now() -> None:
    """A time of 0 is no time: the span stands where it was told, not at zero."""
    clock = Clock()
    recorder = recorder_at(clock)
    recorder.node_submitted(1, 0, "n", "kernel", 1, 0)
    clock.now_ns += 70
    recorder.node_started(1, 0, 0)
    clock.now_ns += 5
    recorder.node_finished(1, 0, 0, "ok", None)
    (span,) = recorder.trace().spans
    assert (span.submitted_ns, span.started_ns, span.finished_ns) == (0, 70, 75)


def test_end_before_start_is_repaired_and_counted() -> None:
    recorder = recorder_at()
    recorder.node_submitted(1, 0, "n", "kernel", 1, at(10))
    recorder.node_started(1, 0, at(50))
    recorder.node_finished(1, 0, at(40), "ok", None)
    (span,) = recorder.trace().spans
    assert (span.start_ns, span.duration_ns) == (50, 0)
    assert recorder.trace().repaired_times == 1


def test_run_that_ends_ends_its_nodes() -> None:
    """A node that nobody finished is cancelled with its run; other runs go on."""
    recorder = recorder_at()
    for run in (1, 2):
        recorder.run_started(run, "p", 1, at(1))
        recorder.node_submitted(run, 0, "n", "kernel", run, at(10))
    recorder.run_finished(1, at(90), "cancelled", None)
    (span,) = recorder.trace().spans
    assert (span.run_id, span.state, span.finished_ns) == (1, "cancelled", 90)
    assert recorder.trace().open_spans == 2


def test_close_ends_everything_and_takes_nothing_more() -> None:
    """Leaving the block ends what is open as cancelled; what comes later is counted."""
    clock = Clock()
    with recorder_at(clock) as recorder:
        recorder.run_started(1, "p", 2, at(1))
        recorder.phase_started(9, "load", "", at(2))
        recorder.node_submitted(1, 0, "n", "kernel", 1, at(10))
        recorder.node_started(1, 0, at(20))
        clock.now_ns = at(50)
    trace = recorder.trace()
    assert trace.open_spans == 0
    assert [(s.state, s.start_ns, s.finished_ns) for s in trace.spans] == [
        ("cancelled", 20, 50)
    ]
    assert [run.state for run in trace.runs] == ["cancelled"]
    assert [phase.state for phase in trace.phases] == ["cancelled"]
    recorder.close()
    recorder.run_started(2, "p", 2, at(60))
    recorder.phase_started(10, "load", "", at(60))
    recorder.run_edges(2, ((0, 1),))
    recorder.node_submitted(2, 0, "n", "kernel", 1, at(60))
    recorder.node_skipped(2, 1, "n", "kernel", 1, at(60), "cancelled", None)
    recorder.node_finished(1, 0, at(70), "ok", None)
    later = recorder.trace()
    assert (later.spans, later.runs, later.edges) == (trace.spans, trace.runs, ())
    assert (later.dropped_spans, later.unmatched_events) == (2, 1)


@pytest.mark.parametrize(
    ("drop", "kept"), [("oldest", [7, 8, 9]), ("newest", [0, 1, 2])]
)
def test_memory_is_bounded_and_drops_are_counted(
    drop: Literal["oldest", "newest"], kept: list[int]
) -> None:
    """Beyond the limit spans, runs and edges give way, and it is said how many."""
    recorder = SpanRecorder(max_spans=3, drop=drop, clock=Clock())
    for node in range(10):
        recorder.run_started(node, "p", 1, at(node))
        recorder.run_edges(node, ((0, 1), (1, 2)))
        recorder.node_submitted(node, 0, "n", "kernel", 1, at(node))
        recorder.node_finished(node, 0, at(node + 1), "ok", None)
        recorder.run_finished(node, at(node + 1), "ok", None)
    trace = recorder.trace()
    assert [span.run_id for span in trace.spans] == kept
    assert [run.run_id for run in trace.runs] == kept
    assert (trace.dropped_spans, trace.dropped_others) == (7, 7)
    assert sum(len(pairs) for _, pairs in trace.edges) == 12
    assert trace.dropped_edges == 8
    assert len(recorder) == 3


def test_open_spans_are_bounded_too() -> None:
    recorder = SpanRecorder(max_spans=2, clock=Clock())
    for node in range(5):
        recorder.node_submitted(1, node, "n", "kernel", 1, at(node))
    assert recorder.trace().open_spans == 2
    assert recorder.trace().dropped_spans == 3


@pytest.mark.parametrize(
    ("options", "field"),
    [({"max_spans": 0}, "max_spans"), ({"drop": "some"}, "drop")],
)
def test_bad_limit_is_refused(options: dict[str, object], field: str) -> None:
    with pytest.raises(InvalidValue, match=rf"SpanRecorder\.{field}"):
        SpanRecorder(**options)  # type: ignore[arg-type]


def test_events_about_nothing_are_counted() -> None:
    recorder = recorder_at()
    recorder.node_details(1, 0, 1, None, None)
    recorder.node_started(1, 0, at(1))
    recorder.node_finished(1, 0, at(1), "ok", None)
    recorder.run_finished(1, at(1), "ok", None)
    recorder.phase_finished(1, at(1), "ok", None)
    recorder.node_submitted(2, 0, "n", "kernel", 1, at(1))
    recorder.node_submitted(2, 0, "n", "kernel", 1, at(2))
    assert recorder.trace().unmatched_events == 6
    assert recorder.trace().open_spans == 1


def test_ten_days_later_a_microsecond_is_a_microsecond() -> None:
    clock = Clock(40 * DAY_NS)
    recorder = recorder_at(clock)
    base = 50 * DAY_NS
    for node, start in ((0, base), (1, base + 3_001)):
        recorder.node_submitted(1, node, "n", "kernel", 1, start)
        recorder.node_started(1, node, start)
        recorder.node_finished(1, node, start + 2_001, "ok", None)
    first, second = recorder.trace().spans
    assert second.start_ns - first.finished_ns == 1_000
    assert first.start_ns == 10 * DAY_NS


def test_no_error_is_kept_alive() -> None:
    """Only an error's text is kept: its frames, and what they hold, may go."""

    class Mine(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no text")

    recorder = recorder_at()
    error = Mine()
    gone = weakref.ref(error)
    recorder.node_submitted(1, 0, "n", "kernel", 1, at(1))
    recorder.node_finished(1, 0, at(2), "failed", error)
    recorder.node_submitted(1, 1, "n", "kernel", 1, at(1))
    recorder.node_finished(1, 1, at(2), "failed", ValueError("x" * 5_000))
    del error
    gc.collect()
    assert gone() is None
    unspeakable, long = recorder.trace().spans
    assert unspeakable.error == "Mine whose message raises RuntimeError"
    assert long.error is not None
    assert len(long.error) == 300


def test_threads_may_tell_at_once() -> None:
    """Eight threads tell of a thousand nodes each: none is lost, none is torn."""
    recorder = SpanRecorder()
    start = threading.Barrier(8)

    def tell(run: int) -> None:
        start.wait()
        recorder.run_started(run, "p", 1000, 0)
        for node in range(1000):
            recorder.node_submitted(run, node, "n", "kernel", 1, 0)
            recorder.node_started(run, node, 0)
            recorder.node_finished(run, node, 0, "ok", None)
        recorder.run_finished(run, 0, "ok", None)

    threads = [threading.Thread(target=tell, args=(run,)) for run in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    trace = recorder.trace()
    assert len({(span.run_id, span.node_id) for span in trace.spans}) == 8000
    assert (trace.open_spans, trace.unmatched_events, trace.dropped_spans) == (0, 0, 0)
    assert len(trace.runs) == 8


def test_trace_sums_up_the_diamond() -> None:
    """Wall time is from the first start to the last end; overlap counts once."""
    trace = diamond()
    assert (trace.start_ns, trace.end_ns, trace.wall_ns) == (10, 4020, 4010)
    assert trace.busy_ns() == {1: 4000, 2: 1000}
    assert len(list(trace.linked_edges())) == 4
