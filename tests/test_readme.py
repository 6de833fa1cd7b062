"""The README's program runs, its links lead somewhere, its commands are marked."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")


PROGRAMS = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)


@pytest.mark.parametrize("program", PROGRAMS, ids=["pipeline", "fragment", "graph"])
def test_program_of_the_readme_runs(program: str) -> None:
    """As it stands, in a new process, printing nothing."""
    result = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (result.returncode, result.stderr, result.stdout) == (0, "", "")


@pytest.mark.parametrize("name", ["demo", "tests", "quick"])
def test_command_of_the_readme_is_one_line(name: str) -> None:
    """Each marker is followed by a block with one line, for readers and for checks."""
    pattern = rf"<!-- command: {name} -->\n```sh\n([^\n]+)\n```"
    assert len(re.findall(pattern, TEXT)) == 1


def test_links_of_the_readme_lead_somewhere() -> None:
    links = re.findall(r"\]\(([^)]+)\)", TEXT)
    assert links
    missing = [link for link in links if not (ROOT / link).exists()]
    assert not missing


def test_quick_tests_of_the_readme_are_there() -> None:
    """Its paths exist, and pytest is asked for nothing that it would refuse."""
    found = re.search(r"<!-- command: quick -->\n```sh\n([^\n]+)\n```", TEXT)
    assert found is not None
    words = found[1].split()
    assert words[1:4] == ["-m", "pytest", "-q"]
    assert words[4:]
    for path in words[4:]:
        assert (ROOT / path).exists(), path
