"""``accy-async bench``: a file's benchmarks run, shown, saved, drawn and compared."""

from __future__ import annotations

import json
import os
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from accy_async.bench import running as running_module
from accy_async.cli.exits import ExitCode
from accy_async.observe import files
from tests.cli.conftest import Run

EXAMPLE = Path(__file__).parents[2] / "examples" / "bench_softmax.py"

TWO = """
import numpy as np
from accy_async.bench import fragment_benchmark

print("said by the file")

@fragment_benchmark(inputs=lambda: [np.ones(64, np.float32)], kernels=False)
def first(x):
    return x + x

@fragment_benchmark(inputs=lambda: [np.ones(64, np.float32)], kernels=False)
def second(x):
    return x * x
"""


@pytest.fixture
def no_ceilings(monkeypatch: pytest.MonkeyPatch) -> None:
    """They take a while to be compiled and measured."""
    monkeypatch.setattr(running_module, "ceiling_kernels", lambda _: ())


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "two.py"
    file.write_text(TWO, encoding="utf-8")
    return file


def test_the_example_is_measured_against_the_devices_ceilings(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BENCH_ROWS", "16")
    monkeypatch.setenv("COLUMNS", "200")  # noise makes figures long, and names wrap
    saved, pictures = tmp_path / "report.json", tmp_path / "pictures"
    ended = run(
        "bench", EXAMPLE, "--device", "cpu", "--samples", 4, "--save", saved,
        "--svg", pictures,
    )  # fmt: skip
    assert ended.code == ExitCode.OK, ended.err
    for words in ("copies at", "multiply-adds (f32) at", "step by step", "512 threads"):
        assert words in ended.out
    document = json.loads(saved.read_bytes())
    assert document["is_complete"]
    names = [one["name"] for one in document["benchmarks"]]
    assert names[0] == "softmax"
    assert names[-1] == "double"
    assert all(one["unit"].endswith("/s") for one in document["ceilings"])
    assert len(list(pictures.glob("*.svg"))) == len(names)
    for picture in pictures.glob("*.svg"):
        assert ET.parse(picture).getroot().tag.endswith("svg")


@pytest.mark.usefixtures("no_ceilings")
def test_json_is_one_document_and_nothing_else(run: Run, file: Path) -> None:
    ended = run("bench", file, "--device", "cpu", "--samples", 4, "--json")
    assert ended.code == 0
    assert ended.document["exit_code"] == 0
    assert [one["name"] for one in ended.document["benchmarks"]] == ["first", "second"]
    assert ended.document["changes"] == []
    assert "said by the file" in ended.err


@pytest.mark.usefixtures("no_ceilings")
def test_a_run_is_compared_with_an_earlier_one_of_the_same_device(
    run: Run, file: Path, tmp_path: Path
) -> None:
    saved = tmp_path / "old.json"
    common = ("bench", file, "--samples", 8, "--device", "cpu")
    run(*common, "--save", saved)
    ended = run(*common, "--compare", saved)
    assert ended.code == 0
    assert "Since the earlier report" in ended.out
    changes = run(*common, "--compare", saved, "--json").document["changes"]
    assert [one["benchmark"] for one in changes] == ["first", "second"]
    assert all(one["low"] <= one["ratio"] <= one["high"] for one in changes)
    other = json.loads(saved.read_bytes())
    other["device"]["fingerprint"] = "0" * 16
    other["versions"]["numpy"] = "1.0"
    saved.write_text(json.dumps(other))
    ended = run(*common, "--compare", saved)
    assert ended.code == ExitCode.USAGE
    assert "the report is of another device" in ended.err
    assert ended.err.count("\n") == 1
    forced = run(*common, "--compare", saved, "--force")
    assert forced.code == 0
    assert "Since the earlier report" in forced.out
    assert "numpy: 1.0 then" in forced.out


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x = 1\nx.y\n", "two.py:2: AttributeError"),
        ("x = (\n", "two.py:1: "),
        ("x = 1\n", "declares no benchmark"),
    ],
)
def test_bad_files_give_one_line_with_the_place(
    run: Run, file: Path, text: str, words: str
) -> None:
    file.write_text(text)
    ended = run("bench", file, "--json")
    assert ended.code == ExitCode.USAGE
    assert words in ended.err
    assert ended.err.count("\n") == 1
    assert ended.document["exit_code"] == 2


