"""The export: what C73 found wrong with the traces of others is right here."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Iterable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accy_async.errors import InvalidValue
from accy_async.observe import (
    HOST_STREAM,
    SpanRecorder,
    Trace,
    encode_trace,
    read_trace,
    save_trace,
    validate_trace,
)
from accy_async.observe.protocol import STATES, State
from accy_async.observe.trace import Span
from tests.observe.samples import (
    DAY_NS,
    START_NS,
    Clock,
    cancelled_run,
    diamond,
    files_in,
)


def document(trace: Trace) -> dict[str, Any]:
    """The export, with its numbers as they are written."""
    found: dict[str, Any] = json.loads(encode_trace(trace), parse_float=Decimal)
    return found


def events(trace: Trace, phases: str) -> list[dict[str, Any]]:
    return [e for e in document(trace)["traceEvents"] if e["ph"] in phases]


def overlaps(slices: Iterable[dict[str, Any]]) -> int:
    tracks: dict[int, list[tuple[Decimal, Decimal]]] = {}
    for event in slices:
        span = (event["ts"], event["ts"] + event["dur"])
        tracks.setdefault(event["tid"], []).append(span)
    found = 0
    for track in tracks.values():
        track.sort()
        found += sum(b[0] < a[1] for a, b in itertools.pairwise(track))
    return found


@pytest.mark.parametrize("seed", range(5))
def test_trace_of_a_run_with_cancels_and_failures(seed: int) -> None:
    """C73's experiment: 100 nodes on 4 streams, 10 cancelled, 5 failed."""
    trace, edges = cancelled_run(seed)
    slices = events(trace, "X")
    assert len(slices) == 100
    states = [event["args"]["state"] for event in slices]
    assert [states.count(s) for s in ("ok", "cancelled", "failed")] == [85, 10, 5]
    assert all(event["ts"] > 0 and event["dur"] >= 0 for event in slices)
    assert overlaps(slices) == 0
    assert {event["tid"] for event in slices} == {10, 11, 12, 13}

    leave = {e["id"]: e for e in events(trace, "s")}
    arrive = {e["id"]: e for e in events(trace, "f")}
    assert leave.keys() == arrive.keys()
    assert edges == {(e["args"]["before"], e["args"]["after"]) for e in leave.values()}
    assert len(leave) == len(edges)
    by_node = {event["args"]["node"]: event for event in slices}
    for number, flow in leave.items():
        before, after = (by_node[flow["args"][end]] for end in ("before", "after"))
        assert flow["tid"] == before["tid"]
        assert before["ts"] <= flow["ts"] <= before["ts"] + before["dur"]
        assert arrive[number]["tid"] == after["tid"]
        assert arrive[number]["ts"] == after["ts"]

    ends = [event["ts"] + event["dur"] for event in slices]
    wall = max(ends) - min(event["ts"] for event in slices)
    stated = document(trace)["otherData"]
    assert stated["wall_ns"] == wall * 1000
    assert (stated["dropped_spans"], stated["open_spans"]) == (0, 0)
    assert validate_trace(encode_trace(trace)) == []


def test_microsecond_gap_is_seen_after_ten_days() -> None:
    """In the text, and in the double that a viewer makes of it."""
    recorder = SpanRecorder(clock=Clock())
    base = START_NS + 10 * DAY_NS
    for node, start in ((0, base), (1, base + 3_001)):
        recorder.node_submitted(1, node, "n", "kernel", 1, start)
        recorder.node_started(1, node, start)
        recorder.node_finished(1, node, start + 2_001, "ok", None)
    first, second = events(recorder.trace(), "X")
    assert str(first["ts"]) == "864000000000.000"
    assert str(first["dur"]) == "2.001"
    assert second["ts"] - (first["ts"] + first["dur"]) == 1
    loaded = json.loads(encode_trace(recorder.trace()))["traceEvents"]
    one, two = (event for event in loaded if event["ph"] == "X")
    assert abs(two["ts"] - (one["ts"] + one["dur"]) - 1.0) < 0.001


def test_tracks_are_named_and_ordered() -> None:
    """One track for each stream, by name; the host's comes last."""
    recorder = SpanRecorder(clock=Clock())
    for node, stream in enumerate((HOST_STREAM, 12, 0, 3)):
        recorder.node_submitted(1, node, "n", "kernel", stream, START_NS + 10)
        recorder.node_finished(1, node, START_NS + 20, "ok", None)
    names = {
        event["tid"]: event["args"]["name"]
        for event in events(recorder.trace(), "M")
        if event["name"] == "thread_name"
    }
    assert [names[tid] for tid in sorted(names)] == [
        "runs and phases",
        "default stream",
        "stream 3",
        "stream 12",
        "host",
    ]
    process = [e for e in events(recorder.trace(), "M") if e["name"] == "process_name"]
    assert [event["args"]["name"] for event in process] == ["accy_async"]


