"""Which glslang is taken: one that can be run."""

from __future__ import annotations

from pathlib import Path

import pytest

from accy_async.compiler.emit.text import glslang


def script(folder: Path, code: int) -> Path:
    folder.mkdir(parents=True)
    tool = folder / "glslang"
    tool.write_text(f"#!/bin/sh\nexit {code}\n")
    tool.chmod(0o755)
    return tool


@pytest.mark.parametrize("code", [0, 127])
def test_a_tool_of_the_wheels_is_taken_where_it_can_be_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """One whose libraries are not there ends with 127; the system's is taken then."""
    own = script(tmp_path / "wheels" / "bin", code)
    systems = script(tmp_path / "system", 0)
    monkeypatch.setattr(glslang, "_wheels", lambda: tmp_path / "wheels")
    monkeypatch.setenv("PATH", str(systems.parent))
    expected = own if code == 0 else systems
    assert glslang.find_glslang() == str(expected)
