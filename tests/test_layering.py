"""Lower rooms never import higher ones, and no modules import each other in a circle.

Every import statement counts, wherever it stands: inside a function it would
only hide a circle, and under ``TYPE_CHECKING`` it is still knowledge of a higher
room. Only circles are judged without the latter, which never run.
"""

from __future__ import annotations

import ast
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import attrs
import pytest

import accy_async

PACKAGE = "accy_async"


@attrs.frozen
class Room:
    """Modules that belong together, and what they may know of the others.

    ``modules`` are dotted names; each stands for itself and all below it.
    ``below`` are the rooms that may be imported as a whole; ``parts`` maps
    single modules of other rooms that may be imported too to the reason. The
    package's own façade, which imports every room, is for callers.
    """

    name: str
    modules: tuple[str, ...]
    below: frozenset[str] = frozenset()
    parts: Mapping[str, str] = attrs.field(factory=dict)
    sees_facade: bool = False


def _room(
    name: str,
    *below: str,
    parts: Mapping[str, str] | None = None,
    also: str = "",
    sees_facade: bool = False,
) -> Room:
    modules = tuple(f"{PACKAGE}.{module}" for module in (name, *also.split()))
    return Room(
        name=name,
        modules=modules,
        below=frozenset(below),
        parts={f"{PACKAGE}.{part}": why for part, why in (parts or {}).items()},
        sees_facade=sees_facade,
    )


BASE = ("errors", "values", "dtypes")
OBSERVER = {"observe.protocol": "what happens is told through one small protocol"}

ROOMS: tuple[Room, ...] = (
    _room("errors"),
    _room("values", "errors"),
    _room("dtypes", "errors"),
    _room("observe", "errors", "values"),
    _room("artifact", *BASE),
    _room("interop", *BASE, "artifact"),
    _room("backends", *BASE, "artifact", "interop", parts=OBSERVER),
    _room("graph", *BASE, "artifact", "interop", "backends", parts=OBSERVER),
    _room(
        "pipeline", *BASE, "artifact", "interop", "backends", "graph", parts=OBSERVER
    ),
    _room("tuning", *BASE, "artifact", "backends", "graph", parts=OBSERVER),
    _room(
        "compiler",
        *BASE,
        "artifact",
        parts={
            "backends.base": "code is made for declared capabilities, not for a device",
            "backends.capabilities": "as above, where they have a module of their own",
            "tuning.records": "a remembered winner decides between candidates",
            "pipeline.model": "the kernel catalogue describes the pipelines it offers",
            **OBSERVER,
        },
    ),
    _room(
        "fragment",
        *BASE,
        "artifact",
        "interop",
        "backends",
        "graph",
        "tuning",
        "compiler",
        parts=OBSERVER,
    ),
    _room(
        "session",
        *BASE,
        "observe",
        "artifact",
        "interop",
        "backends",
        "graph",
        "pipeline",
        "tuning",
        "compiler",
        "fragment",
        also="bridges",
    ),
    # Above the session, which it opens none of: benchmark files, run in a session.
    _room(
        "bench",
        *BASE,
        "observe",
        "artifact",
        "backends",
        "graph",
        "tuning",
        "compiler",
        "fragment",
        "session",
    ),
    _room(
        "fleet",
        *BASE,
        "artifact",
        "backends",
        "graph",
        "tuning",
        "session",
    ),
    _room(
        "cli",
        *BASE,
        "observe",
        "artifact",
        "backends",
        "graph",
        "pipeline",
        "tuning",
        "compiler",
        "fragment",
        "session",
        "bench",
        also="__main__",
        sees_facade=True,  # the command is a caller, and reports its version
    ),
)

# The only places that may import each of these: behind them stand our protocols.
OUTSIDE: dict[str, tuple[str, ...]] = {
    "asyncio": (f"{PACKAGE}.backends.loops", f"{PACKAGE}.backends.nativecancel"),
    "cuda": (f"{PACKAGE}.backends.cuda", f"{PACKAGE}.compiler.nvrtc"),
    "cyclopts": (f"{PACKAGE}.cli",),
    "llvmlite": (f"{PACKAGE}.compiler.emit",),
    "optuna": (f"{PACKAGE}.tuning.search.strategies",),
    "ray": (f"{PACKAGE}.fleet.rayworkers",),
    "rich": (f"{PACKAGE}.cli", f"{PACKAGE}.observe"),
    "trio": (f"{PACKAGE}.backends.loops",),
    "vulkan": (f"{PACKAGE}.backends.vulkan",),
}


@attrs.frozen
class Import:
    """One import statement, resolved to the module it loads."""

    importer: str
    imported: str
    path: str
    line: int
    typing_only: bool

    def __str__(self) -> str:
        note = " (under TYPE_CHECKING)" if self.typing_only else ""
        return f"{self.path}:{self.line}: {self.importer} imports {self.imported}{note}"


# ---------------------------------------------------------------- reading


def module_names(package: Path) -> dict[str, Path]:
    """Every module of a package's source tree, by its dotted name."""
    modules = {}
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package.parent).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        modules[name] = path
    return modules


