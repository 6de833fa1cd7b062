"""Kernels that other libraries compiled, as entries for pipelines and graphs.

An entry takes its buffers first, then its scalars, as plain pointers and numbers:
write kernels that way round. What the other library keeps of a kernel (its name, its
shared memory, parameters that it adds) is read from it here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

from accy_async.artifact.entry import KernelCallArtifact
from accy_async.artifact.formats import ArtifactFormat
from accy_async.artifact.geometry import (
    DerivedLaunch,
    Fixed,
    FixedLaunch,
    KernelCallLaunch,
    RuntimeCeilDiv,
)
from accy_async.dtypes import ScalarArgument
from accy_async.errors import InvalidArtifact

__all__ = ["cupy_kernel", "numba_kernel", "triton_kernel"]

_ENTRY = re.compile(r"\.entry\s+([A-Za-z_$%][\w$]*)\s*\(([^)]*)\)", re.DOTALL)

Grid = Sequence[int | RuntimeCeilDiv]


def cupy_kernel(
    kernel: Any,  # noqa: ANN401 - another library's object
    *,
    buffers: int,
    scalars: int,
    launch: KernelCallLaunch,
    target: str | None = None,
) -> KernelCallArtifact:
    """An entry for a CuPy RawKernel, compiled by CuPy with the kernel's own options.

    Compiling takes a while: off the event loop.

    Args:
        kernel: the kernel; made from source, with ``extern "C"``, for NVRTC.
        buffers: how many pointers it takes, before all else.
        scalars: how many numbers it takes after them.
        launch: its geometry.
        target: the entry's name; ``cupy.`` and the kernel's if left out.

    Raises:
        InvalidArtifact: it was not made from source, or not for NVRTC.
    """
    name = str(kernel.name)
    if not kernel.code or kernel.backend != "nvrtc":
        raise InvalidArtifact(
            f"kernel {name!r}: expected a RawKernel made from source for NVRTC"
        )
    compiler = import_module("cupy.cuda.compiler")
    made = compiler.compile_using_nvrtc(kernel.code, tuple(kernel.options))
    image = made[0] if isinstance(made, tuple) else made
    if isinstance(image, str):
        image = image.encode()
    is_cubin = image.startswith(b"\x7fELF")
    return KernelCallArtifact(
        target=target or f"cupy.{name}",
        version=1,
        format=ArtifactFormat.CUDA_CUBIN if is_cubin else ArtifactFormat.CUDA_PTX,
        entry_name=name,
        argument_count=buffers + scalars,
        runtime_scalar_argument_count=scalars,
        payload=image if is_cubin else image.rstrip(b"\0"),
        launch=launch,
    )


def numba_kernel(
    kernel: Any,  # noqa: ANN401 - another library's object
    *,
    launch: KernelCallLaunch,
    target: str | None = None,
) -> KernelCallArtifact:
    """An entry for a Numba CUDA kernel, as PTX.

    Args:
        kernel: what ``numba.cuda.jit(signature)`` gave for one signature, whose
            arguments are ``CPointer`` types, then scalars. (Numba passes an array as
            seven or more values: pointer, shape, strides and others.)
        launch: its geometry.
        target: the entry's name; ``numba.`` and the function's if left out.

    Raises:
        InvalidArtifact: it was compiled for no signature or several, or takes others.
    """
    function = getattr(kernel, "py_func", kernel)
    name = str(getattr(function, "__name__", "kernel"))
    compiled: Mapping[Any, Any] = kernel.inspect_asm()
    if len(compiled) != 1:
        raise InvalidArtifact(
            f"kernel {name!r}: compiled for {len(compiled)} signatures, expected one; "
            "give numba.cuda.jit the signature"
        )
    ((signature, text),) = compiled.items()
    kinds = [type(argument).__name__ == "CPointer" for argument in signature]
    is_array = [type(argument).__name__ == "Array" for argument in signature]
    if any(is_array) or kinds != sorted(kinds, reverse=True):
        raise InvalidArtifact(
            f"kernel {name!r} takes {signature}, expected CPointer types, then scalars"
        )
    entry_name, count = _entry_of(text, name)
    if count != len(kinds):
        raise InvalidArtifact(
            f"kernel {name!r}: {count} parameters in the PTX, {len(kinds)} in its "
            "signature"
        )
    return KernelCallArtifact(
        target=target or f"numba.{name}",
        version=1,
        format=ArtifactFormat.CUDA_PTX,
        entry_name=entry_name,
        argument_count=count,
        runtime_scalar_argument_count=count - sum(kinds),
        payload=text.rstrip("\0"),
        launch=launch,
    )


def triton_kernel(
    compiled: Any,  # noqa: ANN401 - another library's object
    *,
    grid: Grid,
    target: str | None = None,
) -> KernelCallArtifact:
    """An entry for a Triton kernel, as the cubin that Triton made.

    Triton specialises a kernel on the values it is compiled with (pointers and
    integers divisible by 16, integers that are 1): the entry is for launches with
    such values.

    Args:
        compiled: what ``kernel.warmup(..., grid=...)`` or ``kernel[grid](...)`` gave;
            its pointers come first, then its scalars; constants are compiled in.
        grid: one to three extents: numbers, or derived from the runtime scalars.
        target: the entry's name; ``triton.`` and the kernel's if left out.

    Raises:
        InvalidArtifact: arguments in another order, clusters, or memory that Triton's
            own launcher would allocate.
    """
    metadata = compiled.metadata
    name = str(metadata.name)
    where = f"kernel {name!r}"
    kinds = [k for k in _signature(compiled) if k != "constexpr"]
    pointers = [kind.startswith("*") for kind in kinds]
    if pointers != sorted(pointers, reverse=True):
        raise InvalidArtifact(f"{where} takes {kinds}, expected pointers first")
    if getattr(metadata, "num_ctas", 1) != 1:
        raise InvalidArtifact(f"{where}: clusters of {metadata.num_ctas} blocks")
    for what in ("global_scratch_size", "profile_scratch_size"):
        if getattr(metadata, what, 0):
            raise InvalidArtifact(f"{where} needs scratch memory ({what})")
    entry_name, count = _entry_of(compiled.asm["ptx"], name)
    hidden = count - len(kinds)  # pointers to scratch memory, of which there is none
    if hidden < 0:
        raise InvalidArtifact(f"{where}: {count} parameters, expected {len(kinds)}")
    threads = int(metadata.num_warps) * int(getattr(metadata, "warp_size", 32))
    return KernelCallArtifact(
        target=target or f"triton.{name}",
        version=1,
        format=ArtifactFormat.CUDA_CUBIN,
        entry_name=entry_name,
        argument_count=count,
        runtime_scalar_argument_count=len(kinds) - sum(pointers),
        static_arguments=tuple(ScalarArgument.u64(0) for _ in range(hidden)),
        payload=bytes(compiled.asm["cubin"]),
        launch=_launch(grid, threads, int(metadata.shared)),
    )


def _signature(compiled: Any) -> list[str]:  # noqa: ANN401
    signature = compiled.src.signature
    kinds = signature.values() if isinstance(signature, Mapping) else signature
    return [str(kind) for kind in kinds]


def _entry_of(text: str, name: str) -> tuple[str, int]:
    """The name and parameter count of PTX's one entry."""
    found = _ENTRY.findall(text)
    if len(found) != 1:
        raise InvalidArtifact(f"kernel {name!r}: its PTX has {len(found)} entries")
    entry_name, parameters = found[0]
    return entry_name, parameters.count(".param")


def _launch(grid: Grid, threads: int, shared_bytes: int) -> KernelCallLaunch:
    extents = [*grid, 1, 1][:3]
    threadgroup = (threads, 1, 1)
    if all(isinstance(extent, int) for extent in extents):
        return FixedLaunch(
            grid=extents,  # type: ignore[arg-type]
            threadgroup=threadgroup,
            dynamic_shared_memory_bytes=shared_bytes,
        )
    first, second, third = (Fixed(e) if isinstance(e, int) else e for e in extents)
    return DerivedLaunch(
        grid=(first, second, third),
        threadgroup=threadgroup,
        dynamic_shared_memory_bytes=shared_bytes,
    )
