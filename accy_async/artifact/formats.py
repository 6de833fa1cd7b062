"""The formats that compiled kernels come in, and the backends that take them."""

from __future__ import annotations

from enum import Enum

from accy_async.values import member_of

__all__ = ["ArtifactFormat", "BackendKind", "artifact_format", "backend_kind"]


class BackendKind(str, Enum):
    """A family of devices that one backend drives."""

    CUDA = "cuda"
    VULKAN = "vulkan"
    METAL = "metal"
    CPU = "cpu"

    def __str__(self) -> str:
        return self.value

    @property
    def default_format(self) -> ArtifactFormat:
        """The format a backend of this kind is given when none is named."""
        return _DEFAULT_FORMAT[self]


class ArtifactFormat(str, Enum):
    """What the bytes of a kernel artifact are."""

    CUDA_PTX = "cuda_ptx"
    """NVIDIA PTX assembly; text."""

    CUDA_CUBIN = "cuda_cubin"
    """An NVIDIA device binary (ELF)."""

    CPU_MACHINE_CODE = "cpu_machine_code"
    """A linked, position-independent image of native code."""

    CPU_OBJECT = "cpu_object"
    """A relocatable ELF object of native code."""

    VULKAN_SPIRV = "vulkan_spirv"
    """A SPIR-V module."""

    METAL_MSL = "metal_msl"
    """Metal Shading Language source; text."""

    def __str__(self) -> str:
        return self.value

    @property
    def backend(self) -> BackendKind:
        """The kind of backend that loads the format."""
        return _BACKEND[self]

    @property
    def is_text(self) -> bool:
        """True where the payload is source text rather than a binary."""
        return self in (ArtifactFormat.CUDA_PTX, ArtifactFormat.METAL_MSL)


_BACKEND = {
    ArtifactFormat.CUDA_PTX: BackendKind.CUDA,
    ArtifactFormat.CUDA_CUBIN: BackendKind.CUDA,
    ArtifactFormat.CPU_MACHINE_CODE: BackendKind.CPU,
    ArtifactFormat.CPU_OBJECT: BackendKind.CPU,
    ArtifactFormat.VULKAN_SPIRV: BackendKind.VULKAN,
    ArtifactFormat.METAL_MSL: BackendKind.METAL,
}
_DEFAULT_FORMAT = {
    BackendKind.CUDA: ArtifactFormat.CUDA_PTX,
    BackendKind.VULKAN: ArtifactFormat.VULKAN_SPIRV,
    BackendKind.METAL: ArtifactFormat.METAL_MSL,
    BackendKind.CPU: ArtifactFormat.CPU_MACHINE_CODE,
}


def artifact_format(value: ArtifactFormat | str) -> ArtifactFormat:
    """Converter: a format, or its value as text."""
    return member_of(ArtifactFormat, value)


def backend_kind(value: BackendKind | str) -> BackendKind:
    """Converter: a backend kind, or its value as text."""
    return member_of(BackendKind, value)
