"""Everything that a compile may read is counted, or it is said to be unknown."""

from __future__ import annotations

from pathlib import Path

import pytest

from accy_async.compiler.nvrtc.headers import inputs_of


def names(source: str) -> set[str] | None:
    inputs = inputs_of(source, [], {})
    return None if inputs is None else {name for name, _, _ in inputs}


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("int x;", set()),
        ('#include "a.h"', {"a.h"}),
        ("#include <a/b.h>", {"a/b.h"}),
        (' \t# /* odd */ include /* x */ "a.h" // why', {"a.h"}),
        ("/* over\nlines */ #include <a.h>", {"a.h"}),
        ('#inc\\\nlude "a.h"', {"a.h"}),
        ("%:include <a.h>", {"a.h"}),
        ('#include_next "a.h"', {"a.h"}),
        ('#if 0\n#include "a.h"\n#endif', {"a.h"}),
        ('// see #include "a.h"', set()),
        (" * #include FOO\n", set()),
        ('"/*"\n#include "a.h"\n"*/"', {"a.h"}),
        ('#if __has_include(<a.h>) && __has_include("b.h")', {"a.h", "b.h"}),
        ("#ifdef __has_include\n#endif", set()),
        ("#if defined(__has_include) && __has_include(<a.h>)", {"a.h"}),
        ("#include MACRO", None),
        ("#if __has_include(MACRO)", None),
        ("const char* when = __DATE__;", None),
        ("const char* when = __TIMESTAMP__;", None),
    ],
)
def test_includes_of_a_text(source: str, expected: set[str] | None) -> None:
    assert names(source) == expected


def test_every_file_that_may_be_meant_is_counted(tmp_path: Path) -> None:
    first, second = tmp_path / "1", tmp_path / "2"
    for folder in (first, second, second / "deep"):
        folder.mkdir()
    (second / "a.h").write_text('#include "deep/b.h"')
    (second / "deep" / "b.h").write_text('#include "c.h"\n#include "mine.h"')
    (second / "deep" / "c.h").write_text("int c;")
    headers = {"mine.h": "#include <a.h>"}
    source = "#include <a.h>"

    def look() -> object:
        return inputs_of(source, [first, second], headers)

    before = look()
    assert before == look()
    paths = {path for _, path, _ in look()}  # type: ignore[attr-defined]
    assert paths == {
        "",
        str(second / "a.h"),
        str(second / "deep" / "b.h"),
        str(second / "deep" / "c.h"),
    }
    (second / "deep" / "c.h").write_text("int d;")
    after = look()
    assert after != before
    (first / "a.h").write_text("// in front of the other")
    assert look() != after


def test_file_that_includes_itself_ends(tmp_path: Path) -> None:
    (tmp_path / "a.h").write_text('#pragma once\n#include "a.h"\n')
    inputs = inputs_of('#include "a.h"', [tmp_path], {})
    assert inputs is not None
    assert len(inputs) == 1


def test_folder_that_contains_itself_is_unknown(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to(tmp_path, target_is_directory=True)
    (tmp_path / "a.h").write_text('#include "loop/a.h"')
    inputs_of('#include "a.h"', [tmp_path], {})  # it ends, in either way
