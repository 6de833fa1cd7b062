"""The child process: where it is found, how it fails, what it is given."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from accy_async.compiler.emit.text import glslang
from accy_async.compiler.emit.text.glslang import compile_shader, find_glslang
from accy_async.errors import CompilationError, RuntimeUnavailable

_TOOL = f"""#!{sys.executable}
import os, sys
from pathlib import Path
if "--version" in sys.argv:
    sys.exit()
"""
_WRITES = """
place = sys.argv[sys.argv.index("-o") + 1]
Path(place).write_text(os.environ.get("LD_LIBRARY_PATH", "none"))
"""


@pytest.fixture
def prefix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A place for the wheels' tools, and nothing on the path; no module is kept."""
    monkeypatch.setattr(glslang, "_wheels", lambda: tmp_path / "cmeel.prefix")
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    compile_shader.cache_clear()
    yield tmp_path
    compile_shader.cache_clear()


def _install(folder: Path, name: str, script: str, mode: int = 0o755) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    tool = folder / name
    tool.write_text(_TOOL + script)
    tool.chmod(mode)


def test_without_glslang_the_message_says_how_to_get_it(prefix: Path) -> None:
    assert find_glslang() is None
    with pytest.raises(RuntimeUnavailable, match="install accy-async"):
        compile_shader("text", "main")


def test_the_wheels_tool_comes_first_and_finds_its_libraries(prefix: Path) -> None:
    _install(prefix / "path", "glslangValidator", _WRITES)
    assert find_glslang() == str(prefix / "path" / "glslangValidator")
    assert compile_shader("text", "main") == b"none"
    wheels = prefix / "cmeel.prefix"
    _install(wheels / "bin", "glslang", _WRITES)
    assert find_glslang() == str(wheels / "bin" / "glslang")
    assert compile_shader("other", "main") == str(wheels / "lib").encode()


def test_a_wheels_tool_without_its_libraries_is_passed_over(prefix: Path) -> None:
    _install(prefix / "path", "glslang", _WRITES)
    broken = prefix / "cmeel.prefix" / "bin" / "glslang"
    _install(broken.parent, "glslang", "")
    broken.write_text("#!/bin/sh\nexit 127\n")  # as the loader ends it
    assert find_glslang() == str(prefix / "path" / "glslang")


def test_a_validator_that_disagrees_is_heard(prefix: Path) -> None:
    _install(prefix / "path", "glslang", _WRITES)
    _install(prefix / "path", "spirv-val", "sys.exit('error: 7: no such id')")
    with pytest.raises(CompilationError, match="spirv-val refused") as raised:
        compile_shader("text", "main")
    assert "no such id" in raised.value.log


def test_a_tool_that_hangs_or_cannot_be_run_is_an_error(
    prefix: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _install(prefix / "path", "glslang", "import time; time.sleep(60)")
    monkeypatch.setattr(glslang, "_TIMEOUT_S", 0.2)
    with pytest.raises(CompilationError, match=r"glslang did not end within 0\.2 s"):
        compile_shader("text", "main")
    (prefix / "path" / "glslang").write_text("#!/nowhere/at/all\n")
    with pytest.raises(RuntimeUnavailable, match="glslang cannot be run"):
        compile_shader("text", "main")


def test_a_tool_that_says_nothing_and_makes_nothing_is_an_error(prefix: Path) -> None:
    _install(prefix / "path", "glslang", "")
    with pytest.raises(CompilationError, match="glslang made no module"):
        compile_shader("text", "main")
