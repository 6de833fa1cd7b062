"""``accy-async trace``: what is in a file, and whether it can be trusted."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from accy_async.cli import main
from accy_async.observe import encode_trace, save_trace
from tests.observe.samples import cancelled_run, diamond


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "trace.json"
    save_trace(cancelled_run()[0], path)
    return path


def test_command_sums_up_a_sound_trace(
    saved: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["trace", str(saved)]) == 0
    told = capsys.readouterr().out
    assert "100 nodes (85 ok, 5 failed, 10 cancelled)" in told
    assert "stream 4" in told
    assert "The trace is sound." in told
    assert "https://ui.perfetto.dev" in told


def test_command_reports_as_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "diamond.json"
    save_trace(diamond(), path)
    assert main(["trace", str(path), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["is_sound"], report["problems"]) == (True, [])
    assert (report["nodes"], report["edges"], report["wall_ns"]) == (4, 4, 4010)
    assert report["states"] == {"ok": 4}
    assert report["streams"] == [
        {"stream": "stream 1", "nodes": 3, "busy_ns": 4000},
        {"stream": "stream 2", "nodes": 1, "busy_ns": 1000},
    ]


def test_command_fails_on_an_unsound_trace(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its problems are listed, some of them, and the exit code is 1."""
    document = json.loads(encode_trace(cancelled_run()[0]))
    for event in document["traceEvents"]:
        event["ts"] = 0
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(document))
    assert main(["trace", str(path)]) == 1
    told = capsys.readouterr().out
    assert "has ts 0, not a time above 0" in told
    assert told.count("has ts 0") == 20
    assert "more" in told
    assert main(["trace", str(path), "--json"]) == 1
    assert len(json.loads(capsys.readouterr().out)["problems"]) > 100


def test_command_tells_of_another_programs_trace(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "other.json"
    path.write_text('{"traceEvents": [{"ph": "X", "cat": "node"}]}')
    assert main(["trace", str(path)]) == 1
    assert "problems:" in capsys.readouterr().out


@pytest.mark.parametrize("text", [None, "", "not json", b"\xff\xfe"])
def test_command_refuses_what_is_no_trace(
    tmp_path: Path, text: str | bytes | None, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line that says why, and the exit code for bad input."""
    path = tmp_path / "trace.json"
    if isinstance(text, bytes):
        path.write_bytes(text)
    elif text is not None:
        path.write_text(text)
    assert main(["trace", str(path)]) == 2
    told = capsys.readouterr()
    assert told.err.startswith(f"accy-async: {path}: ")
    assert told.err.count("\n") == 1


def test_command_draws_a_timeline(
    saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["trace", str(saved), "--svg", str(tmp_path / "out.svg")]) == 0
    assert ET.parse(tmp_path / "out.svg").getroot().tag.endswith("svg")
    assert main(["trace", str(saved), "--svg", str(tmp_path / "no" / "o.svg")]) == 2
    assert "--svg" in capsys.readouterr().err


def test_command_prints_no_control_codes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A name from a file cannot move the cursor of who looks at it."""
    data = encode_trace(diamond()).replace(b'"split"', b'"\\u001b[2Jsplit"')
    path = tmp_path / "trace.json"
    path.write_bytes(data)
    assert main(["trace", str(path)]) == 0
    assert "\x1b[2J" not in capsys.readouterr().out
