"""Programs in the documentation run as they stand, and its links lead somewhere."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parent.parent / "docs"
PAGES = sorted(DOCS.glob("*.md"))
PROGRAMS = [
    (f"{page.stem}-{number}", program)
    for page in PAGES
    for number, program in enumerate(
        re.findall(r"```python\n(.*?)```", page.read_text("utf-8"), re.DOTALL), 1
    )
]


@pytest.mark.parametrize(
    "program", [text for _, text in PROGRAMS], ids=[name for name, _ in PROGRAMS]
)
def test_program_of_the_documentation_runs(program: str) -> None:
    result = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (result.returncode, result.stderr) == (0, "")


def test_every_page_is_in_the_contents() -> None:
    contents = (DOCS / "index.md").read_text("utf-8").split("{toctree}")[1]
    listed = set(re.findall(r"^([a-z]+)$", contents, re.MULTILINE))
    assert listed == {page.stem for page in PAGES} - {"index"}


@pytest.mark.parametrize("page", PAGES, ids=[page.stem for page in PAGES])
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    text = page.read_text("utf-8")
    links = [link.partition("#")[0] for link in re.findall(r"\]\(([^)]+)\)", text)]
    local = [link for link in links if link and "://" not in link]
    assert all((DOCS / link).is_file() for link in local)
