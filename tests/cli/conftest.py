"""Running the command in this process, and reading what it prints."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import attrs
import pytest

from accy_async.cli import main


@attrs.frozen
class Ended:
    """How a command ended: its exit code, and what it printed."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> dict[str, Any]:
        """The one JSON document on the output."""
        found: dict[str, Any] = json.loads(self.out)
        return found


@pytest.fixture
def without_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hides the CUDA driver, as on a machine that has none."""
    from accy_async.backends.cuda import driver

    monkeypatch.setattr(driver, "_has_library", lambda: False)


Run = Callable[..., Ended]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs ``accy-async`` with these arguments."""

    def call(*arguments: object) -> Ended:
        code = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return Ended(int(code), captured.out, captured.err)

    return call