def test_overlapping_spans_of_a_stream_get_lanes() -> None:
    """Nothing is hidden: what overlaps goes to the first row that is free."""
    recorder = SpanRecorder(clock=Clock())
    for node, (start, end) in enumerate(((0, 50), (10, 20), (15, 30), (20, 60))):
        recorder.node_submitted(1, node, "n", "host", HOST_STREAM, START_NS + 1)
        recorder.node_started(1, node, START_NS + 100 + start)
        recorder.node_finished(1, node, START_NS + 100 + end, "ok", None)
    slices = events(recorder.trace(), "X")
    assert overlaps(slices) == 0
    assert {e["args"]["node"]: e["tid"] for e in slices} == {0: 10, 1: 11, 2: 12, 3: 11}
    names = [e["args"].get("name") for e in events(recorder.trace(), "M")]
    assert names.count("host (2)") == 1


def test_arguments_tell_the_launch() -> None:
    (first, *_) = events(diamond(), "X")
    assert first["args"] == {
        "state": "ok",
        "run": 1,
        "node": 0,
        "kind": "kernel",
        "stream": 1,
        "queued_us": Decimal("0.009"),
        "bytes": 4096,
        "grid": [8, 1, 1],
        "threadgroup": [128, 1, 1],
    }


def test_runs_and_phases_are_beside_the_nodes() -> None:
    """They overlap as they like, so they are async events, each with its own id."""
    recorder = SpanRecorder(clock=Clock())
    for run in (1, 2):
        recorder.run_started(run, f"p{run}", 0, START_NS + run)
    recorder.phase_started(3, "compile", "scan", START_NS + 2)
    recorder.run_finished(1, START_NS + 10, "ok", None)
    recorder.run_finished(2, START_NS + 20, "failed", ValueError("x"))
    recorder.phase_finished(3, START_NS + 30, "ok", None)
    begun, ended = events(recorder.trace(), "b"), events(recorder.trace(), "e")
    assert [(e["cat"], e["id"], e["name"]) for e in begun] == [
        ("run", "0x1", "p1"),
        ("run", "0x2", "p2"),
        ("phase", "0x3", "compile"),
    ]
    assert [e["id"] for e in ended] == [e["id"] for e in begun]
    assert begun[1]["args"] == {"state": "failed", "error": "ValueError: x"}
    assert begun[2]["args"] == {"state": "ok", "detail": "scan"}


def test_what_began_before_the_recorder_is_moved_not_bent() -> None:
    """No time is 0 or below; all move together, and it is said how far."""
    recorder = SpanRecorder(clock=Clock())
    for node, start in enumerate((-7_000, 500)):
        recorder.node_submitted(1, node, "n", "kernel", 1, START_NS + start)
        recorder.node_started(1, node, START_NS + start)
        recorder.node_finished(1, node, START_NS + start + 100, "ok", None)
    one, two = events(recorder.trace(), "X")
    assert one["ts"] == Decimal("0.001")
    assert two["ts"] - one["ts"] == Decimal("7.5")
    assert document(recorder.trace())["otherData"]["shift_ns"] == 7_001


def test_drops_are_stated() -> None:
    """Spans dropped for want of room, and the edges that lost an end, are counted."""
    recorder = SpanRecorder(max_spans=2, clock=Clock())
    recorder.run_edges(1, ((0, 1), (1, 2), (2, 3), (2, 3)))
    for node in range(4):
        recorder.node_submitted(1, node, "n", "kernel", 1, START_NS + 10 * node + 1)
        recorder.node_finished(1, node, START_NS + 10 * node + 5, "ok", None)
    stated = document(recorder.trace())["otherData"]
    assert (stated["spans"], stated["dropped_spans"]) == (2, 2)
    assert (stated["edges"], stated["edges_not_drawn"]) == (1, 3)


def test_empty_trace_is_a_trace() -> None:
    assert validate_trace(encode_trace(Trace())) == []
    assert read_trace(encode_trace(Trace())) == Trace()


