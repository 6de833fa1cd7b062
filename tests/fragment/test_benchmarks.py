"""The benchmarks of fragments run here, as far as no GPU is needed, at tiny extents."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from benchmarks import fragment_calls
from benchmarks.fragment_cases import CASES, Case
from benchmarks.gpu import fragments


@pytest.fixture(autouse=True)
def few_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fragment_calls, "ROUNDS", 1)
    monkeypatch.setattr(fragment_calls, "CALLS", 2)


def tiny(case: Case) -> Case:
    """The same program of a few elements."""
    shapes = tuple(tuple(min(n, 8) for n in shape) for shape in case.shapes)
    return Case(
        name=case.name,
        make=case.make,
        shapes=shapes,
        moved=case.moved,
        is_product=case.is_product,
    )


@pytest.mark.parametrize("how", [[], ["--dry"]], ids=["calls", "device times"])
def test_each_section_prints_its_figures(
    how: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cases = {name: (tiny(of[0]),) for name, of in CASES["cpu"].items()}
    monkeypatch.setitem(CASES, "cpu", cases)
    fragment_calls.main([*how, *cases, "tiny"])
    told = capsys.readouterr().out
    assert all(case.name in told for of in cases.values() for case in of)
    assert told.count("ours, exact") >= len(cases)
    assert "await fragment(x)" in told
    assert ("the device's copy" in told) is bool(how)


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_the_cases_compute_what_numpy_does(kind: str) -> None:
    """Each program is the same whoever stands for numpy."""
    from accy_async.compiler import tensor, trace_program

    for case in (tiny(case) for of in CASES[kind].values() for case in of):
        arrays = [a.astype(np.float32) for a in case.arguments()]
        program = trace_program(case.make(tensor), *case.types)
        expected = np.asarray(case.make(np)(*arrays))
        given: Any = program.evaluate(*arrays)
        np.testing.assert_allclose(given, expected, rtol=1e-4, atol=1e-5)


def test_a_section_that_hangs_or_fails_loses_no_others(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = []

    def run(command: list[str], *, timeout: float, check: bool) -> Any:
        asked.append(command)
        if len(asked) == 1:
            raise subprocess.TimeoutExpired(command, timeout)
        assert not check
        return subprocess.CompletedProcess(command, 1)

    monkeypatch.setattr(subprocess, "run", run)
    fragments.main()
    assert [command[-3] for command in asked] == list(fragment_calls.SECTIONS)
    assert asked[0][:2] == [sys.executable, "-m"]
    told = capsys.readouterr().out
    assert "not done within" in told
    assert "ended with 1" in told
