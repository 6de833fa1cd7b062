"""What machine this process runs on, as far as native code must know.

Source: x86-64 psABI, 3.1.1 Processor Architecture, the table of
micro-architecture levels.
"""

from __future__ import annotations

import functools
import os
import platform
import struct
import sys

__all__ = [
    "X86_64_LEVELS",
    "core_count",
    "cpu_model",
    "host_architecture",
    "host_level",
    "level_supports",
]

# What each level adds, in the names of /proc/cpuinfo: SSE3 is pni there, LZCNT
# abm, LAHF-SAHF lahf_lm. OSXSAVE is not listed, but Linux hides avx without it.
X86_64_LEVELS: dict[str, tuple[str, ...]] = {
    "x86-64-v1": ("cmov", "cx8", "fpu", "fxsr", "mmx", "syscall", "sse", "sse2"),
    "x86-64-v2": ("cx16", "lahf_lm", "popcnt", "pni", "sse4_1", "sse4_2", "ssse3"),
    "x86-64-v3": (
        "avx",
        "avx2",
        "bmi1",
        "bmi2",
        "f16c",
        "fma",
        "abm",
        "movbe",
        "xsave",
    ),
    "x86-64-v4": ("avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"),
}
_ARM_LEVEL = "armv8-a"
_ALIASES = {"amd64": "x86_64", "x64": "x86_64", "arm64": "aarch64"}


@functools.cache
def host_architecture() -> str:
    """``x86_64`` or ``aarch64``; anything else is not supported.

    A 32-bit or big-endian process has another name than these even where its
    processor is one of them, for it cannot run their code.
    """
    machine = platform.machine().lower()
    name = _ALIASES.get(machine, machine) or "unknown"
    if struct.calcsize("P") != 8:
        return f"{name} (32-bit process)"
    if sys.byteorder != "little":
        return f"{name} (big-endian)"
    return name


@functools.cache
def host_level() -> str:
    """The highest instruction-set level that every processor here supports.

    On Linux from ``/proc/cpuinfo``; elsewhere the architecture's baseline, which
    is safe. An unsupported architecture's level is ``unknown``.
    """
    architecture = host_architecture()
    if architecture == "aarch64":
        return _ARM_LEVEL
    if architecture != "x86_64":
        return "unknown"
    return highest_level(_read_cpuinfo())


def highest_level(cpuinfo: str) -> str:
    """The highest x86-64 level of all processors in a ``/proc/cpuinfo`` text."""
    lines = {
        line.partition(":")[2]
        for line in cpuinfo.splitlines()
        if line.partition(":")[0].strip() == "flags"
    }
    flags = frozenset.intersection(*(frozenset(line.split()) for line in lines or [""]))
    best = "x86-64-v1"
    for level, needed in X86_64_LEVELS.items():
        if not flags.issuperset(needed):
            break
        best = level
    return best


def level_supports(host: str, wanted: str) -> bool:
    """Whether a machine of one level runs code for another."""
    levels = list(X86_64_LEVELS)
    if host in levels and wanted in levels:
        return levels.index(host) >= levels.index(wanted)
    return host == wanted == _ARM_LEVEL


@functools.cache
def cpu_model() -> str:
    """The processor's name, as the system tells it; never empty."""
    fields: dict[str, str] = {}
    for line in _read_cpuinfo().splitlines():
        key, _, value = line.partition(":")
        fields.setdefault(key.strip(), value.strip())
    if fields.get("model name"):
        return fields["model name"]
    # Linux on AArch64 gives numbers: the fields of MIDR_EL1.
    implementer, part = fields.get("CPU implementer"), fields.get("CPU part")
    if implementer and part:
        return f"implementer {implementer} part {part}"
    return platform.processor() or host_architecture()


def core_count() -> int:
    """How many processors this process may run on, at least 1.

    Asked anew each time, because the affinity may change.
    """
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0)) or 1
    return os.cpu_count() or 1


@functools.cache
def _read_cpuinfo() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""