def is_type_checking(test: ast.expr) -> bool:
    """Whether this is ``TYPE_CHECKING`` or ``typing.TYPE_CHECKING``."""
    name = test.attr if isinstance(test, ast.Attribute) else getattr(test, "id", None)
    return name == "TYPE_CHECKING"


def statements(
    node: ast.AST, *, typing_only: bool = False
) -> Iterator[tuple[ast.AST, bool]]:
    """All nodes below this one, each with whether only type checkers see it."""
    for child in ast.iter_child_nodes(node):
        hidden = typing_only or (
            isinstance(node, ast.If)
            and is_type_checking(node.test)
            and child in node.body
        )
        yield child, hidden
        yield from statements(child, typing_only=hidden)


def imported_names(node: ast.AST, importer: str, *, is_package: bool) -> list[str]:
    """The dotted names that one node imports, those of attributes included."""
    match node:
        case ast.Import(names=names):
            return [alias.name for alias in names]
        case ast.ImportFrom(module=module, names=names, level=level):
            base = module or ""
            if level:
                parts = importer.split(".")
                kept = parts[: len(parts) - level + is_package]
                base = ".".join([*kept, *([module] if module else [])])
            return [f"{base}.{alias.name}" for alias in names]
        case ast.Call(
            func=ast.Name(id="import_module" | "__import__")
            | ast.Attribute(attr="import_module"),
            args=[ast.Constant(value=str(name)), *_],
        ):
            return [name]
        case _:
            return []


def imports_of(package: Path) -> list[Import]:
    """Every import in a package's source tree; standard library and all."""
    modules = module_names(package)
    found = []
    for importer, path in modules.items():
        tree = ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
        is_package = path.name == "__init__.py"
        for node, typing_only in statements(tree):
            for name in imported_names(node, importer, is_package=is_package):
                imported = name
                # from package import attribute: the package is what is loaded.
                while imported.startswith(f"{package.name}.") and (
                    imported not in modules
                ):
                    imported = imported.rpartition(".")[0]
                found.append(
                    Import(
                        importer=importer,
                        imported=imported,
                        path=path.relative_to(package.parent).as_posix(),
                        line=getattr(node, "lineno", 0),
                        typing_only=typing_only,
                    )
                )
    return found


# ---------------------------------------------------------------- judging


def is_within(module: str, names: Iterable[str]) -> bool:
    """Whether a module is one of these, or below one of them."""
    return any(module == name or module.startswith(f"{name}.") for name in names)


def room_of(module: str) -> Room | None:
    """The room a module lives in; None for the façade and for strangers."""
    return next((room for room in ROOMS if is_within(module, room.modules)), None)


def homeless(modules: Iterable[str]) -> list[str]:
    """Modules that no room of the table names: the table must know them all."""
    return [
        f"{module} lives in no room: give it one in tests/test_layering.py"
        for module in modules
        if module != PACKAGE and room_of(module) is None
    ]


def upward(imports: Iterable[Import]) -> list[str]:
    """The imports that look at a room theirs must not know."""
    complaints = []
    for entry in imports:
        room = room_of(entry.importer)
        if room is None or not is_within(entry.imported, [PACKAGE]):
            continue
        target = room_of(entry.imported)
        if target is not None and target.name in {room.name, *room.below}:
            continue
        if is_within(entry.imported, room.parts) or (
            room.sees_facade and entry.imported == PACKAGE
        ):
            continue
        whose = f"room {target.name!r}" if target is not None else "the façade"
        complaints.append(
            f"{entry}: room {room.name!r} may not import {whose}, only "
            f"{', '.join([*sorted(room.below), *room.parts]) or 'nothing of ours'}"
        )
    return complaints


def misplaced(imports: Iterable[Import]) -> list[str]:
    """The imports of a loop's, driver's or terminal's package outside its place."""
    complaints = []
    for entry in imports:
        places = OUTSIDE.get(entry.imported.partition(".")[0])
        if places is not None and not is_within(entry.importer, places):
            complaints.append(f"{entry}: only {', '.join(places)} may")
    return complaints


def cycles(imports: Iterable[Import]) -> list[str]:
    """One complaint for each circle of modules, naming the imports that make it.

    A circle is found from its first module in alphabetical order, as the
    shortest way back to it; modules already in a circle begin no second one.
    """
    edges: dict[str, dict[str, Import]] = {}
    for entry in imports:
        if not entry.typing_only and is_within(entry.imported, [PACKAGE]):
            edges.setdefault(entry.importer, {}).setdefault(entry.imported, entry)
    complaints = []
    seen: set[str] = set()
    for start in sorted(edges):
        way = None if start in seen else shortest_way_back(start, edges)
        if way is not None:
            seen.update(entry.importer for entry in way)
            complaints.append("circle: " + "; ".join(map(str, way)))
    return complaints


def shortest_way_back(
    start: str, edges: Mapping[str, Mapping[str, Import]]
) -> list[Import] | None:
    """The fewest imports that lead from a module to itself."""
    queue: deque[list[Import]] = deque([[entry] for entry in edges[start].values()])
    reached: set[str] = set()
    while queue:
        way = queue.popleft()
        end = way[-1].imported
        if end == start:
            return way
        if end not in reached:
            reached.add(end)
            queue.extend([*way, entry] for entry in edges.get(end, {}).values())
    return None


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
