from __future__ import annotations

import os
import platform
import struct
import sys

import pytest

from accy_async.artifact.native import (
    core_count,
    cpu_model,
    host,
    host_architecture,
    host_level,
    level_supports,
)
from accy_async.artifact.native.host import X86_64_LEVELS, highest_level

LEVELS = [*X86_64_LEVELS]


@pytest.mark.parametrize("count", range(1, 5))
def test_highest_level(count: int) -> None:
    """A level needs all its flags and those of every level below it."""
    flags = [flag for level in LEVELS[:count] for flag in X86_64_LEVELS[level]]
    cpuinfo = f"processor\t: 0\nmodel name\t: A\nflags\t\t: {' '.join(flags)}\n"
    assert highest_level(cpuinfo) == LEVELS[count - 1]
    for flag in X86_64_LEVELS[LEVELS[count - 1]] if count > 1 else ():
        fewer = " ".join(other for other in flags if other != flag)
        assert highest_level(f"flags : {fewer}\n") == LEVELS[count - 2]


def test_lowest_of_unlike_processors() -> None:
    v2 = " ".join((*X86_64_LEVELS["x86-64-v1"], *X86_64_LEVELS["x86-64-v2"]))
    v3 = v2 + " " + " ".join(X86_64_LEVELS["x86-64-v3"])
    assert highest_level(f"flags : {v3}\nflags : {v2}\nvmx flags : none\n") == LEVELS[1]


def test_baseline_where_nothing_is_known() -> None:
    assert highest_level("") == "x86-64-v1"


def test_levels_support_those_below() -> None:
    for host_at, host_name in enumerate(LEVELS):
        for wanted_at, wanted in enumerate(LEVELS):
            assert level_supports(host_name, wanted) is (wanted_at <= host_at)
    assert level_supports("armv8-a", "armv8-a")
    assert not level_supports("x86-64-v4", "armv8-a")
    assert not level_supports("armv8-a", "x86-64-v1")
    assert not level_supports("unknown", "unknown")


def test_this_host() -> None:
    assert host_level() in (*LEVELS, "armv8-a", "unknown")
    assert cpu_model()
    assert 1 <= core_count() <= (os.cpu_count() or 1)


@pytest.mark.skipif(sys.platform != "linux", reason="affinity is Linux's")
def test_core_count_follows_affinity() -> None:
    allowed = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(allowed)})
        assert core_count() == 1
    finally:
        os.sched_setaffinity(0, allowed)
    assert core_count() == len(allowed)


@pytest.mark.parametrize(
    ("machine", "expected"),
    [("x86_64", "x86_64"), ("AMD64", "x86_64"), ("arm64", "aarch64"), ("", "unknown")],
)
def test_architecture_names(
    machine: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: machine)
    host_architecture.cache_clear()
    try:
        assert host_architecture() == expected
    finally:
        host_architecture.cache_clear()


def test_model_from_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Linux on AArch64 tells the implementer and part, and no name."""
    text = "processor : 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd0c\n"
    cpu_model.cache_clear()
    monkeypatch.setattr(host, "_read_cpuinfo", lambda: text)
    assert cpu_model() == "implementer 0x41 part 0xd0c"
    cpu_model.cache_clear()
    monkeypatch.setattr(host, "_read_cpuinfo", lambda: "")
    assert cpu_model()
    cpu_model.cache_clear()


@pytest.mark.parametrize(
    ("architecture", "level"),
    [("aarch64", "armv8-a"), ("riscv64", "unknown"), ("x86_64", "x86-64-v1")],
)
def test_level_of_other_hosts(
    architecture: str, level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    host_level.cache_clear()
    monkeypatch.setattr(host, "host_architecture", lambda: architecture)
    monkeypatch.setattr(host, "_read_cpuinfo", lambda: "")
    try:
        assert host_level() == level
    finally:
        host_level.cache_clear()


def test_processes_that_run_neither(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    try:
        host_architecture.cache_clear()
        monkeypatch.setattr(sys, "byteorder", "big")
        assert host_architecture() == "aarch64 (big-endian)"
        host_architecture.cache_clear()
        monkeypatch.setattr(struct, "calcsize", lambda code: 4)
        assert host_architecture() == "aarch64 (32-bit process)"
    finally:
        monkeypatch.undo()
        host_architecture.cache_clear()
