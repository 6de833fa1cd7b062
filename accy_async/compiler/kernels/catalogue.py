"""The library as registry entries, compiled when first asked for.

A registry has one entry for a target, so each holds the kernels of one dtype.
"""

from __future__ import annotations

import functools
from collections.abc import Collection

from accy_async.artifact.entry import KernelCallArtifact, KernelCallRegistry
from accy_async.artifact.formats import ArtifactFormat, BackendKind, artifact_format
from accy_async.artifact.geometry import (
    DerivedLaunch,
    Fixed,
    FixedLaunch,
    KernelCallLaunch,
    RuntimeCeilDiv,
)
from accy_async.artifact.parameters import KernelBuffer
from accy_async.compiler.kernels import scan, scan_gpu
from accy_async.compiler.kernels.elementwise import (
    ARITHMETIC_DTYPES,
    add,
    axpy,
    copy,
    fill,
)
from accy_async.compiler.kernels.library import LibraryKernel
from accy_async.compiler.kernels.payloads import (
    code_level,
    kernel_payload,
    kernel_push_constants,
)
from accy_async.compiler.kernels.pipelines import LIBRARY_VERSION
from accy_async.compiler.kernels.scan import SCAN_DTYPES
from accy_async.dtypes import DType
from accy_async.errors import InvalidValue, UnsupportedOperation

__all__ = [
    "LIBRARY_VERSION",
    "cpu_registry",
    "cuda_registry",
    "library_entries",
    "library_kernels",
    "library_registry",
]

_FORMATS = (
    ArtifactFormat.CPU_MACHINE_CODE,
    ArtifactFormat.CPU_OBJECT,
    ArtifactFormat.CUDA_PTX,
    ArtifactFormat.VULKAN_SPIRV,
    ArtifactFormat.METAL_MSL,
)
"""What the library is compiled to."""


@functools.cache
def library_kernels(
    dtype: DType, backend: BackendKind = BackendKind.CPU
) -> tuple[LibraryKernel, ...]:
    """The kernels that the library has for a dtype, one for each target.

    Those for one kind of device give the same bits as those for another; how a block
    goes about its elements, and how many it takes, may differ.
    """
    makers = [fill, copy]
    if dtype in ARITHMETIC_DTYPES:
        makers += [add, axpy]
    if dtype in SCAN_DTYPES:
        of = scan if backend is BackendKind.CPU else scan_gpu
        makers += [of.tile_sums, of.sums_scan, of.tile_scan]
    return tuple(make(dtype) for make in makers)


def library_entries(
    format: ArtifactFormat | str = ArtifactFormat.CPU_MACHINE_CODE,
    *,
    dtype: DType = DType.F32,
    targets: Collection[str] | None = None,
    level: str | None = None,
) -> tuple[KernelCallArtifact, ...]:
    """Registry entries with their code.

    Args:
        format: a CPU format, CUDA's PTX, SPIR-V, or Metal's text.
        dtype: the element type of all the kernels.
        targets: the names wanted; None is all that the dtype has.
        level: what the code may use at least: a CPU's instruction-set level, or an
            NVIDIA GPU's architecture as ``"sm_80"``. None is this host's level, or
            an architecture that all newer ones run too. SPIR-V and Metal's text have
            no levels: they are for the default `VulkanTarget` and `MetalTarget`.

    Returns:
        Entries whose runtime scalars are the kernel's scalars: the element count
        first, which the grid follows from.

    Raises:
        UnsupportedOperation: the library has no such format; a
            `CapabilityMismatch` for f64 on Metal.
        InvalidValue: a target the dtype has not got, or an unknown level.
        RuntimeUnavailable: SPIR-V is asked for, and there is no glslang.

    Compiles what was not asked for before, some 40 ms a kernel, 100 ms to SPIR-V:
    call it in a worker thread.
    """
    wanted = artifact_format(format)
    if wanted not in _FORMATS:
        raise UnsupportedOperation(
            f"the kernel library has no {wanted}, only "
            + ", ".join(str(format) for format in _FORMATS)
        )
    kernels = library_kernels(dtype, wanted.backend)
    known = [kernel.target for kernel in kernels]
    for target in targets or ():
        if target not in known:
            raise InvalidValue("targets", target, "one of " + ", ".join(known))
    level = code_level(wanted, level)
    return tuple(
        _entry(kernel, wanted, level)
        for kernel in kernels
        if targets is None or kernel.target in targets
    )


def library_registry(
    format: ArtifactFormat | str = ArtifactFormat.CPU_MACHINE_CODE,
    *,
    dtype: DType = DType.F32,
    targets: Collection[str] | None = None,
    level: str | None = None,
) -> KernelCallRegistry:
    """A registry of `library_entries`, with the same arguments and errors.

    With ``backend.default_format`` it is one that the backend takes.
    """
    return KernelCallRegistry(
        library_entries(format, dtype=dtype, targets=targets, level=level)
    )


def cpu_registry(
    format: ArtifactFormat | str = ArtifactFormat.CPU_MACHINE_CODE,
    *,
    dtype: DType = DType.F32,
    targets: Collection[str] | None = None,
    level: str | None = None,
) -> KernelCallRegistry:
    """`library_registry` for CPUs."""
    return library_registry(
        _of_backend(format, BackendKind.CPU), dtype=dtype, targets=targets, level=level
    )


def cuda_registry(
    format: ArtifactFormat | str = ArtifactFormat.CUDA_PTX,
    *,
    dtype: DType = DType.F32,
    targets: Collection[str] | None = None,
    level: str | None = None,
) -> KernelCallRegistry:
    """`library_registry` for NVIDIA GPUs."""
    return library_registry(
        _of_backend(format, BackendKind.CUDA), dtype=dtype, targets=targets, level=level
    )


def _of_backend(format: ArtifactFormat | str, backend: BackendKind) -> ArtifactFormat:
    wanted = artifact_format(format)
    if wanted.backend is not backend:
        raise UnsupportedOperation(f"{wanted} is no format of {backend}")
    return wanted


@functools.cache
def _entry(
    library: LibraryKernel, format: ArtifactFormat, level: str
) -> KernelCallArtifact:
    kernel = library.kernel
    return KernelCallArtifact(
        target=library.target,
        version=LIBRARY_VERSION,
        format=format,
        entry_name=kernel.name,
        argument_count=len(kernel.buffers) + len(kernel.scalars),
        payload=kernel_payload(kernel, format, level),
        launch=_launch(library),
        runtime_scalar_argument_count=len(kernel.scalars),
        required_dtypes=frozenset(buffer.dtype for buffer in kernel.buffers),
        buffers=tuple(
            KernelBuffer(
                dtype=buffer.dtype,
                access=buffer.access,
                elements=RuntimeCeilDiv(
                    argument_index=0,
                    divisor=library.tile if buffer.name in library.tile_buffers else 1,
                ),
            )
            for buffer in kernel.buffers
        ),
        push_constants=kernel_push_constants(kernel, format),
    )


def _launch(library: LibraryKernel) -> KernelCallLaunch:
    threadgroup, per_block = library.kernel.threadgroup, library.elements_per_block
    if per_block is None:
        return FixedLaunch(grid=(1, 1, 1), threadgroup=threadgroup)
    blocks = RuntimeCeilDiv(argument_index=0, divisor=per_block)
    return DerivedLaunch(grid=(blocks, Fixed(1), Fixed(1)), threadgroup=threadgroup)
