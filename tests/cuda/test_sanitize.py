"""The program that runs kernels under compute-sanitizer, with one made up."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tools import sanitize


@pytest.fixture
def sanitizer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One that says what it was told, and ends as the file beside it says."""
    program = tmp_path / "compute-sanitizer"
    program.write_text(
        '#!/bin/sh\necho "told $@"\nexit $(cat "$(dirname "$0")/code")\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    return program


@pytest.mark.parametrize(
    ("code", "message"),
    [(0, "racecheck: clean"), (9, "found errors"), (1, "tests themselves failed (1)")],
)
def test_each_tool_runs_its_tests_and_says_what_came_of_it(
    sanitizer: Path, capfd: pytest.CaptureFixture[str], code: int, message: str
) -> None:
    (sanitizer.parent / "code").write_text(str(code))
    assert sanitize.main(["memcheck", "racecheck", "--", "--maxfail=3"]) == bool(code)
    told = capfd.readouterr().out
    assert message in told
    runs = [line for line in told.splitlines() if line.startswith("told")]
    assert ["--tool=memcheck" in runs[0], "--tool=racecheck" in runs[1]] == [True, True]
    for line in runs:
        assert f"{sys.executable} -m pytest" in line
        assert line.endswith("--maxfail=3")


def test_what_is_not_there_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert sanitize.main(["memchk"]) == 2
    assert "no tool 'memchk'; there are memcheck" in capsys.readouterr().out
    monkeypatch.setattr(sanitize, "find_sanitizer", lambda: None)
    assert sanitize.main([]) == 2
    assert "comes with the CUDA toolkit" in capsys.readouterr().out


def test_a_tool_that_takes_too_long_is_ended_with_what_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    program, pipe = tmp_path / "compute-sanitizer", tmp_path / "pipe"
    os.mkfifo(pipe)
    program.write_text(f"#!/bin/sh\n(echo up; exec sleep 60) > '{pipe}' &\nwait\n")
    program.chmod(0o755)
    awaited = subprocess.Popen.wait

    def wait(started: subprocess.Popen[bytes], timeout: float | None = None) -> int:
        if timeout is None:
            return awaited(started)
        assert heard.readline() == b"up\n"
        raise subprocess.TimeoutExpired("it", timeout)

    monkeypatch.setattr(subprocess.Popen, "wait", wait)
    # Opened to write as well until the child has it: else this waits for the child.
    with os.fdopen(os.open(pipe, os.O_RDWR), "rb", buffering=0) as heard:
        assert not sanitize.run(str(program), "memcheck", limit_s=2)
        with pipe.open("rb") as left:
            os.dup2(left.fileno(), heard.fileno())
        assert heard.read() == b""  # nobody has it open to write: the child is gone
    assert "memcheck: not done within 2 s" in capsys.readouterr().out


def test_pytest_takes_what_it_is_told_with_the_settings_of_the_project() -> None:
    told = sanitize.command("it", "memcheck", ["--collect-only"])
    told = [one for one in told if one not in sanitize.SUBSETS["memcheck"]]
    ended = subprocess.run(
        [*told[told.index(sys.executable) :], str(Path(__file__))],
        capture_output=True, text=True, check=False,
        cwd=Path(sanitize.__file__).parent.parent,
    )  # fmt: skip
    assert ended.returncode == 5, ended.stdout + ended.stderr  # none is for a GPU
    assert "deselected" in ended.stdout


def test_what_the_tools_run_is_there() -> None:
    root = Path(sanitize.__file__).parent.parent
    for tests in sanitize.SUBSETS.values():
        assert all((root / test).is_file() for test in tests)
