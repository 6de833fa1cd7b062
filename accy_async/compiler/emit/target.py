"""Which machine the CPU emitter makes code for."""

from __future__ import annotations

import attrs

from accy_async.errors import InvalidValue

__all__ = ["LEVELS", "CpuTarget", "cpu_target"]


@attrs.frozen
class CpuTarget:
    """One instruction-set level, in our words and in LLVM's.

    Source: x86-64 psABI 1.0, table 3.1, for the levels' instructions.
    """

    architecture: str
    level: str
    triple: str
    cpu: str
    converts_halves: bool
    """Whether it has instructions between f16 and f32 (F16C, or AArch64's)."""


LEVELS = {
    target.level: target
    for target in (
        CpuTarget("x86_64", "x86-64-v1", "x86_64-unknown-linux-gnu", "x86-64", False),
        CpuTarget(
            "x86_64", "x86-64-v2", "x86_64-unknown-linux-gnu", "x86-64-v2", False
        ),
        CpuTarget("x86_64", "x86-64-v3", "x86_64-unknown-linux-gnu", "x86-64-v3", True),
        CpuTarget("x86_64", "x86-64-v4", "x86_64-unknown-linux-gnu", "x86-64-v4", True),
        CpuTarget("aarch64", "armv8-a", "aarch64-unknown-linux-gnu", "generic", True),
    )
}


def cpu_target(level: str) -> CpuTarget:
    """The target of a level, as `SignatureTable.level` names it.

    Raises:
        InvalidValue: no such level.
    """
    if level not in LEVELS:
        raise InvalidValue("level", level, "one of " + ", ".join(LEVELS))
    return LEVELS[level]
