"""Whether a SPIR-V module is a compute kernel that Vulkan can be given."""

from __future__ import annotations

from accy_async.artifact.spirv.model import SpirvModule
from accy_async.artifact.spirv.read import read_spirv
from accy_async.errors import InvalidArtifact, KernelEntryMissing

__all__ = ["check_spirv"]


def check_spirv(payload: object, entry_name: str) -> SpirvModule:
    """Refuse a payload that is no compute module with the entry point.

    What the device must have for it is for the caller to compare: the module's
    capabilities, local size and push constants.

    Raises:
        InvalidArtifact: it is malformed, not for Vulkan, or without compute; a
            `KernelEntryMissing` where only the entry point is not there.
    """
    module = read_spirv(payload)
    if "Kernel" in module.capabilities or "Shader" not in module.capabilities:
        raise InvalidArtifact(
            "SPIR-V: capabilities of OpenCL or none of shaders; Vulkan takes shaders"
        )
    names = [entry.name for entry in module.entry_points]
    if not names:
        raise InvalidArtifact("SPIR-V: no entry point for compute (GLCompute)")
    if entry_name not in names:
        listed = ", ".join(map(repr, names))
        raise KernelEntryMissing(
            f"SPIR-V: no entry point {entry_name!r}; the module has {listed}"
        )
    return module
