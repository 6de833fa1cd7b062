"""What a source includes, found without a preprocessor.

A compile is known by everything that it reads. NVRTC cannot say what that was, so
all that it might read is looked at instead: every file that an ``#include`` could
mean, in every folder where it would be searched, whichever ``#if`` is around it. So
too much may be counted, which costs a compile, and nothing too little. Where that
cannot be known, as with ``#include MACRO``, there is no answer.

Source: ISO C++20 [cpp.include], [cpp.cond] (``__has_include``).
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import attrs

__all__ = ["inputs_of"]

Inputs = tuple[tuple[str, str, str], ...]

_MOST_FILES = 20_000
"""Beyond that a folder contains itself."""

_SETTLED_NS = 2_000_000_000
"""A file that was written less than this ago may change again under the same time."""

_SPLICE = re.compile(r"\\[ \t]*\r?\n")
_WORD = re.compile(r"(?<!\w)(?:include_next|include|import)(?!\w)")
# What stands before the word on its line: a comment's end, and the directive's sign,
# which may be lines above where a comment is between.
_BEFORE = re.compile(r"(?:.*\*/)?\s*(?:(?:#|%:|\?\?=)(?:\s|/\*(?:[^*]|\*(?!/))*\*/)*)?")
_SIGN = re.compile(r"#|%:|\?\?=|\*/")
_COMMENTS = re.compile(r"(?:[ \t\f\v]|/\*(?:[^*]|\*(?!/))*\*/)*")
_HAS_INCLUDE = re.compile(r"\b__has_include(?:_next)?\s*\(\s*(?=([^\n]*))")
_NAME = re.compile(r"<([^>\n]+)>|\"([^\"\n]+)\"")
_CHANGE_BY_THEMSELVES = ("__DATE__", "__TIME__", "__TIMESTAMP__")


@attrs.frozen
class _Text:
    """What is to be known of a text.

    Attributes:
        digest: its SHA-256.
        names: what it may include; None where that cannot be known, or where what it
            becomes changes with the clock.
    """

    digest: str
    names: tuple[str, ...] | None


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
    files: dict[Path, _Text | None] = {}
    todo: list[tuple[_Text, Path | None]] = [(_look_at(source.encode()), None)]
    while todo:
        text, folder = todo.pop()
        if text.names is None:
            return None
        for name in text.names:
            if (name, folder) in seen:
                continue
            seen.add((name, folder))
            if len(seen) > _MOST_FILES:
                return None
            is_there = False
            if name in headers:
                is_there = True
                held = _look_at(headers[name].encode())
                found.add((name, "", held.digest))
                todo.append((held, None))
            for place in (*((folder,) if folder is not None else ()), *folders):
                path = place / name
                if path not in files:
                    files[path] = _read(path)
                there = files[path]
                if there is not None:
                    is_there = True
                    found.add((name, str(path), there.digest))
                    todo.append((there, path.parent))
            if not is_there:
                found.add((name, "", ""))
    return tuple(sorted(found))


def _look_at(data: bytes) -> _Text:
    digest = hashlib.sha256(data).hexdigest()
    text = data.decode("latin-1")
    if "\\" in text:
        text = _SPLICE.sub("", text)
    if any(macro in text for macro in _CHANGE_BY_THEMSELVES):
        return _Text(digest, None)
    names = list(_included_names(text))
    known = [name for name in names if name is not None]
    return _Text(digest, tuple(known) if len(known) == len(names) else None)


def _included_names(text: str) -> Iterator[str | None]:
    """The names in the includes of a text; None for one that is computed."""
    for word in _words(text):
        line = text[text.rfind("\n", 0, word.start()) + 1 : word.start()]
        if _SIGN.search(line) and _BEFORE.fullmatch(line):
            comments = _COMMENTS.match(text, word.end())
            yield _name_at(text, comments.end() if comments else word.end())
    if "__has_include" in text:
        for asked in _HAS_INCLUDE.finditer(text):
            yield _name_at(text, asked.end())


def _words(text: str) -> Iterator[re.Match[str]]:
    """Where a directive's word stands; found ten times faster than by the pattern."""
    for begins in ("include", "import"):
        at = text.find(begins)
        while at >= 0:
            word = _WORD.match(text, at)
            if word is not None:
                yield word
            at = text.find(begins, at + len(begins))


def _name_at(text: str, position: int) -> str | None:
    name = _NAME.match(text, position)
    return None if name is None else _encoded(name[1] or name[2])


def _encoded(name: str) -> str:
    """A name that was read a byte a character, as the text that it is."""
    return os.fsdecode(name.encode("latin-1"))


def _read(path: Path) -> _Text | None:
    """A file; None where there is none. Looked at once, until it changes."""
    try:
        status = path.stat()
        if time.time_ns() - status.st_mtime_ns < _SETTLED_NS:
            return _look_at(path.read_bytes())
        return _read_once(path, status.st_mtime_ns, status.st_size, status.st_ino)
    except (OSError, ValueError):
        return None


@functools.lru_cache(maxsize=4096)
def _read_once(path: Path, changed_ns: int, size: int, number: int) -> _Text:
    del changed_ns, size, number  # another file where one of them is another
    return _look_at(path.read_bytes())
