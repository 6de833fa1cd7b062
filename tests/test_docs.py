"""Programs in the documentation run as they stand, and its links lead somewhere."""

from __future__ import annotations

import functools
import importlib
import re
import subprocess
import sys
import types
from pathlib import Path

import pytest

from accy_async import errors

DOCS = Path(__file__).parent.parent / "docs"
PAGES = sorted(DOCS.glob("*.md"))
PROGRAMS = [
    (f"{page.stem}-{number}", program)
    for page in PAGES
    for number, program in enumerate(
        re.findall(r"```python\n(.*?)```", page.read_text("utf-8"), re.DOTALL), 1
    )
]

ROOMS = (
    "",
    "artifact",
    "artifact.native",
    "artifact.spirv",
    "backends",
    "bench",
    "compiler",
    "compiler.emit",
    "compiler.form",
    "compiler.kernelization",
    "compiler.kernels",
    "compiler.nvrtc",
    "compiler.preparation",
    "compiler.semantic",
    "dtypes",
    "errors",
    "fleet",
    "fragment",
    "graph",
    "interop",
    "observe",
    "pipeline",
    "session",
    "tuning",
    "tuning.measuring",
    "tuning.records",
    "tuning.search",
)


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


@functools.cache
def documented() -> frozenset[int]:
    """The ids of what docs/api.md and docs/errors.md list."""
    text = "".join((DOCS / page).read_text("utf-8") for page in ("api.md", "errors.md"))
    found: set[int] = set()
    for name, options in re.findall(r"automodule:: (\S+)\n((?: +.*\n)*)", text):
        members = re.search(r":members:([^:]*)", options)
        if members is not None:
            module = importlib.import_module(name)
            names = re.findall(r"\w+", members[1]) or module.__all__
            found |= {id(getattr(module, name)) for name in names}
    for path in re.findall(r"auto(?:class|function):: (\S+)", text):
        module, _, name = path.rpartition(".")
        found.add(id(getattr(importlib.import_module(module), name)))
    return frozenset(found)


@pytest.mark.parametrize("room", ROOMS)
def test_every_public_name_of_a_room_is_listed(room: str) -> None:
    package = importlib.import_module(f"accy_async{room and '.'}{room}")

    def is_listed(value: object) -> bool:
        is_plain = not isinstance(value, (type, types.FunctionType))
        return is_plain or id(value) in documented()  # plain: an alias, or a module

    left_out = [n for n in package.__all__ if not is_listed(getattr(package, n))]
    assert left_out == []


def test_every_error_has_a_row() -> None:
    """With what else it is, as an ``except`` may name it."""
    text = (DOCS / "errors.md").read_text("utf-8")
    rows = [row.split("|")[1:3] for row in text.splitlines() if row.startswith("| `")]
    parents = {
        name: set(re.findall(r"\w+", also))
        for names, also in rows
        for name in re.findall(r"\w+", names)
    }
    told = {name: parents.get(name) for name in errors.__all__ if is_told(name)}
    assert told == {
        name: {one.__name__ for one in getattr(errors, name).__bases__} - {"AccyError"}
        for name in told
    }


def is_told(name: str) -> bool:
    """Whether it is an exception, and not the parent of them all."""
    value = getattr(errors, name)
    return issubclass(value, Exception) and value is not errors.AccyError


@pytest.mark.parametrize("page", PAGES, ids=[page.stem for page in PAGES])
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    text = page.read_text("utf-8")
    links = [link.partition("#")[0] for link in re.findall(r"\]\(([^)]+)\)", text)]
    local = [link for link in links if link and "://" not in link]
    assert all((DOCS / link).is_file() for link in local)
