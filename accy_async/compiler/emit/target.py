"""Which machines the emitters make code for."""

from __future__ import annotations

import attrs

from accy_async.errors import InvalidValue

__all__ = ["LEVELS", "CpuTarget", "PtxTarget", "cpu_target", "ptx_target"]


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
    features: str = ""

    @property
    def multiplies_and_adds(self) -> bool:
        """Whether it has instructions that do both at once.

        Exp, log and tanh are then written out, and vector units compute several.
        """
        return self.level not in ("x86-64-v1", "x86-64-v2")


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


@attrs.frozen
class PtxTarget:
    """One GPU architecture and PTX version, in LLVM's words."""

    cpu: str
    features: str
    triple: str = "nvptx64-nvidia-cuda"


_LEAST_PTX = {
    "sm_70": "6.0", "sm_72": "6.1", "sm_75": "6.3", "sm_80": "7.0", "sm_86": "7.1",
    "sm_87": "7.4", "sm_89": "7.8", "sm_90": "7.8", "sm_100": "8.6", "sm_120": "8.7",
}  # fmt: skip
"""The first PTX version with each architecture: PTX ISA, Release History. LLVM ends
the process where it is given an older one."""

_PTX_VERSIONS = (
    "6.0", "6.1", "6.3", "6.4", "6.5", "7.0", "7.1", "7.2", "7.3", "7.4", "7.5", "7.6",
    "7.7", "7.8", "8.0", "8.1", "8.2", "8.3", "8.4", "8.5", "8.6", "8.7", "8.8",
)  # fmt: skip


def ptx_target(target: str, version: str | None) -> PtxTarget:
    """The target of an architecture; None is its lowest PTX version.

    Raises:
        InvalidValue: no such architecture or version, or one too old for the other.
    """
    if target not in _LEAST_PTX:
        raise InvalidValue("target", target, "one of " + ", ".join(_LEAST_PTX))
    least = _PTX_VERSIONS.index(_LEAST_PTX[target])
    version = _LEAST_PTX[target] if version is None else version
    if version not in _PTX_VERSIONS[least:]:
        listed = ", ".join(_PTX_VERSIONS[least:])
        raise InvalidValue("ptx_version", version, f"for {target} one of {listed}")
    return PtxTarget(cpu=target, features="+ptx" + version.replace(".", ""))