def test_options_that_cannot_be_used_are_told_before_anything_runs(
    run: Run, file: Path, tmp_path: Path
) -> None:
    (tmp_path / "bad.json").write_text("{}")
    for arguments, words in (
        (["--force"], "--force is for --compare"),
        (["--device", "tpu"], "--device tpu: there are "),
        (["--compare", tmp_path / "none.json"], "No such file"),
        (["--compare", tmp_path / "bad.json"], "no report"),
        (["--samples", "3"], "samples"),
    ):
        ended = run("bench", file, *arguments)
        assert ended.code == ExitCode.USAGE
        assert words in ended.err
        assert ended.out == ""
    assert "bench expects a FILE" in run("bench").err


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no such pipes")
def test_a_pipe_that_nobody_writes_to_is_not_waited_for(
    run: Run, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "_WRITER_WITHIN_S", 0.0)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for arguments in (("bench", file, "--compare"), ("trace",), ("tune", "import")):
        ended = run(*arguments, pipe)
        assert ended.code == ExitCode.USAGE
        assert "pipe: nobody writes to this pipe" in ended.err


@pytest.mark.usefixtures("no_ceilings")
def test_what_fails_makes_the_exit_code_1_and_is_told(run: Run, file: Path) -> None:
    file.write_text(TWO.replace("return x * x", "return x if x > 0 else -x"))
    ended = run("bench", file, "--device", "cpu", "--samples", 4)
    assert ended.code == ExitCode.CHECK_FAILED
    assert "second: failed" in ended.out
    assert "two.py:13" in ended.out.replace("\n", "")
    lost = run("bench", file, "--device", "cpu", "--save", file / "no" / "where")
    assert lost.code == ExitCode.USAGE
    assert "--save" in lost.err
    assert lost.out == ""  # nothing was measured
    undrawn = run("bench", file, "--device", "cpu", "--samples", 4, "--svg", file)
    assert undrawn.code == ExitCode.USAGE
    assert "--svg" in undrawn.err
    assert undrawn.out == ""
    pictures = file.parent / "pictures"
    (pictures / "first.svg").mkdir(parents=True)  # where a picture was to go
    full = run("bench", file, "--device", "cpu", "--samples", 4, "--svg", pictures)
    assert full.code == ExitCode.USAGE
    assert "--svg" in full.err
    assert "second: failed" in full.out  # what was measured is not lost


@pytest.mark.usefixtures("no_ceilings")
def test_unsteady_conditions_count_where_it_is_to_be_exclusive(
    run: Run, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from accy_async.tuning.race import conditions

    monkeypatch.setattr(conditions, "MOST_DRIFT", -1.0)
    common = ("bench", file, "--device", "recording", "--samples", 8)
    plain = run(*common)
    assert plain.code == 0
    assert "the machine did not hold still" in plain.out
    assert "It executes nothing" in plain.out
    assert run(*common, "--exclusive").code == ExitCode.CHECK_FAILED


@pytest.mark.usefixtures("no_ceilings")
@pytest.mark.parametrize("as_json", [False, True])
def test_ctrl_c_shows_and_saves_what_was_measured(
    run: Run, file: Path, tmp_path: Path, as_json: bool
) -> None:
    interrupting = """
def stop():
    import os, signal, time
    os.kill(os.getpid(), signal.SIGINT)
    return [np.ones(64, np.float32)]

@fragment_benchmark(inputs=stop)
def third(x):
    return x
"""
    file.write_text(TWO + interrupting)
    saved = tmp_path / "part.json"
    more: list[Any] = ["--json"] if as_json else []
    ended = run(
        "bench", file, "--device", "cpu", "--samples", 4, "--save", saved, *more
    )
    assert ended.code == ExitCode.INTERRUPTED
    assert ended.err.endswith("interrupted; everything was given back\n")
    document = json.loads(saved.read_bytes())
    assert not document["is_complete"]
    assert [one["name"] for one in document["benchmarks"]][:2] == ["first", "second"]
    if as_json:
        assert ended.document["exit_code"] == 130
        assert not ended.document["is_complete"]
    else:
        assert "Broken off" in ended.out
        assert "second" in ended.out
