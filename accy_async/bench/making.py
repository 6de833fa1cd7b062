"""From a kernel in the kernel form to a candidate of whatever device there is."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from accy_async.artifact.entry import KernelCallArtifact
from accy_async.artifact.formats import ArtifactFormat
from accy_async.artifact.geometry import Dim3, FixedLaunch
from accy_async.compiler.form import Kernel
from accy_async.compiler.kernels.payloads import (
    code_level,
    kernel_payload,
    kernel_push_constants,
)
from accy_async.dtypes import ScalarArgument
from accy_async.errors import CapabilityMismatch
from accy_async.tuning.search import Variant
from accy_async.values import to_tuple

if TYPE_CHECKING:
    from accy_async.backends.capabilities import Capabilities

__all__ = ["compile_variant"]

_FORMATS = (
    ArtifactFormat.CPU_MACHINE_CODE,
    ArtifactFormat.CUDA_PTX,
    ArtifactFormat.VULKAN_SPIRV,
    ArtifactFormat.METAL_MSL,
)


def compile_variant(
    kernel: Kernel,
    capabilities: Capabilities,
    *,
    grid: Dim3,
    scalars: Iterable[ScalarArgument] = (),
) -> Variant:
    """Compile a kernel for a device, to be launched so. Blocks for some tens of ms.

    Args:
        kernel: from a `KernelBuilder`.
        capabilities: the device's.
        grid: blocks in x, y and z.
        scalars: the kernel's scalar arguments.

    Raises:
        CapabilityMismatch: nothing that the emitters make is loaded there.
        RuntimeUnavailable, CompilationError: there is no compiler, or it refused.
    """
    format = _format_for(capabilities)
    return Variant(
        artifact=KernelCallArtifact(
            target=f"accy.bench.{kernel.name}",
            version=1,
            format=format,
            entry_name=kernel.name,
            argument_count=len(kernel.buffers) + len(kernel.scalars),
            runtime_scalar_argument_count=len(kernel.scalars),
            payload=kernel_payload(kernel, format, code_level(format, None)),
            push_constants=kernel_push_constants(kernel, format),
            launch=FixedLaunch(grid=grid, threadgroup=kernel.threadgroup),
        ),
        scalars=to_tuple(scalars),
    )


def _format_for(capabilities: Capabilities) -> ArtifactFormat:
    for format in _FORMATS:
        if format in capabilities.formats:
            return format
    raise CapabilityMismatch(
        f"{capabilities.identity.name} loads no format that there is an emitter for"
    )
