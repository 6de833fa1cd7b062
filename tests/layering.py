"""Reading the imports of a source tree, and judging them by the table of rooms."""

from __future__ import annotations

import ast
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import attrs

from tests.rooms import OUTSIDE, PACKAGE, ROOMS, Room

__all__ = [
    "Import",
    "cycles",
    "homeless",
    "imports_of",
    "misplaced",
    "module_names",
    "upward",
]


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
        f"{module} lives in no room: give it one in tests/rooms.py"
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
