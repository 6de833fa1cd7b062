"""What a source includes, found without a preprocessor.

A compile is known by everything that it reads. NVRTC cannot say what that was, so
all that it might read is looked at instead: every file that an ``#include`` could
mean, in every folder where it would be searched, whichever ``#if`` is around it. So
too much may be counted, which costs a compile, and nothing too little. Where that
cannot be known, as with ``#include MACRO``, there is no answer.

Source: ISO C++20 [cpp.include], [cpp.cond] (``__has_include``).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

__all__ = ["inputs_of"]

Inputs = tuple[tuple[str, str, str], ...]

_MOST_FILES = 20_000
"""Beyond that a folder contains itself."""

_SPLICE = re.compile(r"\\[ \t]*\r?\n")
_COMMENT = r"(?:[ \t\f\v]|/\*(?:[^*]|\*(?!/))*\*/)*"
_INCLUDE = re.compile(
    rf"^(?:[^\n]*?\*/)?{_COMMENT}(?:\#|%:|\?\?=){_COMMENT}"
    rf"(?:include_next|include|import)\b{_COMMENT}(?P<rest>[^\n]*)",
    re.MULTILINE,
)
_HAS_INCLUDE = re.compile(r"\b__has_include(?:_next)?\s*\(\s*(?=(?P<rest>[^\n]*))")
_NAME = re.compile(r"<([^>\n]+)>|\"([^\"\n]+)\"")
_CHANGES_BY_ITSELF = re.compile(r"\b__(?:DATE|TIME|TIMESTAMP)__\b")


def inputs_of(
    source: str, folders: Sequence[Path], headers: Mapping[str, str]
) -> Inputs | None:
    """Everything that compiling a source may read.

    Args:
        source: the source.
        folders: where includes are searched.
        headers: texts that are included by their names, before files.

    Returns:
        For each thing that an include may mean its name, where it is and its
        SHA-256 (both empty where there is none), in an order of its own; None where
        it cannot be known, or where the code is to change with the clock.
    """
    found: set[tuple[str, str, str]] = set()
    seen: set[tuple[str, Path | None]] = set()
    texts: dict[Path, str | None] = {}
    todo: list[tuple[str, Path | None]] = [(source, None)]
    while todo:
        spliced, folder = todo.pop()
        text = _SPLICE.sub("", spliced)
        if _CHANGES_BY_ITSELF.search(text):
            return None
        for name in _included_names(text):
            if name is None:
                return None
            if (name, folder) in seen:
                continue
            seen.add((name, folder))
            if len(seen) > _MOST_FILES:
                return None
            is_there = False
            if name in headers:
                is_there = True
                found.add((name, "", _digest(headers[name])))
                todo.append((headers[name], None))
            for place in (*((folder,) if folder is not None else ()), *folders):
                path = place / name
                if path not in texts:
                    texts[path] = _read(path)
                content = texts[path]
                if content is not None:
                    is_there = True
                    found.add((name, str(path), _digest(content)))
                    todo.append((content, path.parent))
            if not is_there:
                found.add((name, "", ""))
    return tuple(sorted(found))


def _included_names(text: str) -> Iterator[str | None]:
    """The names in the includes of a text; None for one that is computed."""
    if "include" not in text and "import" not in text:
        return
    for pattern in (_INCLUDE, _HAS_INCLUDE):
        for match in pattern.finditer(text):
            name = _NAME.match(match["rest"])
            if name is not None:
                yield name[1] or name[2]
            else:
                yield None


def _read(path: Path) -> str | None:
    """A file's bytes, one character each; None where there is no such file."""
    try:
        return path.read_bytes().decode("latin-1")
    except (OSError, ValueError):
        return None


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
