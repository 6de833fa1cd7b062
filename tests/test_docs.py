"""Programs in the documentation run as they stand, and its links lead somewhere."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
import types
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


@pytest.mark.parametrize(
    "room", ["artifact", "bench", "fleet", "tuning", "tuning.search"]
)
def test_every_public_name_of_a_room_is_listed(room: str) -> None:
    package = importlib.import_module(f"accy_async.{room}")
    text = (DOCS / "api.md").read_text("utf-8")
    modules = dict(re.findall(r"automodule:: (\S+)\n((?: +.*\n)*)", text))
    alone = set(re.findall(r"auto(?:class|function):: (\S+)", text))

    def is_listed(name: str) -> bool:
        value = getattr(package, name)
        if not isinstance(value, (type, types.FunctionType)):
            return True  # an alias, or a module
        options = modules.get(value.__module__, "")
        members = re.search(r":members:([^:]*)", options)
        named = set() if members is None else set(re.findall(r"\w+", members[1]))
        is_whole = members is not None and not named
        return is_whole or name in named or f"{package.__name__}.{name}" in alone

    assert [name for name in package.__all__ if not is_listed(name)] == []


@pytest.mark.parametrize("page", PAGES, ids=[page.stem for page in PAGES])
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    text = page.read_text("utf-8")
    links = [link.partition("#")[0] for link in re.findall(r"\]\(([^)]+)\)", text)]
    local = [link for link in links if link and "://" not in link]
    assert all((DOCS / link).is_file() for link in local)
