"""Lower rooms never import higher ones, and no modules import each other in a circle.

Every import statement counts, wherever it stands: inside a function it would
only hide a circle, and under ``TYPE_CHECKING`` it is still knowledge of a higher
room. Only circles are judged without the latter, which never run.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

import accy_async
from tests.layering import (
    Import,
    cycles,
    homeless,
    imports_of,
    misplaced,
    module_names,
    upward,
)
from tests.rooms import PACKAGE

# ---------------------------------------------------------------- the package


@pytest.fixture(scope="module")
def package() -> Path:
    assert accy_async.__file__ is not None
    return Path(accy_async.__file__).parent


@pytest.fixture(scope="module")
def imports(package: Path) -> list[Import]:
    """Every import of the package."""
    return imports_of(package)


def report(complaints: list[str]) -> str:
    return "\n".join(["", *complaints])


def test_every_module_lives_in_a_room(package: Path) -> None:
    """A new module is placed in the table before anything else."""
    complaints = homeless(module_names(package))
    assert not complaints, report(complaints)


def test_no_room_imports_a_higher_one(imports: list[Import]) -> None:
    """Lower rooms never import higher ones, not even for type checking."""
    complaints = upward(imports)
    assert not complaints, report(complaints)


def test_loops_and_drivers_stay_behind_their_doors(imports: list[Import]) -> None:
    """Each event loop, driver and terminal library has one place that knows it."""
    complaints = misplaced(imports)
    assert not complaints, report(complaints)


def test_no_modules_import_each_other_in_a_circle(imports: list[Import]) -> None:
    """The modules can be put in an order in which each imports only earlier ones."""
    complaints = cycles(imports)
    assert not complaints, report(complaints)


# ---------------------------------------------------------------- the checker


def plant(root: Path, files: Mapping[str, str]) -> Path:
    """Write a small package of these files; missing ``__init__.py`` are empty."""
    package = root / PACKAGE
    for name, text in files.items():
        path = package / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    for folder in {package, *(path.parent for path in package.rglob("*.py"))}:
        (folder / "__init__.py").touch()
    return package


SOUND = {
    "errors.py": "class AccyError(Exception): ...\n",
    "artifact/kernel.py": "from accy_async.errors import AccyError\n",
    "graph/plan.py": "import accy_async.artifact.kernel\nimport json\n",
}


def test_checker_passes_a_sound_tree(tmp_path: Path) -> None:
    """Downward imports and those of the standard library raise no complaint."""
    package = plant(tmp_path, SOUND)
    imports = imports_of(package)
    assert [entry.imported for entry in imports] == [
        "accy_async.errors",
        "accy_async.artifact.kernel",
        "json",
    ]
    assert homeless(module_names(package)) == []
    assert upward(imports) + misplaced(imports) + cycles(imports) == []


@pytest.mark.parametrize(
    "statement",
    [
        "from accy_async.graph import plan\n",
        "from accy_async.graph.plan import Plan\n",
        "import accy_async.graph.plan as plan\n",
        "from ..graph import plan\n",
        "def late():\n    from accy_async.graph.plan import Plan\n",
        "if TYPE_CHECKING:\n    from accy_async.graph.plan import Plan\n",
        "import typing\nif typing.TYPE_CHECKING:\n    import accy_async.graph.plan\n",
        "try:\n    import accy_async.graph.plan\nexcept ImportError:\n    pass\n",
        "plan = importlib.import_module('accy_async.graph.plan')\n",
    ],
)
def test_checker_catches_an_upward_import(tmp_path: Path, statement: str) -> None:
    """However it is written, it is reported with its place and both modules."""
    package = plant(tmp_path, {**SOUND, "artifact/shapes.py": statement})
    (complaint,) = upward(imports_of(package))
    line = statement[: statement.index("graph")].count("\n") + 1
    assert complaint.startswith(
        f"accy_async/artifact/shapes.py:{line}: accy_async.artifact.shapes imports "
        "accy_async.graph.plan"
    )
    assert ("under TYPE_CHECKING" in complaint) == ("TYPE_CHECKING" in statement)
    assert "room 'artifact' may not import room 'graph'" in complaint


def test_checker_lets_a_room_see_only_the_parts_named(tmp_path: Path) -> None:
    """The compiler knows the capabilities of backends, and no backend."""
    package = plant(
        tmp_path,
        {
            "backends/base.py": "",
            "backends/cpu/device.py": "",
            "compiler/good.py": "from accy_async.backends.base import Capabilities\n",
            "compiler/bad.py": "from accy_async.backends.cpu.device import Device\n",
        },
    )
    (complaint,) = upward(imports_of(package))
    assert complaint.startswith("accy_async/compiler/bad.py:1: ")


def test_checker_keeps_the_facade_for_callers(tmp_path: Path) -> None:
    """No room but the command imports the package's own façade."""
    source = "from accy_async import Session\n"
    package = plant(tmp_path, {"graph/plan.py": source, "cli/main.py": source})
    (complaint,) = upward(imports_of(package))
    assert complaint.startswith("accy_async/graph/plan.py:1: ")
    assert "the façade" in complaint


def test_checker_catches_a_circle(tmp_path: Path) -> None:
    """Three modules in a circle are one complaint naming all three imports."""
    package = plant(
        tmp_path,
        {
            "graph/a.py": "from accy_async.graph import b\n",
            "graph/b.py": "def late():\n    import accy_async.graph.c\n",
            "graph/c.py": "from accy_async.graph.a import thing\n",
            "graph/d.py": "from accy_async.graph.a import thing\n",
        },
    )
    assert cycles(imports_of(package)) == [
        "circle: "
        "accy_async/graph/a.py:1: accy_async.graph.a imports accy_async.graph.b; "
        "accy_async/graph/b.py:2: accy_async.graph.b imports accy_async.graph.c; "
        "accy_async/graph/c.py:1: accy_async.graph.c imports accy_async.graph.a"
    ]


def test_checker_allows_a_circle_of_types(tmp_path: Path) -> None:
    """What only type checkers import makes no circle when the program runs."""
    package = plant(
        tmp_path,
        {
            "graph/a.py": "import accy_async.graph.b\n",
            "graph/b.py": "if TYPE_CHECKING:\n    import accy_async.graph.a\n",
        },
    )
    assert cycles(imports_of(package)) == []


def test_checker_catches_a_driver_outside_its_backend(tmp_path: Path) -> None:
    """A loop's or driver's package is known by one place only."""
    package = plant(
        tmp_path,
        {
            "backends/cuda/device.py": "from cuda.bindings import driver\n",
            "backends/loops.py": "import asyncio\nimport trio\n",
            "session.py": "def late():\n    import trio.lowlevel\n",
            "pipeline/run.py": "from cuda.bindings import driver\n",
        },
    )
    assert misplaced(imports_of(package)) == [
        "accy_async/pipeline/run.py:1: accy_async.pipeline.run imports "
        "cuda.bindings.driver: only accy_async.backends.cuda, "
        "accy_async.compiler.nvrtc may",
        "accy_async/session.py:2: accy_async.session imports "
        "trio.lowlevel: only accy_async.backends.loops may",
    ]


def test_checker_asks_for_a_room(tmp_path: Path) -> None:
    """A module the table does not know is named."""
    package = plant(tmp_path, {"helpers.py": ""})
    (complaint,) = homeless(module_names(package))
    assert complaint.startswith("accy_async.helpers lives in no room")
