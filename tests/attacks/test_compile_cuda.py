"""What is no source, no option and no store: refused before anything is compiled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from accy_async.compiler.nvrtc import compile_cuda
from accy_async.errors import InvalidType, InvalidValue

SOURCE = 'extern "C" __global__ void k() {}'


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("entries", 5),
        ("entries", None),
        ("options", 5),
        ("include_dirs", 5),
        ("headers", "text"),
        ("headers", [1]),
        ("cache", "folder"),
        ("cache", {}),
    ],
)
def test_of_another_type(field: str, value: Any) -> None:
    given: dict[str, Any] = {"entries": "k", "architecture": "sm_90", "cache": False}
    with pytest.raises(InvalidType, match=field):
        compile_cuda(SOURCE, **{**given, field: value})


def test_text_that_is_none_in_utf8(tmp_path: Path) -> None:
    """In the call and in a file."""
    file = tmp_path / "kernel.cu"
    file.write_bytes(b"\xff\xfe")
    for source, entry in (("\ud800", "k"), (SOURCE, "\ud800"), (file, "k")):
        with pytest.raises(InvalidValue):
            compile_cuda(source, entry, architecture="sm_90", cache=False)
