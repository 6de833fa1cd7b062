"""The Vulkan benchmarks run on what there is, and name what there is not."""

from __future__ import annotations

import sys

import pytest

from benchmarks.vulkan import __main__ as program
from benchmarks.vulkan import sections

pytestmark = pytest.mark.vulkan


def test_every_section_prints_its_table(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sections, "SIZES", (10,))
    monkeypatch.setattr(sections, "TOGETHER", 8)
    monkeypatch.setattr(sections, "_WAKES", 4)
    monkeypatch.setitem(sys.modules, "wgpu", None)
    assert program.main(["--rounds", "1"]) == 0
    told = capsys.readouterr().out
    for words in (
        "bare vkQueueSubmit, each alone",
        "ours on Vulkan, 8 together",
        "A node of a replay of 10, eight chains, awaited",
        "ours on Vulkan, prepared",
        "ours on Vulkan, asyncio",
        "ours on Vulkan, trio",
        "wgpu-py: left out: ",
    ):
        assert words in told


def test_unknown_sections_and_devices_are_named(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert program.main(["scam"]) == 2
    assert program.main(["--device", "abacus", "wake"]) == 1
    told = capsys.readouterr().out
    assert "no such section: scam; there are launch, replay, wake" in told
    assert "abacus" in told


def test_a_section_that_fails_leaves_the_others(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(settings: sections.Settings) -> None:
        raise RuntimeError("no such luck")

    done: list[str] = []
    monkeypatch.setattr(
        program, "SECTIONS", {"one": broken, "two": lambda _: done.append("two")}
    )
    assert program.main([]) == 1
    assert done == ["two"]
    assert "no such luck" in capsys.readouterr().err
