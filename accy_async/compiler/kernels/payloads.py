"""A kernel in the kernel form as the code of a format."""

from __future__ import annotations

from accy_async.artifact.formats import ArtifactFormat, BackendKind
from accy_async.artifact.native.host import host_level
from accy_async.artifact.requirements import PushConstants
from accy_async.artifact.scalarblock import ScalarBlock
from accy_async.compiler.emit import (
    DEFAULT_PTX_TARGET,
    compile_cpu,
    compile_ptx,
    compile_spirv,
    emit_msl,
)
from accy_async.compiler.form import Kernel
from accy_async.errors import InvalidValue

__all__ = ["code_level", "kernel_payload", "kernel_push_constants"]


def code_level(format: ArtifactFormat, level: str | None) -> str:
    """The level that code is made for.

    None is this host's instruction-set level, or a GPU's architecture that all newer
    ones run too.

    Raises:
        InvalidValue: the format has no levels, and one is given.
    """
    if format.backend is BackendKind.CPU:
        return host_level() if level is None else level
    if format.backend is BackendKind.CUDA:
        return DEFAULT_PTX_TARGET if level is None else level
    if level is not None:
        raise InvalidValue("level", level, f"None, as {format} has no levels")
    return ""


def kernel_payload(kernel: Kernel, format: ArtifactFormat, level: str) -> bytes | str:
    """The kernel's code."""
    if format is ArtifactFormat.CUDA_PTX:
        return compile_ptx([kernel], target=level)
    if format is ArtifactFormat.VULKAN_SPIRV:
        return compile_spirv(kernel)
    if format is ArtifactFormat.METAL_MSL:
        return emit_msl([kernel])
    return compile_cpu([kernel], format=format.value, level=level)


def kernel_push_constants(
    kernel: Kernel, format: ArtifactFormat
) -> PushConstants | None:
    """Where the kernel's scalars lie beside its buffers, if they do."""
    if format is not ArtifactFormat.VULKAN_SPIRV:
        return None
    return ScalarBlock(scalar.dtype for scalar in kernel.scalars).push_constants
