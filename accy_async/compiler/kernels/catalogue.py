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
from accy_async.artifact.native.host import host_level
from accy_async.compiler.emit import compile_cpu
from accy_async.compiler.kernels.elementwise import (
    ARITHMETIC_DTYPES,
    add,
    axpy,
    copy,
    fill,
)
from accy_async.compiler.kernels.library import LibraryKernel
from accy_async.compiler.kernels.pipelines import LIBRARY_VERSION
from accy_async.compiler.kernels.scan import (
    SCAN_DTYPES,
    add_base,
    block_scan,
    sums_scan,
)
from accy_async.dtypes import DType
from accy_async.errors import InvalidValue, UnsupportedOperation

__all__ = ["LIBRARY_VERSION", "cpu_registry", "library_entries", "library_kernels"]


@functools.cache
def library_kernels(dtype: DType) -> tuple[LibraryKernel, ...]:
    """The kernels that the library has for a dtype, one for each target."""
    makers = [fill, copy]
    if dtype in ARITHMETIC_DTYPES:
        makers += [add, axpy]
    if dtype in SCAN_DTYPES:
        makers += [block_scan, sums_scan, add_base]
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
        format: a CPU format.
        dtype: the element type of all the kernels.
        targets: the names wanted; None is all that the dtype has.
        level: the instruction-set level; None is this host's.

    Returns:
        Entries whose runtime scalars are the kernel's scalars: the element count
        first, which the grid follows from.

    Raises:
        UnsupportedOperation: no CPU format.
        InvalidValue: a target the dtype has not got, or an unknown level.

    Compiles what was not asked for before, some 40 ms a kernel: call it in a
    worker thread.
    """
    wanted = artifact_format(format)
    if wanted.backend is not BackendKind.CPU:
        raise UnsupportedOperation(
            f"the CPU kernel library has no {wanted}, only "
            f"{ArtifactFormat.CPU_MACHINE_CODE} and {ArtifactFormat.CPU_OBJECT}"
        )
    kernels = library_kernels(dtype)
    known = [kernel.target for kernel in kernels]
    for target in targets or ():
        if target not in known:
            raise InvalidValue("targets", target, "one of " + ", ".join(known))
    level = host_level() if level is None else level
    return tuple(
        _entry(kernel, wanted, level)
        for kernel in kernels
        if targets is None or kernel.target in targets
    )


def cpu_registry(
    format: ArtifactFormat | str = ArtifactFormat.CPU_MACHINE_CODE,
    *,
    dtype: DType = DType.F32,
    targets: Collection[str] | None = None,
    level: str | None = None,
) -> KernelCallRegistry:
    """A registry of `library_entries`, with the same arguments and errors."""
    return KernelCallRegistry(
        library_entries(format, dtype=dtype, targets=targets, level=level)
    )


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
        payload=compile_cpu([kernel], format=format.value, level=level),
        launch=_launch(library),
        runtime_scalar_argument_count=len(kernel.scalars),
        required_dtypes=frozenset(buffer.dtype for buffer in kernel.buffers),
    )


def _launch(library: LibraryKernel) -> KernelCallLaunch:
    threadgroup, per_block = library.kernel.threadgroup, library.elements_per_block
    if per_block is None:
        return FixedLaunch(grid=(1, 1, 1), threadgroup=threadgroup)
    blocks = RuntimeCeilDiv(argument_index=0, divisor=per_block)
    return DerivedLaunch(grid=(blocks, Fixed(1), Fixed(1)), threadgroup=threadgroup)