@pytest.mark.parametrize("name", ['"quoted"\\', "µ-Kernel…", "\udcff\ud800", "\x00\n"])
def test_any_name_can_be_written(name: str) -> None:
    """Even one that UTF-8 has no bytes for, as file names can be."""
    recorder = SpanRecorder(clock=Clock())
    recorder.node_submitted(1, 0, name, name, 1, START_NS + 1)
    recorder.node_finished(1, 0, START_NS + 2, "failed", ValueError(name))
    assert validate_trace(encode_trace(recorder.trace())) == []
    (event,) = events(recorder.trace(), "X")
    assert event["name"] == name.encode("utf-8", "backslashreplace").decode()


# ---------------------------------------------------------------- reading back


def sets(trace: Trace) -> tuple[list[Span], set[tuple[int, int, int]]]:
    spans = sorted(trace.spans, key=lambda span: (span.run_id, span.node_id))
    return spans, {(r, b.node_id, a.node_id) for r, b, a in trace.linked_edges()}


def test_saved_trace_is_read_back(tmp_path: Path) -> None:
    trace, _ = cancelled_run()
    save_trace(trace, tmp_path / "trace.json")
    assert sets(read_trace((tmp_path / "trace.json").read_bytes())) == sets(trace)


Node = tuple[int, int, int, int, State]
NODES = st.tuples(
    st.integers(-1, 3),
    st.integers(0, 500),
    st.integers(0, 500),
    st.integers(0, 500),
    st.sampled_from(STATES),
)


@settings(deadline=None)
@given(
    nodes=st.lists(NODES, max_size=30),
    told=st.booleans(),
    offset=st.sampled_from([0, 1, 10 * DAY_NS]),
    limit=st.integers(1, 40),
    data=st.data(),
)
def test_any_recording_gives_a_sound_trace(
    nodes: list[Node], told: bool, offset: int, limit: int, data: st.DataObject
) -> None:
    """Whatever is told, in whatever order: sound, complete, and read back the same."""
    recorder = SpanRecorder(max_spans=limit, clock=Clock())
    base = START_NS + offset
    indices = range(len(nodes))
    for node in indices:
        stream, submitted, *_ = nodes[node]
        recorder.node_submitted(1, node, f"n{node}", "kernel", stream, base + submitted)
    for node in data.draw(st.permutations(indices)):
        _, submitted, waited, lasted, state = nodes[node]
        if told:
            recorder.node_started(1, node, base + submitted + waited)
        end = base + submitted + waited + lasted
        recorder.node_finished(1, node, end, state, None)
    trace = recorder.trace()
    assert len(trace.spans) + trace.dropped_spans == len(nodes)
    encoded = encode_trace(trace)
    assert validate_trace(encoded) == []
    again = read_trace(encoded)
    assert encode_trace(again) == encoded
    assert again.wall_ns == trace.wall_ns


@given(st.binary(max_size=60) | st.text(max_size=60))
def test_bad_bytes_are_refused_as_such(data: bytes | str) -> None:
    with pytest.raises(InvalidValue, match="trace"):
        read_trace(data)
    assert validate_trace(data)


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "{}",
        '{"traceEvents": [{"ph": "X", "cat": "node"}]}',
        '{"traceEvents": [{"ph": "s", "cat": "edge"}]}',
        '{"traceEvents": [3]}',
        "[" * 100_000,
    ],
)
def test_document_that_is_no_trace_is_refused(text: str) -> None:
    with pytest.raises(InvalidValue, match="trace"):
        read_trace(text)
    assert validate_trace(text)


# ---------------------------------------------------------------- files


def test_failed_write_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk, say: the target is as it was, and nothing lies beside it."""
    target = tmp_path / "trace.json"
    target.write_bytes(b"old")

    def refuse(self: Path, target: Path) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", refuse)
    with pytest.raises(OSError, match="No space"):
        save_trace(diamond(), target)
    monkeypatch.undo()
    assert target.read_bytes() == b"old"
    assert files_in(tmp_path) == ["trace.json"]


def test_missing_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        save_trace(diamond(), tmp_path / "none" / "trace.json")


def test_writers_at_once_leave_one_whole_file(tmp_path: Path) -> None:
    """A reader never finds half a trace, whoever writes meanwhile."""
    target = tmp_path / "trace.json"
    trace, _ = cancelled_run()
    save_trace(trace, target)

    def write() -> None:
        for _ in range(10):
            save_trace(trace, target)

    writers = [threading.Thread(target=write) for _ in range(3)]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        assert len(read_trace(target.read_bytes()).spans) == 100
    for writer in writers:
        writer.join()
    assert files_in(tmp_path) == ["trace.json"]
