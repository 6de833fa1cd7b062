"""The other ways in: `accy_async.run`, and ``python -m benchmarks``."""

from __future__ import annotations

from typing import Any

import anyio.lowlevel
import pytest

import accy_async
from accy_async.errors import InvalidType
from benchmarks import __main__ as benchmarks


async def answer() -> int:
    await anyio.lowlevel.checkpoint()
    return 42


def test_run_takes_the_function() -> None:
    assert accy_async.run(answer) == 42


def test_run_of_a_coroutine_says_what_to_pass_and_closes_it() -> None:
    """No warning follows that it was never awaited."""
    coroutine: Any = answer()
    with pytest.raises(InvalidType, match=r"pass the function itself: run\(main\)"):
        accy_async.run(coroutine)
    assert coroutine.cr_frame is None


def test_run_of_something_else_is_refused() -> None:
    wrong: Any = 3
    with pytest.raises(InvalidType, match=r"run\.main: got 3"):
        accy_async.run(wrong)


@pytest.mark.parametrize("asked", ["-h", "--help"])
def test_benchmarks_help_names_them(
    asked: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert benchmarks.main([asked]) == 0
    told = capsys.readouterr().out
    assert all(name in told for name in benchmarks.NAMES)


def test_unknown_benchmark_points_to_the_help(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert benchmarks.main(["nothing"]) == 2
    assert "python -m benchmarks --help" in capsys.readouterr().out
