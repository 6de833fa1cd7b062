"""What a Vulkan backend has to know of a SPIR-V module."""

from __future__ import annotations

import attrs

__all__ = ["CAPABILITIES", "SpirvBinding", "SpirvEntryPoint", "SpirvModule"]

CAPABILITIES = {
    1: "Shader",
    6: "Kernel",
    9: "Float16",
    10: "Float64",
    11: "Int64",
    12: "Int64Atomics",
    22: "Int16",
    39: "Int8",
    61: "GroupNonUniform",
    62: "GroupNonUniformVote",
    63: "GroupNonUniformArithmetic",
    64: "GroupNonUniformBallot",
    65: "GroupNonUniformShuffle",
    4433: "StorageBuffer16BitAccess",
    4434: "UniformAndStorageBuffer16BitAccess",
    4435: "StoragePushConstant16",
    4448: "StorageBuffer8BitAccess",
    4449: "UniformAndStorageBuffer8BitAccess",
    4450: "StoragePushConstant8",
    4464: "DenormPreserve",
    4465: "DenormFlushToZero",
    4466: "SignedZeroInfNanPreserve",
    4467: "RoundingModeRTE",
    4468: "RoundingModeRTZ",
    5345: "VulkanMemoryModel",
    5346: "VulkanMemoryModelDeviceScope",
    5347: "PhysicalStorageBufferAddresses",
}
"""Names of capabilities that compute kernels declare; others are their number."""


@attrs.frozen
class SpirvBinding:
    """A resource that a descriptor must be bound to.

    Attributes:
        set, binding: where.
        kind: ``storage_buffer``, ``uniform_buffer`` or ``other`` (images, samplers).
        is_readable, is_writable: False where the module says that it does not.
    """

    set: int
    binding: int
    kind: str
    is_readable: bool = True
    is_writable: bool = True


@attrs.frozen
class SpirvEntryPoint:
    """An entry point for compute.

    Attributes:
        name: as the pipeline asks for it.
        local_size: threads of a workgroup in x, y, z; where specialisation
            constants set it, their defaults.
    """

    name: str
    local_size: tuple[int, int, int]


@attrs.frozen
class SpirvModule:
    """A module, as far as it was read.

    Attributes:
        version: of SPIR-V, as ``(1, 5)``.
        capabilities: names of what it declares that it needs.
        extensions: names of the extensions it uses.
        entry_points: those for compute, in order.
        bindings: the resources of the whole module, by set and binding.
        push_constant_bytes: the end of its push constants; 0 without any.
        execution_modes: numbers of the modes of its entry points with their
            literals, such as ``(4462, 32)``: rounding to nearest even in 32 bits.
        shared_bytes: what the arrays that the threads of a workgroup share take
            together, padding aside.
    """

    version: tuple[int, int]
    capabilities: frozenset[str]
    extensions: tuple[str, ...]
    entry_points: tuple[SpirvEntryPoint, ...]
    bindings: tuple[SpirvBinding, ...]
    push_constant_bytes: int
    execution_modes: frozenset[tuple[int, ...]]
    shared_bytes: int = 0
