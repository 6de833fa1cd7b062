"""``accy-async trace``: what it says of files that hold no trace, or a wrong one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from accy_async.cli.exits import ExitCode
from accy_async.observe import SpanRecorder, encode_trace
from tests.cli.conftest import Run
from tests.observe.samples import diamond


@pytest.mark.parametrize("document", [[], 3, {}, {"a": 1}, {"traceEvents": 3}])
def test_json_that_is_no_trace_is_one_line(
    run: Run, tmp_path: Path, document: object
) -> None:
    """No table of nothing, and no viewer for it."""
    path = tmp_path / "other.json"
    path.write_text(json.dumps(document))
    ended = run("trace", path)
    assert ended.code == ExitCode.USAGE
    assert ended.out == ""
    assert ended.err == f"accy-async: {path}: it is no trace; save_trace writes one\n"


def test_trace_of_another_program_is_only_its_problems(
    run: Run, tmp_path: Path
) -> None:
    path = tmp_path / "other.json"
    path.write_text('{"traceEvents": [{"ph": "X", "cat": "node"}]}')
    ended = run("trace", path)
    assert ended.code == ExitCode.CHECK_FAILED
    assert "problems:" in ended.out
    for words in ("busy ms", "0 nodes", "perfetto"):
        assert words not in ended.out
    drawn = run("trace", path, "--svg", tmp_path / "out.svg")
    assert drawn.code == ExitCode.USAGE
    assert "cannot be drawn" in drawn.err


def test_overlap_is_told_by_the_name_that_the_table_has(
    run: Run, tmp_path: Path
) -> None:
    document = json.loads(encode_trace(diamond()))
    slices = [event for event in document["traceEvents"] if event["ph"] == "X"]
    slices[0]["dur"] = 1e6
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(document))
    ended = run("trace", path)
    assert ended.code == ExitCode.CHECK_FAILED
    assert "overlap on stream 1 by" in " ".join(ended.out.split())
    assert "overlap on track" not in ended.out


def test_trace_without_nodes_tells_of_its_runs_and_phases(
    run: Run, tmp_path: Path
) -> None:
    """Calls of fragments are runs whose kernels are not told one by one."""
    recorder = SpanRecorder()
    for number in range(2):
        recorder.phase_started(number, "compile", "f", 5)
        recorder.phase_finished(number, 9, "ok", None)
    path = tmp_path / "trace.json"
    path.write_bytes(encode_trace(recorder.trace()))
    ended = run("trace", path)
    assert ended.code == ExitCode.OK
    assert "0 nodes" in ended.out
    assert "besides: 0 runs, 2 phases of the host" in ended.out
    document = json.loads(run("trace", path, "--json").out)
    assert (document["runs"], document["phases"]) == (0, 2)
